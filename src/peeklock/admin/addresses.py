"""Parsing of request paths to the addresses of resources.

Names and fixed segments are case-insensitive. A slash in the name of a queue or topic may be sent as `/` or as `%2F`.
The caller decodes the path first, which is safe because no segment of such a name is `subscriptions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from peeklock.broker.errors import EntityNotFound
from peeklock.entities.names import SUBSCRIPTIONS, fold

_SUBSCRIPTIONS: Final = fold(SUBSCRIPTIONS)


@dataclass(frozen=True, slots=True)
class NamespaceAddress:
    """`/$namespaceinfo`"""


@dataclass(frozen=True, slots=True)
class EntitiesAddress:
    """`/$Resources/queues`, `/$Resources/topics`"""

    topics: bool


@dataclass(frozen=True, slots=True)
class EntityAddress:
    """`/{entity}`"""

    name: str


@dataclass(frozen=True, slots=True)
class SubscriptionsAddress:
    """`/{topic}/subscriptions`"""

    topic: str


@dataclass(frozen=True, slots=True)
class SubscriptionAddress:
    """`/{topic}/subscriptions/{subscription}`"""

    topic: str
    name: str


@dataclass(frozen=True, slots=True)
class RulesAddress:
    """`/{topic}/subscriptions/{subscription}/rules`"""

    topic: str
    subscription: str


@dataclass(frozen=True, slots=True)
class RuleAddress:
    """`/{topic}/subscriptions/{subscription}/rules/{rule}`"""

    topic: str
    subscription: str
    name: str


Address = (
    NamespaceAddress
    | EntitiesAddress
    | EntityAddress
    | SubscriptionsAddress
    | SubscriptionAddress
    | RulesAddress
    | RuleAddress
)


def parse_address(path: str) -> Address:
    """Parse a decoded path. Raise EntityNotFound if no resource can have that path."""
    path = path.strip("/")
    segments = path.split("/")
    match [fold(segment) for segment in segments]:
        case ["$namespaceinfo"]:
            return NamespaceAddress()
        case ["$resources", "queues" | "topics" as kind]:
            return EntitiesAddress(kind == "topics")
        case [first, *rest] if not first.startswith("$") and _SUBSCRIPTIONS in rest:
            at = rest.index(_SUBSCRIPTIONS) + 1
            return _below_topic(path, "/".join(segments[:at]), segments[at + 1 :])
        case [first, *_] if first and not first.startswith("$"):
            return EntityAddress(path)
    raise EntityNotFound(path)


def _below_topic(path: str, topic: str, segments: list[str]) -> Address:
    match segments:
        case []:
            return SubscriptionsAddress(topic)
        case [subscription]:
            return SubscriptionAddress(topic, subscription)
        case [subscription, word] if fold(word) == "rules":
            return RulesAddress(topic, subscription)
        case [subscription, word, rule] if fold(word) == "rules":
            return RuleAddress(topic, subscription, rule)
    raise EntityNotFound(path)


def owner_of(address: Address) -> str | None:
    """Return the queue or topic to which the address belongs; None for addresses of the namespace."""
    match address:
        case EntityAddress(name):
            return name
        case SubscriptionsAddress(topic) | SubscriptionAddress(topic) | RulesAddress(topic) | RuleAddress(topic):
            return topic
    return None
