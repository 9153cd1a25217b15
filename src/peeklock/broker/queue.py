"""A queue: what is sent to it, who receives from it, and every message's way through locks, counts and expiry.

All changes go through the journal. A message becomes visible when its commit is done, and a settlement is confirmed
when its commit is done; so memory never runs ahead of what a crash would leave.
"""

from __future__ import annotations

import logging
import os
import struct
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, Protocol

from peeklock.broker import envelope
from peeklock.broker.agenda import Agenda, Appointment
from peeklock.broker.backlog import Backlog, Budget
from peeklock.broker.definitions import QueueDefinition, Status
from peeklock.broker.envelope import Annex, Incoming
from peeklock.broker.errors import (
    BrokerError,
    EntityDisabled,
    InvalidProperty,
    MessageLockLost,
    NotSupported,
    OperationNotAllowed,
    QuotaExceeded,
)
from peeklock.broker.journal import Journal, Lane
from peeklock.store.base import ACTIVE, DEFERRED, Changes, Counters, Store, StoredMessage, StoreError

log = logging.getLogger(__name__)

Done = Callable[[BrokerError | None], None]
"""Told once, after the commit or instead of it."""

MAX_REASON_LENGTH: Final = 4096
READ_AGAIN_MS: Final = 1000
PASSING_BYTES: Final = 64 * 1024
SWEEP_MESSAGES: Final = 1000
"""Expired messages taken in one go."""

_pack_tag = struct.Struct(">IQ").pack


class Consumer(Protocol):
    """Somebody who receives from a queue."""

    deletes: bool
    """Receives and deletes: what it gets is gone, without a lock."""

    def ready(self) -> bool:
        """Whether it can take one more message now."""
        ...

    def deliver(self, message: StoredMessage, lock: Lock | None) -> None: ...

    def reserve(self) -> None:
        """A message for it is being deleted and will be delivered when that is done."""
        ...

    def starved(self) -> None:
        """There is nothing more for it at the moment (it may want to answer a drain)."""
        ...


class Lock:
    """A message lent to a receiver. The tag is its name on the wire, new for each delivery."""

    __slots__ = ("expires_at", "message", "settling", "tag")

    def __init__(self, message: StoredMessage, tag: bytes, expires_at: int) -> None:
        self.message = message
        self.tag = tag
        self.expires_at = expires_at
        self.settling = False
        """A settlement of it is on its way to the store."""


