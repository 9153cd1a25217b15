"""The state that an application keeps with a session. It counts towards the size of the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from peeklock.broker.errors import BrokerError
from peeklock.broker.reading import unreadable
from peeklock.store.base import StoreError

if TYPE_CHECKING:
    from peeklock.broker.entity import Done
    from peeklock.broker.machinery import Machinery
    from peeklock.broker.session_queue import SessionQueue

STATE_BYTES: Final = 1024
"""What each state counts for in the size of the queue, in addition to its bytes: so that there cannot be millions of
short ones."""


class SessionStates:
    """The states of the sessions of one queue. The caller checks that the client holds the session."""

    def __init__(self, queue: SessionQueue, machinery: Machinery) -> None:
        self._queue = queue
        self._store = machinery.store
        self._journal = machinery.journal
        self._agenda = machinery.agenda
        self._sizes: dict[str, int] = {}
        """By session id: what the state counts for in the size of the queue."""

    def load(self, done: Callable[[StoreError | None], None]) -> None:
        """At start: read how long the states are."""

        def found(sizes: dict[str, int] | StoreError) -> None:
            if isinstance(sizes, StoreError):
                done(sizes)
                return
            self._sizes = {id: STATE_BYTES + size for id, size in sizes.items()}
            self._queue.state_bytes = sum(self._sizes.values())
            done(None)

        self._store.read_session_state_sizes(self._queue.id, found)

    def set(self, id: str, state: bytes | None, done: Done) -> None:
        """Store the state of a session; None clears it. SessionLockLost unless a receiver holds the session.

        QuotaExceeded when the state grows and the queue has no room for messages either.
        """
        queue = self._queue
        queue.sessions.held(id)
        size = 0 if state is None else STATE_BYTES + len(state)
        if size > self._sizes.get(id, 0):
            queue.check_growth(0)
        root = queue.root

        def stored(_: Any, error: BrokerError | None) -> None:
            root.staged_bytes -= size
            if error is None:
                queue.state_bytes += size - self._sizes.pop(id, 0)
                if size:
                    self._sizes[id] = size
            done(error)

        root.staged_bytes += size
        lane = self._journal.rest
        lane.changes.session_states.append((queue.id, id, state, self._agenda.now()))
        lane.then(stored, None)

    def get(self, id: str, done: Callable[[bytes | BrokerError | None], None]) -> None:
        """Read the state of a session; None if it has none. SessionLockLost unless a receiver holds the session."""
        self._queue.sessions.held(id)
        self._store.read_session_state(self._queue.id, id, _readable(done))

    def list_sessions(
        self, updated_after: int | None, skip: int, top: int, done: Callable[[list[str] | BrokerError], None]
    ) -> None:
        """Read the ids of sessions that have messages or a state, or whose state was set after a time."""
        self._store.read_sessions(self._queue.id, updated_after, skip, top, _readable(done))


def _readable(done: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda answer: done(unreadable(answer) if isinstance(answer, StoreError) else answer)
