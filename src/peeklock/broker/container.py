"""What holds messages: a queue or a sub-queue, with or without sessions.

Here is every message's way through sending, settlement, dead letters and deferral; who receives it, and under which
locks, is `queue`'s and `sessions`' business. All changes go through the journal. A message becomes visible when its
commit is done, and a settlement is confirmed when its commit is done; so memory never runs ahead of what a crash
would leave.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from peeklock.broker import envelope
from peeklock.broker.agenda import Agenda
from peeklock.broker.backlog import Budget
from peeklock.broker.definitions import (
    QueueDefinition,
)
from peeklock.broker.envelope import Annex, Incoming
from peeklock.broker.errors import (
    BrokerError,
    EntityDisabled,
    InvalidProperty,
    MessageLockLost,
    OperationNotAllowed,
    QuotaExceeded,
)
from peeklock.broker.journal import Journal, Lane
from peeklock.broker.settings import (
    Status,
)
from peeklock.store.base import ACTIVE, DEFERRED, SCHEDULED, Changes, Counters, Store, StoredMessage

log = logging.getLogger(__name__)

Done = Callable[[BrokerError | None], None]
"""Told once, after the commit or instead of it."""

MAX_REASON_LENGTH: Final = 4096
END_OF_TIME: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, as late as clients can say."""
PASSING_BYTES: Final = 64 * 1024

_pack_tag = struct.Struct(">IQ").pack


@dataclass(frozen=True, slots=True)
class Machinery:
    """What all entities of a namespace share."""

    store: Store
    journal: Journal
    agenda: Agenda
    budget: Budget
    call_soon: Callable[[Callable[[], None]], object]


class Lock:
    """A message lent to a receiver. The tag is its name on the wire, new for each delivery."""

    __slots__ = ("expires_at", "message", "session", "settling", "tag")

    def __init__(self, message: StoredMessage, tag: bytes, expires_at: int, session: Any = None) -> None:
        self.message = message
        self.tag = tag
        self.expires_at = expires_at
        self.session = session
        """The session it belongs to, where there are sessions."""
        self.settling = False
        """A settlement of it is on its way to the store."""


