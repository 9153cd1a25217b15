"""How messages are settled: completed, given back, deferred, dead-lettered.

A settlement is staged in one piece and confirmed when its commit is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from peeklock.broker import envelope
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
from peeklock.broker.journal import Lane
from peeklock.broker.locks import Lock
from peeklock.store.base import ACTIVE, DEFERRED, StoredMessage

MAX_REASON_LENGTH: Final = 4096
MAX_ADDED_BYTES: Final = 16 * 1024 * 1024
"""What one settlement of many messages may add to them together."""
REASON_SHARE: Final = 4
"""Reasons of dead letters find room in a full entity, until it is larger than it may be by one part in so many."""


class Container(Entity):
    """The part of an entity that takes a receiver's word on its messages."""

    def complete(self, lock: Lock, done: Done) -> None:
        lane = self._settle(lock)
        lane.changes.removals.append((self.id, lock.message))
        lane.then(self._completed, (lock, done))
        lock.settling = True

    def complete_all(self, locks: Sequence[Lock | None], done: Done) -> None:
        """As `complete`, for all of them or, when one is not held, for none."""
        completed = self._all_held(locks)
        lane = self._journal.rest
        entity = self.id
        removals = lane.changes.removals
        for lock in completed:
            lock.settling = True
            removals.append((entity, lock.message))
        lane.then(self._all_completed, (completed, done))

    def _all_held(self, locks: Sequence[Lock | None]) -> list[Lock]:
        """Raises unless all of them are held at this moment."""
        held = self._locks
        monotonic = self._agenda.monotonic()
        found: list[Lock] = []
        for lock in locks:
            if lock is None or lock.settling or held.get(lock.message.sequence_number) is not lock:
                raise MessageLockLost
            self._check_lock(lock, monotonic)
            found.append(lock)
        return found

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
        lane = self._settle(lock)
        self._check_added([lock], properties)
        self._give_back(lock, lane, done, properties)

    def abandon_all(self, locks: Sequence[Lock | None], done: Done, properties: dict[Any, Any] | None = None) -> None:
        """As `abandon`, for all of them or, when one is not held, for none."""
        held = self._all_held(locks)
        self._check_added(held, properties)
        self._give_back_all(held, done, properties)

    def _give_back_all(self, locks: list[Lock], done: Done, properties: dict[Any, Any] | None) -> None:
        outcome = _gather(len(locks), done)

        def stage() -> None:
            for lock in locks:
                self._give_back(lock, self._journal.rest, outcome, properties)

        self._journal.all_or_nothing(stage)

    def release(self, lock: Lock) -> None:
        """Give the message back as if it had not been received."""
        if self._locks.get(lock.message.sequence_number) is lock and not lock.settling:
            self._drop_lock(lock)
            if lock.message.state == ACTIVE:
                self._returned(lock.message)

    def defer(self, lock: Lock, done: Done, properties: dict[Any, Any] | None = None) -> None:
        """Set the message aside: from now on it is only had by its number."""
        self._settle(lock)
        self._stage_deferral([lock], done, properties)

    def defer_all(self, locks: Sequence[Lock | None], done: Done, properties: dict[Any, Any] | None = None) -> None:
        """As `defer`, for all of them or, when one is not held, for none."""
        self._stage_deferral(self._all_held(locks), done, properties)

    def _stage_deferral(self, locks: list[Lock], done: Done, properties: dict[Any, Any] | None) -> None:
        lane = self._journal.rest
        self._check_added(locks, properties)
        added = _added(properties)
        deferred = [(lock, self._changed(lock.message, added, state=DEFERRED)) for lock in locks]
        whole = self._whole
        for lock, changed in deferred:
            self._stage_change(lane, lock.message, changed)
            whole._staged_bytes += _growth(lock.message, changed)
            lock.settling = True
        lane.then(self._deferred, (deferred, done))

    def _deferred(self, argument: tuple[list[tuple[Lock, StoredMessage]], Done], error: BrokerError | None) -> None:
        deferred, done = argument
        whole = self._whole
        for lock, changed in deferred:
            message = lock.message
            whole._staged_bytes -= _growth(message, changed)
            if error is None:
                counters = self.counters
                counters.count(message.state, -1)
                counters.deferred += 1
                counters.size_in_bytes += len(changed.payload) - len(message.payload)  # the body is the same
                if message.state == ACTIVE:
                    self._left(message)
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
        self.dead_letter_all([lock], done, reason, description, properties)

    def dead_letter_all(
        self,
        locks: Sequence[Lock | None],
        done: Done,
        reason: str | None = None,
        description: str | None = None,
        properties: dict[Any, Any] | None = None,
    ) -> None:
        """As `dead_letter`, for all of them or, when one is not held, for none."""
        check_reason(reason, description)
        held = self._all_held(locks)
        self._check_added(held, properties)
        reasons: dict[str, str] = {}
        if reason is not None:
            reasons["DeadLetterReason"] = reason
        if description is not None:
            reasons["DeadLetterErrorDescription"] = description
        properties = {**(properties or {}), **reasons}
        if reasons:
            self.check_together(len(held), properties)
            self._check_growth((len(held) - 1) * AddedProperties(reasons).size, REASON_SHARE)
        if self.dead_letters is None:
            self._give_back_all(held, done, properties)
            return
        outcome = _gather(len(held), done)

        def stage() -> None:
            for lock in held:
                self._move(lock.message, properties, self._locked_one_moved, (lock, outcome))
                lock.settling = True

        self._journal.all_or_nothing(stage)

    def _settle(self, lock: Lock) -> Lane:
        """Where to stage a settlement. The lock is marked when it is staged: what cannot be is none."""
        if lock.settling or self._locks.get(lock.message.sequence_number) is not lock:
            raise MessageLockLost
        self._check_lock(lock, self._agenda.monotonic())
        return self._journal.rest

    def _check_added(self, locks: list[Lock], properties: dict[Any, Any] | None) -> None:
        """Raise why messages may not be given these properties of a receiver's: they count as what is sent does.

        What the broker adds is short: it finds room in any case. Reasons for dead letters find some in a full entity.
        """
        added = _added(properties)
        if added is None:
            return
        self.check_together(len(locks), properties)
        self._check_growth((len(locks) - 1) * added.size)
        limit = self.max_message_bytes
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
            self._drop_lock(lock)
        else:
            lock.settling = False

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
            counted = self._changed(message, delivery_count=delivery_count)
            self._move(counted, reason, self._locked_one_moved, (lock, done))
            lock.settling = True
            return
        changed = self._changed(message, _added(properties), delivery_count=delivery_count)
        self._stage_change(lane, message, changed)
        self._whole._staged_bytes += _growth(message, changed)
        lane.then(self._given_back, (lock, changed, done))
        lock.settling = True

    def _given_back(self, argument: tuple[Lock, StoredMessage, Done], error: BrokerError | None) -> None:
        lock, changed, done = argument
        self._whole._staged_bytes -= _growth(lock.message, changed)
        self._settled(lock, error)
        if error is None:
            self.counters.size_in_bytes += changed.size - lock.message.size
            if changed.state == ACTIVE:
                self._returned(changed)
        done(error)

    def _changed(
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
            changes.updates.append((self.id, changed, message.state))
        else:
            changes.rewrites.append((self.id, changed, message.state, message.size))

    # --- dead letters ---

    def _move(
        self,
        message: StoredMessage,
        properties: dict[Any, Any],
        outcome: Callable[..., None],
        argument: Any,
        target: Entity | None = None,
    ) -> None:
        """Stage the way to the dead-letter queue, or another sub-queue; `outcome(message, argument, error)` follows."""
        target = target or self.dead_letters
        assert target is not None
        if self.doomed:
            raise EntityNotFound(self.path)
        payload, annex = envelope.dead_letter(message.payload, message.annex, properties, self.path)
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
        lane.changes.removals.append((self.id, message))
        self._whole._staged_bytes += _growth(message, letter)
        lane.then(self._moved, (target, message, letter, outcome, argument))

    def _moved(self, argument: tuple[Any, ...], error: BrokerError | None) -> None:
        target, message, letter, outcome, rest = argument
        self._whole._staged_bytes -= _growth(message, letter)
        if error is None:
            self._gone(message)
            target._enter(letter)
        outcome(message, rest, error)

    def set_aside(self, lock: Lock, reason: str, description: str, target: Container, done: Done) -> None:
        """Move a message that cannot go where it should to a sub-queue for such."""
        self._settle(lock)
        properties = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        self._move(lock.message, properties, self._locked_one_moved, (lock, done), target)
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


def check_reason(reason: str | None, description: str | None) -> None:
    for name, text in (("reason", reason), ("description", description)):
        if text is not None and len(text) > MAX_REASON_LENGTH:
            raise InvalidProperty(
                f"The dead-letter {name} has {len(text)} characters; at most {MAX_REASON_LENGTH} are allowed."
            )
