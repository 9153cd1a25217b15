"""AMQP URLs and Service Bus connection strings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

AMQP_PORT: Final = 5672
AMQPS_PORT: Final = 5671
HTTPS_PORT: Final = 443

_KEYS: Final = {
    "endpoint": "Endpoint",
    "hostname": "HostName",
    "sharedaccesskeyname": "SharedAccessKeyName",
    "sharedaccesskey": "SharedAccessKey",
    "sharedaccesssignature": "SharedAccessSignature",
    "entitypath": "EntityPath",
    "usedevelopmentemulator": "UseDevelopmentEmulator",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address and the credentials in a URL or a connection string."""

    host: str
    port: int
    tls: bool
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    key_name: str | None = None
    key: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    """A ready shared access signature."""
    entity_path: str | None = None
    http_port: int = field(default=0, compare=False)
    """The port of the administration: the given port, or 443, or without TLS the port of AMQP."""

    @property
    def has_token(self) -> bool:
        """Whether there is a key or a signature for `$cbs`."""
        return self.token is not None or self.key is not None


def parse_endpoint(text: str) -> Endpoint:
    """Parse `amqp://user:pass@host:port`, `amqps://…` or `Endpoint=sb://…;…`. ValueError if it is none of them."""
    text = text.strip()
    if text.lower().startswith(("amqp://", "amqps://")):
        return _parse_url(text)
    if "=" in text:
        return _parse_connection_string(text)
    raise ValueError("expected a URL (amqp://host:port, amqps://host) or a connection string (Endpoint=sb://host/;…)")


def _parse_url(text: str) -> Endpoint:
    url = urlsplit(text)
    tls = url.scheme.lower() == "amqps"
    host, port = _host_and_port(url, "the URL")
    return Endpoint(
        host=host,
        port=port or (AMQPS_PORT if tls else AMQP_PORT),
        http_port=port or (HTTPS_PORT if tls else AMQP_PORT),
        tls=tls,
        user=None if url.username is None else unquote(url.username),
        password=None if url.password is None else unquote(url.password),
        entity_path=unquote(url.path.strip("/")) or None,
    )


def _parse_connection_string(text: str) -> Endpoint:
    parts: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, value = part.partition("=")
        known = _KEYS.get(name.strip().lower())
        if not equals or known is None:
            raise ValueError(f"the connection string has an unknown part '{name.strip()}'; known parts are {_known()}")
        if known in parts:
            raise ValueError(f"the connection string has {known} twice")
        parts[known] = value.strip()
    address = parts.get("Endpoint") or parts.get("HostName")
    if not address:
        raise ValueError("the connection string has no Endpoint")
    url = urlsplit(address if "://" in address else f"sb://{address}")
    host, port = _host_and_port(url, "Endpoint")
    emulator = parts.get("UseDevelopmentEmulator", "false").lower()
    if emulator not in ("true", "false"):
        raise ValueError(f"UseDevelopmentEmulator must be true or false, not '{emulator}'")
    key_name, key = parts.get("SharedAccessKeyName"), parts.get("SharedAccessKey")
    if (key_name is None) != (key is None):
        raise ValueError("SharedAccessKeyName and SharedAccessKey belong together; one of them is missing")
    tls = emulator == "false"
    return Endpoint(
        host=host,
        port=port or (AMQPS_PORT if tls else AMQP_PORT),
        http_port=port or (HTTPS_PORT if tls else AMQP_PORT),
        tls=tls,
        key_name=key_name,
        key=key,
        token=parts.get("SharedAccessSignature"),
        entity_path=parts.get("EntityPath") or None,
    )


def _host_and_port(url: SplitResult, where: str) -> tuple[str, int | None]:
    try:
        port = url.port
    except ValueError:
        raise ValueError(f"{where} has a port that is not a number from 0 to 65535: '{url.netloc}'") from None
    if not url.hostname:
        raise ValueError(f"{where} has no host")
    return url.hostname, port


def _known() -> str:
    return ", ".join(_KEYS.values())
