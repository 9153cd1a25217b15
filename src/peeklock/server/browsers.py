"""Requests that a web page makes through its visitor's browser: `Host` and `Origin` tell them apart.

A browser reaches a broker that the page's author cannot, and the loopback default has a key that everybody knows. A
page that opens a WebSocket gives itself away by its `Origin`. A page that has its own host name point at the broker's
address (DNS rebinding) is of the same origin as the broker, and gives itself away by its `Host`. Other programs send no
`Origin`, or that of the address they connect to.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from peeklock.server.loopback import is_loopback

ANY: Final = "*"
"""In place of a host name or an origin: all of them."""
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
        """Why a request with these headers is refused; None when it is not. A browser never omits `Host`."""
        if host is not None and not self._accepts_host(host):
            return f"The host name '{host[:_MAX_SHOWN]}' is not one of this broker's: add it with --allowed-host."
        if origin is not None and not self._accepts_origin(origin, host):
            return f"The origin '{origin[:_MAX_SHOWN]}' may not use this broker: add it with --allowed-origin."
        return None

    def _accepts_host(self, header: str) -> bool:
        host = host_of(header)
        if host is None:
            return False
        if is_loopback(host) or host in self._hosts or ANY in self._hosts:
            return True
        if self._is_local:
            return False
        # No DNS name can be made to look like an address.
        if host == self._bound_to or _is_address(host):
            return True
        if self._hosts:
            return False
        # Services of containers have names that clients must be able to use. Where the well-known key does not work
        # a name proves nothing and the key everything; where it does, only a name without a dot cannot be somebody's
        # in the public DNS.
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
    """The name or address in a `Host` header, without its port; None when it has none."""
    try:
        parts = urlsplit(f"//{header}")
        parts.port  # noqa: B018 - raises ValueError when it is none
    except ValueError:
        return None
    if not parts.hostname or parts.netloc != header or parts.username is not None:
        return None
    return _folded(parts.hostname)


def is_own_machine(header: str | None) -> bool:
    """Whether a `Host` header names this machine by a name that only this machine gives itself."""
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
