"""Settles messages: completes, abandons, releases, defers and dead-letters them.

A settlement requires a lock that is held. It is staged as one change, and confirmed when its commit is done.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.service_bus import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from peeklock.broker.agenda import Agenda
from peeklock.broker.dead_lettering import growth, reasons
from peeklock.broker.entity import Done, Entity
from peeklock.broker.envelope import AddedProperties
from peeklock.broker.errors import (
    BrokerError,
    MessageLockLost,
    MessageSizeExceeded,
    QuotaExceeded,
)
from peeklock.broker.journal import Journal, Lane
from peeklock.broker.locks import Lock
from peeklock.broker.verdicts import Settlement, Verdict
from peeklock.limits.amqp import MAX_ADDED_BYTES
from peeklock.store.base import ACTIVE, DEFERRED, StoredMessage

if TYPE_CHECKING:
    from peeklock.broker.message_queue import MessageQueue

log = logging.getLogger(__name__)

DEAD_LETTER_KEYS: Final = (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION)
REASON_SHARE: Final = 4
"""Dead-letter reasons may exceed the maximum size of an entity by a quarter."""


class Settlements:
    """Settles the messages of one queue."""

    def __init__(self, queue: MessageQueue, journal: Journal, agenda: Agenda) -> None:
        self._queue = queue
        self._journal = journal
        self._agenda = agenda

    # --- locks ---

    def check_held(self, lock: Lock) -> None:
        """Raise MessageLockLost or SessionLockLost if the lock has ended, or if its message is being settled."""
        queue = self._queue
        if lock.settling or not queue.locks.holds(lock):
            raise MessageLockLost
        if lock.expires_at <= self._agenda.monotonic():
            raise lock.lost()

    def all_held(self, locks: Sequence[Lock | None]) -> list[Lock]:
        """Return the locks if all are held now. Otherwise raise MessageLockLost or SessionLockLost."""
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
        """Settle a message as its receiver asks. Raise BrokerError if that is not possible."""
        self.settle_all(settlement, [lock], done)

    def settle_all(self, settlement: Settlement, locks: Sequence[Lock | None], done: Done) -> None:
        """Settle messages as their receiver asks: all, or none if one lock is not held."""
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
        """Remove a message that was processed."""
        self.check_held(lock)
        self.remove(lock, done)

    def remove(self, lock: Lock, done: Done) -> None:
        """Remove a message without checking its lock. For locks that were made in this call."""
        lane = self._journal.rest
        lane.changes.removals.append((self._queue.id, lock.message))
        lane.then(self._on_completed, (lock, done))
        lock.settling = True

    def complete_all(self, locks: Sequence[Lock | None], done: Done) -> None:
        """Complete all messages, or none if one lock is not held."""
        completed = self.all_held(locks)
        lane = self._journal.rest
        entity = self._queue.id
        removals = lane.changes.removals
        for lock in completed:
            lock.settling = True
            removals.append((entity, lock.message))
        lane.then(self._on_all_completed, (completed, done))

    def _on_all_completed(self, argument: tuple[list[Lock], Done], error: BrokerError | None) -> None:
        locks, done = argument
        for lock in locks:
            if error is None:
                self._queue.on_removed(lock.message)
            self._on_settled(lock, error)
        done(error)

    def _on_completed(self, argument: tuple[Lock, Done], error: BrokerError | None) -> None:
        lock, done = argument
        if error is None:
            self._queue.on_removed(lock.message)
        self._on_settled(lock, error)
        done(error)

    def abandon(self, lock: Lock, done: Done, properties: dict[Any, Any] | None = None) -> None:
        """Make a message active again and count the delivery. Dead-letter it after too many deliveries."""
        self.abandon_all([lock], done, properties)

    def abandon_all(self, locks: Sequence[Lock | None], done: Done, properties: dict[Any, Any] | None = None) -> None:
        """Abandon all messages, or none if one lock is not held."""
        held = self.all_held(locks)
        self._check_added(held, properties)
        self._return_all(held, done, properties)

    def _return_all(self, locks: list[Lock], done: Done, properties: dict[Any, Any] | None) -> None:
        if len(locks) == 1:
            self.return_message(locks[0], done, properties)
            return
        outcome = _gather(len(locks), done)

        def stage() -> None:
            for lock in locks:
                self.return_message(lock, outcome, properties)

        self._journal.all_or_nothing(stage)

    def release(self, lock: Lock) -> None:
        """Make a message active again without counting the delivery. No effect if its lock is not held."""
        if not lock.settling and self._queue.locks.holds(lock):
            self._queue.unlock(lock)
            if lock.message.state == ACTIVE:
                self._queue.on_returned(lock.message)

    def defer(self, lock: Lock, done: Done, properties: dict[Any, Any] | None = None) -> None:
        """Defer a message: it can then be received by its sequence number only."""
        self.defer_all([lock], done, properties)

    def defer_all(self, locks: Sequence[Lock | None], done: Done, properties: dict[Any, Any] | None = None) -> None:
        """Defer all messages, or none if one lock is not held."""
        held = self.all_held(locks)
        self._check_added(held, properties)
        lane = self._journal.rest
        added = _added(properties)
        deferred = [(lock, self.changed(lock.message, added, state=DEFERRED)) for lock in held]
        root = self._queue.root
        for lock, changed in deferred:
            self._stage_change(lane, lock.message, changed)
            root.staged_bytes += growth(lock.message, changed)
            lock.settling = True
        lane.then(self._on_deferred, (deferred, done))

    def _on_deferred(self, argument: tuple[list[tuple[Lock, StoredMessage]], Done], error: BrokerError | None) -> None:
        deferred, done = argument
        root = self._queue.root
        for lock, changed in deferred:
            message = lock.message
            root.staged_bytes -= growth(message, changed)
            if error is None:
                counters = self._queue.counters
                counters.count(message.state, -1)
                counters.deferred += 1
                counters.size_in_bytes += len(changed.payload) - len(message.payload)  # the body is the same
                if message.state == ACTIVE:
                    self._queue.on_inactive(message)
            self._on_settled(lock, error)
        done(error)

    def dead_letter(
        self,
        lock: Lock,
        done: Done,
        reason: str | None = None,
        description: str | None = None,
        properties: dict[Any, Any] | None = None,
    ) -> None:
        """Move a message to the dead-letter queue. A message that is in the dead-letter queue is abandoned instead."""
        self.dead_letter_all([lock], done, Settlement(Verdict.DEAD_LETTER, properties, reason, description))

    def dead_letter_all(self, locks: Sequence[Lock | None], done: Done, settlement: Settlement) -> None:
        """Dead-letter all messages, or none if one lock is not held."""
        settlement.check()
        held = self.all_held(locks)
        self._check_added(held, settlement.properties)
        properties = settlement.added
        reasons = {key: properties[key] for key in DEAD_LETTER_KEYS if key in properties}
        if settlement.reason is not None or settlement.description is not None:
            self.check_together(len(held), properties)
            self._queue.check_growth((len(held) - 1) * AddedProperties(reasons).size, REASON_SHARE)
        if self._queue.dead_letters is None:
            self._return_all(held, done, properties)
            return
        outcome = _gather(len(held), done)

        def stage() -> None:
            for lock in held:
                self._queue.dead_lettering.move(lock.message, properties, self._on_locked_moved, (lock, outcome))
                lock.settling = True

        self._journal.all_or_nothing(stage)

    def _check_added(self, locks: list[Lock], properties: dict[Any, Any] | None) -> None:
        """Raise BrokerError if properties from a receiver would exceed the size limits of messages or of the entity.

        Properties that the broker adds are short and not checked. Dead-letter reasons may exceed the size of the entity
        (`REASON_SHARE`).
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
                    f"With these properties the message would be larger than {limit} bytes, the limit of the entity."
                )

    @staticmethod
    def check_together(count: int, properties: dict[Any, Any] | None) -> None:
        """Raise QuotaExceeded if the properties are too large to be added to `count` messages at once."""
        if count > 1 and properties and count * AddedProperties(properties).size > MAX_ADDED_BYTES:
            limit = MAX_ADDED_BYTES >> 20
            raise QuotaExceeded(f"The properties are more than {limit} MiB for {count} messages. Settle fewer at once.")

    def _on_settled(self, lock: Lock, error: BrokerError | None) -> None:
        """The commit of a settlement is done, or has failed."""
        if error is None:
            self._queue.unlock(lock)
            return
        lock.settling = False
        if lock.session is not None and lock.session.holder is None:
            self.release(lock)  # the next holder of the session reads the message again

    def return_expired(self, lock: Lock) -> None:
        """Return a message whose lock expired, and count the delivery. If that fails, the next expiry check retries."""
        self.return_message(lock, self._on_expired_returned)

    def _on_expired_returned(self, error: BrokerError | None) -> None:
        if error is not None:
            log.error("a message of '%s' with an expired lock could not be returned: %s", self._queue.path, error)

    def return_message(self, lock: Lock, done: Done, properties: dict[Any, Any] | None = None) -> None:
        """Abandon a message whose lock may have expired."""
        queue, message = self._queue, lock.message
        # The delivery of a deferred message was counted when it was received.
        delivery_count = message.delivery_count + (message.state == ACTIVE)
        if delivery_count >= queue.definition.max_delivery_count and queue.dead_letters is not None:
            why = f"Message could not be consumed after {delivery_count} delivery attempts."
            reason = {**(properties or {}), **reasons("MaxDeliveryCountExceeded", why)}
            counted = self.changed(message, delivery_count=delivery_count)
            self._queue.dead_lettering.move(counted, reason, self._on_locked_moved, (lock, done))
            lock.settling = True
            return
        changed = self.changed(message, _added(properties), delivery_count=delivery_count)
        lane = self._journal.rest
        self._stage_change(lane, message, changed)
        queue.root.staged_bytes += growth(message, changed)
        lane.then(self._on_returned, (lock, changed, done))
        lock.settling = True

    def _on_returned(self, argument: tuple[Lock, StoredMessage, Done], error: BrokerError | None) -> None:
        lock, changed, done = argument
        self._queue.root.staged_bytes -= growth(lock.message, changed)
        self._on_settled(lock, error)
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
        """Return a changed copy of a message. The message itself stays unchanged until the commit."""
        changed = message.copy()
        if added is not None:
            changed.payload = added.to(message.payload)
        if state is not None:
            changed.state = state
        if delivery_count is not None:
            changed.delivery_count = delivery_count
        return changed

    def _stage_change(self, lane: Lane, message: StoredMessage, changed: StoredMessage) -> None:
        changes = lane.changes
        if changed.payload is message.payload:
            changes.updates.append((self._queue.id, changed, message.state))
        else:
            changes.rewrites.append((self._queue.id, changed, message.state, message.size))

    def move_aside(self, lock: Lock, reason: str, description: str, target: Entity, done: Done) -> None:
        """Move a locked message that cannot be forwarded to a sub-queue."""
        self.check_held(lock)
        self._queue.dead_lettering.move(
            lock.message, reasons(reason, description), self._on_locked_moved, (lock, done), target
        )
        lock.settling = True

    def _on_locked_moved(self, message: StoredMessage, argument: tuple[Lock, Done], error: BrokerError | None) -> None:
        lock, done = argument
        self._on_settled(lock, error)
        done(error)


def _gather(count: int, done: Done) -> Done:
    """Return a callback for `count` outcomes of one commit, which calls `done` once."""
    left = count

    def outcome(error: BrokerError | None) -> None:
        nonlocal left
        left -= 1
        if not left:
            done(error)

    return outcome


def _added(properties: dict[Any, Any] | None) -> AddedProperties | None:
    return AddedProperties(properties) if properties else None
