"""Read the entities of a namespace through the administration API, as definitions.

The API has the same names of settings as the definitions. It may return a forwarding destination as a URI, of which
the definition has the path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import unquote

from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Duration, Entity, Kind, Rule, RuleValue
from peeklock.entities.authorization import AuthorizationRule, Right
from peeklock.entities.base import EntityDefinition
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition, destinations
from peeklock.entities.durations import parse_time
from peeklock.entities.names import fold, without_origin
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.rules import (
    CORRELATION_FIELDS,
    CorrelationFilter,
    FilterKind,
    PropertyValue,
    RuleDefinition,
)
from peeklock.entities.settings import Form, settings_of

D = TypeVar("D", bound=EntityDefinition)
Forwarding = TypeVar("Forwarding", QueueDefinition, SubscriptionDefinition)


def namespace_of(client: AdministrationClient, step: Callable[[int], None]) -> tuple[NamespaceDefinition, list[str]]:
    """Read the namespace. Also returns a warning for each setting left out. Calls `step` after each queue and topic."""
    read = [*client.entities(Kind.QUEUE), *client.entities(Kind.TOPIC)]
    names = {fold(entity.name) for entity in read}
    left_out: list[str] = []
    queues: list[QueueDefinition] = []
    topics: list[TopicDefinition] = []
    for entity in read:
        keys = {"authorization_rules": tuple(_keys(entity))}
        if entity.kind is Kind.QUEUE:
            queues.append(
                _without_missing_destinations(_definition(QueueDefinition, entity, keys), entity, names, left_out)
            )
        else:
            subscriptions = tuple(
                _without_missing_destinations(_subscription(client, each), each, names, left_out)
                for each in client.entities(Kind.SUBSCRIPTION, topic=entity.name)
            )
            topics.append(_definition(TopicDefinition, entity, keys | {"subscriptions": subscriptions}))
        step(1)
    name = client.namespace()["Name"]
    return NamespaceDefinition(name=name, queues=tuple(queues), topics=tuple(topics)), left_out


def _subscription(client: AdministrationClient, entity: Entity) -> SubscriptionDefinition:
    assert entity.topic is not None
    rules = tuple(_rule(rule) for rule in client.rules(entity.topic, entity.name))
    return _definition(SubscriptionDefinition, entity, {"rules": rules})


def _definition(kind: type[D], entity: Entity, parts: Mapping[str, Any]) -> D:
    arguments = {
        field: setting.parse(_path(value) if setting.form is Form.ENTITY else value)
        for field, setting in settings_of(kind).items()
        if (value := entity.settings.get(setting.name)) is not None
    }
    return kind(name=entity.name, **arguments, **parts)


def _path(destination: object) -> str:
    return unquote(without_origin(str(destination))).strip("/")


def _without_missing_destinations(
    definition: Forwarding, entity: Entity, names: set[str], left_out: list[str]
) -> Forwarding:
    """Leave out a destination that does not exist: a configuration file must not have one."""
    for setting, destination in destinations(definition):
        if fold(destination) not in names:
            left_out.append(f"Left out {setting.name} of '{entity.path}': '{destination}' does not exist.")
            nowhere: dict[str, Any] = {
                field: None for field, each in settings_of(type(definition)).items() if each is setting
            }
            definition = replace(definition, **nowhere)
    return definition


def _keys(entity: Entity) -> Iterable[AuthorizationRule]:
    for rule in entity.authorization_rules:
        yield AuthorizationRule(
            name=rule.name,
            primary_key=rule.primary_key,
            secondary_key=rule.secondary_key,
            rights=frozenset(map(Right, rule.rights)),
        )


def _rule(rule: Rule) -> RuleDefinition:
    kind = FilterKind(rule.filter.removesuffix("Filter"))
    correlation = None
    if kind is FilterKind.CORRELATION:
        tested = {CORRELATION_FIELDS[name]: value for name, value in rule.correlation.items()}
        correlation = CorrelationFilter(**tested, properties=_values(rule.properties))
    is_sql = kind is FilterKind.SQL
    return RuleDefinition(
        name=rule.name,
        filter_kind=kind,
        sql_expression=rule.expression if is_sql else None,
        parameters=_parameters(rule.parameters) if is_sql else {},
        correlation=correlation,
        action=rule.action,
        action_parameters=_parameters(rule.action_parameters),
    )


def _parameters(values: Mapping[str, RuleValue]) -> dict[str, PropertyValue]:
    return {name.removeprefix("@"): value for name, value in _values(values).items()}


def _values(values: Mapping[str, RuleValue]) -> dict[str, PropertyValue]:
    return {name: parse_time(value) if isinstance(value, Duration) else value for name, value in values.items()}
