"""The resources of administration, each with the same operations: get, read a description, create, update, delete.

This module maps these operations to operations of the broker; `service` handles HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar
from xml.etree.ElementTree import Element

from peeklock.admin.addresses import (
    Address,
    EntitiesAddress,
    EntityAddress,
    RuleAddress,
    RulesAddress,
    SubscriptionAddress,
    SubscriptionsAddress,
)
from peeklock.admin.descriptions import (
    ENTITY_DESCRIPTIONS,
    NAMES,
    SUBSCRIPTION_DESCRIPTION,
    EntityState,
    describe,
    describe_namespace,
    read_settings,
)
from peeklock.admin.documents import Entry, UrlBuilder
from peeklock.admin.rule_descriptions import RULE_DESCRIPTION, describe_rule, read_rule
from peeklock.atom.elements import FIRST_RULE
from peeklock.atom.markup import SERVICE_BUS, MarkupError, child, to_text
from peeklock.broker.administration import Administration, explain_refused_rule
from peeklock.broker.catalogue import AnyEntity
from peeklock.broker.entity import Done
from peeklock.broker.errors import BrokerError, EntityChanging
from peeklock.broker.namespace import Namespace
from peeklock.entities.definitions import (
    AnyDefinition,
    QueueDefinition,
    SubscriptionDefinition,
    TopicDefinition,
)
from peeklock.entities.names import subscription_path
from peeklock.entities.rules import RuleDefinition
from peeklock.server.waits import durable

Definition = AnyDefinition | RuleDefinition
KINDS: Final[dict[type, str]] = {
    QueueDefinition: "queue",
    TopicDefinition: "topic",
    SubscriptionDefinition: "subscription",
    RuleDefinition: "rule",
}
"""The names of the kinds in logs."""


class Resource(Protocol):
    """A resource with a description that clients can put and delete."""

    path: str

    def get(self) -> Definition:
        """Return the current definition. Raise EntityNotFound if the resource does not exist."""
        ...

    def entry(self) -> Entry: ...

    def read(self, description: Element, former: Definition | None) -> Definition:
        """Convert a client's description to a definition. Raise MarkupError or DefinitionError."""
        ...

    async def create(self, wanted: Any) -> None: ...

    async def update(self, wanted: Any) -> None: ...

    async def delete(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of resources, of which a request returns one page."""

    path: str
    title: str
    items: Sequence[Any]
    entry: Callable[[Any], Entry]


class Resources:
    """The resources of a namespace, by address, for one request."""

    def __init__(self, namespace: Namespace, urls: UrlBuilder) -> None:
        self.namespace = namespace
        self.administration: Administration = namespace.administration
        self.urls = urls

    def listing(self, address: Address) -> Listing | None:
        """Return the list at an address; None if it is not the address of a list."""
        administration = self.administration
        match address:
            case EntitiesAddress(topics):
                items: Sequence[Any] = administration.topics if topics else administration.queues
                title = "Topics" if topics else "Queues"
                return Listing(f"$Resources/{title}", title, items, self.entity_entry)
            case SubscriptionsAddress(topic):
                path = f"{administration.topic(topic).path}/Subscriptions"
                return Listing(path, "Subscriptions", administration.subscriptions(topic), self.entity_entry)
            case RulesAddress(topic, subscription):
                path = f"{administration.subscription(topic, subscription).path}/Rules"
                rules = administration.rules(topic, subscription)
                return Listing(path, "Rules", rules, lambda rule: rule_entry(path, rule))
        return None

    async def create(self, start: Callable[[Done], None]) -> None:
        """Create an entity. If a change of it is not yet committed, wait for its outcome first.

        Clients assume after a conflict that the entity exists, and use it immediately.
        """
        try:
            await durable(start)
        except EntityChanging:
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.namespace.journal.when_settled(lambda: None if settled.done() else settled.set_result(None))
            await settled
            await durable(start)

    def resource(self, address: Address) -> Resource | None:
        """Return the resource at an address, which may not exist yet; None if the address cannot be put."""
        match address:
            case EntityAddress(name):
                return EntityResource(self, name)
            case SubscriptionAddress(topic, name):
                return SubscriptionResource(self, topic, name)
            case RuleAddress(topic, subscription, name):
                return RuleResource(self, topic, subscription, name)
        return None

    def namespace_entry(self) -> Entry:
        name, created_at = self.namespace.definition.name, self.namespace.created_at
        description = describe_namespace(name, self.namespace.profile, created_at)
        return Entry("$namespaceinfo", name, description, _etag(to_text(description)), created_at, created_at)

    def entity_entry(self, entity: AnyEntity) -> Entry:
        """Return the entry of a queue, a topic or a subscription."""
        definition, runtime = entity.definition, self.administration.runtime(entity)
        state = EntityState(definition, runtime, self.namespace.profile, self.urls.origin, self.urls.api_version)
        return Entry(
            entity.path,
            definition.name,
            describe(state),
            etag_of(definition),
            runtime.created_at,
            runtime.updated_at,
        )


class EntityResource:
    """A queue or a topic, depending on the description."""

    def __init__(self, resources: Resources, name: str) -> None:
        self.path = name
        self._resources = resources
        self._administration = resources.administration

    def get(self) -> AnyDefinition:
        return self._administration.entity(self.path).definition

    def entry(self) -> Entry:
        return self._resources.entity_entry(self._administration.entity(self.path))

    def read(self, description: Element, former: Definition | None) -> QueueDefinition | TopicDefinition:
        kind = next((of for name, of in ENTITY_DESCRIPTIONS.items() if _is(description, name)), None)
        if kind is None:
            raise MarkupError(f"The entry must have a {' or a '.join(ENTITY_DESCRIPTIONS)} as its content.")
        if former is not None and type(former) is not kind:
            raise MarkupError(f"'{former.name}' has a {NAMES[type(former)]}: the kind of an entity cannot be changed.")
        if kind is TopicDefinition:
            return _read(TopicDefinition, self.path, description, former, self._resources)
        return _read(QueueDefinition, self.path, description, former, self._resources)

    async def create(self, wanted: QueueDefinition | TopicDefinition) -> None:
        if isinstance(wanted, TopicDefinition):
            await self._resources.create(lambda done: self._administration.create_topic(wanted, done))
        else:
            await self._resources.create(lambda done: self._administration.create_queue(wanted, done))

    async def update(self, wanted: QueueDefinition | TopicDefinition) -> None:
        if isinstance(wanted, TopicDefinition):
            await durable(lambda done: self._administration.update_topic(wanted, done))
        else:
            await durable(lambda done: self._administration.update_queue(wanted, done))

    async def delete(self) -> None:
        if isinstance(self.get(), TopicDefinition):
            await durable(lambda done: self._administration.delete_topic(self.path, done))
        else:
            await durable(lambda done: self._administration.delete_queue(self.path, done))


class SubscriptionResource:
    """A subscription."""

    def __init__(self, resources: Resources, topic: str, name: str) -> None:
        self.path = subscription_path(topic, name)
        self._topic, self._name = topic, name
        self._resources = resources
        self._administration = resources.administration

    def get(self) -> AnyDefinition:
        return self._administration.subscription(self._topic, self._name).definition

    def entry(self) -> Entry:
        return self._resources.entity_entry(self._administration.subscription(self._topic, self._name))

    def read(self, description: Element, former: Definition | None) -> SubscriptionDefinition:
        if not _is(description, SUBSCRIPTION_DESCRIPTION):
            raise MarkupError(f"The entry must have a {SUBSCRIPTION_DESCRIPTION} as its content.")
        wanted = _read(SubscriptionDefinition, self._name, description, former, self._resources)
        first = child(description, FIRST_RULE)
        if former is None and first is not None:
            wanted = replace(wanted, rules=(read_rule(first),))
        return wanted

    async def create(self, wanted: SubscriptionDefinition) -> None:
        await self._resources.create(lambda done: self._administration.create_subscription(self._topic, wanted, done))

    async def update(self, wanted: SubscriptionDefinition) -> None:
        await durable(lambda done: self._administration.update_subscription(self._topic, wanted, done))

    async def delete(self) -> None:
        await durable(lambda done: self._administration.delete_subscription(self._topic, self._name, done))


class RuleResource:
    """A rule of a subscription."""

    def __init__(self, resources: Resources, topic: str, subscription: str, name: str) -> None:
        self.path = f"{subscription_path(topic, subscription)}/Rules/{name}"
        self._topic, self._subscription, self._name = topic, subscription, name
        self._administration = resources.administration

    def get(self) -> RuleDefinition:
        return self._administration.rule(self._topic, self._subscription, self._name)

    def entry(self) -> Entry:
        path = self._administration.subscription(self._topic, self._subscription).path
        return rule_entry(f"{path}/Rules", self.get())

    def read(self, description: Element, former: Definition | None) -> RuleDefinition:
        if not _is(description, RULE_DESCRIPTION):
            raise MarkupError(f"The entry must have a {RULE_DESCRIPTION} as its content.")
        return read_rule(description, self._name)

    def explain(self, reason: str) -> str:
        """Add to the reason of a refusal the effect on the subscription."""
        try:
            subscription = self._administration.subscription(self._topic, self._subscription)
        except BrokerError:
            return reason
        return explain_refused_rule(subscription, reason)

    async def create(self, wanted: RuleDefinition) -> None:
        await durable(lambda done: self._administration.create_rule(self._topic, self._subscription, wanted, done))

    async def update(self, wanted: RuleDefinition) -> None:
        await durable(lambda done: self._administration.update_rule(self._topic, self._subscription, wanted, done))

    async def delete(self) -> None:
        await durable(lambda done: self._administration.delete_rule(self._topic, self._subscription, self._name, done))


def rule_entry(rules: str, rule: RuleDefinition) -> Entry:
    """Return the entry of a rule. `rules` is the path of the list of rules."""
    path, created_at = f"{rules}/{rule.name}", rule.created_at
    return Entry(path, rule.name, describe_rule(rule), etag_of(rule), created_at, created_at)


def etag_of(definition: Definition) -> str:
    """Return the value that `If-Match` compares; it changes whenever the definition changes."""
    data = definition.to_json()
    # Subscriptions and rules are separate resources: a change of one does not change this resource.
    for below in ("subscriptions", "rules"):
        data.pop(below, None)
    return _etag(data)


def _etag(content: object) -> str:
    return f'"{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]}"'


def _is(description: Element, name: str) -> bool:
    return bool(description.tag == f"{{{SERVICE_BUS}}}{name}")


D = TypeVar("D", QueueDefinition, TopicDefinition, SubscriptionDefinition)


def _read(kind: type[D], name: str, description: Element, former: Any, resources: Resources) -> D:
    """Create a definition. Settings that the description lacks stay unchanged, or have the profile's defaults."""
    before = former if isinstance(former, kind) else None
    found = read_settings(kind, description, resources.urls.api_version, before)
    if before is not None:
        return replace(before, **found)
    return kind(name=name, **resources.namespace.profile.defaults_for(kind) | found)
