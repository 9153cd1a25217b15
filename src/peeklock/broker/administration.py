"""Creates, updates and deletes entities and rules while the namespace serves clients.

A change is checked at once, stored in one commit, and applied after the commit. An entity has one change at a time: a
second one that arrives meanwhile is refused.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, replace
from typing import TypeVar

from peeklock.broker.catalogue import AnyEntity, Catalogue, is_queue, topic_of
from peeklock.broker.changes import check_change, check_filters, check_forwarding, check_keys, fitted
from peeklock.broker.entity import Done, Entity
from peeklock.broker.errors import (
    BrokerError,
    EntityChanging,
    EntityExists,
    EntityNotFound,
    QuotaExceeded,
)
from peeklock.broker.journal import Journal, Lane
from peeklock.broker.rules.matching import check_rule
from peeklock.broker.session_queue import AnyQueue
from peeklock.broker.topic import Topic, is_topic
from peeklock.entities.base import EntityKind
from peeklock.entities.definitions import AnyDefinition, QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.names import fold, subscription_path
from peeklock.entities.rules import FilterKind, RuleDefinition
from peeklock.entities.settings import Profile

log = logging.getLogger(__name__)

D = TypeVar("D", bound=AnyDefinition)
C = TypeVar("C", bound=Entity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The current state of an entity. Times are Unix milliseconds."""

    active: int = 0
    deferred: int = 0
    scheduled: int = 0
    dead_letter: int = 0
    transfer: int = 0
    """Active messages that wait to be forwarded."""
    transfer_dead_letter: int = 0
    claimed: int = 0
    """Messages that belong to claims: see the module `claims`."""
    damaged: int = 0
    """Messages of the entity and its sub-queues that are damaged on disk and no longer delivered."""
    size_in_bytes: int = 0
    subscription_count: int = 0
    sql_filter_count: int = 0
    """Filters of all subscriptions of a topic; true and false filters count as SQL filters."""
    correlation_filter_count: int = 0
    created_at: int
    updated_at: int
    accessed_at: int

    @property
    def total(self) -> int:
        counts = (self.active, self.deferred, self.scheduled, self.claimed, self.dead_letter, self.transfer_dead_letter)
        return sum(counts) + self.transfer


