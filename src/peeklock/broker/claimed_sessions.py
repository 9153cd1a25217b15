"""The holder of a session that is reserved for claims."""

from __future__ import annotations

from peeklock.broker.errors import BrokerError
from peeklock.broker.locks import Lock
from peeklock.broker.selecting import Selects
from peeklock.broker.session import Session
from peeklock.store.base import StoredMessage


class ClaimHolder:
    """Holds a session for claims of one name. Its lock does not expire, and no messages are delivered to it."""

    deletes = False

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def selector(self) -> Selects | None:
        return None

    def on_session_lost(self, failure: BrokerError) -> None: ...

    def ready(self) -> bool:
        return False

    def deliver(self, message: StoredMessage, lock: Lock | None) -> None: ...

    def reserve(self, message: StoredMessage) -> None: ...

    def unreserve(self, message: StoredMessage) -> None: ...

    def on_starved(self) -> None: ...


def is_reserved_for(session: Session, name: str) -> bool:
    """Return whether the session is reserved for claims of that name."""
    return isinstance(session.holder, ClaimHolder) and session.holder.name == name
