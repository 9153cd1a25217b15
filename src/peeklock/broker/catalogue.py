"""The entities of a namespace by name: how they are written in the store, made from it, changed and taken away.

Names are found whatever their case; the spelling they were created with is the one that is shown. A queue or
subscription is three entities of the store: itself and its two sub-queues. What may be changed, and when a change
counts, is for `administration` to say.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from peeklock.broker.access import Keys
from peeklock.broker.entity import Entity, Machinery
from peeklock.broker.entity_ids import EntityIds
from peeklock.broker.errors import EntityNotFound, OperationNotAllowed
from peeklock.broker.idleness import Idleness
from peeklock.broker.priorities import PriorityQueue
from peeklock.broker.queue import Queue
from peeklock.broker.sessions import SessionQueue
from peeklock.broker.topic import Topic
from peeklock.entities.definitions import (
    AnyDefinition,
    EntityKind,
    QueueDefinition,
    SubscriptionDefinition,
    TopicDefinition,
)
from peeklock.entities.names import fold
from peeklock.store.base import MAX_ENTITY, StoredEntity

log = logging.getLogger(__name__)

NAMESPACE: Final = "namespace"
"""The kind of the one entity that stands for the namespace: it knows which id was given out last."""
DEAD_LETTER_QUEUE, TRANSFER_DEAD_LETTER_QUEUE = "dead-letter-queue", "transfer-dead-letter-queue"
DEAD_LETTER_SUFFIX: Final = "$DeadLetterQueue"
TRANSFER_DEAD_LETTER_SUFFIX: Final = "$Transfer/$DeadLetterQueue"
SUBSCRIPTIONS: Final = "Subscriptions"

SUB_QUEUES: Final = ((DEAD_LETTER_SUFFIX, DEAD_LETTER_QUEUE), (TRANSFER_DEAD_LETTER_SUFFIX, TRANSFER_DEAD_LETTER_QUEUE))
KINDS: Final[dict[str, type[AnyDefinition]]] = {
    each.kind: each for each in (QueueDefinition, TopicDefinition, SubscriptionDefinition)
}

AnyQueue = Queue | SessionQueue
AnyContainer = Queue | SessionQueue | Topic
D = TypeVar("D", bound=AnyDefinition)


def subscription_path(topic: str, name: str) -> str:
    return f"{topic}/{SUBSCRIPTIONS}/{name}"


def topic_of(path: str) -> str:
    """The topic that a subscription's path is under, folded; empty for what is no subscription."""
    return fold(path).rpartition(f"/{fold(SUBSCRIPTIONS)}/")[0]


def owner_of(path: str) -> str:
    """The queue or topic at that path, or that the subscription or sub-queue there belongs to; folded."""
    path = fold(path)
    for suffix in (TRANSFER_DEAD_LETTER_SUFFIX, DEAD_LETTER_SUFFIX):
        path = path.removesuffix(f"/{fold(suffix)}")
    return topic_of(path) or path


@dataclass(frozen=True, slots=True)
class Rows:
    """An entity as the store has it: itself, and its sub-queues by kind."""

    main: StoredEntity
    parts: dict[str, StoredEntity]

    def all(self) -> Iterator[StoredEntity]:
        yield self.main
        yield from self.parts.values()


def left_over(stored: list[StoredEntity]) -> list[StoredEntity]:
    """What was made for as long as the broker would run, and is still in the store; with its sub-queues."""
    ended = {fold(row.path) for row in stored if row.definition.get("temporary")}
    ended |= {fold(row.path) for row in stored if row.kind == EntityKind.SUBSCRIPTION and topic_of(row.path) in ended}
    return [row for row in stored if _main_path(row) in ended]


def _main_path(row: StoredEntity) -> str:
    """Of the entity that the row is, or is a sub-queue of; folded."""
    for suffix, kind in SUB_QUEUES:
        if row.kind == kind:
            return fold(row.path.removesuffix(f"/{suffix}"))
    return fold(row.path)


