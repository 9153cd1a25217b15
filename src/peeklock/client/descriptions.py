"""What the administration API tells and takes: queues, topics, subscriptions, rules.

Names and values are those of the API's elements: a duration stays ISO 8601 text. Which settings an entity has, in the
order that the service wants, and how they are read is the table `SETTINGS`. Leaves the documents to `atom`, and what
values are allowed to the service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum, auto
from typing import Final
from uuid import UUID

DEFAULT_RULE: Final = "$Default"

Value = bool | int | str
"""Of a setting."""


class Duration(str):
    """A span of time as a rule's parameter or property: ISO 8601 text."""

    __slots__ = ()


RuleValue = str | bool | int | float | datetime | Duration | UUID
"""In rules; `Int` has 32 bits and a plain int 64."""


class Kind(StrEnum):
    QUEUE = "Queue"
    TOPIC = "Topic"
    SUBSCRIPTION = "Subscription"


class Form(Enum):
    """What a setting's text means."""

    FLAG = auto()
    COUNT = auto()
    DURATION = auto()
    STATUS = auto()
    TEXT = auto()
    ENTITY = auto()
    """A queue or a topic by its name; documents have its whole address."""


STATUSES: Final = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
SETTINGS: Final[Mapping[Kind, Mapping[str, Form]]] = {
    Kind.QUEUE: {
        "LockDuration": Form.DURATION,
        "MaxSizeInMegabytes": Form.COUNT,
        "RequiresDuplicateDetection": Form.FLAG,
        "RequiresSession": Form.FLAG,
        "DefaultMessageTimeToLive": Form.DURATION,
        "DeadLetteringOnMessageExpiration": Form.FLAG,
        "DuplicateDetectionHistoryTimeWindow": Form.DURATION,
        "MaxDeliveryCount": Form.COUNT,
        "EnableBatchedOperations": Form.FLAG,
        "Status": Form.STATUS,
        "ForwardTo": Form.ENTITY,
        "UserMetadata": Form.TEXT,
        "SupportOrdering": Form.FLAG,
        "AutoDeleteOnIdle": Form.DURATION,
        "EnablePartitioning": Form.FLAG,
        "ForwardDeadLetteredMessagesTo": Form.ENTITY,
        "EnableExpress": Form.FLAG,
        "MaxMessageSizeInKilobytes": Form.COUNT,
        "OrderByPriority": Form.FLAG,
    },
    Kind.TOPIC: {
        "DefaultMessageTimeToLive": Form.DURATION,
        "MaxSizeInMegabytes": Form.COUNT,
        "RequiresDuplicateDetection": Form.FLAG,
        "DuplicateDetectionHistoryTimeWindow": Form.DURATION,
        "EnableBatchedOperations": Form.FLAG,
        "FilteringMessagesBeforePublishing": Form.FLAG,
        "Status": Form.STATUS,
        "UserMetadata": Form.TEXT,
        "SupportOrdering": Form.FLAG,
        "AutoDeleteOnIdle": Form.DURATION,
        "EnablePartitioning": Form.FLAG,
        "EnableSubscriptionPartitioning": Form.FLAG,
        "EnableExpress": Form.FLAG,
        "MaxMessageSizeInKilobytes": Form.COUNT,
        "OrderByPriority": Form.FLAG,
    },
    Kind.SUBSCRIPTION: {
        "LockDuration": Form.DURATION,
        "RequiresSession": Form.FLAG,
        "DefaultMessageTimeToLive": Form.DURATION,
        "DeadLetteringOnMessageExpiration": Form.FLAG,
        "DeadLetteringOnFilterEvaluationExceptions": Form.FLAG,
        "MaxDeliveryCount": Form.COUNT,
        "EnableBatchedOperations": Form.FLAG,
        "Status": Form.STATUS,
        "ForwardTo": Form.ENTITY,
        "ForwardDeadLetteredMessagesTo": Form.ENTITY,
        "AutoDeleteOnIdle": Form.DURATION,
        "UserMetadata": Form.TEXT,
    },
}
UNCHANGEABLE: Final = frozenset(
    {"RequiresDuplicateDetection", "RequiresSession", "EnablePartitioning", "OrderByPriority"}
)
"""Settings that hold from the creation on."""
COUNT_DETAILS: Final = (
    "ActiveMessageCount",
    "DeadLetterMessageCount",
    "ScheduledMessageCount",
    "TransferMessageCount",
    "TransferDeadLetterMessageCount",
)
NUMBERS: Final = ("MessageCount", "SizeInBytes", "SubscriptionCount")
MOMENTS: Final = ("CreatedAt", "UpdatedAt", "AccessedAt")
CORRELATION_FIELDS: Final = (
    "CorrelationId",
    "MessageId",
    "To",
    "ReplyTo",
    "Label",
    "SessionId",
    "ReplyToSessionId",
    "ContentType",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRule:
    """A named pair of keys of an entity."""

    name: str
    rights: tuple[str, ...]
    primary_key: str = field(repr=False)
    secondary_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A queue, a topic or a subscription as the service describes it."""

    kind: Kind
    name: str
    topic: str | None = None
    """Of a subscription."""
    settings: Mapping[str, Value] = field(default_factory=dict)
    """By their names in `SETTINGS`; one that has no value is not there."""
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    runtime: Mapping[str, int | str] = field(default_factory=dict)
    """Counts of messages, the size, and moments as RFC 3339 text, by the names of their elements."""

    @property
    def path(self) -> str:
        """Its address on both sides of the service."""
        return self.name if self.topic is None else f"{self.topic}/Subscriptions/{self.name}"


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
    """Of a SQL filter."""
    parameters: Mapping[str, RuleValue] = field(default_factory=dict)
    correlation: Mapping[str, str] = field(default_factory=dict)
    """What a correlation filter compares, by the names in `CORRELATION_FIELDS`."""
    properties: Mapping[str, RuleValue] = field(default_factory=dict)
    """The application properties that it compares."""
    action: str | None = None
    """SQL."""
    action_parameters: Mapping[str, RuleValue] = field(default_factory=dict)
