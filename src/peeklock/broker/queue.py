"""A queue without sessions: competing receivers, served in turn, each message under a lock of its own."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from peeklock.broker.backlog import Backlog
from peeklock.broker.entity import Entity, Machinery
from peeklock.broker.errors import BrokerError, MessageLockLost, OperationNotAllowed
from peeklock.broker.forwarding import Forwarder
from peeklock.broker.lock_expiry import LockExpiry
from peeklock.broker.locks import Lock
from peeklock.broker.message_queue import MessageQueue
from peeklock.broker.selecting import Selecting, Selection, Selects
from peeklock.broker.timetable import AGAIN_MS
from peeklock.broker.waiting import Waiting
from peeklock.entities.definitions import AnyDefinition
from peeklock.store.base import Counters, Run, StoredMessage

log = logging.getLogger(__name__)

READ_AGAIN_MS: Final = 1000
TURN_MESSAGES: Final = 32
"""The most that a consumer is given at a time while others wait for their turn."""


class Consumer(Protocol):
    """Somebody who receives."""

    deletes: bool
    """Receives and deletes: what it gets is gone, without a lock."""

    def ready(self) -> bool:
        """Whether it can take one more message now."""
        ...

    def deliver(self, message: StoredMessage, lock: Lock | None) -> None: ...

    def reserve(self) -> None:
        """A message for it is being deleted and will be delivered when that is done."""
        ...

    def unreserve(self) -> None:
        """It could not be deleted, and is not delivered."""
        ...

    def starved(self) -> None:
        """There is nothing more for it at the moment (it may want to answer a drain)."""
        ...


class Queue(MessageQueue):
    """One queue or sub-queue of a namespace."""

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
        self._backlog = self._make_backlog()
        self._backlog.resume(counters.last_sequence_number, counters.active > 0)
        self._lock_expiry = LockExpiry(self, self.locks, machinery.agenda, self._lock_ran_out)
        self._consumers: deque[Consumer] = deque()
        """Those that could take a message when last asked, next in turn first."""
        self._queued: set[Consumer] = set()
        """The same consumers."""
        self._awake = False
        self._forwarder: Forwarder | None = None
        self._selecting: Selecting | None = None
        """While there are consumers with selectors."""
        self._is_paused = False
        """While a claim looks for messages."""
        self._is_resting = False
        """The store refused to part with a message. Those who select would ask it again at once, on and on."""

    def _make_backlog(self) -> Waiting:
        """Where its messages wait."""
        return self._make_lane(None)

    def _make_lane(self, session_id: str | None) -> Backlog:
        machinery = self._machinery
        return Backlog(
            self.id,
            machinery.store,
            machinery.budget,
            self.wake,
            self.wake_later,
            session_id=session_id,
            is_out=self.is_out,
            watch=self.watches.read,
        )

    # --- forwarding ---

    def forward(self, destination: str | None, unforwardable: Entity | None) -> None:
        if self._forwarder is not None:
            self._forwarder.stop()
            self._forwarder = None
        if destination is not None and unforwardable is not None:
            self._forwarder = Forwarder(self, destination, unforwardable, self._machinery)
            self.want(self._forwarder)

    @property
    def forwards(self) -> bool:
        return self._forwarder is not None

    def check_receiving(self) -> None:
        super().check_receiving()
        if self._forwarder is not None:
            raise OperationNotAllowed(
                f"The entity '{self.path}' forwards its messages to '{self._forwarder.destination}' "
                "and cannot be received from."
            )

    # --- receiving ---

    def want(self, consumer: Consumer) -> None:
        """The consumer can take messages: serve it in its turn."""
        if consumer not in self._queued:
            self._queued.add(consumer)
            self._consumers.append(consumer)
        self.wake()

    def leave(self, consumer: Consumer) -> None:
        """The consumer is gone. What it holds stays locked until it is settled or the locks run out."""
        if consumer in self._queued:
            self._queued.discard(consumer)
            self._consumers.remove(consumer)

    def wake(self) -> None:
        """Hand out messages at the end of this turn."""
        if self.claims.is_waiting:
            self.claims.on_available()
        self._wake_consumers()

    def _wake_consumers(self) -> None:
        if not self._awake and (self._consumers or self._selecting is not None):
            self._awake = True
            self._machinery.call_soon(self.pump)

    def pump(self) -> None:
        """Hand out what can be handed out, to the consumers in turn."""
        self._awake = False
        if self.doomed or self._is_paused:
            return
        if self._selecting is not None and not self._is_resting:
            self._selecting.serve()
        consumers = self._consumers
        take = self._backlog.take
        now = self._agenda.now()
        expires_at, locked_until = self._lock_expiry.from_now()
        share = left = self._share()
        served = 0
        while consumers:
            consumer = consumers[0]
            if not consumer.ready():
                self._queued.discard(consumers.popleft())
                left = share
                continue
            message = take()
            if message is None:
                break
            if message.expires_at is not None and message.expires_at <= now:
                self.expiry.expire(message)
                continue
            if consumer.deletes:
                self._hand_out_for_good(consumer, message)
            else:
                lock = self.locks.make(message, expires_at, locked_until)
                try:
                    consumer.deliver(message, lock)
                except Exception:
                    # Those behind it are delivered; its lock runs out, which is an attempt too many in the end.
                    log.exception("a message of '%s' could not be delivered", self.path)
            left -= 1
            if left <= 0 and len(consumers) > 1:
                consumers.rotate(-1)
                served += 1
                if served >= len(consumers):
                    served = 0
                    share = self._share()
                left = share
        if self.locks.by_number:
            self._lock_expiry.expect(expires_at)
        if not self._backlog.loading and not self._sweeps:  # else more may be read soon
            for consumer in list(consumers):
                consumer.starved()

    # --- consumers with selectors ---

    def select(self, consumer: Consumer, selector: Selects) -> Selection:
        """The consumer gets only what the selector matches; it says by `want_selected` when it can take messages."""
        if self._selecting is None:
            self._selecting = Selecting(self, self._machinery, self._backlog.lanes)
        return self._selecting.add(consumer, selector)

    def want_selected(self, selection: Selection) -> None:
        if self._selecting is not None:
            self._selecting.want(selection)
            self.wake()

    def stop_selecting(self, selection: Selection) -> None:
        """The consumer is gone; as in `leave`."""
        if self._selecting is not None:
            self._selecting.remove(selection)
            if self._selecting.is_over:
                self._selecting = None

    def dispense(self, consumer: Consumer, message: StoredMessage) -> None:
        """Give the consumer a message that it selected; or let it expire, if its time is over."""
        if message.expires_at is not None and message.expires_at <= self._agenda.now():
            self.expiry.expire(message)
        elif consumer.deletes:
            self._hand_out_for_good(consumer, message)
        else:
            expires_at, locked_until = self._lock_expiry.from_now()
            lock = self.locks.make(message, expires_at, locked_until)
            self._lock_expiry.expect(expires_at)
            try:
                consumer.deliver(message, lock)
            except Exception:
                log.exception("a message of '%s' could not be delivered", self.path)

    # --- handing out ---

    def _share(self) -> int:
        """How many messages each consumer is given in the next round, so that there are as many for the others.
        Neighbours that go the same way come back together, and leave the store as one piece."""
        return min(TURN_MESSAGES, self._backlog.at_hand // max(1, len(self._consumers)))

    def wake_later(self) -> None:
        """The store could not be read: receivers that wait would not ask again by themselves."""
        self._agenda.after(READ_AGAIN_MS, self.wake)

    def _hand_out_for_good(self, consumer: Consumer, message: StoredMessage) -> None:
        """Received is gone: delivered only when it is gone, so that a crash cannot bring it back."""
        consumer.reserve()
        self.leaving.add(message.sequence_number)
        lane = self._journal.rest
        lane.changes.removals.append((self.id, message))
        lane.then(self._deleted, (consumer, message))

    def _deleted(self, argument: tuple[Consumer, StoredMessage], error: BrokerError | None) -> None:
        consumer, message = argument
        self.leaving.discard(message.sequence_number)
        if error is None:
            self.gone(message)
            consumer.deliver(message, None)
        else:
            consumer.unreserve()
            self.stayed(message)

    def vanish(self) -> None:
        super().vanish()
        if self._forwarder is not None:
            self._forwarder.stop()
        self._consumers.clear()
        self._queued.clear()
        if self._selecting is not None:
            self._selecting.close()
            self._selecting = None
        self._backlog.forget()
        self._lock_expiry.stop()

    # --- where messages wait ---

    def arrived(self, message: StoredMessage) -> None:
        if (self.leaving or self._is_paused) and self.is_out(message.sequence_number):
            return  # a sweep or a claim saw it in the store before we were told that it is there
        self._backlog.add(message)
        self.expiry.expect(message)
        if not self._awake:
            self.wake()

    def returned(self, message: StoredMessage) -> None:
        self._backlog.add(message)
        self.expiry.expect(message)
        self.wake()

    def stayed(self, message: StoredMessage) -> None:
        self._backlog.add(message)
        self.expiry.expect(message, AGAIN_MS)
        if not self._is_resting:
            self._is_resting = True
            self._agenda.after(READ_AGAIN_MS, self._go_on)

    def _go_on(self) -> None:
        self._is_resting = False
        self.wake()

    def may_sweep(self) -> bool:
        # A page on its way may hold what the sweep removes: one after the other.
        if self._backlog.loading:
            return False
        self._sweeps += 1
        self._backlog.hold(True)
        return True

    def swept(self) -> None:
        self._end_sweep()
        self.wake()

    def _end_sweep(self) -> None:
        self._sweeps -= 1
        self._backlog.hold(self._sweeps > 0)

    def pause_for_claim(self) -> bool:
        if not self.may_sweep():
            return False
        self._is_paused = True
        return True

    def resume_after_claim(self) -> None:
        self._is_paused = False
        self._end_sweep()
        self._wake_consumers()

    def claim_from(self, lane: str | None, name: str) -> int | None:
        return self._backlog.begin_claim()

    def on_claim_staged(self, lane: str | None, runs: list[Run]) -> None:
        self._backlog.drop_runs(runs)

    def on_claim_undone(self, lane: str | None, runs: list[Run]) -> None:
        if runs:
            self._backlog.read_again(runs)
            self.expiry.look()
            self.wake()

    def discard(self, message: StoredMessage) -> None:
        self._backlog.drop(message)

    def next_waiting(self, after: int, session_id: str | None) -> int:
        return self._backlog.next_after(after)

    # --- locks ---

    def renew(self, locks: Sequence[Lock]) -> int:
        """Hold these messages for another lock duration, or none when one is not held; returns until when."""
        held = self.settlements.all_held(locks)
        expires_at, locked_until = self._lock_expiry.from_now()
        for lock in held:
            self.locks.renew(lock, expires_at, locked_until)
        self._lock_expiry.expect(expires_at)
        return locked_until

    @property
    def lock_duration_ms(self) -> int:
        return self.definition.lock_duration_ms

    def lend(self, messages: list[StoredMessage]) -> list[Lock]:
        expires_at, locked_until = self._lock_expiry.from_now()
        locks = [self.locks.make(message, expires_at, locked_until) for message in messages]
        self._lock_expiry.expect(expires_at)
        return locks

    def check_lock(self, lock: Lock, monotonic: int) -> None:
        if lock.expires_at <= monotonic:
            self._lock_expiry.look()
            raise MessageLockLost

    def _lock_ran_out(self, lock: Lock) -> None:
        self.settlements.give_back(lock, self._after_unlocking)

    def _after_unlocking(self, error: BrokerError | None) -> None:
        if error is not None:
            log.error("a message of '%s' could not be unlocked yet: %s", self.path, error)

    def spared(self) -> None:
        self._lock_expiry.look()
        self.wake()