class Queue:
    """One queue or sub-queue of a namespace."""

    def __init__(
        self,
        entity: int,
        path: str,
        definition: QueueDefinition,
        *,
        store: Store,
        journal: Journal,
        agenda: Agenda,
        budget: Budget,
        call_soon: Callable[[Callable[[], None]], object],
        counters: Counters,
        dead_letters: Queue | None,
    ) -> None:
        self.entity = entity
        self.path = path
        self.definition = definition
        self.dead_letters = dead_letters
        """Where dead letters go; None for a queue that is a dead-letter queue itself."""
        self.counters = counters
        """As the store has them; what is staged is not counted yet."""
        self._store = store
        self._journal = journal
        self._agenda = agenda
        self._call_soon = call_soon
        self._backlog = Backlog(entity, store, budget, self.wake, self._wake_later)
        self._backlog.resume(counters.last_sequence_number, counters.active > 0)
        self._last_number = counters.last_sequence_number
        self._staged_bytes = 0
        self._max_bytes = definition.max_size_in_megabytes << 20
        self._refuses_sends = self._why_no_sends()
        self._locks: dict[int, Lock] = {}
        """By sequence number, in the order in which they run out (renewing moves one to the end)."""
        self._lock_timer: Appointment | None = None
        self._consumers: deque[Consumer] = deque()
        """Those that could take a message when last asked, next in turn first."""
        self._queued: set[Consumer] = set()
        """The same consumers."""
        self._awake = False
        self._leaving: set[int] = set()
        """Numbers of expired messages on their way out."""
        self._expiry_timer: Appointment | None = None
        self._expiry_due: int | None = None
        self._sweeping = False
        # Tags of one boot never meet those of another, so a token from before a restart is not valid by chance.
        self._tag_prefix = os.urandom(4)
        self._tag_numbers = count(int.from_bytes(os.urandom(3)))
        if counters.active:
            self._look_for_expired()

    @property
    def is_dead_letter_queue(self) -> bool:
        return self.dead_letters is None

    # --- sending ---

    def send(self, messages: Sequence[Incoming], done: Done) -> None:
        """Take these messages, all or none; `done` hears when they are durable. Raises what can be said at once."""
        if self._refuses_sends is not None:
            raise self._refuses_sends.with_traceback(None)  # raised often: each time would add to the trace
        if self.counters.size_in_bytes + self._staged_bytes >= self._max_bytes:
            raise QuotaExceeded(
                f"The entity '{self.path}' has reached its maximum size of {self._max_bytes >> 20} MB."
            )
        now = self._agenda.now()
        stored = [self._admit(message, now) for message in messages]
        lane = self._journal.sends
        appends = lane.changes.appends
        for message in stored:
            self._last_number += 1
            message.sequence_number = self._last_number
            self._staged_bytes += len(message.payload)
            appends.append((self.entity, message))
        lane.waiting.append((self._sent, (stored, done)))
        self._journal.wake()

    def passing_message(self) -> Changes:
        """A message that comes and goes in one commit: whether the store takes messages, at the price of a number."""
        self._last_number += 1
        message = StoredMessage(self._last_number, bytes(PASSING_BYTES), self._agenda.now())
        return Changes(appends=[(self.entity, message)], removals=[(self.entity, message)])

    def _admit(self, incoming: Incoming, now: int) -> StoredMessage:
        """The message as it will be stored, but for its number."""
        bare, annex, ttl, session_id, scheduled_at = incoming
        definition = self.definition
        if session_id is None and definition.requires_session:
            raise OperationNotAllowed(f"The entity '{self.path}' requires sessions: a message needs a session id.")
        if scheduled_at is not None and scheduled_at > now:
            raise NotSupported("Scheduled messages are not supported yet.")
        default = definition.default_message_ttl_ms
        if default is not None and (ttl is None or ttl > default):
            ttl = default
        if ttl is None:
            return StoredMessage(0, bare, now, None, 0, ACTIVE, session_id, None, annex)
        expires_at = now + ttl
        bare = envelope.stamp_expiry(bare, expires_at)
        return StoredMessage(0, bare, now, expires_at, 0, ACTIVE, session_id, None, annex)

    def _why_no_sends(self) -> BrokerError | None:
        if self.is_dead_letter_queue:
            return OperationNotAllowed(f"Messages cannot be sent to '{self.path}'.")
        status = self.definition.status
        if status not in (Status.ACTIVE, Status.RECEIVE_DISABLED):
            return EntityDisabled(f"The entity '{self.path}' does not take messages: its status is {status}.")
        return None

    def _sent(self, argument: tuple[list[StoredMessage], Done], error: BrokerError | None) -> None:
        messages, done = argument
        for message in messages:
            self._staged_bytes -= len(message.payload)
            if error is None:
                self._arrived(message)
        done(error)

    def _arrived(self, message: StoredMessage) -> None:
        counters = self.counters
        counters.active += 1
        counters.size_in_bytes += len(message.payload)
        self._backlog.add(message)
        if message.expires_at is not None:
            self._expect_expiry(message.expires_at)
        if not self._awake:
            self.wake()

    # --- receiving ---

    def check_receiving(self) -> None:
        """Raise why nobody may receive from this queue."""
        if self.definition.status not in (Status.ACTIVE, Status.SEND_DISABLED):
            raise EntityDisabled(
                f"The entity '{self.path}' cannot be received from: its status is {self.definition.status}."
            )

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
        if not self._awake and self._consumers:
            self._awake = True
            self._call_soon(self.pump)

    def _wake_later(self) -> None:
        """The store could not be read: receivers that wait would not ask again by themselves."""
        self._agenda.at(self._agenda.now() + READ_AGAIN_MS, self.wake)

    def pump(self) -> None:
        """Hand out what can be handed out, one message a consumer in turn."""
        self._awake = False
        consumers = self._consumers
        take = self._backlog.take
        now = self._agenda.now()
        while consumers:
            consumer = consumers[0]
            if not consumer.ready():
                self._queued.discard(consumers.popleft())
                continue
            message = take()
            if message is None:
                break
            if message.expires_at is not None and message.expires_at <= now:
                self._expire(message)
                continue
            if consumer.deletes:
                self._hand_out_for_good(consumer, message)
            else:
                consumer.deliver(message, self._lock(message, now))
            if len(consumers) > 1:
                consumers.rotate(-1)
        if not self._backlog.loading:
            for consumer in list(consumers):
                consumer.starved()

    def _lock(self, message: StoredMessage, now: int) -> Lock:
        number = message.sequence_number
        tag = self._tag_prefix + _pack_tag(next(self._tag_numbers) & 0xFFFFFFFF, number)
        lock = Lock(message, tag, now + self.definition.lock_duration_ms)
        self._locks[number] = lock
        if self._lock_timer is None:
            self._lock_timer = self._agenda.at(lock.expires_at, self._unlock_expired)
        return lock

    def _hand_out_for_good(self, consumer: Consumer, message: StoredMessage) -> None:
        """Received is gone: delivered only when it is gone, so that a crash cannot bring it back."""
        consumer.reserve()
        lane = self._journal.rest
        lane.changes.removals.append((self.entity, message))
        lane.waiting.append((self._deleted, (consumer, message)))
        self._journal.wake()

    def _deleted(self, argument: tuple[Consumer, StoredMessage], error: BrokerError | None) -> None:
        consumer, message = argument
        if error is None:
            self._removed(message)
            consumer.deliver(message, None)
        else:
            self._returned(message)

    # --- settling ---

    def lock_of(self, tag: bytes) -> Lock:
        """The lock of that tag; MessageLockLost when there is none (any more)."""
        lock = self._locks.get(int.from_bytes(tag[8:])) if len(tag) == 16 else None
        if lock is None or lock.tag != tag:
            raise MessageLockLost
        return lock

    def complete(self, lock: Lock, done: Done) -> None:
        lane = self._settle(lock)
        lane.changes.removals.append((self.entity, lock.message))
        lane.waiting.append((self._completed, (lock, done)))
        self._journal.wake()

    def _completed(self, argument: tuple[Lock, Done], error: BrokerError | None) -> None:
        lock, done = argument
        if error is None:
            message = lock.message
            del self._locks[message.sequence_number]
            self._removed(message)
        else:
            lock.settling = False
        done(error)

    def abandon(self, lock: Lock, done: Done, properties: dict[Any, Any] | None = None) -> None:
        """Give the message back, counted; one time too many and it is dead-lettered."""
        self._give_back(lock, self._settle(lock), done, properties)

    def release(self, lock: Lock) -> None:
        """Give the message back as if it had not been received."""
        if self._locks.get(lock.message.sequence_number) is lock and not lock.settling:
            del self._locks[lock.message.sequence_number]
            self._returned(lock.message)

    def defer(self, lock: Lock, done: Done, properties: dict[Any, Any] | None = None) -> None:
        """Set the message aside: from now on it is only had by its number."""
        lane = self._settle(lock)
        changed = self._changed(lock.message, properties, state=DEFERRED)
        self._stage_change(lane, lock.message, changed)
        lane.waiting.append((self._deferred, (lock, changed, done)))
        self._journal.wake()

    def _deferred(self, argument: tuple[Lock, StoredMessage, Done], error: BrokerError | None) -> None:
        lock, changed, done = argument
        if error is None:
            del self._locks[changed.sequence_number]
            self.counters.active -= 1
            self.counters.deferred += 1
            self.counters.size_in_bytes += len(changed.payload) - len(lock.message.payload)
        else:
            lock.settling = False
        done(error)

    def dead_letter(
        self,
        lock: Lock,
        done: Done,
        reason: str | None = None,
        description: str | None = None,
        properties: dict[Any, Any] | None = None,
    ) -> None:
        """Move the message to the dead-letter queue. In the dead-letter queue it stays where it is."""
        for name, text in (("reason", reason), ("description", description)):
            if text is not None and len(text) > MAX_REASON_LENGTH:
                raise InvalidProperty(
                    f"The dead-letter {name} has {len(text)} characters; at most {MAX_REASON_LENGTH} are allowed."
                )
        lane = self._settle(lock)
        properties = dict(properties or {})
        if reason is not None:
            properties["DeadLetterReason"] = reason
        if description is not None:
            properties["DeadLetterErrorDescription"] = description
        if self.dead_letters is None:
            self._give_back(lock, lane, done, properties)
        else:
            self._move(lock.message, lane, properties, self._locked_one_moved, (lock, done))

    def _settle(self, lock: Lock) -> Lane:
        """Claim the lock for one settlement."""
        if lock.settling or self._locks.get(lock.message.sequence_number) is not lock:
            raise MessageLockLost
        if lock.expires_at <= self._agenda.now():
            self._unlock_expired()
            raise MessageLockLost
        lock.settling = True
        return self._journal.rest

    def _give_back(self, lock: Lock, lane: Lane, done: Done, properties: dict[Any, Any] | None) -> None:
        message = lock.message
        delivery_count = message.delivery_count + 1
        if delivery_count >= self.definition.max_delivery_count and self.dead_letters is not None:
            reason = {
                **(properties or {}),
                "DeadLetterReason": "MaxDeliveryCountExceeded",
                "DeadLetterErrorDescription": (
                    f"Message could not be consumed after {delivery_count} delivery attempts."
                ),
            }
            counted = self._changed(message, None, delivery_count=delivery_count)
            self._move(counted, lane, reason, self._locked_one_moved, (lock, done))
            return
        changed = self._changed(message, properties, delivery_count=delivery_count)
        self._stage_change(lane, message, changed)
        lane.waiting.append((self._given_back, (lock, changed, done)))
        self._journal.wake()

    def _given_back(self, argument: tuple[Lock, StoredMessage, Done], error: BrokerError | None) -> None:
        lock, changed, done = argument
        if error is None:
            del self._locks[changed.sequence_number]
            self.counters.size_in_bytes += len(changed.payload) - len(lock.message.payload)
            self._returned(changed)
        else:
            lock.settling = False
        done(error)

    def _returned(self, message: StoredMessage) -> None:
        """A message that was locked waits again."""
        self._backlog.add(message)
        if message.expires_at is not None:
            self._expect_expiry(message.expires_at)
        self.wake()

    def _changed(
        self,
        message: StoredMessage,
        properties: dict[Any, Any] | None,
        *,
        state: int = ACTIVE,
        delivery_count: int | None = None,
    ) -> StoredMessage:
        """The message as it will be; the one in memory stays as it is until the commit."""
        payload = envelope.with_application_properties(message.payload, properties) if properties else message.payload
        return StoredMessage(
            message.sequence_number,
            payload,
            message.enqueued_at,
            message.expires_at,
            message.delivery_count if delivery_count is None else delivery_count,
            state,
            message.session_id,
            message.due_at,
            message.annex,
        )

    def _stage_change(self, lane: Lane, message: StoredMessage, changed: StoredMessage) -> None:
        changes = lane.changes
        if changed.payload is message.payload:
            changes.updates.append((self.entity, changed, message.state))
        else:
            changes.rewrites.append((self.entity, changed, message.state, len(message.payload)))

    # --- dead letters ---

    def _move(
        self, message: StoredMessage, lane: Lane, properties: dict[Any, Any], outcome: Callable[..., None], argument: Any
    ) -> None:
        """Stage the way to the dead-letter queue; `outcome((message, argument), error)` follows."""
        target = self.dead_letters
        assert target is not None
        annex = Annex.decode(message.annex)._replace(dead_letter_source=self.path)
        letter = StoredMessage(
            message.sequence_number,
            envelope.with_application_properties(message.payload, properties),
            message.enqueued_at,
            None,  # nothing expires in a dead-letter queue
            message.delivery_count,
            ACTIVE,
            message.session_id,
            None,
            annex.encode(),
        )
        lane.changes.appends.append((target.entity, letter))
        lane.changes.removals.append((self.entity, message))
        lane.waiting.append((self._moved, (message, letter, outcome, argument)))
        self._journal.wake()

    def _moved(self, argument: tuple[Any, ...], error: BrokerError | None) -> None:
        message, letter, outcome, rest = argument
        if error is None:
            assert self.dead_letters is not None
            self._removed(message)
            self.dead_letters._arrived(letter)
        outcome(message, rest, error)

    def _locked_one_moved(
        self, message: StoredMessage, argument: tuple[Lock, Done], error: BrokerError | None
    ) -> None:
        lock, done = argument
        if error is None:
            del self._locks[message.sequence_number]
        else:
            lock.settling = False
        done(error)

    def _removed(self, message: StoredMessage) -> None:
        self.counters.active -= 1
        self.counters.size_in_bytes -= len(message.payload)

    # --- time ---

    def _unlock_expired(self) -> None:
        """Give back what was held too long, and look again when the next lock runs out."""
        self._lock_timer = None
        now = self._agenda.now()
        due = None
        for lock in list(self._locks.values()):
            if lock.settling:
                continue
            if lock.expires_at > now:
                due = lock.expires_at
                break
            lock.settling = True
            self._give_back(lock, self._journal.rest, self._after_expiry, None)
        if due is not None:
            self._lock_timer = self._agenda.at(due, self._unlock_expired)
        elif self._locks:
            # Settlements are on their way, and may fail: look again in a while.
            self._lock_timer = self._agenda.at(now + self.definition.lock_duration_ms, self._unlock_expired)

    def _after_expiry(self, error: BrokerError | None) -> None:
        if error is not None:
            log.error("a message of '%s' could not be unlocked yet: %s", self.path, error)

    def _expire(self, message: StoredMessage) -> None:
        """A waiting message is past its time: out, or to the dead letters."""
        self._leaving.add(message.sequence_number)
        lane = self._journal.rest
        if self.definition.dead_lettering_on_message_expiration and self.dead_letters is not None:
            properties = {
                "DeadLetterReason": "TTLExpiredException",
                "DeadLetterErrorDescription": "The message expired and was dead lettered.",
            }
            self._move(message, lane, properties, self._expired, False)
        else:
            lane.changes.removals.append((self.entity, message))
            lane.waiting.append((self._dropped, message))
            self._journal.wake()

    def _dropped(self, message: StoredMessage, error: BrokerError | None) -> None:
        if error is None:
            self._removed(message)
        self._expired(message, None, error)

    def _expired(self, message: StoredMessage, _: Any, error: BrokerError | None) -> None:
        self._leaving.discard(message.sequence_number)
        if error is not None:
            self._backlog.add(message)

    def _expect_expiry(self, at: int) -> None:
        if self._expiry_due is None or at < self._expiry_due:
            self._expiry_due = at
            if self._expiry_timer is not None:
                self._expiry_timer.cancel()
            self._expiry_timer = self._agenda.at(at, self._look_for_expired)

    def _look_for_expired(self) -> None:
        """Ask the store: most of what expires is not in memory."""
        if self._sweeping:
            return
        if self._backlog.loading:
            # A page on its way may hold what the sweep removes: one after the other.
            self._expiry_timer = self._agenda.at(self._agenda.now() + 100, self._look_for_expired)
            return
        self._sweeping = self._backlog.held = True
        self._expiry_due = self._expiry_timer = None
        self._store.read_expired(self.entity, self._agenda.now(), SWEEP_MESSAGES, self._sweep)

    def _sweep(self, found: tuple[list[StoredMessage], int | None] | StoreError) -> None:
        if isinstance(found, StoreError):
            log.error("expired messages of '%s' could not be read: %s", self.path, found)
            self._swept(self._agenda.now() + 60_000)
            return
        messages, next_expiry = found
        again_at = next_expiry
        for message in messages:
            number = message.sequence_number
            if number in self._locks:
                # Not while it is locked; it is looked at again when it comes back.
                continue
            if number not in self._leaving:
                self._backlog.discard(number)
                self._expire(message)
        if len(messages) == SWEEP_MESSAGES:
            again_at = self._agenda.now() + 100
        if self._leaving:
            # Pages may be read again when the removals are done.
            self._journal.rest.waiting.append((lambda again, _: self._swept(again), again_at))
            self._journal.wake()
        else:
            self._swept(again_at)

    def _swept(self, again_at: int | None) -> None:
        self._sweeping = self._backlog.held = False
        if again_at is not None:
            self._expect_expiry(again_at)
        self.wake()
