"""Reloading: a running namespace is changed to match its configuration file.

`plan` compares the existing entities with the configured ones and returns the changes, in an order in which each is
possible. `Reloader` reads the file on request and applies the changes one after the other. Entities that are not in the
file are kept, unless pruning is on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from peeklock.broker.administration import Administration
from peeklock.broker.audit import FAILED, NO_AUDIT, OK, Audit, AuditEvent
from peeklock.broker.changes import check_change, merged_rules
from peeklock.broker.errors import BrokerError
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition, destinations
from peeklock.entities.names import DefinitionError, fold
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.rules import RuleDefinition
from peeklock.server.broker import Broker, StartError
from peeklock.server.config import ConfigError, load_config
from peeklock.server.logs import event
from peeklock.server.secrets import has_keys, warn_of_readers

log = logging.getLogger(__name__)

CONNECTION: Final = "configuration"
"""The connection's name in audit events of a reload."""


class Verb(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class Kind(StrEnum):
    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    RULE = "rule"


@dataclass(frozen=True, slots=True)
class Change:
    """One operation of administration that a reload needs."""

    verb: Verb
    kind: Kind
    subject: QueueDefinition | TopicDefinition | SubscriptionDefinition | RuleDefinition | str
    """The new definition; for a deletion, the name."""
    within: tuple[str, ...] = ()
    """The topic of a subscription; the topic and the subscription of a rule."""

    @property
    def name(self) -> str:
        """The full name, for the log and the audit log: `topic/subscription/rule`."""
        own = self.subject if isinstance(self.subject, str) else self.subject.name
        return "/".join((*self.within, own))


@dataclass(frozen=True, slots=True)
class Live:
    """The existing entities. Topics include their subscriptions, and subscriptions their rules."""

    queues: tuple[QueueDefinition, ...] = ()
    topics: tuple[TopicDefinition, ...] = ()


def live(administration: Administration) -> Live:
    """Return the definitions of the existing entities."""
    queues: list[Any] = [queue.definition for queue in administration.queues]
    topics: list[Any] = []
    for topic in administration.topics:
        subscriptions: Any = tuple(each.definition for each in administration.subscriptions(topic.path))
        topics.append(replace(topic.definition, subscriptions=subscriptions))
    return Live(tuple(queues), tuple(topics))


def plan(now: Live, wanted: NamespaceDefinition, *, prune: bool = False) -> list[Change]:
    """Return the changes from the existing to the wanted entities; DefinitionError when a change is not allowed.

    An entity is created before the entities that forward to it, and deleted after their forwarding was changed.
    """
    queues = {fold(queue.name): queue for queue in now.queues}
    topics = {fold(topic.name): topic for topic in now.topics}
    wanted_queues = {fold(queue.name): queue for queue in wanted.queues}
    wanted_topics = {fold(topic.name): topic for topic in wanted.topics}
    changes: list[Change] = []
    for kind, there, others in ((Kind.QUEUE, queues, wanted_topics), (Kind.TOPIC, topics, wanted_queues)):
        for folded in [each for each in there if each in others]:
            if not prune:
                raise DefinitionError("Name", others[folded].name, f"is the name of an existing {kind}")
            changes.append(Change(Verb.DELETE, kind, there.pop(folded).name))
    for folded, topic in wanted_topics.items():
        if folded not in topics:
            changes.append(Change(Verb.CREATE, Kind.TOPIC, replace(topic, subscriptions=())))
    missing = [queue for folded, queue in wanted_queues.items() if folded not in queues]
    created, unfinished = _create_queues(missing, queues.keys() | topics.keys() | wanted_topics.keys())
    changes += created
    changes += (Change(Verb.UPDATE, Kind.QUEUE, queue) for queue in unfinished)
    for folded, queue in wanted_queues.items():
        if folded in queues:
            changes += _update(Kind.QUEUE, queues[folded], queue)
    for folded, topic in wanted_topics.items():
        if folded in topics:
            bare = replace(topics[folded], subscriptions=())
            changes += _update(Kind.TOPIC, bare, replace(topic, subscriptions=()))
    for folded, topic in wanted_topics.items():
        changes += _subscriptions(topics.get(folded), topic, prune)
    if prune:
        changes += (Change(Verb.DELETE, Kind.QUEUE, queues[each].name) for each in queues if each not in wanted_queues)
        changes += (Change(Verb.DELETE, Kind.TOPIC, topics[each].name) for each in topics if each not in wanted_topics)
    return changes


def _create_queues(missing: list[QueueDefinition], there: set[str]) -> tuple[list[Change], list[QueueDefinition]]:
    """Return the creations in order, and the queues whose forwarding must be set by an update afterwards."""
    changes: list[Change] = []
    unfinished: list[QueueDefinition] = []
    there = set(there)
    while missing:
        ready = [queue for queue in missing if all(fold(name) in there for _, name in destinations(queue))]
        if ready:
            changes += (Change(Verb.CREATE, Kind.QUEUE, queue) for queue in ready)
        else:
            # They forward to each other, so one must be created without forwarding first.
            ready = missing[:1]
            bare = replace(ready[0], forward_to=None, forward_dead_lettered_messages_to=None)
            changes.append(Change(Verb.CREATE, Kind.QUEUE, bare))
            unfinished += ready
        there.update(fold(queue.name) for queue in ready)
        missing = [queue for queue in missing if fold(queue.name) not in there]
    return changes, unfinished


def _subscriptions(before: TopicDefinition | None, wanted: TopicDefinition, prune: bool) -> Iterator[Change]:
    there = {fold(each.name): each for each in before.subscriptions} if before is not None else {}
    topic = wanted.name if before is None else before.name
    for subscription in wanted.subscriptions:
        known = there.pop(fold(subscription.name), None)
        if known is None:
            yield Change(Verb.CREATE, Kind.SUBSCRIPTION, subscription, (topic,))
        else:
            yield from _update(Kind.SUBSCRIPTION, known, replace(subscription, rules=known.rules), (topic,))
            yield from _rules(topic, known, subscription, prune)
    if prune:
        for known in there.values():
            yield Change(Verb.DELETE, Kind.SUBSCRIPTION, known.name, (topic,))


def _rules(topic: str, before: SubscriptionDefinition, wanted: SubscriptionDefinition, prune: bool) -> Iterator[Change]:
    within = (topic, before.name)
    known = {fold(rule.name): rule for rule in before.rules}
    for rule in wanted.rules if prune else merged_rules(before.rules, wanted.rules):
        there = known.pop(fold(rule.name), None)
        if there is None:
            yield Change(Verb.CREATE, Kind.RULE, rule, within)
        else:
            yield from _update(Kind.RULE, there, rule, within)
    for rule in known.values():
        yield Change(Verb.DELETE, Kind.RULE, rule.name, within)


def _update(kind: Kind, before: Any, wanted: Any, within: tuple[str, ...] = ()) -> Iterator[Change]:
    """Yield an update if the definitions differ. The spelling of the existing name is kept."""
    wanted = replace(wanted, name=before.name)
    if wanted != before:
        if kind is not Kind.RULE:
            check_change(before, wanted)
        yield Change(Verb.UPDATE, kind, wanted, within)


# --- applying changes ---

_METHODS: Final[dict[tuple[Verb, Kind], Callable[..., None]]] = {
    (Verb.CREATE, Kind.QUEUE): Administration.create_queue,
    (Verb.UPDATE, Kind.QUEUE): Administration.update_queue,
    (Verb.DELETE, Kind.QUEUE): Administration.delete_queue,
    (Verb.CREATE, Kind.TOPIC): Administration.create_topic,
    (Verb.UPDATE, Kind.TOPIC): Administration.update_topic,
    (Verb.DELETE, Kind.TOPIC): Administration.delete_topic,
    (Verb.CREATE, Kind.SUBSCRIPTION): Administration.create_subscription,
    (Verb.UPDATE, Kind.SUBSCRIPTION): Administration.update_subscription,
    (Verb.DELETE, Kind.SUBSCRIPTION): Administration.delete_subscription,
    (Verb.CREATE, Kind.RULE): Administration.create_rule,
    (Verb.UPDATE, Kind.RULE): Administration.update_rule,
    (Verb.DELETE, Kind.RULE): Administration.delete_rule,
}
_PAST: Final = {Verb.CREATE: "created", Verb.UPDATE: "updated", Verb.DELETE: "deleted"}


async def apply(administration: Administration, changes: Sequence[Change], audit: Audit = NO_AUDIT) -> None:
    """Apply the changes one after the other, each durably. Raises the first failure; earlier changes stay applied."""
    for change in changes:
        done: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
        method = _METHODS[change.verb, change.kind]
        method(administration, *change.within, change.subject, done.set_result)
        error = await done
        outcome, reason = (OK, "") if error is None else (FAILED, str(error))
        action = f"{change.verb} {change.kind}"
        audit.record(
            AuditEvent(action=action, outcome=outcome, connection=CONNECTION, entity=change.name, reason=reason)
        )
        if error is not None:
            raise error
        event(log, logging.INFO, f"{change.kind} {_PAST[change.verb]} as configured", entity=change.name)


class Reloader:
    """Reads the configuration file of a running broker again on request, and applies it."""

    def __init__(self, broker: Broker, path: Path, *, prune: bool = False) -> None:
        self._broker = broker
        self._path = path
        self._prune = prune
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Request a reload. If one is running, another follows it."""
        self._requested.set()

    async def run(self) -> None:
        """Reload on every request, until cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            try:
                await self.reload()
            except Exception as failure:
                event(log, logging.ERROR, "reloading the configuration failed", exc=failure)

    async def reload(self) -> None:
        """Read the file and apply it. A file with mistakes is logged and changes nothing."""
        try:
            # In a thread, because reading a large file would stop the event loop for too long.
            wanted = await asyncio.to_thread(load_config, self._path, self._broker.options.profile)
        except ConfigError as error:
            self._log_unusable(error)
        else:
            if has_keys(wanted):
                warn_of_readers(self._path, "keys")
            await self.apply(wanted)

    async def apply(self, wanted: NamespaceDefinition) -> None:
        """Change the namespace to match the definition, or log why that fails."""
        namespace = self._broker.namespace
        try:
            if wanted.name != namespace.definition.name:
                rule = f"must stay {namespace.definition.name}: the name of a running namespace cannot change"
                raise DefinitionError("Name", wanted.name, rule)
            self._broker.check_keys(wanted)
            changes = plan(live(namespace.administration), wanted, prune=self._prune)
        except (StartError, DefinitionError) as error:
            self._log_unusable(error)
            return
        if wanted.authorization_rules != namespace.definition.authorization_rules:
            namespace.keys.set("", wanted.authorization_rules)
            log.info("keys of the namespace updated as configured")
            self._broker.audit.record(AuditEvent(action="update keys", outcome=OK, connection=CONNECTION))
        namespace.definition = wanted
        try:
            await apply(namespace.administration, changes, self._broker.audit)
        except (BrokerError, DefinitionError) as error:
            self._log(logging.ERROR, "the configuration was applied only in part", reason=error)
        else:
            counts = Counter(_PAST[change.verb] for change in changes)
            self._log(logging.INFO, "the namespace is as configured", **{past: counts[past] for past in _PAST.values()})

    def _log_unusable(self, error: Exception) -> None:
        self._log(logging.ERROR, "the configuration cannot be used; nothing was changed", reason=error)

    def _log(self, level: int, message: str, **fields: object) -> None:
        event(log, level, message, file=self._path, **fields)
