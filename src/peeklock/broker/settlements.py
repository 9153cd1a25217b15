"""How messages are settled: completed, given back, deferred, dead-lettered.

A settlement is checked against the lock, staged in one piece, and confirmed when its commit is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.service_bus import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from peeklock.broker import envelope
from peeklock.broker.agenda import Agenda
from peeklock.broker.entity import Done, Entity
from peeklock.broker.envelope import AddedProperties
from peeklock.broker.errors import (
    BrokerError,
    EntityNotFound,
    InvalidProperty,
    MessageLockLost,
    MessageSizeExceeded,
    QuotaExceeded,
)
from peeklock.broker.journal import Journal, Lane
from peeklock.broker.locks import Lock
from peeklock.limits.amqp import MAX_ADDED_BYTES, MAX_REASON_LENGTH
from peeklock.store.base import ACTIVE, DEFERRED, StoredMessage

if TYPE_CHECKING:
    from peeklock.broker.message_queue import MessageQueue

log = logging.getLogger(__name__)

DEAD_LETTER_KEYS: Final = (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION)
REASON_SHARE: Final = 4
"""Reasons of dead letters find room in a full entity, until it is larger than it may be by one part in so many."""


class Verdict(Enum):
    """What a receiver says of a message."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, slots=True)
class Settlement:
    """A verdict, and what comes with it."""

    verdict: Verdict
    properties: dict[Any, Any] | None = None
    """To add to the message."""
    reason: str | None = None
    """Of a dead letter, like the next."""
    description: str | None = None

    def check(self) -> None:
        """Raise what can be said before the message is known."""
        for name, text in (("reason", self.reason), ("description", self.description)):
            if text is not None and len(text) > MAX_REASON_LENGTH:
                raise InvalidProperty(
                    f"The dead-letter {name} has {len(text)} characters; at most {MAX_REASON_LENGTH} are allowed."
                )

    @property
    def added(self) -> dict[Any, Any]:
        """All properties that it adds, the reason too."""
        added = dict(self.properties or {})
        if self.reason is not None:
            added[DEAD_LETTER_REASON] = self.reason
        if self.description is not None:
            added[DEAD_LETTER_DESCRIPTION] = self.description
        return added


