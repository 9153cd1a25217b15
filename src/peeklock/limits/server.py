"""Limits of the process: connections, time and memory. `Server` of the configuration file sets some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, NamedTuple, get_type_hints

from peeklock.limits.units import MIB


class Configured(NamedTuple):
    """The key of a limit in `Server` of the configuration file."""

    key: str
    note: str
    least: int = 1
    """The lowest allowed number."""
    unit: int = 1
    """The factor by which the number in the file is multiplied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one broker process."""

    max_connections: Annotated[int, Configured("MaxConnections", "of any protocol")] = 5000
    """Connections of any protocol, including idle ones. Beyond it: further connections are closed, except for
    administration."""
    reserved_connections: Annotated[
        int, Configured("ReservedConnections", "beyond them, for administration with a key", least=0)
    ] = 50
    """Connections beyond `MaxConnections`, for administration with a key that has the right Manage, and for `/health`.
    Beyond it: the oldest one that has shown no key is closed, or the new connection if all have shown one."""
    reserved_seconds: float = 2.0
    """Seconds until a connection beyond `MaxConnections` has sent its request with a key. Beyond it: the connection is
    closed."""
    max_connections_per_address: Annotated[
        int | None, Configured("MaxConnectionsPerAddress", "by default loopback is not limited")
    ] = None
    """Connections of one address; by default half of `MaxConnections`, and no limit for loopback addresses. Beyond it:
    further connections are closed."""
    max_failed_logins: Annotated[int, Configured("MaxFailedLogins", "of one address in a minute", least=0)] = 100
    """Failed logins from one address in a minute; 0 for no limit. Beyond it: all logins from that address are refused
    for the rest of the minute."""
    first_bytes_seconds: Annotated[
        float, Configured("FirstBytesSeconds", "until a connection has sent its first bytes")
    ] = 20.0
    """Seconds until a connection has sent the first bytes of its protocol; also for the TLS handshake, and until an
    idle HTTP connection has sent its next request. Beyond it: the connection is closed."""
    handshake_seconds: Annotated[float, Configured("HandshakeSeconds", "until an AMQP client has logged in")] = 20.0
    """Seconds until an AMQP client has opened the connection and sent a token or key. Beyond it: the connection is
    closed."""
    closing_seconds: float = 2.0
    """Seconds until a client has replied to the broker's close and read all pending bytes. Beyond it: the connection is
    aborted."""
    stop_seconds: Annotated[float, Configured("StopSeconds", "for work that is under way when the broker stops")] = 5.0
    """Seconds for pending work when the broker stops. Beyond it: the work is cancelled."""
    hold_seconds: float = 60.0
    """Seconds that a connection to a node of a replicated broker waits while no node is active. Beyond it: the
    connection is closed."""
    unsaved_high: int = 32 * MIB
    """Bytes of one connection that are not stored yet. Beyond it: the broker stops reading from the connection."""
    unsaved_low: int = 16 * MIB
    """Bytes of one connection that are not stored yet at which the broker resumes reading, after it has stopped. Beyond
    it: it does not resume."""
    unsaved_total: Annotated[
        int, Configured("UnsavedMegabytes", "on their way to the store, of all connections", unit=MIB)
    ] = 256 * MIB
    """Bytes of all connections that are not stored yet. Beyond it: the broker reads only from connections without such
    bytes."""
    unauthenticated_bytes: Annotated[
        int,
        Configured(
            "UnauthenticatedMegabytes", "incomplete frames and requests before login, of all connections", unit=MIB
        ),
    ] = 32 * MIB
    """Bytes of incomplete frames and messages, and of HTTP requests without a verified token and their unread
    responses, of all unauthenticated connections. Beyond it: the connection with the most bytes is closed."""
    unread_answers: int = MIB
    """Bytes of replies that a client does not read. Beyond it: the broker stops reading from the connection."""


def configured_limits() -> Mapping[str, Configured]:
    """Return the limits that the configuration file can set, by the name of the field."""
    hints = get_type_hints(Limits, include_extras=True)
    return {
        field.name: note
        for field in fields(Limits)
        for note in getattr(hints[field.name], "__metadata__", ())
        if isinstance(note, Configured)
    }
