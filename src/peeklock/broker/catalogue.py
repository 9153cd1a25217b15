"""The entities of a namespace by name: made from the rows of the store, changed, and removed.

Names are case-insensitive; clients see the name as it was spelt at creation. A queue or subscription is three entities
in the store: itself and its two sub-queues. `administration` decides what may be changed, and when it is applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

from peeklock.broker.access import Keys
from peeklock.broker.entity import Entity
from peeklock.broker.entity_ids import EntityIds
from peeklock.broker.errors import EntityNotFound, OperationNotAllowed
from peeklock.broker.idleness import Idleness
from peeklock.broker.machinery import Machinery
from peeklock.broker.queue import Queue
from peeklock.broker.session_queue import AnyQueue, SessionQueue
from peeklock.broker.topic import Topic
from peeklock.entities.base import EntityKind
from peeklock.entities.definitions import AnyDefinition, QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.names import DEAD_LETTER_SUFFIX, TRANSFER_DEAD_LETTER_SUFFIX, fold, split_subscription
from peeklock.store.base import MAX_ENTITY_ID, StoredEntity

NAMESPACE: Final = "namespace"
"""The kind of the namespace's own row, which has the id that was assigned last."""
DEAD_LETTER_QUEUE, TRANSFER_DEAD_LETTER_QUEUE = "dead-letter-queue", "transfer-dead-letter-queue"
SUB_QUEUES: Final = ((DEAD_LETTER_SUFFIX, DEAD_LETTER_QUEUE), (TRANSFER_DEAD_LETTER_SUFFIX, TRANSFER_DEAD_LETTER_QUEUE))
KINDS: Final[dict[str, type[AnyDefinition]]] = {
    each.kind: each for each in (QueueDefinition, TopicDefinition, SubscriptionDefinition)
}

AnyEntity = Queue | SessionQueue | Topic


def is_queue(entity: AnyEntity) -> TypeGuard[AnyQueue]:
    """Return whether messages can be received from the entity: true for all but topics."""
    return entity.kind is not EntityKind.TOPIC


def topic_of(path: str) -> str:
    """Return the folded path of a subscription's topic; empty if the path is not that of a subscription."""
    parts = split_subscription(path)
    return "" if parts is None else fold(parts[0])