class Settlements:
    """Takes a receiver's word on the messages of one queue."""

    def __init__(self, queue: MessageQueue, journal: Journal, agenda: Agenda) -> None:
        self._queue = queue
        self._journal = journal
        self._agenda = agenda

    # --- locks ---

    def check_held(self, lock: Lock) -> None:
        """MessageLockLost or SessionLockLost when that lock no longer holds, or a settlement of it is on its way."""
        queue = self._queue
        if lock.settling or not queue.locks.holds(lock):
            raise MessageLockLost
        if lock.expires_at <= self._agenda.monotonic():
            raise lock.lost()

    def all_held(self, locks: Sequence[Lock | None]) -> list[Lock]:
        """Raises unless all of them are held at this moment."""
        queue = self._queue
        held = queue.locks.by_number
        monotonic = self._agenda.monotonic()
        found: list[Lock] = []
        for lock in locks:
            if lock is None or lock.settling or held.get(lock.message.sequence_number) is not lock:
                raise MessageLockLost
            if lock.expires_at <= monotonic:
                raise lock.lost()
            found.append(lock)
        return found

    # --- settlements ---

    def settle(self, settlement: Settlement, lock: Lock, done: Done) -> None:
        """Do what a receiver says. Raises why not."""
        match settlement.verdict:
            case Verdict.COMPLETE:
                self.complete(lock, done)
            case Verdict.ABANDON:
                self.abandon(lock, done, settlement.properties)
            case Verdict.DEFER:
                self.defer(lock, done, settlement.properties)
            case Verdict.DEAD_LETTER:
                self.dead_letter_all([lock], done, settlement)

    def settle_all(self, settlement: Settlement, locks: Sequence[Lock | None], done: Done) -> None:
        """As `settle`, for all of them or, when one is not held, for none."""
        match settlement.verdict:
            case Verdict.COMPLETE:
                self.complete_all(locks, done)
            case Verdict.ABANDON:
                self.abandon_all(locks, done, settlement.properties)
            case Verdict.DEFER:
                self.defer_all(locks, done, settlement.properties)
            case Verdict.DEAD_LETTER:
                self.dead_letter_all(locks, done, settlement)

    def complete(self, lock: Lock, done: Done) -> None:
        self.check_held(lock)
        self.remove(lock, done)

    def remove(self, lock: Lock, done: Done) -> None:
        """As `complete`, of a lock that was made just now."""
        lane = self._journal.rest
        lane.changes.removals.append((self._queue.id, lock.message))
        lane.then(self._completed, (lock, done))
        lock.settling = True

    def complete_all(self, locks: Sequence[Lock | None], done: Done) -> None:
        """As `complete`, for all of them or, when one is not held, for none."""
        completed = self.all_held(locks)
        lane = self._journal.rest
        entity = self._queue.id
        removals = lane.changes.removals
        for lock in completed:
            lock.settling = True
            removals.append((entity, lock.message))
        lane.then(self._all_completed, (completed, done))

    def _all_completed(self, argument: tuple[list[Lock], Done], error: BrokerError | None) -> None:
        locks, done = argument
        for lock in locks:
            if error is None:
                self._queue.on_removed(lock.message)
            self._settled(lock, error)
        done(error)

    def _completed(self, argument: tuple[Lock, Done], error: BrokerError | None) -> None:
        lock, done = argument
        if error is None:
            self._queue.on_removed(lock.message)
        self._settled(lock, error)
        done(error)

    def abandon(self, lock: Lock, done: Done, properties: dict[Any, Any] | None = None) -> None:
        """Give the message back, counted; one time too many and it is dead-lettered."""
        self.check_held(lock)
        self._check_added([lock], properties)
        self.give_back(lock, done, properties)

    def abandon_all(self, locks: Sequence[Lock | None], done: Done, properties: dict[Any, Any] | None = None) -> None:
        """As `abandon`, for all of them or, when one is not held, for none."""
        held = self.all_held(locks)
        self._check_added(held, properties)
        self._give_back_all(held, done, properties)

    def _give_back_all(self, locks: list[Lock], done: Done, properties: dict[Any, Any] | None) -> None:
        outcome = _gather(len(locks), done)

        def stage() -> None:
            for lock in locks:
                self.give_back(lock, outcome, properties)

        self._journal.all_or_nothing(stage)

    def release(self, lock: Lock) -> None:
        """Give the message back as if it had not been received."""
        if not lock.settling and self._queue.locks.holds(lock):
            self._queue.unlock(lock)
            if lock.message.state == ACTIVE:
                self._queue.on_returned(lock.message)

    def defer(self, lock: Lock, done: Done, properties: dict[Any, Any] | None = None) -> None:
        """Set the message aside: from now on it is only had by its number."""
        self.check_held(lock)
        self._stage_deferral([lock], done, properties)

    def defer_all(self, locks: Sequence[Lock | None], done: Done, properties: dict[Any, Any] | None = None) -> None:
        """As `defer`, for all of them or, when one is not held, for none."""
        self._stage_deferral(self.all_held(locks), done, properties)

    def _stage_deferral(self, locks: list[Lock], done: Done, properties: dict[Any, Any] | None) -> None:
        lane = self._journal.rest
        self._check_added(locks, properties)
        added = _added(properties)
        deferred = [(lock, self.changed(lock.message, added, state=DEFERRED)) for lock in locks]
        whole = self._queue.whole
        for lock, changed in deferred:
            self._stage_change(lane, lock.message, changed)
            whole.staged_bytes += _growth(lock.message, changed)
            lock.settling = True
        lane.then(self._deferred, (deferred, done))

    def _deferred(self, argument: tuple[list[tuple[Lock, StoredMessage]], Done], error: BrokerError | None) -> None:
        deferred, done = argument
        whole = self._queue.whole
        for lock, changed in deferred:
            message = lock.message
            whole.staged_bytes -= _growth(message, changed)
            if error is None:
                counters = self._queue.counters
                counters.count(message.state, -1)
                counters.deferred += 1
                counters.size_in_bytes += len(changed.payload) - len(message.payload)  # the body is the same
                if message.state == ACTIVE:
                    self._queue.on_inactive(message)
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
        self.dead_letter_all([lock], done, Settlement(Verdict.DEAD_LETTER, properties, reason, description))

    def dead_letter_all(self, locks: Sequence[Lock | None], done: Done, settlement: Settlement) -> None:
        """As `dead_letter`, for all of them or, when one is not held, for none."""
        settlement.check()
        held = self.all_held(locks)
        self._check_added(held, settlement.properties)
        properties = settlement.added
        reasons = {key: properties[key] for key in DEAD_LETTER_KEYS if key in properties}
        if settlement.reason is not None or settlement.description is not None:
            self.check_together(len(held), properties)
            self._queue.check_growth((len(held) - 1) * AddedProperties(reasons).size, REASON_SHARE)
        if self._queue.dead_letters is None:
            self._give_back_all(held, done, properties)
            return
        outcome = _gather(len(held), done)

        def stage() -> None:
            for lock in held:
                self.move(lock.message, properties, self._locked_one_moved, (lock, outcome))
                lock.settling = True

        self._journal.all_or_nothing(stage)

    def _check_added(self, locks: list[Lock], properties: dict[Any, Any] | None) -> None:
        """Raise why messages may not be given these properties of a receiver's: they count as what is sent does.

        What the broker adds is short: it finds room in any case. Reasons for dead letters find some in a full entity.
        """
        added = _added(properties)
        if added is None:
            return
        self.check_together(len(locks), properties)
        self._queue.check_growth((len(locks) - 1) * added.size)
        limit = self._queue.max_message_bytes
        for lock in locks:
            message = lock.message
            size = message.size
            if size + added.size > limit and size - len(message.payload) + len(added.to(message.payload)) > limit:
                raise MessageSizeExceeded(
                    f"With these properties the message would be larger than {limit} bytes, the limit of this entity."
                )

    @staticmethod
    def check_together(count: int, properties: dict[Any, Any] | None) -> None:
        """Raise when so many messages may not be given these properties at once."""
        if count > 1 and properties and count * AddedProperties(properties).size > MAX_ADDED_BYTES:
            limit = MAX_ADDED_BYTES >> 20
            raise QuotaExceeded(f"The properties are more than {limit} MiB for {count} messages. Settle fewer at once.")

    def _settled(self, lock: Lock, error: BrokerError | None) -> None:
        """The settlement is durable, or did not happen."""
        if error is None:
            self._queue.unlock(lock)
            return
        lock.settling = False
        if lock.session is not None and lock.session.holder is None:
            self.release(lock)  # whoever holds the session next reads the message again

    def return_expired(self, lock: Lock) -> None:
        """Return a message whose lock expired, counted. What fails is tried again when the lock is looked at next."""
        self.give_back(lock, self._on_expired_returned)

    def _on_expired_returned(self, error: BrokerError | None) -> None:
        if error is not None:
            log.error("a message of '%s' could not be unlocked yet: %s", self._queue.path, error)

    def give_back(self, lock: Lock, done: Done, properties: dict[Any, Any] | None = None) -> None:
        """As `abandon`, of a lock that may have run out."""
        queue, message = self._queue, lock.message
        # A deferred message was counted when it was fetched.
        delivery_count = message.delivery_count + (message.state == ACTIVE)
        if delivery_count >= queue.definition.max_delivery_count and queue.dead_letters is not None:
            reason = {
                **(properties or {}),
                DEAD_LETTER_REASON: "MaxDeliveryCountExceeded",
                DEAD_LETTER_DESCRIPTION: f"Message could not be consumed after {delivery_count} delivery attempts.",
            }
            counted = self.changed(message, delivery_count=delivery_count)
            self.move(counted, reason, self._locked_one_moved, (lock, done))
            lock.settling = True
            return
        changed = self.changed(message, _added(properties), delivery_count=delivery_count)
        lane = self._journal.rest
        self._stage_change(lane, message, changed)
        queue.whole.staged_bytes += _growth(message, changed)
        lane.then(self._given_back, (lock, changed, done))
        lock.settling = True

    def _given_back(self, argument: tuple[Lock, StoredMessage, Done], error: BrokerError | None) -> None:
        lock, changed, done = argument
        self._queue.whole.staged_bytes -= _growth(lock.message, changed)
        self._settled(lock, error)
        if error is None:
            self._queue.counters.size_in_bytes += changed.size - lock.message.size
            if changed.state == ACTIVE:
                self._queue.on_returned(changed)
        done(error)

    def changed(
        self,
        message: StoredMessage,
        added: AddedProperties | None = None,
        *,
        state: int | None = None,
        delivery_count: int | None = None,
    ) -> StoredMessage:
        """The message as it will be; the one in memory stays as it is until the commit."""
        return StoredMessage(
            message.sequence_number,
            message.payload if added is None else added.to(message.payload),
            message.enqueued_at,
            message.expires_at,
            message.delivery_count if delivery_count is None else delivery_count,
            message.state if state is None else state,
            message.session_id,
            message.due_at,
            message.annex,
            message.body,
        )

    def _stage_change(self, lane: Lane, message: StoredMessage, changed: StoredMessage) -> None:
        changes = lane.changes
        if changed.payload is message.payload:
            changes.updates.append((self._queue.id, changed, message.state))
        else:
            changes.rewrites.append((self._queue.id, changed, message.state, message.size))

    # --- dead letters ---

    def move(
        self,
        message: StoredMessage,
        properties: dict[Any, Any],
        outcome: Callable[..., None],
        argument: Any,
        target: Entity | None = None,
    ) -> None:
        """Stage the way to the dead-letter queue, or another sub-queue; `outcome(message, argument, error)` follows."""
        target = target or self._queue.dead_letters
        assert target is not None
        if self._queue.is_deleting:
            raise EntityNotFound(self._queue.path)
        payload, annex = envelope.dead_letter(message.payload, message.annex, properties, self._queue.path)
        letter = StoredMessage(
            message.sequence_number,
            payload,
            message.enqueued_at,
            None,  # nothing expires in a dead-letter queue
            message.delivery_count,
            ACTIVE,
            message.session_id,
            None,
            annex,
            message.body,
        )
        lane = self._journal.moves
        lane.changes.appends.append((target.id, letter))
        lane.changes.removals.append((self._queue.id, message))
        self._queue.whole.staged_bytes += _growth(message, letter)
        lane.then(self._moved, (target, message, letter, outcome, argument))

    def _moved(self, argument: tuple[Any, ...], error: BrokerError | None) -> None:
        target, message, letter, outcome, rest = argument
        self._queue.whole.staged_bytes -= _growth(message, letter)
        if error is None:
            self._queue.on_removed(message)
            target.on_stored(letter)
        outcome(message, rest, error)

    def set_aside(self, lock: Lock, reason: str, description: str, target: Entity, done: Done) -> None:
        """Move a message that cannot go where it should to a sub-queue for such."""
        self.check_held(lock)
        properties = {DEAD_LETTER_REASON: reason, DEAD_LETTER_DESCRIPTION: description}
        self.move(lock.message, properties, self._locked_one_moved, (lock, done), target)
        lock.settling = True

    def _locked_one_moved(self, message: StoredMessage, argument: tuple[Lock, Done], error: BrokerError | None) -> None:
        lock, done = argument
        self._settled(lock, error)
        done(error)


def _gather(count: int, done: Done) -> Done:
    """The outcomes of what is one commit, as one."""
    left = count

    def outcome(error: BrokerError | None) -> None:
        nonlocal left
        left -= 1
        if not left:
            done(error)

    return outcome


def _added(properties: dict[Any, Any] | None) -> AddedProperties | None:
    return AddedProperties(properties) if properties else None


def _growth(message: StoredMessage, changed: StoredMessage) -> int:
    """Bytes that a change adds; one that makes a message smaller gives room when it is done."""
    return max(0, len(changed.payload) - len(message.payload))
