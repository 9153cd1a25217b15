"""A queue with sessions: each session belongs to one receiver at a time, who gets its messages in order.

A session that nobody holds costs an entry in a table; its messages are read from the store when it is accepted. So
a hundred thousand sessions can wait, and the next free one is found without looking at the others.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeGuard

from peeklock.broker.backlog import Backlog
from peeklock.broker.claim_records import Claim
from peeklock.broker.claimed_sessions import ClaimHolder, is_kept_for
from peeklock.broker.entity import Machinery
from peeklock.broker.errors import (
    BrokerError,
    EntityNotFound,
    OperationNotAllowed,
    OperationTimedOut,
    QuotaExceeded,
    SessionCannotBeLocked,
    SessionLockLost,
)
from peeklock.broker.locks import Lock
from peeklock.broker.message_queue import MessageQueue
from peeklock.broker.queue import READ_AGAIN_MS, Queue
from peeklock.broker.reading import unreadable
from peeklock.broker.session import Session, SessionHolder, Waiter
from peeklock.broker.session_selecting import SelectingSession
from peeklock.broker.timetable import AGAIN_MS
from peeklock.entities.definitions import AnyDefinition
from peeklock.store.base import ACTIVE, Counters, Damage, Run, StoredMessage, StoreError

log = logging.getLogger(__name__)

STATE_BYTES: Final = 1024
"""What a session's state counts for beside its bytes, in the size of a queue: however short they are, there cannot be
millions of them."""
MAX_WAITING: Final = 5000
"""Receivers that wait for the next free session of one queue."""


class SessionQueue(MessageQueue):
    """A queue whose messages belong to sessions."""

    def __init__(
        self,
        id: int,
        path: str,
        definition: AnyDefinition,
        machinery: Machinery,
        counters: Counters,
        dead_letters: MessageQueue | None,
        transfer_dead_letters: MessageQueue | None = None,
    ) -> None:
        super().__init__(id, path, definition, machinery, counters, dead_letters, transfer_dead_letters)
        self._sessions: dict[str, Session] = {}
        self._free: OrderedDict[str, Session] = OrderedDict()
        """Sessions with messages that nobody holds, the one that waits longest first."""
        self._waiting: deque[Waiter] = deque()
        self._held: set[Session] = set()
        self._state_sizes: dict[str, int] = {}
        """What the state of each session counts for in the size of the queue."""

    def load(self, done: Callable[[StoreError | None], None]) -> None:
        """At start: how long the states of sessions are, and which sessions have messages."""

        def found(sizes: dict[str, int] | StoreError) -> None:
            if isinstance(sizes, StoreError):
                done(sizes)
                return
            self._state_sizes = {id: STATE_BYTES + size for id, size in sizes.items()}
            self.state_bytes = sum(self._state_sizes.values())
            self._load_sessions(done)

        self._store.read_session_state_sizes(self.id, found)

    def _load_sessions(self, done: Callable[[StoreError | None], None]) -> None:

        def found(counts: dict[str, int] | StoreError) -> None:
            if isinstance(counts, StoreError):
                done(counts)
                return
            for id, active in counts.items():
                session = self._sessions[id] = self._free[id] = Session(id)
                session.active = active
            done(None)

        if self.counters.active:
            self._store.read_session_counts(self.id, found)
        else:
            done(None)

    # --- accepting and letting go ---

    def accept(self, id: str, holder: SessionHolder) -> Session:
        """Give the holder that session, whether it has messages or not."""
        self._check_there()
        session = self._sessions.get(id)
        if session is None:
            session = self._sessions[id] = Session(id)
        elif not session.is_free:
            raise SessionCannotBeLocked(
                f"The requested session '{id}' cannot be accepted. It may be locked by another receiver."
            )
        self._free.pop(id, None)
        self._hold(session, holder)
        return session

    def accept_when_settled(
        self, id: str, holder: SessionHolder, outcome: Callable[[Session | BrokerError], None]
    ) -> Waiter | None:
        """As `accept`, once what the last holder did is in the store; returns the wait, if there is any."""
        session = self._sessions.get(id)
        if session is None or session.is_free or session.holder is not None:
            outcome(self.accept(id, holder))
            return None
        waiter = Waiter(holder, outcome)
        self._journal.after_commit(partial(self._accept_again, id, waiter))
        return waiter

    def _accept_again(self, id: str, waiter: Waiter) -> None:
        if waiter.outcome is None:
            return
        session = self._sessions.get(id)
        if session is not None and session.holder is None and session.locks:
            self._journal.after_commit(partial(self._accept_again, id, waiter))
            return
        try:
            waiter.outcome(self.accept(id, waiter.holder))
        except BrokerError as failure:
            waiter.outcome(failure)

    def accept_next(
        self, holder: SessionHolder, time_out_ms: int, outcome: Callable[[Session | BrokerError], None]
    ) -> Waiter | None:
        """Give the holder the next free session, at once or when there is one; returns the wait, if there is any."""
        self._check_there()
        if self._free:
            session = self._free.popitem(last=False)[1]
            self._hold(session, holder)
            outcome(session)
            return None
        if len(self._waiting) >= MAX_WAITING:
            raise QuotaExceeded(f"{MAX_WAITING} receivers already wait for a session of '{self.path}'.")
        waiter = Waiter(holder, outcome)
        waiter.deadline = self._agenda.after(time_out_ms, partial(self._time_out, waiter))
        self._waiting.append(waiter)
        return waiter

    def _check_there(self) -> None:
        if self.doomed:
            raise EntityNotFound(self.path)

    def stop_waiting(self, waiter: Waiter) -> None:
        waiter.outcome = None
        if waiter.deadline is not None:
            waiter.deadline.cancel()
        if waiter in self._waiting:
            self._waiting.remove(waiter)

    def let_go(self, session: Session, holder: SessionHolder) -> None:
        """The holder closes the session: its messages are there again at once, uncounted."""
        if session.holder is not holder:
            return
        self._end_hold(session)
        for lock in list(session.locks.values()):
            self.settlements.release(lock)
        self._offer(session)

    def renew_session(self, session: Session) -> int:
        """Hold it for another lock duration; returns until when."""
        duration = self.definition.lock_duration_ms
        session.locked_until = self._agenda.now() + duration  # read first, as for other locks
        session.expires_at = self._agenda.monotonic() + duration
        if session.timer is not None:
            session.timer.cancel()
        session.timer = self._agenda.when_elapsed(session.expires_at, partial(self._session_expired, session))
        for lock in session.locks.values():
            lock.expires_at, lock.locked_until = session.expires_at, session.locked_until
        return session.locked_until

    def held(self, id: str) -> Session:
        """The session of that name, if somebody holds it; SessionLockLost otherwise."""
        session = self._sessions.get(id)
        if session is None or session.holder is None or session.expires_at <= self._agenda.monotonic():
            raise SessionLockLost(f"The session lock of '{id}' has expired or was never taken.")
        return session

    def holder_of(self, id: str) -> SessionHolder | None:
        session = self._sessions.get(id)
        return None if session is None else session.holder

    def _hold(self, session: Session, holder: SessionHolder) -> None:
        session.holder = holder
        machinery = self._machinery
        wake = partial(self.wake, session)
        session.backlog = Backlog(
            self.id,
            self._store,
            machinery.budget,
            wake,
            lambda: void(self._agenda.after(READ_AGAIN_MS, wake)),
            session_id=session.id,
            is_out=self.is_out,
            watch=self.watches.read,
        )
        session.backlog.held = self._sweeps > 0
        self._held.add(session)
        session.backlog.resume(self.counters.last_sequence_number, session.active > 0)
        if holder.selector is not None:
            session.selecting = SelectingSession(self, session, holder, holder.selector, machinery, session.backlog)
        self.renew_session(session)

    def _end_hold(self, session: Session) -> None:
        session.holder = None
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

    def _session_expired(self, session: Session) -> None:
        holder = session.holder
        if holder is None:
            return
        if self.doomed:
            return
        self._end_hold(session)
        for lock in list(session.locks.values()):
            if not lock.settling:
                self.settlements.give_back(lock, self._after_unlocking)
        self._offer(session)
        holder.session_lost(SessionLockLost(f"The session lock of '{session.id}' has expired."))

    def _offer(self, session: Session) -> None:
        """A session that may be free: to the one who waits longest, or to the table of free ones."""
        if not session.is_free:
            return
        if not session.active:
            self._free.pop(session.id, None)
            self._sessions.pop(session.id, None)
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            outcome = waiter.outcome
            if outcome is not None:
                self.stop_waiting(waiter)
                self._free.pop(session.id, None)
                self._hold(session, waiter.holder)
                outcome(session)
                return
        self._free[session.id] = session
        if self.claims.is_waiting:
            self.claims.on_available()

    def _time_out(self, waiter: Waiter) -> None:
        outcome = waiter.outcome
        if outcome is not None:
            waiter.outcome = None
            self._waiting.remove(waiter)
            outcome(OperationTimedOut(f"No session of '{self.path}' became free within the time to wait."))

    def vanish(self) -> None:
        for waiter in list(self._waiting):
            outcome = waiter.outcome
            self.stop_waiting(waiter)
            if outcome is not None:
                outcome(EntityNotFound(self.path))
        super().vanish()
        for session in list(self._held):
            self._end_hold(session)
        self._sessions.clear()
        self._free.clear()

    def spared(self) -> None:
        for session in list(self._held):
            if session.expires_at <= self._agenda.monotonic():
                self._session_expired(session)
            else:
                self.wake(session)

    # --- handing out ---

    def want(self, session: Session) -> None:
        """The holder can take messages."""
        if session.selecting is not None:
            session.selecting.want()
        self.wake(session)

    def wake(self, session: Session) -> None:
        """Hand out messages of the session at the end of this turn."""
        if not session.awake and session.holder is not None:
            session.awake = True
            self._machinery.call_soon(partial(self._pump, session))

    def _pump(self, session: Session) -> None:
        session.awake = False
        holder, backlog = session.holder, session.backlog
        if holder is None or backlog is None or self.doomed:
            return
        if session.expires_at <= self._agenda.monotonic():
            return  # what follows from that is about to happen
        if session.selecting is not None:
            session.selecting.serve()
            return
        now = self._agenda.now()
        while holder.ready():
            message = backlog.take()
            if message is None:
                break
            self._hand_out(session, holder, message, now)
        if not backlog.loading and not backlog.held and session.holder is holder:
            holder.starved()

    def _hand_out(self, session: Session, holder: SessionHolder, message: StoredMessage, now: int) -> None:
        number = message.sequence_number
        lock = session.locks[number] = self.locks.make(message, session.expires_at, session.locked_until, session)
        if message.expires_at is not None and message.expires_at <= now:
            # Locked, because the next holder must not read it while it is on its way out.
            lock.settling = True
            self.expiry.expire(message)
        elif holder.deletes:
            holder.reserve()
            self.settlements.remove(lock, partial(self._deleted, holder, message))
        else:
            try:
                holder.deliver(message, lock)
            except Exception:
                # Those behind it are delivered; its lock runs out, which is an attempt too many in the end.
                log.exception("a message of '%s' could not be delivered", self.path)

    # --- to a holder with a selector ---

    def gives_to(self, session: Session, holder: SessionHolder) -> bool:
        """Whether the holder still gets messages of the session."""
        return session.holder is holder and session.expires_at > self._agenda.monotonic() and not self.doomed

    def wake_later(self, session: Session) -> None:
        """The store could not be read."""
        self._agenda.after(READ_AGAIN_MS, partial(self.wake, session))

    def dispense(self, session: Session, holder: SessionHolder, message: StoredMessage) -> None:
        """Give the holder a message that it selected; or let it expire, if its time is over."""
        self._hand_out(session, holder, message, self._agenda.now())

    def _deleted(self, holder: SessionHolder, message: StoredMessage, error: BrokerError | None) -> None:
        if error is None:
            holder.deliver(message, None)
        else:
            holder.unreserve()
            lock = self.locks.by_number.get(message.sequence_number)
            if lock is not None:
                # Not at once: the store would refuse again.
                self._agenda.after(READ_AGAIN_MS, partial(self.settlements.release, lock))

    # --- to claims ---

    def keep_claimed(self, claim: Claim) -> None:
        """At start: sessions with claimed messages are kept for claims of that name."""
        for lane in claim.parts:
            id = lane or ""
            session = self._sessions.setdefault(id, Session(id))
            session.holder = ClaimHolder(claim.name)
            self._free.pop(id, None)

    def pause_for_claim(self) -> bool:
        return True  # it looks into sessions that nobody holds

    def resume_after_claim(self) -> None:
        pass

    def lanes_to_claim(self, name: str, most: int) -> list[str | None]:
        """First sessions that claims of this name have, so that their later messages follow, then free ones."""
        kept: list[str | None] = [
            session.id for session in self._sessions.values() if session.active and is_kept_for(session, name)
        ]
        return [*kept, *self._free][:most]

    def claim_from(self, lane: str | None, name: str) -> int | None:
        session = self._sessions.get(lane or "")
        if session is None:
            return None
        if session.is_free:
            self._free.pop(session.id, None)
            session.holder = ClaimHolder(name)
        return 0 if is_kept_for(session, name) else None

    def on_claim_staged(self, lane: str | None, runs: list[Run]) -> None:
        # Below zero for a moment, if the store had messages that this was not told of yet.
        self._sessions[lane or ""].active -= sum(run.count for run in runs)

    def on_claim_undone(self, lane: str | None, runs: list[Run]) -> None:
        session = self._sessions[lane or ""]
        if runs:
            session.active += sum(run.count for run in runs)
            self.expiry.look()
        holder = session.holder
        if isinstance(holder, ClaimHolder) and not self.claims.has_lane(lane):
            session.holder = None
            self._offer(session)

    # --- where messages wait ---

    def arrived(self, message: StoredMessage) -> None:
        id = message.session_id or ""
        session = self._sessions.get(id)
        if session is None:
            session = self._sessions[id] = Session(id)
        session.active += 1
        if self.is_out(message.sequence_number):
            return  # a sweep or a claim saw it in the store before we were told that it is there
        if self.claims.is_waiting:
            self.claims.on_available()
        self.expiry.expect(message)
        if session.backlog is not None:
            session.backlog.add(message)
            self.wake(session)
        else:
            self._offer(session)

    def returned(self, message: StoredMessage) -> None:
        self.expiry.expect(message)
        session = self._sessions.get(message.session_id or "")
        if session is not None and session.backlog is not None:
            session.backlog.add(message)
            self.wake(session)

    def stayed(self, message: StoredMessage) -> None:
        self.expiry.expect(message, AGAIN_MS)
        session = self._sessions.get(message.session_id or "")
        if session is not None and session.backlog is not None:
            session.backlog.add(message)
            self._agenda.after(READ_AGAIN_MS, partial(self.wake, session))
        elif session is not None:
            self._offer(session)

    def left(self, message: StoredMessage) -> None:
        session = self._sessions.get(message.session_id or "")
        if session is not None:
            session.active -= 1
            if not session.active:
                self._offer(session)

    def on_message_damaged(self, damage: Damage) -> None:
        super().on_message_damaged(damage)
        session = self._sessions.get(damage.session_id or "")
        if damage.state == ACTIVE and session is not None and not self.claims.covers(damage.sequence_number):
            session.active -= 1
            if not session.active:
                self._offer(session)

    def may_sweep(self) -> bool:
        # A page on its way may hold what the sweep removes: one after the other.
        held = [session.backlog for session in self._held if session.backlog is not None]
        if any(backlog.loading for backlog in held):
            return False
        self._sweeps += 1
        for backlog in held:
            backlog.held = True
        return True

    def swept(self) -> None:
        self._sweeps -= 1
        for session in self._held:
            if session.backlog is not None:
                session.backlog.held = self._sweeps > 0
                self.wake(session)

    def discard(self, message: StoredMessage) -> None:
        session = self._sessions.get(message.session_id or "")
        if session is not None and session.backlog is not None:
            session.backlog.discard(message.sequence_number)

    def next_waiting(self, after: int, session_id: str | None) -> int:
        session = self._sessions.get(session_id or "")
        if session is None or session.backlog is None:
            return super().next_waiting(after, session_id)
        return session.backlog.next_after(after)

    # --- locks ---

    def renew(self, locks: Sequence[Lock]) -> int:
        raise OperationNotAllowed(f"Messages of '{self.path}' are locked with their session: renew the session's lock.")

    def lend(self, messages: list[StoredMessage]) -> list[Lock]:
        session = self.held(messages[0].session_id or "")
        until = session.locked_until
        locks = [self.locks.make(message, session.expires_at, until, session) for message in messages]
        session.locks |= {lock.message.sequence_number: lock for lock in locks}
        return locks

    def check_lock(self, lock: Lock, monotonic: int) -> None:
        session = lock.session
        if session.holder is None or session.expires_at <= monotonic:
            raise SessionLockLost(f"The session lock of '{session.id}' has expired.")

    def unlock(self, lock: Lock) -> None:
        super().unlock(lock)
        session = lock.session
        session.locks.pop(lock.message.sequence_number, None)
        if session.is_free:
            self._offer(session)

    def _after_unlocking(self, error: BrokerError | None) -> None:
        if error is not None:
            log.error("a message of '%s' could not be unlocked yet: %s", self.path, error)

    # --- state ---

    def set_state(self, id: str, state: bytes | None, done: Callable[[BrokerError | None], None]) -> None:
        """Keep something with the session; None forgets it. The session must be held.

        It counts in the size of the queue, so one that grows is refused where there is no room for messages.
        """
        self.held(id)
        size = 0 if state is None else STATE_BYTES + len(state)
        if size > self._state_sizes.get(id, 0):
            self.check_growth(0)
        whole = self.whole

        def stored(_: Any, error: BrokerError | None) -> None:
            whole.staged_bytes -= size
            if error is None:
                self.state_bytes += size - self._state_sizes.pop(id, 0)
                if size:
                    self._state_sizes[id] = size
            done(error)

        whole.staged_bytes += size
        lane = self._journal.rest
        lane.changes.session_states.append((self.id, id, state, self._agenda.now()))
        lane.then(stored, None)

    def get_state(self, id: str, done: Callable[[bytes | BrokerError | None], None]) -> None:
        self.held(id)
        self._store.read_session_state(self.id, id, _readable(done))

    def list_sessions(
        self, updated_after: int | None, skip: int, top: int, done: Callable[[list[str] | BrokerError], None]
    ) -> None:
        """Names of sessions: with messages or a state, or those whose state was set after a time."""
        self._store.read_sessions(self.id, updated_after, skip, top, _readable(done))


def _readable(done: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda answer: done(unreadable(answer) if isinstance(answer, StoreError) else answer)


AnyQueue = Queue | SessionQueue
"""A queue, a subscription, or a sub-queue of one."""


def is_with_sessions(queue: AnyQueue) -> TypeGuard[SessionQueue]:
    return queue.has_sessions


def is_without_sessions(queue: AnyQueue) -> TypeGuard[Queue]:
    return not queue.has_sessions


def void(_: object) -> None: ...
