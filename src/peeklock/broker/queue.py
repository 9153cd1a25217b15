"""A queue without sessions: competing receivers get messages in turn, and each message has its own lock."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from peeklock.broker.backlog import Backlog
from peeklock.broker.claim_lanes import QueueLanes
from peeklock.broker.consumer import Consumer
from peeklock.broker.entity import Entity
from peeklock.broker.errors import BrokerError, OperationNotAllowed
from peeklock.broker.forwarding import Forwarder
from peeklock.broker.lock_expiry import LockExpiry
from peeklock.broker.locks import Lock
from peeklock.broker.machinery import Machinery
from peeklock.broker.message_queue import MessageQueue
from peeklock.broker.priorities import LANES, PriorityBacklog
from peeklock.broker.retries import RETRY_MS
from peeklock.broker.selecting import Selecting, Selection, Selects
from peeklock.broker.waiting import Waiting
from peeklock.entities.definitions import AnyDefinition
from peeklock.store.base import StoredEntity, StoredMessage

log = logging.getLogger(__name__)

TURN_MESSAGES: Final = 32
"""The most messages that a consumer gets in one turn while other consumers wait."""


class Queue(MessageQueue):
    """A queue, subscription or sub-queue without sessions."""

    def __init__(
        self,
        row: StoredEntity,
        definition: AnyDefinition,
        machinery: Machinery,
        dead_letters: MessageQueue | None = None,
        transfer_dead_letters: MessageQueue | None = None,
        by_priority: bool = False,
    ) -> None:
        super().__init__(row, definition, machinery, dead_letters, transfer_dead_letters)
        self.delivers_by_priority = by_priority
        self._waiting = self._make_waiting()
        self._waiting.resume(row.counters.last_sequence_number, row.counters.active > 0)
        self.windows = self._waiting
        self.claim_lanes = QueueLanes(self, self._waiting)
        self._lock_expiry = LockExpiry(self, self.locks, machinery.agenda, self.settlements.return_expired)
        self._consumers: deque[Consumer] = deque()
        """Consumers without selectors that could take a message when last asked, in the order of their turns."""
        self._queued: set[Consumer] = set()
        """The same consumers, for lookups."""
        self._awake = False
        """Whether a delivery at the end of this turn is scheduled."""
        self._forwarder: Forwarder | None = None
        self._selecting: Selecting | None = None
        """Set while there are consumers with selectors."""
        self._is_paused = False
        """Whether delivery is paused, because a claim searches messages."""
        self._is_resting = False
        """Whether consumers with selectors get no messages, because the store refused to remove a message. They would
        select that message again at once."""

    def _make_waiting(self) -> Waiting:
        if self.delivers_by_priority:
            return PriorityBacklog([self._make_lane(name) for name in reversed(LANES)])
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
            is_taken=self.is_taken,
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
        """Queue a consumer that can take messages, and deliver messages to it in its turn."""
        if consumer not in self._queued:
            self._queued.add(consumer)
            self._consumers.append(consumer)
        self.wake()

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer. Its messages stay locked until they are settled or the locks expire."""
        if consumer in self._queued:
            self._queued.discard(consumer)
            self._consumers.remove(consumer)

    def wake(self) -> None:
        """Deliver messages at the end of this turn."""
        if self.claims.is_waiting:
            self.claims.on_available()
        self._wake_consumers()

    def _wake_consumers(self) -> None:
        if not self._awake and (self._consumers or self._selecting is not None):
            self._awake = True
            self._machinery.call_soon(self._deliver_all)

    def _deliver_all(self) -> None:
        """Deliver messages to the consumers in turn, until there are no messages or no ready consumers."""
        self._awake = False
        if self.is_deleting or self._is_paused:
            return
        if self._selecting is not None and not self._is_resting:
            self._selecting.serve()
        consumers = self._consumers
        take = self._waiting.take
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
                self._remove_and_deliver(consumer, message)
            else:
                lock = self.locks.make(message, expires_at, locked_until)
                try:
                    consumer.deliver(message, lock)
                except Exception:
                    # Later messages are delivered. The lock of this one expires, and it is finally dead-lettered.
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
        if not self._waiting.loading and not self._sweeps:  # otherwise more messages may be read soon
            for consumer in list(consumers):
                consumer.on_starved()

    # --- consumers with selectors ---

    def select(self, consumer: Consumer, selector: Selects) -> Selection:
        """Add a consumer that gets only the messages that match its selector.

        The consumer must call `want_selected` when it can take messages.
        """
        if self._selecting is None:
            self._selecting = Selecting(self, self._machinery, self._waiting.lanes)
        return self._selecting.add(consumer, selector)

    def want_selected(self, selection: Selection) -> None:
        if self._selecting is not None:
            self._selecting.want(selection)
            self.wake()

    def stop_selecting(self, selection: Selection) -> None:
        """Remove the consumer, as `leave` does."""
        if self._selecting is not None:
            self._selecting.remove(selection)
            if self._selecting.is_over:
                self._selecting = None

    def deliver_selected(self, consumer: Consumer, message: StoredMessage) -> None:
        """Deliver a message that matched the consumer's selector, or expire it if its time to live is over."""
        if message.expires_at is not None and message.expires_at <= self._agenda.now():
            self.expiry.expire(message)
        elif consumer.deletes:
            self._remove_and_deliver(consumer, message)
        else:
            expires_at, locked_until = self._lock_expiry.from_now()
            lock = self.locks.make(message, expires_at, locked_until)
            self._lock_expiry.expect(expires_at)
            try:
                consumer.deliver(message, lock)
            except Exception:
                log.exception("a message of '%s' could not be delivered", self.path)

    # --- delivering ---

    def _share(self) -> int:
        """Return how many messages each consumer gets in the next round, so that all get the same number.

        A consumer gets adjacent messages, because they are settled together and removed from the store as one range.
        """
        return min(TURN_MESSAGES, self._waiting.at_hand // max(1, len(self._consumers)))

    def wake_later(self) -> None:
        """Deliver messages after a delay, because the store could not be read. Waiting consumers do not ask again."""
        self._agenda.after(RETRY_MS, self.wake)

    def resume(self) -> None:
        self._lock_expiry.look()
        self.wake()

    def _remove_and_deliver(self, consumer: Consumer, message: StoredMessage) -> None:
        """Remove a message, and deliver it after the commit, so that a crash cannot make it active again."""
        consumer.reserve(message)
        self.leaving.add(message.sequence_number)
        lane = self._journal.rest
        lane.changes.removals.append((self.id, message))
        lane.then(self._on_deleted, (consumer, message))

    def _on_deleted(self, argument: tuple[Consumer, StoredMessage], error: BrokerError | None) -> None:
        consumer, message = argument
        self.leaving.discard(message.sequence_number)
        if error is None:
            self.on_removed(message)
            consumer.deliver(message, None)
        else:
            consumer.unreserve(message)
            self.on_returned(message, was_refused=True)

    def close(self) -> None:
        super().close()
        if self._forwarder is not None:
            self._forwarder.stop()
        self._consumers.clear()
        self._queued.clear()
        if self._selecting is not None:
            self._selecting.close()
            self._selecting = None
        self._waiting.forget()
        self._lock_expiry.stop()

    # --- events of active messages ---

    def on_active(self, message: StoredMessage) -> None:
        if (self.leaving or self._is_paused) and self.is_taken(message.sequence_number):
            return  # a sweep or a claim has read the message from the store before its commit was answered
        self._waiting.add(message)
        self.expiry.expect(message)
        if not self._awake:
            self.wake()

    def on_returned(self, message: StoredMessage, *, was_refused: bool = False) -> None:
        self._waiting.add(message)
        if not was_refused:
            self.expiry.expect(message)
            self.wake()
            return
        self.expiry.expect(message, RETRY_MS)
        if not self._is_resting:
            self._is_resting = True
            self._agenda.after(RETRY_MS, self._end_rest)

    def _end_rest(self) -> None:
        self._is_resting = False
        self.wake()

    # --- for claims ---

    def pause(self) -> bool:
        """Stop delivering messages until `end_pause`. Return False if that is not possible now."""
        if not self.begin_sweep():
            return False
        self._is_paused = True
        return True

    def end_pause(self) -> None:
        self._is_paused = False
        self.read_pages_again()
        self._wake_consumers()

    # --- locks ---

    def renew(self, locks: Sequence[Lock]) -> int:
        """Renew locks for another lock duration, and return the new expiry in Unix time.

        Raise MessageLockLost if one of them is not held.
        """
        held = self.settlements.all_held(locks)
        expires_at, locked_until = self._lock_expiry.from_now()
        for lock in held:
            self.locks.renew(lock, expires_at, locked_until)
        self._lock_expiry.expect(expires_at)
        return locked_until

    def lock_deferred(self, messages: list[StoredMessage]) -> list[Lock]:
        expires_at, locked_until = self._lock_expiry.from_now()
        locks = [self.locks.make(message, expires_at, locked_until) for message in messages]
        self._lock_expiry.expect(expires_at)
        return locks
