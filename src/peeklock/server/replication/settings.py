"""The settings of a node of a replicated broker. Does not import psycopg, which is an extra."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field
from typing import Final, Literal

from peeklock.server.broker import StartError

DEFAULT_SCHEMA: Final = "peeklock"
LEAST_LEASE_SECONDS: Final = 1.0
Replication = Literal["require", "external", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The store of a node, and how the other nodes know it."""

    url: str
    """A connection string or URL of PostgreSQL; it may name several hosts."""
    schema: str = DEFAULT_SCHEMA
    replication: Replication = "require"
    name: str = field(default_factory=socket.gethostname)
    advertise: str | None = None
    """HOST:PORT where the other nodes reach this one. None: the address that it listens on, or its host name."""
    lease_seconds: float = 6.0
    owner: str = field(init=False)
    """The id in the lease: the name, and a suffix that a restarted process does not share."""

    def __post_init__(self) -> None:
        if self.lease_seconds < LEAST_LEASE_SECONDS:
            raise StartError(f"--lease-seconds must be {LEAST_LEASE_SECONDS:g} or more, not {self.lease_seconds:g}")
        if self.advertise is not None:
            parse_address(self.advertise)
        object.__setattr__(self, "owner", f"{self.name}/{secrets.token_hex(4)}")

    def address(self, host: str, port: int) -> str:
        """Return the address for the other nodes, of a node that listens there."""
        if self.advertise is not None:
            return self.advertise
        if host in ("", "0.0.0.0", "::"):
            host = socket.gethostname()
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT; an IPv6 address is in brackets. Raise StartError."""
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if (
        not bare
        or not port.isascii()
        or not port.isdecimal()
        or not 0 < int(port) < 65536
        or (":" in bare) == (bare == host)
    ):
        raise StartError(f"--advertise must be HOST:PORT, with an IPv6 address in brackets, not '{text}'")
    return bare, int(port)