class Catalogue:
    """Every entity of a namespace."""

    def __init__(
        self, machinery: Machinery, keys: Keys, idleness: Idleness, highest_entity_id: int = MAX_ENTITY
    ) -> None:
        self._machinery = machinery
        self._keys = keys
        self._idleness = idleness
        self._containers: dict[str, AnyContainer] = {}
        self._count = 0
        self._stored: dict[int, StoredEntity] = {}
        """By number: as last written."""
        self._ids = EntityIds(highest_entity_id, machinery.journal, machinery.store)
        self._namespace_row: StoredEntity | None = None

    def now(self) -> int:
        return self._machinery.agenda.now()

    # --- looking ---

    @property
    def queues(self) -> list[AnyQueue]:
        return [each for each in self.whole if not isinstance(each, Topic) and each.kind is EntityKind.QUEUE]

    @property
    def topics(self) -> list[Topic]:
        return [each for each in self.whole if isinstance(each, Topic)]

    @property
    def containers(self) -> list[AnyContainer]:
        """All, sub-queues too."""
        return list(self._containers.values())

    @property
    def whole(self) -> list[AnyContainer]:
        """All but the sub-queues."""
        return [each for each in self._containers.values() if not each.is_dead_letter_queue]

    @property
    def count(self) -> int:
        """How many queues and topics there are, but for temporary ones."""
        return self._count

    def has(self, path: str) -> bool:
        return fold(path) in self._containers

    def find(self, path: str) -> AnyContainer:
        found = self._containers.get(fold(path))
        if found is None:
            raise EntityNotFound(path)
        return found

    def queue(self, path: str) -> AnyQueue:
        """The queue, subscription or sub-queue at that path."""
        found = self.find(path)
        if isinstance(found, Topic):
            raise OperationNotAllowed(f"'{path}' is a topic: its messages are in its subscriptions.")
        return found

    def destination(self, path: str) -> Entity:
        """Where messages for that name go: a queue or a topic."""
        found = self.find(path)
        if found.is_dead_letter_queue or found.kind is EntityKind.SUBSCRIPTION:
            raise EntityNotFound(path)
        return found

    # --- as the store has them ---

    def remember(self, stored: list[StoredEntity]) -> None:
        """At start: what there is."""
        for entity in stored:
            self._stored[entity.id] = entity
            if entity.kind == NAMESPACE:
                self._namespace_row = entity
        last = self._namespace_row.definition.get("last_entity", 0) if self._namespace_row is not None else 0
        self._ids.resume(self._stored, last)

    def forget(self, rows: list[StoredEntity]) -> None:
        """At start: these are no longer in the store."""
        for row in rows:
            del self._stored[row.id]
        if rows:
            self._ids.retire([row.id for row in rows])

    @property
    def created_at(self) -> int:
        """When the namespace was."""
        assert self._namespace_row is not None
        return int(self._namespace_row.definition["created_at"])

    def namespace_row(self) -> StoredEntity:
        """What to write whenever an entity is added, so that after a restart ids go on where they were."""
        row = self._namespace_row
        if row is None:
            row = StoredEntity(self._ids.take(1)[0], "", NAMESPACE, {"created_at": self._machinery.agenda.now()})
            self._stored[row.id] = row
        self._namespace_row = replace(row, definition=row.definition | {"last_entity": self._ids.last})
        return self._namespace_row

    def new_rows(self, path: str, definition: AnyDefinition, known: dict[str, StoredEntity] | None = None) -> Rows:
        """The rows of an entity that is to be added; those that are `known`, by folded path, keep their ids.

        QuotaExceeded. If they cannot be stored, `discard` them.
        """
        now = self._machinery.agenda.now()
        known = known or {}
        main = known.get(fold(path))
        kind = definition.kind
        suffixes = () if kind is EntityKind.TOPIC else SUB_QUEUES
        known_parts = {part_kind: known.get(fold(f"{path}/{suffix}")) for suffix, part_kind in suffixes}
        ids = iter(self._ids.take([main, *known_parts.values()].count(None)))
        if main is None:
            main = StoredEntity(next(ids), path, kind.value, _to_json(definition, now, now))
        parts = {}
        for suffix, part_kind in suffixes:
            part = known_parts[part_kind]
            parts[part_kind] = part or StoredEntity(next(ids), f"{main.path}/{suffix}", part_kind, {})
        return Rows(main, parts)

    def discard(self, rows: Rows) -> None:
        """An entity could not be created."""
        self._ids.release(row.id for row in rows.all())

    def changed_row(self, container: AnyContainer, definition: AnyDefinition) -> StoredEntity:
        """The row of an entity under another definition."""
        now = self._machinery.agenda.now()
        return replace(self._stored[container.id], definition=_to_json(definition, container.created_at, now))

    # --- coming and going ---

    def add(self, rows: Rows, definition: AnyDefinition) -> AnyContainer:
        """An entity is in the store: from now on it is there. It does nothing by itself before `begin`."""
        for row in rows.all():
            self._stored[row.id] = row
        main = rows.main
        if isinstance(definition, TopicDefinition):
            made: AnyContainer = Topic(main.id, main.path, definition, self._machinery, main.counters)
        else:
            letters, unforwardable = (
                Queue(row.id, row.path, definition, self._machinery, row.counters, None)
                for row in (rows.parts[DEAD_LETTER_QUEUE], rows.parts[TRANSFER_DEAD_LETTER_QUEUE])
            )
            made = self._kind_of(main.path, definition)(
                main.id, main.path, definition, self._machinery, main.counters, letters, unforwardable
            )
            for part in (letters, unforwardable):
                self._containers[fold(part.path)] = part
        made.created_at = main.definition.get("created_at", made.created_at)
        made.updated_at = main.definition.get("updated_at", made.updated_at)
        self._containers[fold(main.path)] = made
        if isinstance(definition, SubscriptionDefinition):
            topic = self._containers[topic_of(main.path)]
            assert isinstance(topic, Topic)
            assert not isinstance(made, Topic)
            topic.add(made)
        else:
            self._count += not definition.temporary
        return made

    def _kind_of(self, path: str, definition: QueueDefinition | SubscriptionDefinition) -> type[AnyQueue]:
        if definition.requires_session:
            return SessionQueue
        owner = definition if isinstance(definition, QueueDefinition) else self._containers[topic_of(path)].definition
        assert isinstance(owner, QueueDefinition | TopicDefinition)
        return PriorityQueue if owner.order_by_priority else Queue

    def begin(self, container: AnyContainer) -> None:
        """All that the entity may meet is there: let it live."""
        container.begin()
        self._apply(container)

    def change(self, container: AnyContainer, row: StoredEntity, definition: AnyDefinition) -> None:
        """The new definition of an entity is in the store."""
        self._stored[row.id] = row
        container.updated_at = row.definition["updated_at"]
        container.touch()
        container.reconfigure(definition)
        if isinstance(definition, SubscriptionDefinition):
            topic = self._containers[topic_of(container.path)]
            assert isinstance(topic, Topic)
            assert not isinstance(container, Topic)
            topic.rules_changed(container)
        self._apply(container)
        container.tell_of_change()

    def rows_of(self, container: AnyContainer) -> list[int]:
        """The ids of an entity and of what belongs to it."""
        numbers = [part.id for part in container.parts]
        if isinstance(container, Topic):
            for subscription in container.subscriptions.values():
                numbers += self.rows_of(subscription)
        return numbers

    def remove(self, container: AnyContainer) -> None:
        """An entity is no longer in the store."""
        if isinstance(container, Topic):
            for subscription in list(container.subscriptions.values()):
                self.remove(subscription)
        elif container.kind is EntityKind.SUBSCRIPTION:
            topic = self._containers.get(topic_of(container.path))
            if isinstance(topic, Topic):
                topic.remove(container)
        definition = container.definition
        self._count -= not (definition.kind is EntityKind.SUBSCRIPTION or definition.temporary)
        ids = [part.id for part in container.parts]
        for part in container.parts:
            del self._containers[fold(part.path)]
            del self._stored[part.id]
        self._idleness.forget(container)
        container.vanish()
        self._keys.set(container.path, ())  # after its links have been told that it is gone
        self._ids.retire(ids)

    def _apply(self, container: AnyContainer) -> None:
        """What follows from a definition beyond the entity itself."""
        definition = container.definition
        if definition.kind is not EntityKind.SUBSCRIPTION:
            self._keys.set(container.path, definition.authorization_rules)
        self._idleness.watch(container)
        if isinstance(container, Topic) or isinstance(definition, TopicDefinition):
            return
        unforwardable = container.transfer_dead_letters
        assert isinstance(unforwardable, Queue)
        assert isinstance(container.dead_letters, Queue)
        if isinstance(container, Queue):
            container.forward(definition.forward_to, unforwardable)
        elif definition.forward_to is not None:
            log.warning("'%s' has sessions: its ForwardTo has no effect", container.path)
        container.dead_letters.forward(definition.forward_dead_lettered_messages_to, unforwardable)


def _to_json(definition: AnyDefinition, created_at: int, updated_at: int) -> dict[str, Any]:
    if isinstance(definition, TopicDefinition):
        definition = replace(definition, subscriptions=())  # entities of their own
    return definition.to_json() | {"created_at": created_at, "updated_at": updated_at}
