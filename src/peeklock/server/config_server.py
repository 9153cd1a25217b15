"""`Server` of the configuration file: what the process does, beside what the namespace has. Read at the start only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from peeklock.server.config_keys import Thing
from peeklock.server.config_shape import Shape
from peeklock.server.jsonc import Node
from peeklock.server.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What options of the command line say too, and limits."""

    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    require_tls: bool = False
    mtls_ca: Path | None = None
    audit: Path | None = None
    disk_free_low: int | None = None
    """Bytes."""
    limits: Limits = field(default_factory=Limits)


_LEAST = {
    "MaxConnections": 1,
    "ReservedConnections": 0,
    "MaxConnectionsPerAddress": 1,
    "MaxFailedLogins": 0,
    "DiskFreeLowInMegabytes": 0,
}


def read_server(shape: Shape, node: Node, file: Path) -> ServerSettings:
    """Read the object; a file that it names is relative to the configuration file's folder."""
    found = shape.thing(node, Thing.SERVER)

    def texts(key: str) -> tuple[str, ...]:
        return tuple(shape.text(each) for each in shape.elements(found[key])) if key in found else ()

    def named_file(key: str) -> Path | None:
        return file.parent / shape.text(found[key]) if key in found else None

    counts = {key: shape.count(found[key], least) for key, least in _LEAST.items() if key in found}
    usual = Limits()
    return ServerSettings(
        allowed_hosts=texts("AllowedHosts"),
        allowed_origins=texts("AllowedOrigins"),
        require_tls="RequireTls" in found and shape.flag(found["RequireTls"]),
        mtls_ca=named_file("MtlsCa"),
        audit=named_file("Audit"),
        disk_free_low=counts["DiskFreeLowInMegabytes"] << 20 if "DiskFreeLowInMegabytes" in counts else None,
        limits=Limits(
            max_connections=counts.get("MaxConnections", usual.max_connections),
            reserved_connections=counts.get("ReservedConnections", usual.reserved_connections),
            max_connections_per_address=counts.get("MaxConnectionsPerAddress"),
            max_failed_logins=counts.get("MaxFailedLogins", usual.max_failed_logins),
        ),
    )
