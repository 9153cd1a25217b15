"""The sessions of a queue with their holders, the free sessions, and the receivers that wait for a free session.

A session that no receiver holds is one entry in a table. Its messages are read from the store when it is accepted. So
there can be a hundred thousand free sessions, and the next one is found in constant time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from peeklock.broker.backlog import Backlog
from peeklock.broker.errors import (
    BrokerError,
    EntityNotFound,
    OperationTimedOut,
    QuotaExceeded,
    SessionCannotBeLocked,
    SessionLockLost,
)
from peeklock.broker.session import Session, SessionHolder, Waiter
from peeklock.broker.session_selecting import SelectingSession
from peeklock.broker.waiting import Windows
from peeklock.limits.broker import MAX_SESSION_WAITERS
from peeklock.store.base import StoredMessage, StoreError

if TYPE_CHECKING:
    from peeklock.broker.machinery import Machinery
    from peeklock.broker.session_queue import SessionQueue


Accepted = Callable[[Session | BrokerError], None]


class SessionTable(Windows):
    """The sessions of one queue."""

    def __init__(self, queue: SessionQueue, machinery: Machinery) -> None:
        self._queue = queue
        self._machinery = machinery
        self._store = machinery.store
        self._journal = machinery.journal
        self._agenda = machinery.agenda
        self._by_id: dict[str, Session] = {}
        self._free: OrderedDict[str, Session] = OrderedDict()
        """Sessions with messages that no receiver holds, in the order in which they became free."""
        self._waiters: deque[Waiter] = deque()
        self._held: set[Session] = set()
        self._pages_held = False

    def load(self, done: Callable[[StoreError | None], None]) -> None:
        """At start: read which sessions have messages."""

        def found(counts: dict[str, int] | StoreError) -> None:
            if isinstance(counts, StoreError):
                done(counts)
                return
            for id, active in counts.items():
                session = self._by_id[id] = self._free[id] = Session(id, self.offer)
                session.active = active
            done(None)

        if self._queue.counters.active:
            self._store.read_session_counts(self._queue.id, found)
        else:
            done(None)

    # --- lookups ---

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())

    @property
    def free_ids(self) -> list[str]:
        """Ids of the sessions with messages that no receiver holds, in the order in which they became free."""
        return [*self._free]

    @property
    def waiting(self) -> int:
        """The number of receivers that wait for a free session."""
        return len(self._waiters)

    def find(self, id: str) -> Session | None:
        return self._by_id.get(id)

    def of(self, message: StoredMessage) -> Session | None:
        return self._by_id.get(message.session_id or "")

    def enter(self, id: str) -> Session:
        """Return the session with that id. Add it if it is new."""
        session = self._by_id.get(id)
        if session is None:
            session = self._by_id[id] = Session(id, self.offer)
        return session

    def held(self, id: str) -> Session:
        """Return the session with that id. Raise SessionLockLost unless a receiver holds it."""
        session = self._by_id.get(id)
        if session is None or session.holder is None or session.expires_at <= self._agenda.monotonic():
            raise SessionLockLost(f"The session lock of '{id}' has expired or was never taken.")
        return session

    def holder_of(self, id: str) -> SessionHolder | None:
        session = self._by_id.get(id)
        return None if session is None else session.holder

    # --- accepting and closing ---

    def accept(self, id: str, holder: SessionHolder) -> Session:
        """Lock the session with that id for a receiver. The session need not have messages.

        Raise SessionCannotBeLocked if it is not free.
        """
        self._check_queue()
        session = self.enter(id)
        if not session.is_free:
            raise SessionCannotBeLocked(
                f"The requested session '{id}' cannot be accepted. It may be locked by another receiver."
            )
        self._hold(session, holder)
        return session

    def accept_when_settled(self, id: str, holder: SessionHolder, outcome: Accepted) -> Waiter | None:
        """Lock the session with that id for a receiver, after the settlements of its last holder are committed.

        Return the waiter, if the receiver has to wait. `stop_waiting` ends the wait.
        """
        session = self._by_id.get(id)
        if session is None or session.is_free or session.holder is not None:
            outcome(self.accept(id, holder))
            return None
        waiter = Waiter(holder, outcome)
        self._journal.after_commit(partial(self._accept_again, id, waiter))
        return waiter

    def _accept_again(self, id: str, waiter: Waiter) -> None:
        if waiter.outcome is None:
            return
        session = self._by_id.get(id)
        if session is not None and session.holder is None and session.locks:
            self._journal.after_commit(partial(self._accept_again, id, waiter))
            return
        try:
            waiter.outcome(self.accept(id, waiter.holder))
        except BrokerError as failure:
            waiter.outcome(failure)

    def accept_next(self, holder: SessionHolder, time_out_ms: int, outcome: Accepted) -> Waiter | None:
        """Lock the next free session for a receiver, now or when there is one.

        Return the waiter, if the receiver has to wait. `stop_waiting` ends the wait.
        """
        self._check_queue()
        if self._free:
            session = self._free.popitem(last=False)[1]
            self._hold(session, holder)
            outcome(session)
            return None
        if len(self._waiters) >= MAX_SESSION_WAITERS:
            raise QuotaExceeded(f"{MAX_SESSION_WAITERS} receivers already wait for a session of '{self._queue.path}'.")
        waiter = Waiter(holder, outcome)
        waiter.deadline = self._agenda.after(time_out_ms, partial(self._time_out, waiter))
        self._waiters.append(waiter)
        return waiter

    def _check_queue(self) -> None:
        if self._queue.is_deleting:
            raise EntityNotFound(self._queue.path)

    def stop_waiting(self, waiter: Waiter) -> None:
        waiter.outcome = None
        if waiter.deadline is not None:
            waiter.deadline.cancel()
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def _time_out(self, waiter: Waiter) -> None:
        outcome = waiter.outcome
        if outcome is not None:
            waiter.outcome = None
            self._waiters.remove(waiter)
            outcome(OperationTimedOut(f"No session of '{self._queue.path}' became free within the time to wait."))

    def close_session(self, session: Session, holder: SessionHolder) -> None:
        """Unlock a session that its holder closes. Its messages are active again, and no delivery is counted."""
        if session.holder is not holder:
            return
        self._end_hold(session)
        for lock in list(session.locks.values()):
            self._queue.settlements.release(lock)
        self.offer(session)

    def renew(self, session: Session) -> int:
        """Renew the session's lock for another lock duration, and return the new expiry in Unix time."""
        duration = self._queue.definition.lock_duration_ms
        session.locked_until = self._agenda.now() + duration  # Unix time is read first: see `LockExpiry.from_now`
        session.expires_at = self._agenda.monotonic() + duration
        if session.timer is not None:
            session.timer.cancel()
        session.timer = self._agenda.when_elapsed(session.expires_at, partial(self._on_expired, session))
        for lock in session.locks.values():
            lock.expires_at, lock.locked_until = session.expires_at, session.locked_until
        return session.locked_until

    def offer(self, session: Session) -> None:
        """If a session is free, lock it for the receiver that has waited longest; if none waits, mark it as free."""
        if not session.is_free:
            return
        if not session.active:
            self._free.pop(session.id, None)
            self._by_id.pop(session.id, None)
            return
        while self._waiters:
            waiter = self._waiters.popleft()
            outcome = waiter.outcome
            if outcome is not None:
                self.stop_waiting(waiter)
                self._hold(session, waiter.holder)
                outcome(session)
                return
        self._free[session.id] = session
        if self._queue.claims.is_waiting:
            self._queue.claims.on_available()

    def reserve(self, session: Session, holder: SessionHolder) -> None:
        """Reserve a free session for claims, without a lock that expires."""
        self._free.pop(session.id, None)
        session.holder = holder

    # --- holding ---

    def _hold(self, session: Session, holder: SessionHolder) -> None:
        self._free.pop(session.id, None)
        session.holder = holder
        queue, machinery = self._queue, self._machinery
        session.backlog = Backlog(
            queue.id,
            self._store,
            machinery.budget,
            partial(queue.wake, session),
            partial(queue.wake_later, session),
            session_id=session.id,
            is_taken=queue.is_taken,
            watch=queue.watches.read,
        )
        session.backlog.hold(self._pages_held)
        self._held.add(session)
        session.backlog.resume(queue.counters.last_sequence_number, session.active > 0)
        if holder.selector is not None:
            session.selecting = SelectingSession(queue, session, holder, holder.selector, machinery, session.backlog)
        self.renew(session)

    def _end_hold(self, session: Session) -> None:
        session.holder = None
        session.expires_at = 0  # a claim may reserve the session next, without a lock
        for lock in session.locks.values():
            lock.expires_at = 0  # locks of messages that are being settled stay until their commit is done
        self._held.discard(session)
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        if session.selecting is not None:
            session.selecting.close()
            session.selecting = None
        if session.backlog is not None:
            session.backlog.forget()
            session.backlog = None

    def _on_expired(self, session: Session) -> None:
        holder = session.holder
        if holder is None or self._queue.is_deleting:
            return
        self._end_hold(session)
        for lock in list(session.locks.values()):
            if not lock.settling:
                self._queue.settlements.return_expired(lock)
        self.offer(session)
        holder.on_session_lost(SessionLockLost(f"The session lock of '{session.id}' has expired."))

    def resume(self) -> None:
        """Handle locks that expired while deliveries were stopped, and deliver messages again."""
        for session in list(self._held):
            if session.expires_at <= self._agenda.monotonic():
                self._on_expired(session)
            else:
                self._queue.wake(session)

    def close(self) -> None:
        """Fail the receivers that wait for a session: the queue was deleted."""
        for waiter in list(self._waiters):
            outcome = waiter.outcome
            self.stop_waiting(waiter)
            if outcome is not None:
                outcome(EntityNotFound(self._queue.path))

    def forget(self) -> None:
        """Release the memory: the queue was deleted."""
        for session in list(self._held):
            self._end_hold(session)
        self._by_id.clear()
        self._free.clear()

    # --- messages in memory ---

    @property
    def _backlogs(self) -> list[Backlog]:
        return [session.backlog for session in self._held if session.backlog is not None]

    @property
    def loading(self) -> bool:
        return any(backlog.loading for backlog in self._backlogs)

    def hold(self, held: bool) -> None:
        self._pages_held = held
        for backlog in self._backlogs:
            backlog.hold(held)

    def drop(self, message: StoredMessage) -> None:
        session = self.of(message)
        if session is not None and session.backlog is not None:
            session.backlog.drop(message)

    def next_after(self, number: int, session_id: str | None = None) -> int:
        session = self._by_id.get(session_id or "")
        return number + 1 if session is None or session.backlog is None else session.backlog.next_after(number)
