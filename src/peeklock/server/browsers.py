"""Protection against web pages: requests that a page makes through a browser are refused by their `Host` and `Origin`.

A browser can reach a broker that the author of a page cannot, and a broker on loopback accepts a well-known key. A page
that opens a WebSocket is recognised by its `Origin`. A page whose host name resolves to the broker's address (DNS
rebinding) has the same origin as the broker and is recognised by its `Host`. Programs other than browsers send no
`Origin`, or the origin of the address they connect to.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from peeklock.server.loopback import is_loopback

ANY: Final = "*"
"""In the list of allowed host names or origins: allows all."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_MAX_SHOWN: Final = 100


class BrowserGuard:
    """Decides which `Host` and `Origin` are accepted by a broker that listens on `bound_to`."""

    def __init__(
        self,
        bound_to: str,
        *,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
        insecure_default_key: bool = False,
    ) -> None:
        self._is_local = is_loopback(bound_to)
        self._bound_to = _folded(bound_to)
        self._hosts = frozenset(map(_folded, allowed_hosts))
        self._origins = frozenset(origin.rstrip("/").casefold() for origin in allowed_origins)
        self._insecure_default_key = insecure_default_key

    def refusal(self, host: str | None, origin: str | None) -> str | None:
        """Return why a request with these headers is refused, or None. Browsers always send `Host`."""
        if host is not None and not self._accepts_host(host):
            return f"The host name '{host[:_MAX_SHOWN]}' is not allowed: add it with --allowed-host."
        if origin is not None and not self._accepts_origin(origin, host):
            return f"The origin '{origin[:_MAX_SHOWN]}' is not allowed: add it with --allowed-origin."
        return None

    def _accepts_host(self, header: str) -> bool:
        host = host_of(header)
        if host is None:
            return False
        if is_loopback(host) or host in self._hosts or ANY in self._hosts:
            return True
        if self._is_local:
            return False
        # An address in Host is no DNS name, so it cannot be the result of DNS rebinding.
        if host == self._bound_to or _is_address(host):
            return True
        if self._hosts:
            return False
        # Clients use the names of container services, so names are accepted by default. Where the well-known key is not
        # accepted, a page has no key and the name does not matter. Where it is accepted, only names without a dot are
        # safe: they cannot be registered in the public DNS.
        return not self._insecure_default_key or "." not in host

    def _accepts_origin(self, origin: str, host: str | None) -> bool:
        if ANY in self._origins or origin.casefold() in self._origins:
            return True
        try:
            parts = urlsplit(origin)
            own = urlsplit(f"//{host or ''}")
            if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
                return False
            default = DEFAULT_PORTS[parts.scheme]
            return (parts.hostname, parts.port or default) == (own.hostname, own.port or default)
        except ValueError:
            return False


def host_of(header: str) -> str | None:
    """Return the name or address in a `Host` header, without its port; None if the header is invalid."""
    try:
        parts = urlsplit(f"//{header}")
        parts.port  # noqa: B018 - raises ValueError when the port is invalid
    except ValueError:
        return None
    if not parts.hostname or parts.netloc != header or parts.username is not None:
        return None
    return _folded(parts.hostname)


def is_own_machine(header: str | None) -> bool:
    """Return whether a `Host` header is missing or names loopback: a name that cannot belong to another machine."""
    if header is None:
        return True
    host = host_of(header)
    return host is not None and is_loopback(host)


def _folded(host: str) -> str:
    return host.strip("[]").rstrip(".").casefold()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
