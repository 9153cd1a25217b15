"""The elements of an entity's description and their order, on which some clients depend.

Settings are in the order of the definition's fields, so a new setting needs no change here. This module adds the
elements that are not settings, each group after a setting, and the settings whose position differs in requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.settings import settings_of

COUNT_DETAILS: Final = (
    "ActiveMessageCount",
    "DeadLetterMessageCount",
    "ScheduledMessageCount",
    "TransferMessageCount",
    "TransferDeadLetterMessageCount",
)
"""The elements of `CountDetails`."""
OWN_COUNTS: Final = ("ClaimedMessageCount",)
"""Peeklock's own elements of `CountDetails`, after the others and only if they are not 0: Service Bus has none."""
NUMBERS: Final = ("MessageCount", "SizeInBytes", "SubscriptionCount")
MOMENTS: Final = ("CreatedAt", "UpdatedAt", "AccessedAt")
AUTHORIZATION_RULES: Final = "AuthorizationRules"
FIRST_RULE: Final = "DefaultRuleDescription"
"""The first rule of a subscription, in requests that create it."""

_FOLLOWING: Final[Mapping[type, Mapping[str, tuple[str, ...]]]] = {
    QueueDefinition: {
        "EnableBatchedOperations": ("SizeInBytes", "MessageCount", "IsAnonymousAccessible", AUTHORIZATION_RULES),
        "Status": MOMENTS,
        "SupportOrdering": ("CountDetails",),
        "EnablePartitioning": ("EntityAvailabilityStatus",),
    },
    TopicDefinition: {
        "EnableBatchedOperations": ("SizeInBytes",),
        "FilteringMessagesBeforePublishing": ("IsAnonymousAccessible", AUTHORIZATION_RULES),
        "Status": MOMENTS,
        "SupportOrdering": ("CountDetails", "SubscriptionCount", "SqlFilterCount", "CorrelationFilterCount"),
        "EnablePartitioning": ("EntityAvailabilityStatus",),
    },
    SubscriptionDefinition: {
        "DeadLetteringOnFilterEvaluationExceptions": (FIRST_RULE, "MessageCount"),
        "ForwardTo": (*MOMENTS, "CountDetails"),
        "AutoDeleteOnIdle": ("EntityAvailabilityStatus",),
    },
}
"""The elements that are not settings, by the setting that they follow."""
_MOVED_IN_REQUESTS: Final[Mapping[type, Mapping[str, str]]] = {
    QueueDefinition: {
        "ForwardTo": "Status",
        "UserMetadata": "ForwardTo",
        "ForwardDeadLetteredMessagesTo": "EnablePartitioning",
    },
    TopicDefinition: {"UserMetadata": "Status"},
    SubscriptionDefinition: {},
}
"""The settings whose position in requests differs from responses, with the setting that they follow in requests."""


def response_elements(kind: type) -> tuple[str, ...]:
    """Return the elements of a response in order."""
    return tuple(_with_others(kind, [setting.name for setting in settings_of(kind).values()]))


def request_elements(kind: type) -> tuple[str, ...]:
    """Return the elements of a request in order."""
    moved = _MOVED_IN_REQUESTS[kind]
    names = [setting.name for setting in settings_of(kind).values() if setting.name not in moved]
    for name, before in moved.items():
        names.insert(names.index(before) + 1, name)
    return tuple(_with_others(kind, names))


def _with_others(kind: type, settings: list[str]) -> Iterator[str]:
    for name in settings:
        yield name
        yield from _FOLLOWING[kind].get(name, ())
