"""What a protocol failure leads to: its scope. The engine catches these at its own edge and acts on them."""

from __future__ import annotations

from peeklock.amqp.errors import AmqpError


class CloseConnection(AmqpError):
    """The connection cannot go on."""


class EndSession(AmqpError):
    """The session cannot go on; the connection can."""


class DetachLink(AmqpError):
    """The link cannot go on; its session can."""