class Container:
    """One entity with messages. Subclasses say where active messages wait and who gets them."""

    def __init__(
        self,
        entity: int,
        path: str,
        definition: QueueDefinition,
        machinery: Machinery,
        counters: Counters,
        dead_letters: Container | None,
    ) -> None:
        self.entity = entity
        self.path = path
        self.definition = definition
        self.dead_letters = dead_letters
        """Where dead letters go; None for a queue that is a dead-letter queue itself."""
        self.counters = counters
        """As the store has them; what is staged is not counted yet."""
        self._machinery = machinery
        self._store = machinery.store
        self._journal = machinery.journal
        self._agenda = machinery.agenda
        self._last_number = counters.last_sequence_number
        self._staged_bytes = 0
        self._max_bytes = definition.max_size_in_megabytes << 20
        self._refuses_sends = self._why_no_sends()
        self._locks: dict[int, Lock] = {}
        """By sequence number, in the order in which they were made or renewed."""
        self._watches: dict[int, set[int]] = {}
        """One for each read on its way: numbers that changed meanwhile, of which it may tell what is no longer so."""
        self._watch_numbers = count()
        # Tags of one boot never meet those of another, so a token from before a restart is not valid by chance.
        self._tag_prefix = os.urandom(4)
        self._tag_numbers = count(int.from_bytes(os.urandom(3)))

    @property
    def is_dead_letter_queue(self) -> bool:
        return self.dead_letters is None

    @property
    def has_sessions(self) -> bool:
        return self.definition.requires_session and not self.is_dead_letter_queue

    # --- for subclasses ---

    def _arrived(self, message: StoredMessage) -> None:
        """A new active message is in the store. Counted by whoever calls `counted`."""
        raise NotImplementedError  # abstract

    def _returned(self, message: StoredMessage) -> None:
        """An active message that was locked, or on its way out, waits again."""
        raise NotImplementedError  # abstract

    def _left(self, message: StoredMessage) -> None:
        """An active message is gone, or no longer active."""

    def _unlocked(self, lock: Lock) -> None:
        """The lock is no more."""

    def _check_lock(self, lock: Lock, now: int) -> None:
        """Raise why the lock is not good any more."""
        raise NotImplementedError  # abstract

    # --- sending ---

    def send(self, messages: Sequence[Incoming], done: Done) -> None:
        """Take these messages, all or none; `done` hears when they are durable. Raises what can be said at once."""
        self.stage_sends(self._journal.sends, self.admit(messages), done)

    def admit(self, messages: Sequence[Incoming]) -> list[StoredMessage]:
        """The messages as they will be stored, but for their numbers. Raises why they are not taken."""
        if self._refuses_sends is not None:
            self.check_sending()
        if self.counters.size_in_bytes + self._staged_bytes >= self._max_bytes:
            raise QuotaExceeded(f"The entity '{self.path}' has reached its maximum size of {self._max_bytes >> 20} MB.")
        now = self._agenda.now()
        return [self._admit(message, now) for message in messages]

    def stage_sends(self, lane: Lane, messages: list[StoredMessage], done: Done) -> None:
        """Number the admitted messages and send them on their way."""
        appends = lane.changes.appends
        for message in messages:
            if not message.sequence_number:
                self._last_number += 1
                message.sequence_number = self._last_number
            self._staged_bytes += len(message.payload)
            appends.append((self.entity, message))
        lane.waiting.append((self._sent, (messages, done)))
        self._journal.wake()

    def number(self, messages: list[StoredMessage]) -> list[int]:
        """Give admitted messages their numbers before they are sent on their way, for those who must say them."""
        for message in messages:
            self._last_number += 1
            message.sequence_number = self._last_number
        return [message.sequence_number for message in messages]

    def passing_message(self) -> Changes:
        """A message that comes and goes in one commit: whether the store takes messages, at the price of a number."""
        self._last_number += 1
        message = StoredMessage(self._last_number, bytes(PASSING_BYTES), self._agenda.now())
        return Changes(appends=[(self.entity, message)], removals=[(self.entity, message)])

    def _admit(self, incoming: Incoming, now: int) -> StoredMessage:
        bare, annex, ttl, session_id, scheduled_at = incoming
        if session_id is None and self.definition.requires_session:
            raise OperationNotAllowed(f"The entity '{self.path}' requires sessions: a message needs a session id.")
        if scheduled_at is not None and scheduled_at > now:
            if ttl is not None:
                annex = Annex.decode(annex)._replace(ttl_ms=ttl).encode()
            return StoredMessage(0, bare, now, None, 0, SCHEDULED, session_id, scheduled_at, annex)
        return self._active(bare, annex, ttl, session_id, now)

    def _active(
        self, bare: bytes, annex: bytes | None, ttl: int | None, session_id: str | None, now: int
    ) -> StoredMessage:
        """A message that is enqueued now: its time to live starts."""
        default = self.definition.default_message_ttl_ms
        if default is not None and (ttl is None or ttl > default):
            ttl = default
        if ttl is None:
            return StoredMessage(0, bare, now, None, 0, ACTIVE, session_id, None, annex)
        expires_at = min(now + ttl, END_OF_TIME)
        bare = envelope.stamp_expiry(bare, now, expires_at)
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
                self._enter(message)
        done(error)

    def _enter(self, message: StoredMessage) -> None:
        """A message is in the store now."""
        counters = self.counters
        counters.size_in_bytes += len(message.payload)
        if message.sequence_number > counters.last_sequence_number:
            counters.last_sequence_number = message.sequence_number
        if message.state == ACTIVE:
            counters.active += 1
            self._arrived(message)
        else:
            counters.scheduled += 1
            self._scheduled(message)

    def _scheduled(self, message: StoredMessage) -> None:
        """A message for later is in the store."""
        raise NotImplementedError  # abstract

    # --- receiving ---

    def check_sending(self) -> None:
        """Raise why nobody may send to this entity."""
        if self._refuses_sends is not None:
            raise self._refuses_sends.with_traceback(None)  # raised often: each time would add to the trace

    def check_receiving(self) -> None:
        """Raise why nobody may receive from this entity."""
        if self.definition.status not in (Status.ACTIVE, Status.SEND_DISABLED):
            raise EntityDisabled(
                f"The entity '{self.path}' cannot be received from: its status is {self.definition.status}."
            )

    def _make_lock(self, message: StoredMessage, expires_at: int, session: Any = None) -> Lock:
        number = message.sequence_number
        tag = self._tag_prefix + _pack_tag(next(self._tag_numbers) & 0xFFFFFFFF, number)
        lock = self._locks[number] = Lock(message, tag, expires_at, session)
        return lock

    def lock_of(self, tag: bytes) -> Lock:
        """The lock of that tag, if it still holds; MessageLockLost otherwise."""
        lock = self._locks.get(int.from_bytes(tag[8:])) if len(tag) == 16 else None
        if lock is None or lock.tag != tag or lock.settling:
            raise MessageLockLost
        self._check_lock(lock, self._agenda.now())
        return lock

    # --- settling ---

    def complete(self, lock: Lock, done: Done) -> None:
        lane = self._settle(lock)
        lane.changes.removals.append((self.entity, lock.message))
        lane.waiting.append((self._completed, (lock, done)))
        self._journal.wake()

    def complete_all(self, locks: list[Lock | None], done: Done) -> None:
        """As `complete`, for all of them or, when one is not held, for none."""
        held = self._locks
        now = self._agenda.now()
        completed: list[Lock] = []
        for lock in locks:
            if lock is None or lock.settling or held.get(lock.message.sequence_number) is not lock:
                raise MessageLockLost
            self._check_lock(lock, now)
            completed.append(lock)
        lane = self._journal.rest
        entity = self.entity
        removals = lane.changes.removals
        for lock in completed:
            lock.settling = True
            removals.append((entity, lock.message))
        lane.waiting.append((self._all_completed, (completed, done)))
        self._journal.wake()

    def _all_completed(self, argument: tuple[list[Lock], Done], error: BrokerError | None) -> None:
        locks, done = argument
        for lock in locks:
            if error is None:
                self._gone(lock.message)
            self._settled(lock, error)
        done(error)

    def _completed(self, argument: tuple[Lock, Done], error: BrokerError | None) -> None:
        lock, done = argument
        if error is None:
            self._gone(lock.message)
        self._settled(lock, error)
        done(error)

    def abandon(self, lock: Lock, done: Done, properties: dict[Any, Any] | None = None) -> None:
        """Give the message back, counted; one time too many and it is dead-lettered."""
        self._give_back(lock, self._settle(lock), done, properties)

    def release(self, lock: Lock) -> None:
        """Give the message back as if it had not been received."""
        if self._locks.get(lock.message.sequence_number) is lock and not lock.settling:
            self._drop_lock(lock)
            if lock.message.state == ACTIVE:
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
            counters = self.counters
            counters.count(lock.message.state, -1)
            counters.deferred += 1
            counters.size_in_bytes += len(changed.payload) - len(lock.message.payload)
            if lock.message.state == ACTIVE:
                self._left(lock.message)
        self._settled(lock, error)
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
        check_reason(reason, description)
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
        self._check_lock(lock, self._agenda.now())
        lock.settling = True
        return self._journal.rest

    def _settled(self, lock: Lock, error: BrokerError | None) -> None:
        """The settlement is durable, or did not happen."""
        if error is None:
            self._drop_lock(lock)
        else:
            lock.settling = False

    def _after_commit(self, action: Callable[[], None]) -> None:
        """Do that when all that is staged by now is in the store, or has failed."""
        self._journal.rest.waiting.append((lambda _, error: action(), None))
        self._journal.wake()

    def _drop_lock(self, lock: Lock) -> None:
        number = lock.message.sequence_number
        del self._locks[number]
        if self._watches:
            self._note_change(number)
        if lock.session is not None:
            self._unlocked(lock)

    def _give_back(self, lock: Lock, lane: Lane, done: Done, properties: dict[Any, Any] | None) -> None:
        message = lock.message
        # A deferred message was counted when it was fetched.
        delivery_count = message.delivery_count + (message.state == ACTIVE)
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
        self._settled(lock, error)
        if error is None:
            self.counters.size_in_bytes += len(changed.payload) - len(lock.message.payload)
            if changed.state == ACTIVE:
                self._returned(changed)
        done(error)

    def _changed(
        self,
        message: StoredMessage,
        properties: dict[Any, Any] | None,
        *,
        state: int | None = None,
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
            message.state if state is None else state,
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
        self,
        message: StoredMessage,
        lane: Lane,
        properties: dict[Any, Any],
        outcome: Callable[..., None],
        argument: Any,
    ) -> None:
        """Stage the way to the dead-letter queue; `outcome(message, argument, error)` follows."""
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
            self._gone(message)
            self.dead_letters._enter(letter)
        outcome(message, rest, error)

    def _locked_one_moved(self, message: StoredMessage, argument: tuple[Lock, Done], error: BrokerError | None) -> None:
        lock, done = argument
        self._settled(lock, error)
        done(error)

    def _gone(self, message: StoredMessage) -> None:
        """A message left the store."""
        if self._watches:
            self._note_change(message.sequence_number)
        counters = self.counters
        counters.size_in_bytes -= len(message.payload)
        if message.state == ACTIVE:
            counters.active -= 1
            self._left(message)
        else:
            counters.count(message.state, -1)

    # --- reading what may change meanwhile ---

    def _watch(self, read: Callable[[Callable[[Any], None]], None], found: Callable[[Any, set[int]], None]) -> None:
        """Read from the store; `found` is told the answer and which messages changed since the question."""
        watch = next(self._watch_numbers)
        self._watches[watch] = set()
        read(lambda answer: found(answer, self._watches.pop(watch)))

    def _note_change(self, number: int) -> None:
        for changed in self._watches.values():
            changed.add(number)


def check_reason(reason: str | None, description: str | None) -> None:
    for name, text in (("reason", reason), ("description", description)):
        if text is not None and len(text) > MAX_REASON_LENGTH:
            raise InvalidProperty(
                f"The dead-letter {name} has {len(text)} characters; at most {MAX_REASON_LENGTH} are allowed."
            )
