"""Protocol failures, by what they end: a connection, a session or a link. The engine catches them and ends it."""

from __future__ import annotations

from peeklock.amqp.errors import AmqpError


class CloseConnection(AmqpError):
    """A failure that ends the connection."""


class EndSession(AmqpError):
    """A failure that ends the session, but not the connection."""


class DetachLink(AmqpError):
    """A failure that detaches the link, but does not end its session."""


class StateError(Exception):
    """This program called a method that the state does not allow. It is not an error of the peer."""
