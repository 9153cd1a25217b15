"""Parsing of a request's method and path to an action (send, receive or settle) and an entity.

An entity may have any name, also `messages`, so a path is parsed from its end. A path may be ambiguous, because it may
also be the path of an entity; the service decides, since it knows the existing entities.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import unquote

from peeklock.broker.catalogue import owner_of
from peeklock.entities.authorization import Right
from peeklock.entities.names import fold

MESSAGES: Final = "messages"
HEAD: Final = "head"


class Action(StrEnum):
    """The action of a request; the values are the action names in the audit log."""

    SEND = "send"
    PEEK_LOCK = "receive"
    RECEIVE_AND_DELETE = "receive-and-delete"
    UNLOCK = "unlock"
    RENEW_LOCK = "renew-lock"
    COMPLETE = "complete"


_AT_HEAD: Final = {"POST": Action.PEEK_LOCK, "DELETE": Action.RECEIVE_AND_DELETE}
_AT_LOCK: Final = {"PUT": Action.UNLOCK, "POST": Action.RENEW_LOCK, "DELETE": Action.COMPLETE}


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A request for messages."""

    action: Action
    entity: str
    """The path of the queue, topic, subscription or sub-queue, as the client spells it."""
    raw_entity: str
    """The same path, percent-encoded as in the request."""
    message: str = ""
    """The id or the sequence number of a locked message."""
    lock_token: str = ""

    @property
    def right(self) -> Right:
        """The right that the action requires."""
        return Right.SEND if self.action is Action.SEND else Right.LISTEN

    @property
    def redacted_path(self) -> str:
        """The path of the request without the lock token, for logs."""
        return f"/{self.raw_entity}/{MESSAGES}" + (f"/{self.message}/..." if self.lock_token else "")

    @property
    def owner(self) -> str:
        """The folded name of the queue or topic to which the entity belongs; its authorization rules apply."""
        return owner_of(self.entity)


def parse_request(method: str, raw_path: str) -> MessageRequest | None:
    """Parse a method and a percent-encoded path; None if this is not a request for messages."""
    segments = raw_path.strip("/").split("/")
    names = [unquote(segment) for segment in segments]
    words = [fold(name) for name in names]

    def found(action: Action, length: int, message: str = "", lock_token: str = "") -> MessageRequest:
        return MessageRequest(action, "/".join(names[:-length]), "/".join(segments[:-length]), message, lock_token)

    if method == "POST" and len(words) > 1 and words[-1] == MESSAGES:
        return found(Action.SEND, 1)
    if method in _AT_HEAD and len(words) > 2 and words[-2:] == [MESSAGES, HEAD]:
        return found(_AT_HEAD[method], 2)
    if method in _AT_LOCK and len(words) > 3 and words[-3] == MESSAGES:
        return found(_AT_LOCK[method], 3, names[-2], names[-1])
    return None