def owner_of(path: str) -> str:
    """Return the folded path of the queue or topic that the entity at a path is, or that it belongs to."""
    path = fold(path)
    for suffix in (TRANSFER_DEAD_LETTER_SUFFIX, DEAD_LETTER_SUFFIX):
        path = path.removesuffix(f"/{fold(suffix)}")
    return topic_of(path) or path


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of an entity in the store: its own, and those of its sub-queues by kind."""

    main: StoredEntity
    parts: dict[str, StoredEntity]

    def all(self) -> Iterator[StoredEntity]:
        yield self.main
        yield from self.parts.values()


def left_over(stored: list[StoredEntity]) -> list[StoredEntity]:
    """Return the rows of temporary entities of an earlier run, with their sub-queues and subscriptions."""
    ended = {fold(row.path) for row in stored if row.definition.get("temporary")}
    ended |= {fold(row.path) for row in stored if row.kind == EntityKind.SUBSCRIPTION and topic_of(row.path) in ended}
    return [row for row in stored if _main_path(row) in ended]


def _main_path(row: StoredEntity) -> str:
    """Return the folded path of the entity of a row; for a sub-queue, that of its owner."""
    for suffix, kind in SUB_QUEUES:
        if row.kind == kind:
            return fold(row.path.removesuffix(f"/{suffix}"))
    return fold(row.path)


class Catalogue:
    """All entities of a namespace."""

    def __init__(
        self, machinery: Machinery, keys: Keys, idleness: Idleness, highest_entity_id: int = MAX_ENTITY_ID
    ) -> None:
        self._machinery = machinery
        self._keys = keys
        self._idleness = idleness
        self._queues: dict[str, AnyQueue] = {}
        """Queues, subscriptions and sub-queues, by folded path."""
        self._topics: dict[str, Topic] = {}
        """Topics by folded path."""
        self._count = 0
        self._stored: dict[int, StoredEntity] = {}
        """Rows by id, as last written."""
        self._ids = EntityIds(highest_entity_id, machinery.journal, machinery.store)
        self._namespace_row: StoredEntity | None = None

    def now(self) -> int:
        return self._machinery.agenda.now()

    # --- lookups ---

    @property
    def queues(self) -> list[AnyQueue]:
        """All queues, without subscriptions and sub-queues."""
        queues = self._queues.values()
        return [each for each in queues if each.kind is EntityKind.QUEUE and not each.is_dead_letter_queue]

    @property
    def topics(self) -> list[Topic]:
        return [*self._topics.values()]

    @property
    def entities(self) -> list[AnyEntity]:
        """All entities and sub-queues; topics come before their subscriptions."""
        return [*self._topics.values(), *self._queues.values()]

    @property
    def main_entities(self) -> list[AnyEntity]:
        """All entities without sub-queues."""
        return [each for each in self.entities if not each.is_dead_letter_queue]

    @property
    def all_queues(self) -> list[AnyQueue]:
        """All queues, subscriptions and sub-queues."""
        return [*self._queues.values()]

    @property
    def count(self) -> int:
        """The number of queues and topics, without temporary ones."""
        return self._count

    def has(self, path: str) -> bool:
        folded = fold(path)
        return folded in self._queues or folded in self._topics

    def find(self, path: str) -> AnyEntity:
        folded = fold(path)
        found = self._queues.get(folded) or self._topics.get(folded)
        if found is None:
            raise EntityNotFound(path)
        return found

    def queue(self, path: str) -> AnyQueue:
        """Return the queue, subscription or sub-queue at that path."""
        folded = fold(path)
        found = self._queues.get(folded)
        if found is None:
            if folded in self._topics:
                raise OperationNotAllowed(f"'{path}' is a topic: its messages are in its subscriptions.")
            raise EntityNotFound(path)
        return found

    def topic(self, path: str) -> Topic:
        found = self._topics.get(fold(path))
        if found is None:
            raise EntityNotFound(path)
        return found

    def destination(self, path: str) -> Entity:
        """Return the queue or topic at a path that messages can be sent or forwarded to."""
        found = self.find(path)
        if found.is_dead_letter_queue or found.kind is EntityKind.SUBSCRIPTION:
            raise EntityNotFound(path)
        return found

    # --- rows of the store ---

    def remember(self, stored: list[StoredEntity]) -> None:
        """At start: add the rows of the store."""
        for entity in stored:
            self._stored[entity.id] = entity
            if entity.kind == NAMESPACE:
                self._namespace_row = entity
        last = self._namespace_row.definition.get("last_entity", 0) if self._namespace_row is not None else 0
        self._ids.resume(self._stored, last)

    def forget(self, rows: list[StoredEntity]) -> None:
        """At start: remove rows that were dropped from the store."""
        for row in rows:
            del self._stored[row.id]
        if rows:
            self._ids.retire([row.id for row in rows])

    @property
    def created_at(self) -> int:
        """When the namespace was created."""
        assert self._namespace_row is not None
        return int(self._namespace_row.definition["created_at"])

    def namespace_row(self) -> StoredEntity:
        """Return the row to store whenever an entity is added, so that ids continue after a restart."""
        row = self._namespace_row
        if row is None:
            row = StoredEntity(self._ids.take(1)[0], "", NAMESPACE, {"created_at": self._machinery.agenda.now()})
            self._stored[row.id] = row
        self._namespace_row = replace(row, definition=row.definition | {"last_entity": self._ids.last})
        return self._namespace_row

    def new_rows(self, path: str, definition: AnyDefinition, known: dict[str, StoredEntity] | None = None) -> Rows:
        """Make the rows of a new entity. Rows in `known`, by folded path, keep their ids.

        Raise QuotaExceeded if there are no ids left. If the rows cannot be stored, `discard` them.
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
        """Release the ids of an entity that could not be created."""
        self._ids.release(row.id for row in rows.all())

    def changed_row(self, entity: AnyEntity, definition: AnyDefinition) -> StoredEntity:
        """Return the row of an entity with a new definition."""
        now = self._machinery.agenda.now()
        return replace(self._stored[entity.id], definition=_to_json(definition, entity.created_at, now))

    # --- adding, changing, removing ---

    def add(self, rows: Rows, definition: AnyDefinition) -> AnyEntity:
        """Add an entity that is in the store. `begin` starts its timers."""
        for row in rows.all():
            self._stored[row.id] = row
        main = rows.main
        if isinstance(definition, TopicDefinition):
            topic = Topic(main, definition, self._machinery)
            self._topics[fold(main.path)] = topic
            made: AnyEntity = topic
        else:
            made = self._add_queue(rows, definition)
        made.created_at = main.definition.get("created_at", made.created_at)
        made.updated_at = main.definition.get("updated_at", made.updated_at)
        if definition.kind is not EntityKind.SUBSCRIPTION:
            self._count += not definition.temporary
        return made

    def _add_queue(self, rows: Rows, definition: QueueDefinition | SubscriptionDefinition) -> AnyQueue:
        main = rows.main
        dead_letters, transfer_dead_letters = (
            Queue(row, definition, self._machinery)
            for row in (rows.parts[DEAD_LETTER_QUEUE], rows.parts[TRANSFER_DEAD_LETTER_QUEUE])
        )
        queue: AnyQueue
        made = main, definition, self._machinery, dead_letters, transfer_dead_letters
        if definition.requires_session:
            queue = SessionQueue(*made)
        else:
            queue = Queue(*made, by_priority=self._is_by_priority(main.path, definition))
        for part in (dead_letters, transfer_dead_letters, queue):
            self._queues[fold(part.path)] = part
        if queue.kind is EntityKind.SUBSCRIPTION:
            self._topics[topic_of(main.path)].add(queue)
        return queue

    def _is_by_priority(self, path: str, definition: QueueDefinition | SubscriptionDefinition) -> bool:
        if isinstance(definition, QueueDefinition):
            return definition.order_by_priority
        return self._topics[topic_of(path)].orders_by_priority

    def begin(self, entity: AnyEntity) -> None:
        """Start the timers and the forwarding of an entity. All entities that it refers to must exist."""
        entity.begin()
        self._apply(entity)

    def change(self, entity: AnyEntity, row: StoredEntity, definition: AnyDefinition) -> None:
        """Apply a new definition that is in the store."""
        self._stored[row.id] = row
        entity.updated_at = row.definition["updated_at"]
        entity.touch()
        entity.reconfigure(definition)
        if entity.kind is EntityKind.SUBSCRIPTION:
            self._topics[topic_of(entity.path)].apply_rules(self.queue(entity.path))
        self._apply(entity)
        entity.notify_changed()

    def ids_of(self, entity: Entity) -> list[int]:
        """Return the ids of an entity, its sub-queues and its subscriptions."""
        ids = [part.id for part in entity.parts]
        for subscription in entity.dependents:
            ids += self.ids_of(subscription)
        return ids

    def remove(self, entity: Entity) -> None:
        """Remove an entity that was dropped from the store, with its subscriptions."""
        for subscription in entity.dependents:
            self.remove(subscription)
        definition = entity.definition
        if definition.kind is EntityKind.SUBSCRIPTION:
            self._topics[topic_of(entity.path)].remove(entity)
        else:
            self._count -= not definition.temporary
        ids = [part.id for part in entity.parts]
        for part in entity.parts:
            self._queues.pop(fold(part.path), None)
            del self._stored[part.id]
        self._topics.pop(fold(entity.path), None)
        self._idleness.forget(entity)
        entity.close()
        self._keys.set(entity.path, ())  # after `close`, so that its links get the error EntityNotFound
        self._ids.retire(ids)

    def _apply(self, entity: AnyEntity) -> None:
        """Apply the parts of a definition that other objects need: keys, idle deletion, forwarding."""
        definition = entity.definition
        if definition.kind is not EntityKind.SUBSCRIPTION:
            self._keys.set(entity.path, definition.authorization_rules)
        self._idleness.watch(entity)
        if is_queue(entity):
            entity.apply_forwarding()


def _to_json(definition: AnyDefinition, created_at: int, updated_at: int) -> dict[str, Any]:
    if isinstance(definition, TopicDefinition):
        definition = replace(definition, subscriptions=())  # they have rows of their own
    return definition.to_json() | {"created_at": created_at, "updated_at": updated_at}
