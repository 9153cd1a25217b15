"""How much a client may take of the server, and how long it may take for it."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times are in seconds, sizes in bytes."""

    max_connections: int = 5000
    """Of any protocol, silent ones too; further ones are closed, except for administration."""
    reserved_connections: int = 50
    """Beyond `max_connections`: for requests of administration that show a key."""
    max_connections_per_address: int | None = None
    """None: half of `max_connections`, and no limit for loopback addresses."""
    max_failed_logins: int = 100
    """From one address in a minute; further logins from there are refused for the rest of it. 0: no limit."""
    first_bytes_seconds: float = 20.0
    """Until a connection has said what it speaks, and for each request of an HTTP connection that stays open."""
    handshake_seconds: float = 20.0
    """Until an AMQP client has opened the connection, and shown a token or key."""
    closing_seconds: float = 2.0
    """Until a client has answered our close and taken what we wrote; then we hang up."""
    stop_seconds: float = 5.0
    """For work that is under way when the broker stops."""
    unsaved_high: int = 32 * MIB
    """On the way from one connection to the store: above this we read no more from it."""
    unsaved_low: int = 16 * MIB
    """Below this we read on."""
    unsaved_total: int = 256 * MIB
    """Of all connections together: above this we read on only from those with nothing on the way."""
    unauthenticated_bytes: int = 32 * MIB
    """Of frames and messages that are not whole yet, on all connections together that have shown no token or key: above
    this the one that holds most is dropped."""
    unread_answers: int = 1 * MIB
    """Written for a client that does not read: above this we read no more from it."""
