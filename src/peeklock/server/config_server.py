"""`Server` of the configuration file: settings of the process, not of the namespace. Read once, at the start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from peeklock.limits.server import Limits, configured_limits
from peeklock.limits.units import MIB
from peeklock.server.config_keys import DISK_FREE_LOW, Thing
from peeklock.server.config_shape import Shape
from peeklock.server.jsonc import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings that options of the command line set too, and limits."""

    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    require_tls: bool = False
    mtls_ca: Path | None = None
    audit: Path | None = None
    disk_free_low: int | None = None
    """Bytes."""
    limits: Limits = field(default_factory=Limits)


def read_server(shape: Shape, node: Node, file: Path) -> ServerSettings:
    """Read the object. Paths in it are relative to the folder of the configuration file."""
    found = shape.thing(node, Thing.SERVER)

    def texts(key: str) -> tuple[str, ...]:
        return tuple(shape.text(each) for each in shape.elements(found[key])) if key in found else ()

    def named_file(key: str) -> Path | None:
        return file.parent / shape.text(found[key]) if key in found else None

    limits = {
        field: shape.count(found[each.key], each.least) * each.unit
        for field, each in configured_limits().items()
        if each.key in found
    }
    low = shape.count(found[DISK_FREE_LOW]) if DISK_FREE_LOW in found else None
    return ServerSettings(
        allowed_hosts=texts("AllowedHosts"),
        allowed_origins=texts("AllowedOrigins"),
        require_tls="RequireTls" in found and shape.flag(found["RequireTls"]),
        mtls_ca=named_file("MtlsCa"),
        audit=named_file("Audit"),
        disk_free_low=None if low is None else low * MIB,
        limits=Limits(**limits),
    )
