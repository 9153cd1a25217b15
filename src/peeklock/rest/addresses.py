"""What a request's method and path ask for: to send, to receive, or to settle.

An entity may have any name, `messages` too, so a path is read from its end. What could name an entity as well is for
the service to tell apart, which knows what there is.
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
    """What a request does; the words of the audit log."""

    SEND = "send"
    PEEK_LOCK = "receive"
    RECEIVE_AND_DELETE = "receive-and-delete"
    UNLOCK = "unlock"
    RENEW_LOCK = "renew-lock"
    COMPLETE = "complete"


_AT_HEAD: Final = {"POST": Action.PEEK_LOCK, "DELETE": Action.RECEIVE_AND_DELETE}
_AT_LOCK: Final = {"PUT": Action.UNLOCK, "POST": Action.RENEW_LOCK, "DELETE": Action.COMPLETE}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for messages."""

    action: Action
    entity: str
    """The path of the queue, topic, subscription or sub-queue, as the client spells it."""
    place: str
    """The same as it is in the request's address."""
    message: str = ""
    """The id or the sequence number of a locked message."""
    lock_token: str = ""

    @property
    def right(self) -> Right:
        return Right.SEND if self.action is Action.SEND else Right.LISTEN

    @property
    def shown(self) -> str:
        """The path for people, without the lock token."""
        return f"/{self.place}/{MESSAGES}" + (f"/{self.message}/..." if self.lock_token else "")

    @property
    def owner(self) -> str:
        """The queue or topic that the entity is or belongs to, folded: whose rules give rights here."""
        return owner_of(self.entity)


def parse_request(method: str, raw_path: str) -> Asked | None:
    """What a request asks for, by its path as it came; None when it has nothing to do with messages."""
    segments = raw_path.strip("/").split("/")
    names = [unquote(segment) for segment in segments]
    words = [fold(name) for name in names]

    def asked(action: Action, length: int, message: str = "", lock_token: str = "") -> Asked:
        return Asked(action, "/".join(names[:-length]), "/".join(segments[:-length]), message, lock_token)

    if method == "POST" and len(words) > 1 and words[-1] == MESSAGES:
        return asked(Action.SEND, 1)
    if method in _AT_HEAD and len(words) > 2 and words[-2:] == [MESSAGES, HEAD]:
        return asked(_AT_HEAD[method], 2)
    if method in _AT_LOCK and len(words) > 3 and words[-3] == MESSAGES:
        return asked(_AT_LOCK[method], 3, names[-2], names[-1])
    return None
