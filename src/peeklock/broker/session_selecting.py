"""Serves a holder of a session that has a message selector.

For `selecting`, the session is a queue with one consumer while that holder holds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peeklock.broker.backlog import Backlog
from peeklock.broker.selecting import Selecting, Selects
from peeklock.broker.session import Session, SessionHolder
from peeklock.store.base import StoredMessage

if TYPE_CHECKING:
    from peeklock.broker.machinery import Machinery
    from peeklock.broker.session_queue import SessionQueue
    from peeklock.broker.watches import Watches


class SelectingSession:
    """One session while one holder holds it."""

    def __init__(
        self,
        queue: SessionQueue,
        session: Session,
        holder: SessionHolder,
        selector: Selects,
        machinery: Machinery,
        backlog: Backlog,
    ) -> None:
        self._queue = queue
        self._session = session
        self._holder = holder
        self._selecting = Selecting(self, machinery, [backlog])
        self._selection = self._selecting.add(holder, selector)

    # --- for the queue ---

    def want(self) -> None:
        """Queue the holder, which can take messages."""
        self._selecting.want(self._selection)

    def serve(self) -> None:
        self._selecting.serve()

    def close(self) -> None:
        """Stop, because the holder lost or closed the session."""
        self._selecting.close()

    # --- for `selecting` ---

    @property
    def path(self) -> str:
        return self._queue.path

    @property
    def id(self) -> int:
        return self._queue.id

    @property
    def is_deleting(self) -> bool:
        """Whether no messages are delivered: the queue is being deleted, or the holder lost the session."""
        return not self._queue.delivers_to(self._session, self._holder)

    def wake(self) -> None:
        self._queue.wake(self._session)

    def wake_later(self) -> None:
        self._queue.wake_later(self._session)

    def is_taken(self, number: int) -> bool:
        return self._queue.is_taken(number)

    @property
    def watches(self) -> Watches:
        return self._queue.watches

    def deliver_selected(self, consumer: Any, message: StoredMessage) -> None:
        self._queue.deliver_selected(self._session, consumer, message)
