"""Exceptions of the client. Each has the peer's AMQP condition, or the condition that stands for the same failure."""

from __future__ import annotations

from collections.abc import Sequence

from peeklock.amqp.errors import Condition
from peeklock.amqp.outcomes import Error


class ClientError(Exception):
    """The base class of all exceptions of the client."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(condition, description)
        self.condition = condition
        self.description = description

    def __str__(self) -> str:
        return f"{self.condition}: {self.description}" if self.description else self.condition


class ConnectionLost(ClientError):
    """The connection could not be opened, was closed by the peer, or broke."""


class LinkClosed(ClientError):
    """The peer refused the link, or closed it later."""


class AuthenticationFailed(ClientError):
    """The peer refused the token."""


class SendRejected(ClientError):
    """A message was not accepted."""


class SettlementFailed(ClientError):
    """The peer did not settle messages as requested, for example because their locks were lost."""

    def __init__(self, condition: str, description: str, tags: Sequence[bytes]) -> None:
        super().__init__(condition, description)
        self.args = (condition, description, tags)
        self.tags = tags
        """The delivery tags of those messages."""


class RequestRefused(ClientError):
    """A management or administration request was answered with a failure."""

    def __init__(self, status: int, condition: str, description: str) -> None:
        super().__init__(condition, description)
        self.args = (status, condition, description)
        self.status = status
        """A status of HTTP."""


class Timeout(ClientError):
    """The peer did not answer in time."""

    def __init__(self, description: str) -> None:
        super().__init__(Condition.TIMEOUT, description)
        self.args = (description,)


def from_error(kind: type[ClientError], error: Error | None, otherwise: str) -> ClientError:
    """Make the exception for an error that the peer sent. `otherwise` describes a missing error."""
    if error is None:
        return kind(Condition.DETACH_FORCED if kind is LinkClosed else Condition.CONNECTION_FORCED, otherwise)
    return kind(error.condition, error.description)
