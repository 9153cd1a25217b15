"""Bringing a live namespace to what a configuration file says.

`plan` is a comparison and nothing else: what there is, what is wanted, and the steps between them in an order in which
each is possible. `Reloader` reads the file again when it is asked to, and takes the steps one after the other. What is
not in the file is left alone, unless pruning is wanted.
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
from peeklock.broker.audit import FAILED, NO_AUDIT, OK, Audit
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
"""What the audit log has in place of a connection."""


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
    """One step."""

    verb: Verb
    kind: Kind
    subject: QueueDefinition | TopicDefinition | SubscriptionDefinition | RuleDefinition | str
    """What it shall be, or the name of what is to be deleted."""
    within: tuple[str, ...] = ()
    """The topic of a subscription; the topic and the subscription of a rule."""

    @property
    def name(self) -> str:
        """With what it belongs to, for people."""
        own = self.subject if isinstance(self.subject, str) else self.subject.name
        return "/".join((*self.within, own))


@dataclass(frozen=True, slots=True)
class Live:
    """What there is. Topics have their subscriptions, and these their rules."""

    queues: tuple[QueueDefinition, ...] = ()
    topics: tuple[TopicDefinition, ...] = ()


def live(administration: Administration) -> Live:
    """What there is at the moment."""
    queues: list[Any] = [queue.definition for queue in administration.queues]
    topics: list[Any] = []
    for topic in administration.topics:
        subscriptions: Any = tuple(each.definition for each in administration.subscriptions(topic.path))
        topics.append(replace(topic.definition, subscriptions=subscriptions))
    return Live(tuple(queues), tuple(topics))


def plan(now: Live, wanted: NamespaceDefinition, *, prune: bool = False) -> list[Change]:
    """The steps from what there is to what is wanted; DefinitionError when one of them is impossible.

    Entities come before those that forward to them, and leave after those have been told otherwise.
    """
    queues = {fold(queue.name): queue for queue in now.queues}
    topics = {fold(topic.name): topic for topic in now.topics}
    wanted_queues = {fold(queue.name): queue for queue in wanted.queues}
    wanted_topics = {fold(topic.name): topic for topic in wanted.topics}
    changes: list[Change] = []
    for kind, there, others in ((Kind.QUEUE, queues, wanted_topics), (Kind.TOPIC, topics, wanted_queues)):
        for folded in [each for each in there if each in others]:
            if not prune:
                raise DefinitionError("Name", others[folded].name, f"is the name of a {kind} that is there already")
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
    """The creations in order, and the queues that get their destinations only afterwards."""
    changes: list[Change] = []
    unfinished: list[QueueDefinition] = []
    there = set(there)
    while missing:
        ready = [queue for queue in missing if all(fold(name) in there for _, name in destinations(queue))]
        if ready:
            changes += (Change(Verb.CREATE, Kind.QUEUE, queue) for queue in ready)
        else:
            # They forward to each other, so one has to be there before it knows where to forward to.
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
    """Nothing when it is so already. The spelling of a name stays what it was."""
    wanted = replace(wanted, name=before.name)
    if wanted != before:
        if kind is not Kind.RULE:
            check_change(before, wanted)
        yield Change(Verb.UPDATE, kind, wanted, within)


# --- taking the steps ---

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


async def take(administration: Administration, changes: Sequence[Change], audit: Audit = NO_AUDIT) -> None:
    """Make the changes durable one after the other; the first that fails is raised, and those before it hold."""
    for change in changes:
        done: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
        method = _METHODS[change.verb, change.kind]
        method(administration, *change.within, change.subject, done.set_result)
        error = await done
        outcome, reason = (OK, "") if error is None else (FAILED, str(error))
        action = f"{change.verb} {change.kind}"
        audit.record(action, outcome, connection=CONNECTION, entity=change.name, reason=reason)
        if error is not None:
            raise error
        event(log, logging.INFO, f"{change.kind} {_PAST[change.verb]} as configured", entity=change.name)


class Reloader:
    """Reads a file for a running broker, as often as it is asked to."""

    def __init__(self, broker: Broker, path: Path, *, prune: bool = False) -> None:
        self._broker = broker
        self._path = path
        self._prune = prune
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Have the file read again. Asked while it is being read, it is read once more afterwards."""
        self._asked.set()

    async def run(self) -> None:
        """Do what is asked for, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                await self.reload()
            except Exception as failure:
                event(log, logging.ERROR, "reading the configuration again failed", exc=failure)

    async def reload(self) -> None:
        """Read the file and follow it. One that cannot be used changes nothing."""
        try:
            # In a thread, because a large file takes longer than clients should wait.
            wanted = await asyncio.to_thread(load_config, self._path, self._broker.options.profile)
        except ConfigError as error:
            self._refuse(error)
        else:
            if has_keys(wanted):
                warn_of_readers(self._path, "keys")
            await self.follow(wanted)

    async def follow(self, wanted: NamespaceDefinition) -> None:
        """Bring the namespace to what is wanted, or log why not."""
        namespace = self._broker.namespace
        try:
            if wanted.name != namespace.definition.name:
                raise DefinitionError("Name", wanted.name, f"of a running namespace stays {namespace.definition.name}")
            self._broker.check_keys(wanted)
            changes = plan(live(namespace.administration), wanted, prune=self._prune)
        except (StartError, DefinitionError) as error:
            self._refuse(error)
            return
        if wanted.authorization_rules != namespace.definition.authorization_rules:
            namespace.keys.set("", wanted.authorization_rules)
            log.info("the keys of the namespace are those of the configuration")
            self._broker.audit.record("update keys", OK, connection=CONNECTION)
        namespace.definition = wanted
        try:
            await take(namespace.administration, changes, self._broker.audit)
        except (BrokerError, DefinitionError) as error:
            self._tell(logging.ERROR, "the configuration was not followed to its end", reason=error)
        else:
            counts = Counter(_PAST[change.verb] for change in changes)
            self._tell(
                logging.INFO, "the namespace is as configured", **{past: counts[past] for past in _PAST.values()}
            )

    def _refuse(self, error: Exception) -> None:
        self._tell(logging.ERROR, "the configuration cannot be used and changes nothing", reason=error)

    def _tell(self, level: int, what: str, **fields: object) -> None:
        event(log, level, what, file=self._path, **fields)
