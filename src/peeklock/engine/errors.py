"""What a protocol failure ends: a connection, a session or a link. The engine catches these and acts on them."""

from __future__ import annotations

from peeklock.amqp.errors import AmqpError


class CloseConnection(AmqpError):
    """The connection cannot go on."""


class EndSession(AmqpError):
    """The session cannot go on; the connection can."""


class DetachLink(AmqpError):
    """The link cannot go on; its session can."""


class StateError(Exception):
    """This program called for something that the state does not allow. The peer did nothing wrong."""