class Administration:
    """Finds and changes entities by name. Invalid requests raise an error; `done` gets the outcome of the commit.

    Temporary entities are hidden from administrators: they are deleted with the connection that made them.
    """

    def __init__(self, catalogue: Catalogue, journal: Journal, profile: Profile) -> None:
        self._catalogue = catalogue
        self._journal = journal
        self._profile = profile
        self.allows_default_key = True
        """Whether an entity may have the well-known key: only if the broker listens on loopback."""
        self._changing: set[str] = set()
        """Folded paths of entities with a change under way."""

    # --- lookups ---

    @property
    def queues(self) -> list[AnyQueue]:
        return _permanent(sorted(self._catalogue.queues, key=lambda queue: fold(queue.path)))

    @property
    def topics(self) -> list[Topic]:
        return _permanent(sorted(self._catalogue.topics, key=lambda topic: fold(topic.path)))

    def entity(self, name: str) -> AnyEntity:
        """Return a queue or a topic. Raise EntityNotFound for all other paths."""
        found = self._catalogue.find(name)
        if found.is_dead_letter_queue or found.kind is EntityKind.SUBSCRIPTION or found.definition.temporary:
            raise EntityNotFound(name)
        return found

    def queue(self, name: str) -> AnyQueue:
        if self.entity(name).kind is not EntityKind.QUEUE:
            raise EntityNotFound(name)
        return self._catalogue.queue(name)

    def topic(self, name: str) -> Topic:
        self.entity(name)
        return self._catalogue.topic(name)

    def subscriptions(self, topic: str) -> list[AnyQueue]:
        return _permanent([each for _, each in sorted(self.topic(topic).subscriptions.items())])

    def subscription(self, topic: str, name: str) -> AnyQueue:
        found = self.topic(topic).subscriptions.get(fold(name))
        if found is None or found.definition.temporary:
            raise EntityNotFound(subscription_path(topic, name))
        return found

    def rules(self, topic: str, subscription: str) -> tuple[RuleDefinition, ...]:
        return rules_of(self.subscription(topic, subscription))

    def rule(self, topic: str, subscription: str, name: str) -> RuleDefinition:
        for rule in self.rules(topic, subscription):
            if fold(rule.name) == fold(name):
                return rule
        raise EntityNotFound(f"{subscription_path(topic, subscription)}/Rules/{name}")

    def runtime(self, entity: Entity) -> Runtime:
        counters = entity.counters
        dead_letters, transfer_dead_letters = entity.dead_letters, entity.transfer_dead_letters
        forwards = entity.forwards
        subscriptions = _permanent([*entity.subscriptions.values()]) if is_topic(entity) else []
        kinds = Counter(rule.filter_kind is FilterKind.CORRELATION for each in subscriptions for rule in rules_of(each))
        return Runtime(
            active=0 if forwards else counters.active,
            transfer=counters.active if forwards else 0,
            deferred=counters.deferred,
            scheduled=counters.scheduled,
            claimed=counters.claimed,
            dead_letter=_in_sub_queue(dead_letters),
            transfer_dead_letter=_in_sub_queue(transfer_dead_letters),
            damaged=sum(part.counters.damaged for part in entity.parts),
            size_in_bytes=entity.size_in_bytes,
            subscription_count=len(subscriptions),
            sql_filter_count=kinds[False],
            correlation_filter_count=kinds[True],
            created_at=entity.created_at,
            updated_at=entity.updated_at,
            accessed_at=entity.accessed_at,
        )

    # --- queues and topics ---

    def create_queue(self, definition: QueueDefinition, done: Done) -> None:
        self._create(definition.name, definition, done)

    def update_queue(self, definition: QueueDefinition, done: Done) -> None:
        self._update(self.queue(definition.name), definition, done)

    def delete_queue(self, name: str, done: Done) -> None:
        self._delete(self.queue(name), done)

    def create_topic(self, definition: TopicDefinition, done: Done) -> None:
        """Create a topic, without the subscriptions in its definition."""
        self._create(definition.name, replace(definition, subscriptions=()), done)

    def update_topic(self, definition: TopicDefinition, done: Done) -> None:
        self._update(self.topic(definition.name), replace(definition, subscriptions=()), done)

    def delete_topic(self, name: str, done: Done) -> None:
        """Delete a topic with all its subscriptions."""
        self._delete(self.topic(name), done)

    # --- subscriptions and rules ---

    def create_subscription(self, topic: str, definition: SubscriptionDefinition, done: Done) -> None:
        parent = self.topic(topic) if not definition.temporary else self._catalogue.topic(topic)
        subscriptions = len(parent.subscriptions) + self._count_being_created(fold(parent.path))
        if subscriptions >= self._profile.max_subscriptions:
            raise QuotaExceeded(f"The topic '{parent.path}' has {subscriptions} subscriptions; no more are allowed.")
        rules = tuple(self._dated(rule) for rule in definition.rules)
        for rule in rules:
            check_rule(rule)
        check_filters(parent, None, rules, self._profile)
        self._create(subscription_path(parent.path, definition.name), replace(definition, rules=rules), done, parent)

    def update_subscription(self, topic: str, definition: SubscriptionDefinition, done: Done) -> None:
        """Update a subscription; its rules do not change."""
        subscription = self.subscription(topic, definition.name)
        before = subscription.subscription_definition
        self._update(subscription, replace(definition, rules=before.rules, shared=before.shared), done)

    def delete_subscription(self, topic: str, name: str, done: Done) -> None:
        self._delete(self.subscription(topic, name), done)

    def create_rule(self, topic: str, subscription: str, rule: RuleDefinition, done: Done) -> None:
        known = self.rules(topic, subscription)
        if any(fold(each.name) == fold(rule.name) for each in known):
            raise EntityExists(
                f"The messaging entity '{subscription_path(topic, subscription)}|{rule.name}' already exists."
            )
        self._set_rules(topic, subscription, (*known, self._dated(rule)), rule, done)

    def update_rule(self, topic: str, subscription: str, rule: RuleDefinition, done: Done) -> None:
        before = self.rule(topic, subscription, rule.name)
        changed = replace(rule, name=before.name, created_at=before.created_at)
        known = self.rules(topic, subscription)
        self._set_rules(topic, subscription, tuple(changed if each is before else each for each in known), rule, done)

    def delete_rule(self, topic: str, subscription: str, name: str, done: Done) -> None:
        leaving = self.rule(topic, subscription, name)
        known = self.rules(topic, subscription)
        self._set_rules(topic, subscription, tuple(each for each in known if each is not leaving), None, done)

    def _set_rules(
        self, topic: str, name: str, rules: tuple[RuleDefinition, ...], changed: RuleDefinition | None, done: Done
    ) -> None:
        subscription = self.subscription(topic, name)
        if changed is not None:
            check_rule(changed)
            check_filters(self.topic(topic), subscription, rules, self._profile)
        self._change(subscription, replace(subscription.subscription_definition, rules=rules), done)

    def _dated(self, rule: RuleDefinition) -> RuleDefinition:
        return rule if rule.created_at is not None else replace(rule, created_at=self._catalogue.now())

    # --- commits ---

    def _create(self, path: str, definition: AnyDefinition, done: Done, parent: Topic | None = None) -> None:
        if self._catalogue.has(path):
            raise EntityExists(f"The messaging entity '{path}' already exists.")
        if parent is None and not definition.temporary:
            entities = self._catalogue.count + self._count_being_created("")
            if entities >= self._profile.max_entities:
                raise QuotaExceeded(f"The namespace has {entities} queues and topics; no more are allowed.")
        definition = self._checked(definition)
        check_forwarding(path, definition, self._catalogue)
        self._begin(path, parent)
        try:
            rows = self._catalogue.new_rows(path, definition)
        except BrokerError:
            self._changing.discard(fold(path))
            raise

        def created(error: BrokerError | None) -> None:
            if error is None:
                made = self._catalogue.add(rows, definition)
                self._catalogue.begin(made)
            else:
                self._catalogue.discard(rows)
            done(error)

        def stage() -> None:
            lane = self._journal.moves
            for row in (self._catalogue.namespace_row(), *rows.all()):
                lane.changes.entities[row.id] = row
            self._commit(lane, path, created)

        # One commit, because other entities that are created in this turn write the namespace's row too.
        self._journal.all_or_nothing(stage)

    def _update(self, entity: AnyEntity, definition: AnyDefinition, done: Done) -> None:
        definition = self._checked(definition)
        check_change(entity.definition, definition)
        check_forwarding(entity.path, definition, self._catalogue)
        self._change(entity, replace(definition, name=entity.definition.name), done)

    def _change(self, entity: AnyEntity, definition: AnyDefinition, done: Done) -> None:
        self._begin(entity.path, entity)
        lane = self._journal.moves
        row = self._catalogue.changed_row(entity, definition)
        lane.changes.entities[row.id] = row

        def changed(error: BrokerError | None) -> None:
            if error is None:
                self._catalogue.change(entity, row, definition)
            done(error)

        self._commit(lane, entity.path, changed)

    def _delete(self, entity: AnyEntity, done: Done) -> None:
        below = fold(subscription_path(entity.path, ""))
        if any(path.startswith(below) for path in self._changing):
            raise EntityChanging(f"A subscription of the entity '{entity.path}' is being changed; try again.")
        self._begin(entity.path, entity)
        deleted_together: list[Entity] = [entity, *entity.dependents]
        lane = self._journal.rest
        lane.changes.dropped_entities += self._catalogue.ids_of(entity)
        for each in deleted_together:
            each.mark_deleting(True)

        def deleted(error: BrokerError | None) -> None:
            if error is None:
                self._catalogue.remove(entity)
            else:
                for each in deleted_together:
                    each.mark_deleting(False)
            done(error)

        self._commit(lane, entity.path, deleted)

    def delete(self, entity: AnyEntity, done: Done) -> None:
        """Delete an entity, which may be a temporary one."""
        self._delete(entity, done)

    def delete_idle(self, entity: Entity) -> None:
        """Delete an entity that was idle for the time in its definition (AutoDeleteOnIdle)."""
        try:
            found = self._catalogue.find(entity.path)
            if found is entity:
                log.info("an idle entity is deleted", extra={"fields": {"entity": entity.path}})
                self._delete(found, lambda error: None)
        except BrokerError as failure:
            log.info("an idle entity could not be deleted: %s", failure)

    def _count_being_created(self, topic: str) -> int:
        """Return how many subscriptions of a topic (folded path) are being created; empty path: queues and topics."""
        return sum(topic_of(path) == topic and not self._catalogue.has(path) for path in self._changing)

    def _checked(self, definition: D) -> D:
        definition = fitted(definition, self._profile)
        definition.check(self._profile)
        if not self.allows_default_key:
            check_keys(definition)
        return definition

    def _begin(self, path: str, of: Entity | None) -> None:
        """Begin a change at a path.

        Raise EntityChanging if another change is under way there, or if the entity `of` is being deleted.
        """
        if fold(path) in self._changing or (of is not None and of.is_deleting):
            raise EntityChanging(f"The entity '{path}' is being changed; try again.")
        self._changing.add(fold(path))

    def _commit(self, lane: Lane, path: str, outcome: Done) -> None:
        def done(_: None, error: BrokerError | None) -> None:
            self._changing.discard(fold(path))
            outcome(error)

        lane.then(done, None)


def _permanent(entities: list[C]) -> list[C]:
    return [each for each in entities if not each.definition.temporary]


def rules_of(subscription: AnyQueue) -> tuple[RuleDefinition, ...]:
    return subscription.subscription_definition.rules


def explain_refused_rule(subscription: AnyEntity, reason: str) -> str:
    """Return the reason why a rule was refused, with a warning if the subscription has no rule. Log the warning too.

    Clients replace the default rule in two steps: they delete it, then add their own. If the second step fails, the
    subscription receives nothing. The broker does not add a rule that no client asked for.
    """
    if not is_queue(subscription) or subscription.kind is not EntityKind.SUBSCRIPTION:
        return reason
    if subscription.is_dead_letter_queue or rules_of(subscription):
        return reason
    log.warning("the rule was refused, and subscription '%s' has no other: it gets no messages", subscription.path)
    left = f"The subscription '{subscription.path}' has no rules now and receives no messages until one is added."
    return f"{reason}\n{left}" if "\n" in reason else f"{reason} {left}"


def _in_sub_queue(part: Entity | None) -> int:
    return 0 if part is None else part.counters.active + part.counters.deferred + part.counters.claimed
