"""The definition of a namespace: the entities and keys that a broker starts with."""

from __future__ import annotations

from dataclasses import dataclass, field

from peeklock.entities.authorization import AuthorizationRule, default_authorization_rule
from peeklock.entities.base import EntityDefinition, check_parts
from peeklock.entities.definitions import AnyDefinition, QueueDefinition, TopicDefinition, destinations
from peeklock.entities.names import DefinitionError, check_subscription_name, fold

DEFAULT_NAMESPACE = "sbemulatorns"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceDefinition:
    """The entities and authorization rules that a broker starts with."""

    name: str = DEFAULT_NAMESPACE
    only_if_empty: bool = False
    """Whether the entities are created only in an empty store, so that later changes of them are kept."""
    queues: tuple[QueueDefinition, ...] = ()
    topics: tuple[TopicDefinition, ...] = ()
    authorization_rules: tuple[AuthorizationRule, ...] = field(default_factory=lambda: (default_authorization_rule(),))

    def __post_init__(self) -> None:
        check_subscription_name(self.name)
        check_parts("Queues and Topics", (*self.queues, *self.topics), EntityDefinition)
        check_parts("AuthorizationRules", self.authorization_rules, AuthorizationRule)
        names = {fold(entity.name) for entity in (*self.queues, *self.topics)}
        subscriptions = [each for topic in self.topics for each in topic.subscriptions]
        sources: list[AnyDefinition] = [*self.queues, *subscriptions]
        for entity in sources:
            for setting, destination in destinations(entity):
                if fold(destination) not in names:
                    rule = "must name a queue or topic of the namespace"
                    raise DefinitionError(setting.name, destination, rule)
