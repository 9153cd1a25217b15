"""A namespace: its entities and keys, the objects that they share, and its start from a store and a definition."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from peeklock.broker.access import Keys, ancestors
from peeklock.broker.accounts import held_accounts, partial_accounts
from peeklock.broker.administration import Administration
from peeklock.broker.agenda import Agenda, Clock, system_clock
from peeklock.broker.body_keys import BodyKeys
from peeklock.broker.catalogue import (
    KINDS,
    AnyEntity,
    Catalogue,
    Rows,
    left_over,
)
from peeklock.broker.changes import check_change, merged_rules
from peeklock.broker.errors import EntityNotFound
from peeklock.broker.idleness import Idleness
from peeklock.broker.journal import Journal
from peeklock.broker.lock_tags import LockTags
from peeklock.broker.machinery import Machinery
from peeklock.broker.pace import Pace
from peeklock.broker.retries import RETRY_MS
from peeklock.broker.rules.matching import check_rule
from peeklock.broker.session_queue import AnyQueue, is_with_sessions
from peeklock.broker.temporary import TemporaryEntities
from peeklock.broker.topic import Topic
from peeklock.broker.transactions import transaction_accounts
from peeklock.broker.window_budget import Budget
from peeklock.entities.base import EntityKind
from peeklock.entities.definitions import AnyDefinition, SubscriptionDefinition
from peeklock.entities.names import DefinitionError, fold, subscription_path
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.rules import RuleDefinition
from peeklock.entities.settings import DEFAULT_PROFILE, Profile
from peeklock.limits.broker import MAX_MESSAGE_IDS
from peeklock.store.base import MAX_ENTITY_ID, Changes, Damage, Store, StoredEntity, StoredMessage, StoreError

log = logging.getLogger(__name__)

PROBE_BYTES = 64 * 1024
"""The size of the message that tests whether the store works."""

CallSoon = Callable[[Callable[[], None]], object]
Ready = Callable[[StoreError | None], None]


class Namespace:
    """All entities of a broker."""

    def __init__(
        self,
        definition: NamespaceDefinition,
        store: Store,
        call_soon: CallSoon,
        *,
        clock: Clock = system_clock,
        profile: Profile = DEFAULT_PROFILE,
        max_message_ids: int = MAX_MESSAGE_IDS,
        highest_entity_id: int = MAX_ENTITY_ID,
    ) -> None:
        self.definition = definition
        self.profile = profile
        self.agenda = Agenda(clock)
        self.journal = Journal(store, call_soon)
        self.journal.on_failed = self._expect_recovery
        self.journal.make_probe = self.make_probe
        self.keys = Keys()
        self.transaction_memory = transaction_accounts()
        self.held_memory = held_accounts()
        self.partial_memory = partial_accounts()
        self.pace = Pace(self.agenda)
        """Limits the work of message selectors."""
        self._store = store
        self._machinery = Machinery(
            store=store,
            journal=self.journal,
            agenda=self.agenda,
            budget=Budget(),
            body_keys=BodyKeys(),
            call_soon=call_soon,
            find=lambda name: self._catalogue.destination(name),
            tags=LockTags(),
            pace=self.pace,
            max_message_ids=max_message_ids,
            max_message_bytes=profile.max_message_bytes,
        )
        idleness = Idleness(self.agenda, lambda entity: self.administration.delete_idle(entity))
        self._catalogue = Catalogue(self._machinery, self.keys, idleness, highest_entity_id)
        self.administration = Administration(self._catalogue, self.journal, profile)
        self.temporary = TemporaryEntities(self.administration, self._catalogue, self.agenda, profile)
        self._recovery_expected = False
        self.sole_containers: set[tuple[str, str]] = set()
        """Containers (AMQP's word for a peer) that may have only one connection, and are connected. Each is a pair of
        login rule and container id."""

    @property
    def now(self) -> Callable[[], int]:
        """Unix time in milliseconds."""
        return self.agenda.now

    @property
    def created_at(self) -> int:
        return self._catalogue.created_at

    @property
    def queues(self) -> list[AnyQueue]:
        """All queues, without subscriptions and sub-queues."""
        return self._catalogue.queues

    @property
    def topics(self) -> list[Topic]:
        return self._catalogue.topics

    @property
    def entities(self) -> list[AnyEntity]:
        """All queues, topics, subscriptions and sub-queues."""
        return self._catalogue.entities

    def entity(self, path: str) -> AnyEntity:
        """Return the queue, topic, subscription or sub-queue at that path. Raise EntityNotFound if there is none."""
        return self._catalogue.find(path)

    def topic(self, path: str) -> Topic:
        """Return the topic at that path. Raise EntityNotFound if there is none."""
        return self._catalogue.topic(path)

    def check_audience(self, path: str) -> None:
        """Raise EntityNotFound if there is no entity at the path of a token or above it, as the hosted service does.

        For a subscription its topic is enough, since clients may create the subscription later.
        """
        if path and not path.startswith("$") and not any(map(self._catalogue.has, ancestors(path))):
            raise EntityNotFound(path)

    def queue(self, path: str, connection: object = None) -> AnyQueue:
        """Return the queue, subscription or sub-queue at that path, for receiving on a connection.

        Raise OperationNotAllowed if it is a temporary entity of another connection.
        """
        queue = self._catalogue.queue(path)
        self.temporary.check_receiving(path, connection)
        return queue

    @property
    def damaged(self) -> dict[str, int]:
        """The number of damaged messages by path, for entities that have any."""
        return {each.path: each.counters.damaged for each in self.entities if each.counters.damaged}

    # --- start ---

    def start(self, ready: Ready) -> None:
        """Open the store, add its entities and those of the definition, then call `ready`.

        Raise DefinitionError if the definition changes a setting that cannot be changed.
        """
        stored = self._store.open(self._on_damage)
        self._machinery.body_keys.resume(self._store.highest_body_key())
        self._catalogue.remember(stored)
        ended = left_over(stored)
        ended_ids = {row.id for row in ended}
        stored = [row for row in stored if row.id not in ended_ids]
        known = {fold(entity.path): entity for entity in stored}
        changes = Changes(dropped_entities=sorted(ended_ids))
        made: list[tuple[Rows, AnyDefinition]] = []
        for path, definition in self._wanted(stored).items():
            row = known.get(fold(path))
            rows = self._catalogue.new_rows(path, definition, known)
            if row is not None:
                rows, definition = self._updated_rows(rows, definition)
            made.append((rows, definition))
            for each in rows.all():
                if known.get(fold(each.path)) is not each:
                    changes.entities[each.id] = each
        row = self._catalogue.namespace_row()
        if changes or known.get("") is None:
            changes.entities[row.id] = row
        self.keys.set("", self.definition.authorization_rules)

        def begin(error: StoreError | None) -> None:
            if error is None:
                self._catalogue.forget(ended)
                for rows, definition in made:
                    self._catalogue.add(rows, definition)
                self._load(ready)
            else:
                ready(error)

        if changes:
            self._store.commit(changes, begin)
        else:
            begin(None)

    def _on_damage(self, damage: Damage) -> None:
        for entity in self.entities:
            if entity.id == damage.entity:
                log.error(
                    "message %d of %s is damaged on disk and is not delivered: %s",
                    damage.sequence_number,
                    entity.path,
                    damage.where,
                )
                entity.on_message_damaged(damage)

    def _wanted(self, stored: list[StoredEntity]) -> dict[str, AnyDefinition]:
        """Merge the stored definitions with those of the configuration, by path; topics are before subscriptions."""
        wanted: dict[str, AnyDefinition] = {}
        for entity in sorted(stored, key=lambda entity: entity.kind == EntityKind.SUBSCRIPTION):
            if entity.kind in KINDS:
                wanted[entity.path] = KINDS[entity.kind].from_json(entity.definition)
        if self.definition.only_if_empty and wanted:
            return wanted
        spelt = {fold(path): path for path in wanted}
        topics = self.definition.topics
        given: list[tuple[str, AnyDefinition]] = [(queue.name, queue) for queue in self.definition.queues]
        given += [(topic.name, replace(topic, subscriptions=())) for topic in topics]
        given += [
            (subscription_path(spelt.get(fold(topic.name), topic.name), each.name), each)
            for topic in topics
            for each in topic.subscriptions
        ]
        for path, definition in given:
            if isinstance(definition, SubscriptionDefinition):
                definition = replace(definition, rules=self._checked(definition.rules))
            path = spelt.get(fold(path), path)
            before = wanted.get(path)
            if before is not None:
                definition = _updated(before, definition)
            wanted[path] = definition
        return wanted

    def _checked(self, rules: tuple[RuleDefinition, ...]) -> tuple[RuleDefinition, ...]:
        """Check rules before they are stored: a rule that cannot be compiled would prevent every later start."""
        for rule in rules:
            check_rule(rule)
        return tuple(replace(rule, created_at=rule.created_at or self.now()) for rule in rules)

    def _updated_rows(self, rows: Rows, definition: AnyDefinition) -> tuple[Rows, AnyDefinition]:
        """Return the rows of a stored entity with the new definition, or unchanged if the definition is the same."""
        before = KINDS[rows.main.kind].from_json(rows.main.definition)
        if definition == before:
            return rows, definition
        now = self.now()
        created_at = rows.main.definition.get("created_at", now)
        data: dict[str, Any] = definition.to_json() | {"created_at": created_at, "updated_at": now}
        return Rows(replace(rows.main, definition=data), rows.parts), definition

    def _load(self, ready: Ready) -> None:
        """Load the sessions, message ids and claims of all entities, then start their timers and call `ready`."""
        steps: list[Callable[[Ready], None]] = []
        for queue in self._catalogue.all_queues:
            if is_with_sessions(queue):
                steps.append(queue.load)
        for entity in self._catalogue.entities:
            if entity.history is not None:
                steps.append(entity.history.load)

        left = len(steps) + 1
        failure: StoreError | None = None

        def loaded(error: StoreError | None) -> None:
            nonlocal left, failure
            left -= 1
            failure = failure or error
            if left:
                return
            if failure is None:
                self._load_claims()
                for entity in self._catalogue.main_entities:
                    self._catalogue.begin(entity)
            ready(failure)

        for step in steps:
            step(loaded)
        loaded(None)

    def _load_claims(self) -> None:
        by_id = {queue.id: queue for queue in self._catalogue.all_queues}
        for entity, id, content in self._store.claims():
            queue = by_id.get(entity)
            if queue is not None:
                queue.claim_lanes.load(queue.claims.load(id, content))

    def _expect_recovery(self) -> None:
        """Probe the store after a delay, because it failed: senders may wait until it works again."""
        if not self._recovery_expected:
            self._recovery_expected = True
            self.agenda.after(RETRY_MS, self._probe)

    def _probe(self) -> None:
        self._recovery_expected = False
        if self.journal.failure is not None:
            self.journal.probe(self.make_probe())

    def make_probe(self) -> Changes:
        """Return changes that add and remove a message of the namespace in one commit, to test whether the store works.

        Each call uses one sequence number of the namespace's row.
        """
        row = self._catalogue.namespace_row()
        row.counters.last_sequence_number += 1
        message = StoredMessage(row.counters.last_sequence_number, bytes(PROBE_BYTES), self.now())
        return Changes(appends=[(row.id, message)], removals=[(row.id, message)])


def _updated(before: AnyDefinition, wanted: AnyDefinition) -> AnyDefinition:
    """Return the definition of an existing entity after a configuration file was applied.

    Raise DefinitionError if the file changes something that cannot be changed.
    """
    if type(before) is not type(wanted):
        kind = type(before).__name__.removesuffix("Definition").lower()
        raise DefinitionError(wanted.name, wanted.name, f"is the name of a {kind} that exists already")
    check_change(before, wanted)
    if isinstance(before, SubscriptionDefinition) and isinstance(wanted, SubscriptionDefinition):
        rules = merged_rules(before.rules, wanted.rules)
        return replace(wanted, name=before.name, rules=rules, shared=before.shared)
    return replace(wanted, name=before.name)
