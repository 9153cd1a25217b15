"""The states of sessions, which applications set and read. They count towards the size of the queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from peeklock.broker.errors import BrokerError, EntityNotFound
from peeklock.broker.reading import unreadable
from peeklock.store.base import StoreError

if TYPE_CHECKING:
    from peeklock.broker.entity import Done
    from peeklock.broker.machinery import Machinery
    from peeklock.broker.session_queue import SessionQueue

STATE_BYTES: Final = 1024
"""The size that is counted for each state in addition to its bytes, so that a queue cannot have millions of short
states."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A state that was set and is not stored yet."""

    state: bytes | None
    size: int
    """The size that is counted for the state."""
    done: Done


class SessionStates:
    """The states of the sessions of one queue. The caller checks that the client holds the session."""

    def __init__(self, queue: SessionQueue, machinery: Machinery) -> None:
        self._queue = queue
        self._store = machinery.store
        self._journal = machinery.journal
        self._agenda = machinery.agenda
        self._sizes: dict[str, int] = {}
        """The sizes that are counted for the states, by session id."""
        self._waiting: dict[str, deque[_Change]] = {}
        """By session id, while a change of its state is being committed: the changes that wait. Only one is committed
        at a time, because the journal may try a commit again after later ones."""

    def load(self, done: Callable[[StoreError | None], None]) -> None:
        """At start: read the sizes of the states."""

        def found(sizes: dict[str, int] | StoreError) -> None:
            if isinstance(sizes, StoreError):
                done(sizes)
                return
            self._sizes = {id: STATE_BYTES + size for id, size in sizes.items()}
            self._queue.state_bytes = sum(self._sizes.values())
            done(None)

        self._store.read_session_state_sizes(self._queue.id, found)

    def set(self, id: str, state: bytes | None, done: Done) -> None:
        """Store the state of a session; None clears it.

        Raise SessionLockLost unless a receiver holds the session. Raise QuotaExceeded if the state grows and the queue
        has reached its maximum size.
        """
        queue = self._queue
        queue.sessions.held(id)
        size = 0 if state is None else STATE_BYTES + len(state)
        if size > self._sizes.get(id, 0):
            queue.check_growth(0)
        queue.root.staged_bytes += size
        waiting = self._waiting.get(id)
        if waiting is None:
            self._waiting[id] = deque()
            self._stage(id, _Change(state, size, done))
        else:
            waiting.append(_Change(state, size, done))

    def _stage(self, id: str, change: _Change) -> None:
        lane = self._journal.rest
        lane.changes.session_states.append((self._queue.id, id, change.state, self._agenda.now()))
        lane.then(self._on_stored, (id, change))

    def _on_stored(self, argument: tuple[str, _Change], error: BrokerError | None) -> None:
        id, change = argument
        queue = self._queue
        queue.root.staged_bytes -= change.size
        if error is None:
            queue.state_bytes += change.size - self._sizes.pop(id, 0)
            if change.size:
                self._sizes[id] = change.size
        try:
            change.done(error)
        finally:
            self._stage_next(id)

    def _stage_next(self, id: str) -> None:
        """Stage the next change that waits, or fail all of them if the queue was deleted."""
        waiting = self._waiting[id]
        if waiting and not self._queue.is_deleting:
            self._stage(id, waiting.popleft())
            return
        del self._waiting[id]
        for change in waiting:
            self._queue.root.staged_bytes -= change.size
            change.done(EntityNotFound(self._queue.path))

    def get(self, id: str, done: Callable[[bytes | BrokerError | None], None]) -> None:
        """Read the state of a session; None if it has none. Raise SessionLockLost unless a receiver holds it."""
        self._queue.sessions.held(id)
        self._store.read_session_state(self._queue.id, id, _readable(done))

    def list_sessions(
        self, updated_after: int | None, skip: int, top: int, done: Callable[[list[str] | BrokerError], None]
    ) -> None:
        """Read ids of sessions with messages or a state or, with `updated_after`, whose state was set after it."""
        self._store.read_sessions(self._queue.id, updated_after, skip, top, _readable(done))


def _readable(done: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda answer: done(unreadable(answer) if isinstance(answer, StoreError) else answer)
