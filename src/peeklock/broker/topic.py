"""A topic: it copies each message to the subscriptions whose rules match, in one commit.

A topic itself stores only scheduled messages. When they are due, they are copied like other messages. A body that
several copies share is stored once. `rules` decides which subscriptions get a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeGuard

from peeklock.amqp.service_bus import END_OF_TIME
from peeklock.broker import bare_message, envelope
from peeklock.broker.annex import Annex
from peeklock.broker.dead_lettering import reasons
from peeklock.broker.entity import Done, Entity
from peeklock.broker.errors import BrokerError, InvalidProperty, QuotaExceeded
from peeklock.broker.journal import Lane
from peeklock.broker.machinery import Machinery
from peeklock.broker.rules.errors import sentence_of
from peeklock.broker.rules.matching import Copy, Matcher
from peeklock.broker.rules.view import View
from peeklock.broker.session_queue import AnyQueue
from peeklock.entities.base import EntityKind
from peeklock.entities.definitions import TopicDefinition
from peeklock.entities.names import fold
from peeklock.limits.broker import MAX_ID_LENGTH
from peeklock.store.base import ACTIVE, SCHEDULED, Body, StoredEntity, StoredMessage

MIN_SHARED_BYTES: Final = 256
"""A shorter body is stored with each copy, because sharing it would cost more than it saves."""

FILTER_FAILED: Final = "FilterException"
"""The dead-letter reason of a message for which a filter failed."""

Placed = list[tuple[Entity, StoredMessage]]
"""Copies, each with the entity that stores it."""


class Topic(Entity):
    """One topic of a namespace."""

    def __init__(self, row: StoredEntity, definition: TopicDefinition, machinery: Machinery) -> None:
        super().__init__(row, definition, machinery)
        self.subscriptions: dict[str, AnyQueue] = {}
        """Subscriptions by folded name."""
        self.orders_by_priority = definition.order_by_priority
        """Whether its subscriptions deliver messages of a higher priority first."""
        self._matcher = Matcher()
        self._reads_session_ids = False
        self._allowance = 0
        """Bytes that may be sent before the sizes of the subscriptions are added up again."""

    @property
    def dependents(self) -> Sequence[Entity]:
        return [*self.subscriptions.values()]

    @property
    def is_dead_letter_queue(self) -> bool:
        return False

    @property
    def has_sessions(self) -> bool:
        return False

    @property
    def reads_session_ids(self) -> bool:
        return self._reads_session_ids

    @property
    def size_in_bytes(self) -> int:
        """The size of its scheduled messages and of all copies. A shared body counts in each copy."""
        return self.counters.size_in_bytes + sum(each.size_in_bytes for each in self.subscriptions.values())

    @property
    def copies(self) -> int:
        return max(1, len(self.subscriptions))

    @property
    def is_in_use(self) -> bool:
        return super().is_in_use or any(each.is_in_use for each in self.subscriptions.values())

    @property
    def last_used_at(self) -> int:
        return max((self.used_at, *(each.used_at for each in self.subscriptions.values())))

    # --- subscriptions ---

    def add(self, subscription: AnyQueue) -> None:
        """Add a subscription. It gets copies of messages that are sent from now on."""
        self.apply_rules(subscription)
        subscription.parent = self
        self.subscriptions[fold(subscription.definition.name)] = subscription
        self._subscriptions_changed()

    def remove(self, subscription: Entity) -> None:
        self._matcher.remove(subscription)
        self.subscriptions.pop(fold(subscription.definition.name), None)
        self._subscriptions_changed()

    def apply_rules(self, subscription: AnyQueue) -> None:
        """Apply the rules of a subscription's definition to the next messages."""
        self._matcher.set(subscription, subscription.subscription_definition.rules)

    def _subscriptions_changed(self) -> None:
        self._reads_session_ids = any(each.has_sessions for each in self.subscriptions.values())

    # --- sending ---

    def _check_room(self) -> None:
        # Adding up all subscriptions for each send would be O(subscriptions).
        if self._allowance > 0:
            return
        staged = self.staged_bytes + sum(each.staged_bytes for each in self.subscriptions.values())
        self._allowance = self.max_bytes - self.size_in_bytes - staged
        if self._allowance <= 0:
            raise self.size_exceeded()

    def size_exceeded(self) -> QuotaExceeded:
        return QuotaExceeded(f"The topic '{self.path}' has reached its maximum size of {self.max_bytes >> 20} MB.")

    def reconfigure(self, definition: Any) -> None:
        self._allowance = 0
        super().reconfigure(definition)

    def enqueued(
        self, bare: bytes, annex: bytes | None, ttl: int | None, session_id: str | None, now: int
    ) -> StoredMessage:
        """Make the message that will be copied.

        The expiry is not written into its properties here, because each subscription may have an earlier one.
        """
        default = self.definition.default_message_ttl_ms
        if default is not None and (ttl is None or ttl > default):
            ttl = default
        expires_at = None if ttl is None else min(now + ttl, END_OF_TIME)
        return StoredMessage(0, bare, now, ACTIVE, session_id, annex, expires_at)

    def stage(self, lane: Lane, messages: list[StoredMessage], done: Done) -> None:
        placed: Placed = []
        for message in messages:
            if not message.sequence_number:
                self.last_number += 1
                message.sequence_number = self.last_number
            if message.state == SCHEDULED:
                placed.append((self, message))
            else:
                placed += self._copies(message, lane)
        if placed:
            lane.changes.advances[self.id] = self.last_number
        appends = lane.changes.appends
        for entity, copy in placed:
            size = copy.size
            entity.staged_bytes += size
            self._allowance -= size
            appends.append((entity.id, copy))
        lane.then(self._placed, (placed, done))

    def _placed(self, argument: tuple[Placed, Done], error: BrokerError | None) -> None:
        placed, done = argument
        for entity, copy in placed:
            entity.staged_bytes -= copy.size
            if error is None:
                entity.on_stored(copy)
        done(error)

    # --- copies ---

    def _copies(self, message: StoredMessage, lane: Lane) -> Placed:
        front, rest = message.payload, b""
        if message.body is None and len(front) >= MIN_SHARED_BYTES and len(self.subscriptions) > 1:
            front, rest = bare_message.split(front)
        ttl = None if message.expires_at is None else message.expires_at - message.enqueued_at
        view = None
        if self._matcher.needs_view:
            view = View(
                front,
                message.annex,
                ttl_ms=ttl,
                enqueued_at=message.enqueued_at,
                sequence_number=message.sequence_number,
                size=message.size,
            )
        found = self._matcher.match(view)
        body = message.body
        if rest and len(found) > 1 and len(rest) >= MIN_SHARED_BYTES:
            body, rest = Body(self._machinery.body_keys.next(), rest, len(rest) // len(found)), b""
        placed: Placed = []
        for copy in found:
            try:
                place = self._place(message, copy, ttl, front, rest, lane)
            except Exception as failure:
                # One copy failed. The other copies are made, and the send does not fail.
                failed = Copy(copy.subscription, copy.rule or "", None, sentence_of(failure))
                place = self._place(message, failed, ttl, front, rest, lane)
            if place is not None:
                place[1].body = body
                placed.append(place)
        return placed

    def _place(
        self, message: StoredMessage, copy: Copy, ttl: int | None, front: bytes, rest: bytes, lane: Lane
    ) -> tuple[Entity, StoredMessage] | None:
        """Return the entity that stores a copy, and the copy.

        Return None if the rule failed and the subscription does not dead-letter such messages. Return None also if the
        subscription is being deleted: the store would refuse the whole commit.
        """
        subscription: AnyQueue = copy.subscription
        if subscription.is_deleting:
            return None
        annex, session_id = message.annex, None
        if copy.view is not None:
            changed = copy.view.result()
            front, annex, ttl = changed.payload, changed.annex, changed.ttl_ms
            if subscription.has_sessions and len(changed.session_id or "") <= MAX_ID_LENGTH:
                session_id = changed.session_id
        elif subscription.has_sessions:
            # The message has no session id if it was scheduled when no subscription had sessions.
            session_id = message.session_id or _session_id_of(front)
        payload = front + rest if rest else front
        number = max(message.sequence_number, subscription.last_number + 1)
        if number != message.sequence_number:
            known = Annex.decode(annex)
            if known.enqueued_number is None:
                annex = known._replace(enqueued_number=message.sequence_number).encode()
        if copy.error is not None:
            if not subscription.subscription_definition.dead_lettering_on_filter_evaluation_exceptions:
                return None
            reason, description = FILTER_FAILED, f"The rule '{copy.rule}' failed: {copy.error}"
        elif subscription.has_sessions and session_id is None:
            reason = "Session ID is null."
            description = "The subscription requires sessions, and the message has no session id."
        else:
            stored = subscription.enqueued(payload, annex, ttl, session_id, message.enqueued_at)
            stored.sequence_number = subscription.last_number = number
            subscription.touch()
            return subscription, stored
        subscription.last_number = number
        # The sequence number is one of the subscription, although the message is in its dead-letter queue.
        lane.changes.advances[subscription.id] = number
        dead_letters = subscription.dead_letters
        assert dead_letters is not None
        payload, annex = envelope.dead_letter(payload, annex, reasons(reason, description), subscription.path)
        letter = StoredMessage(number, payload, message.enqueued_at, ACTIVE, session_id, annex)
        return dead_letters, letter


def is_topic(entity: Entity) -> TypeGuard[Topic]:
    return entity.kind is EntityKind.TOPIC


def _session_id_of(front: bytes) -> str | None:
    try:
        return bare_message.session_id_of(front)
    except InvalidProperty:
        return None
