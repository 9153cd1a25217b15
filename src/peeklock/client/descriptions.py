"""Queues, topics, subscriptions and rules as the administration API describes them.

Names and values are those of the API's elements: a duration stays ISO 8601 text. `entities.definitions` declares which
settings an entity has. `documents` reads and writes the documents; the service checks the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from peeklock.atom.descriptions import AuthorizationRule
from peeklock.entities.definitions import AnyDefinition, QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.names import subscription_path
from peeklock.entities.settings import Plain, Setting, settings_of

DEFAULT_RULE: Final = "$Default"


class Duration(str):
    """A duration as a parameter or property of a rule: ISO 8601 text."""

    __slots__ = ()


RuleValue = str | bool | int | float | datetime | Duration | UUID
"""A value in a rule; `Int` has 32 bits, a plain int 64."""


class Kind(StrEnum):
    QUEUE = "Queue"
    TOPIC = "Topic"
    SUBSCRIPTION = "Subscription"


DEFINITIONS: Final[Mapping[Kind, type[AnyDefinition]]] = {
    Kind.QUEUE: QueueDefinition,
    Kind.TOPIC: TopicDefinition,
    Kind.SUBSCRIPTION: SubscriptionDefinition,
}
SETTINGS: Final[Mapping[Kind, Mapping[str, Setting[Any]]]] = {
    kind: {setting.name: setting for setting in settings_of(definition).values()}
    for kind, definition in DEFINITIONS.items()
}
"""The settings of each kind of entity by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A queue, a topic or a subscription as the service describes it."""

    kind: Kind
    name: str
    topic: str | None = None
    """The topic of a subscription; None for other entities."""
    settings: Mapping[str, Plain] = field(default_factory=dict)
    """By name; settings without a value are missing."""
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    runtime: Mapping[str, int | str] = field(default_factory=dict)
    """Counts of messages, the size, and moments as RFC 3339 text, by the names of their elements."""

    @property
    def path(self) -> str:
        """The address of the entity."""
        return self.name if self.topic is None else subscription_path(self.topic, self.name)


class FilterKind(StrEnum):
    SQL = "SqlFilter"
    CORRELATION = "CorrelationFilter"
    TRUE = "TrueFilter"
    FALSE = "FalseFilter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A filter and an action of a subscription."""

    name: str = DEFAULT_RULE
    filter: FilterKind = FilterKind.TRUE
    expression: str | None = None
    """The text of a SQL filter; None for other filters."""
    parameters: Mapping[str, RuleValue] = field(default_factory=dict)
    correlation: Mapping[str, str] = field(default_factory=dict)
    """The values that a correlation filter compares, by the names in `CORRELATION_FIELDS`."""
    properties: Mapping[str, RuleValue] = field(default_factory=dict)
    """The application properties that a correlation filter compares."""
    action: str | None = None
    """SQL."""
    action_parameters: Mapping[str, RuleValue] = field(default_factory=dict)
