"""A queue with sessions: each session is held by one receiver at a time, which gets its messages in order.

`session_table` has the sessions and their holders. This module adds messages to sessions and delivers them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeGuard

from peeklock.broker.claim_lanes import SessionLanes
from peeklock.broker.errors import BrokerError, OperationNotAllowed
from peeklock.broker.locks import Lock
from peeklock.broker.machinery import Machinery
from peeklock.broker.message_queue import MessageQueue
from peeklock.broker.queue import Queue
from peeklock.broker.retries import RETRY_MS
from peeklock.broker.session import Session, SessionHolder
from peeklock.broker.session_states import SessionStates
from peeklock.broker.session_table import SessionTable
from peeklock.entities.definitions import AnyDefinition
from peeklock.store.base import ACTIVE, Damage, StoredEntity, StoredMessage, StoreError

log = logging.getLogger(__name__)


class SessionQueue(MessageQueue):
    """A queue whose messages belong to sessions."""

    def __init__(
        self,
        row: StoredEntity,
        definition: AnyDefinition,
        machinery: Machinery,
        dead_letters: MessageQueue | None = None,
        transfer_dead_letters: MessageQueue | None = None,
    ) -> None:
        super().__init__(row, definition, machinery, dead_letters, transfer_dead_letters)
        self.sessions = SessionTable(self, machinery)
        self.states = SessionStates(self, machinery)
        self.windows = self.sessions
        self.claim_lanes = SessionLanes(self)

    def load(self, done: Callable[[StoreError | None], None]) -> None:
        """At start: read the sizes of the states of sessions, and which sessions have messages."""
        self.states.load(lambda error: self.sessions.load(done) if error is None else done(error))

    def close(self) -> None:
        self.sessions.close()
        super().close()
        self.sessions.forget()

    # --- events of active messages ---

    def on_active(self, message: StoredMessage) -> None:
        session = self.sessions.enter(message.session_id or "")
        session.active += 1
        if self.is_taken(message.sequence_number):
            return  # a sweep or a claim has read the message from the store before its commit was answered
        if self.claims.is_waiting:
            self.claims.on_available()
        self.expiry.expect(message)
        if session.backlog is not None:
            session.backlog.add(message)
            self.wake(session)
        else:
            self.sessions.offer(session)

    def on_returned(self, message: StoredMessage, *, was_refused: bool = False) -> None:
        self.expiry.expect(message, RETRY_MS if was_refused else 0)
        session = self.sessions.of(message)
        if session is None:
            return
        if session.backlog is not None:
            session.backlog.add(message)
            if was_refused:
                self.wake_later(session)
            else:
                self.wake(session)
        elif was_refused:
            self.sessions.offer(session)

    def on_inactive(self, message: StoredMessage) -> None:
        self._subtract_one(self.sessions.of(message))

    def on_message_damaged(self, damage: Damage) -> None:
        super().on_message_damaged(damage)
        if damage.state == ACTIVE and not self.claims.covers(damage.sequence_number):
            self._subtract_one(self.sessions.find(damage.session_id or ""))

    def _subtract_one(self, session: Session | None) -> None:
        """Subtract a message from the active messages of a session."""
        if session is not None:
            session.active -= 1
            if not session.active:
                self.sessions.offer(session)

    # --- delivering ---

    def want(self, session: Session) -> None:
        """Deliver messages to the holder of the session, which can take some."""
        if session.selecting is not None:
            session.selecting.want()
        self.wake(session)

    def wake(self, session: Session) -> None:
        """Deliver messages of the session at the end of this turn."""
        if not session.awake and session.holder is not None:
            session.awake = True
            self._machinery.call_soon(partial(self._deliver_all, session))

    def wake_later(self, session: Session) -> None:
        """Deliver messages of the session after a delay, because the store could not be read or refused a change."""
        self._agenda.after(RETRY_MS, partial(self.wake, session))

    def resume(self) -> None:
        self.sessions.resume()

    def _deliver_all(self, session: Session) -> None:
        session.awake = False
        holder, backlog = session.holder, session.backlog
        if holder is None or backlog is None or self.is_deleting:
            return
        if session.expires_at <= self._agenda.monotonic():
            return  # the lock has expired; its timer is due and takes the session from the holder
        if session.selecting is not None:
            session.selecting.serve()
            return
        now = self._agenda.now()
        while holder.ready():
            message = backlog.take()
            if message is None:
                break
            self._deliver(session, holder, message, now)
        if not backlog.loading and not self.is_swept and session.holder is holder:
            holder.on_starved()

    def _deliver(self, session: Session, holder: SessionHolder, message: StoredMessage, now: int) -> None:
        lock = self.locks.make(message, session.expires_at, session.locked_until, session)
        session.locks[message.sequence_number] = lock
        if message.expires_at is not None and message.expires_at <= now:
            # The message stays locked, so that the next holder does not receive it while it is being removed.
            lock.settling = True
            self.expiry.expire(message)
        elif holder.deletes:
            holder.reserve(message)
            self.settlements.remove(lock, partial(self._on_deleted, holder, lock))
        else:
            try:
                holder.deliver(message, lock)
            except Exception:
                # Later messages are delivered. The lock of this one expires, and it is finally dead-lettered.
                log.exception("a message of '%s' could not be delivered", self.path)

    def _on_deleted(self, holder: SessionHolder, lock: Lock, error: BrokerError | None) -> None:
        if error is None:
            holder.deliver(lock.message, None)
        else:
            holder.unreserve(lock.message)
            if self.locks.holds(lock):
                # After a delay, because the store would refuse the removal again.
                self._agenda.after(RETRY_MS, partial(self.settlements.release, lock))

    # --- delivering to a holder with a selector ---

    def delivers_to(self, session: Session, holder: SessionHolder) -> bool:
        """Return whether messages of the session can be delivered to this holder."""
        return session.holder is holder and session.expires_at > self._agenda.monotonic() and not self.is_deleting

    def deliver_selected(self, session: Session, holder: SessionHolder, message: StoredMessage) -> None:
        """Deliver a message that matched the holder's selector, or expire it if its time to live is over."""
        self._deliver(session, holder, message, self._agenda.now())

    # --- locks ---

    def renew(self, locks: Sequence[Lock]) -> int:
        raise OperationNotAllowed(f"Messages of '{self.path}' are locked with their session: renew the session's lock.")

    def lock_deferred(self, messages: list[StoredMessage]) -> list[Lock]:
        session = self.sessions.held(messages[0].session_id or "")
        until = session.locked_until
        locks = [self.locks.make(message, session.expires_at, until, session) for message in messages]
        session.locks |= {lock.message.sequence_number: lock for lock in locks}
        return locks


AnyQueue = Queue | SessionQueue
"""A queue, a subscription, or a sub-queue of one."""


def is_with_sessions(queue: AnyQueue) -> TypeGuard[SessionQueue]:
    return queue.has_sessions


def is_without_sessions(queue: AnyQueue) -> TypeGuard[Queue]:
    return not queue.has_sessions
