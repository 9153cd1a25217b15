"""Writing a namespace as a configuration file, from which it can be read again.

A setting is written unless it has the default of every profile. Keys are secrets, so they are written on request only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from peeklock.entities.authorization import AuthorizationRule
from peeklock.entities.base import EntityDefinition
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.rules import CORRELATION_FIELDS, FilterKind, PropertyValue, RuleDefinition
from peeklock.entities.settings import settings_of
from peeklock.server.config_values import format_values

Json = dict[str, Any]


def format_config(namespace: NamespaceDefinition, *, with_keys: bool = False) -> str:
    """Return the text of the file. Without keys the namespace gets the default key."""
    written: Json = {"Name": namespace.name}
    if with_keys:
        written |= _keys(namespace.authorization_rules)
    written["Queues"] = [_queue(queue, with_keys) for queue in namespace.queues]
    written["Topics"] = [_topic(topic, with_keys) for topic in namespace.topics]
    return json.dumps({"UserConfig": {"Namespaces": [written]}}, indent=2, ensure_ascii=False) + "\n"


_NOTHING_PASSES = RuleDefinition(filter_kind=FilterKind.FALSE)


def _queue(queue: QueueDefinition, with_keys: bool) -> Json:
    return _entity(queue) | (_keys(queue.authorization_rules) if with_keys else {})


def _topic(topic: TopicDefinition, with_keys: bool) -> Json:
    written = _entity(topic)
    if with_keys:
        written |= _keys(topic.authorization_rules)
    return written | {"Subscriptions": [_subscription(each) for each in topic.subscriptions]}


def _subscription(subscription: SubscriptionDefinition) -> Json:
    written = _entity(subscription)
    if subscription.rules != (RuleDefinition(),):
        # A subscription without rules in the file gets the rule that every message passes.
        written["Rules"] = [_rule(rule) for rule in subscription.rules or (_NOTHING_PASSES,)]
    return written


def _entity(entity: EntityDefinition) -> Json:
    properties: Json = {}
    for field, setting in settings_of(type(entity)).items():
        value = getattr(entity, field)
        if value != setting.default or setting.profile_defaults:
            properties[setting.name] = setting.format(value)
    return {"Name": entity.name} | ({"Properties": properties} if properties else {})


def _rule(rule: RuleDefinition) -> Json:
    properties: Json = {"FilterType": rule.filter_kind}
    if rule.sql_expression is not None:
        properties["SqlFilter"] = _sql(rule.sql_expression, rule.parameters)
    if rule.correlation is not None:
        tested = {key: getattr(rule.correlation, field) for key, field in CORRELATION_FIELDS.items()}
        properties["CorrelationFilter"] = {key: value for key, value in tested.items() if value is not None}
        if rule.correlation.properties:
            properties["CorrelationFilter"]["Properties"] = format_values(rule.correlation.properties)
    if rule.action is not None:
        properties["Action"] = _sql(rule.action, rule.action_parameters)
    return {"Name": rule.name, "Properties": properties}


def _sql(expression: str, parameters: Mapping[str, PropertyValue]) -> Json:
    written: Json = {"SqlExpression": expression}
    if parameters:
        written["Parameters"] = format_values({f"@{name}": value for name, value in parameters.items()})
    return written


def _keys(rules: Iterable[AuthorizationRule]) -> Json:
    written = []
    for rule in rules:
        keys = {"PrimaryKey": rule.primary_key}
        if rule.secondary_key is not None:
            keys["SecondaryKey"] = rule.secondary_key
        written.append({"Name": rule.name, "Rights": sorted(rule.rights), **keys})
    return {"AuthorizationRules": written} if written else {}
