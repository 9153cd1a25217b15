"""The configuration file: the official emulator's JSON, read into a namespace definition.

`config_keys` declares the keys, `entities.definitions` the settings; `broker.rules` checks SQL. Every mistake becomes a
`ConfigError` that names the file, the line and the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from peeklock.broker.rules.matching import check_rule
from peeklock.entities.authorization import AuthorizationRule, Right
from peeklock.entities.base import EntityDefinition
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition, destinations
from peeklock.entities.names import DefinitionError, duplicate, fold
from peeklock.entities.namespaces import DEFAULT_NAMESPACE, NamespaceDefinition
from peeklock.entities.rules import (
    CORRELATION_FIELDS,
    CorrelationFilter,
    FilterKind,
    PropertyValue,
    RuleDefinition,
)
from peeklock.entities.settings import DEFAULT_PROFILE, Profile, settings_of
from peeklock.server.config_keys import LOG_TARGETS, Thing
from peeklock.server.config_server import ServerSettings, read_server
from peeklock.server.config_shape import ConfigError, Shape, read_document
from peeklock.server.config_values import parse_value
from peeklock.server.jsonc import Node

__all__ = ["ConfigError", "Configuration", "default_namespace", "load_config", "load_configuration"]

D = TypeVar("D", bound=EntityDefinition)
Named = TypeVar("Named", bound=EntityDefinition | AuthorizationRule | RuleDefinition)


def default_namespace(profile: Profile = DEFAULT_PROFILE) -> NamespaceDefinition:
    """Return the namespace without a configuration file: enough to try everything."""
    queue, topic = profile.defaults_for(QueueDefinition), profile.defaults_for(TopicDefinition)
    subscription = profile.defaults_for(SubscriptionDefinition)
    return NamespaceDefinition(
        only_if_empty=True,
        queues=(
            QueueDefinition(name="queue", **queue),
            QueueDefinition(name="session-queue", **queue | {"requires_session": True}),
        ),
        topics=(
            TopicDefinition(
                name="topic",
                subscriptions=(
                    SubscriptionDefinition(name="subscription-1", **subscription),
                    SubscriptionDefinition(name="subscription-2", **subscription),
                ),
                **topic,
            ),
        ),
    )


@dataclass(frozen=True, slots=True)
class Configuration:
    """The content of a file."""

    namespace: NamespaceDefinition
    server: ServerSettings


def load_config(path: Path, profile: Profile) -> NamespaceDefinition:
    """Read the namespace and check it against the profile. ConfigError lists the mistakes."""
    return load_configuration(path, profile).namespace


def load_configuration(path: Path, profile: Profile) -> Configuration:
    """Read the namespace and the settings of the server. ConfigError lists the mistakes."""
    document = read_document(path)
    reader = _Reader(path, profile)
    return Configuration(reader.namespace(document), reader.server(document))


class _Reader(Shape):
    def __init__(self, file: Path, profile: Profile) -> None:
        super().__init__(file)
        self.file = file
        self.profile = profile
        self.forwarding: list[tuple[QueueDefinition | SubscriptionDefinition, dict[str, Node]]] = []
        """Entities that may forward, with their properties. Destinations are checked last, when all names are known."""
        self.problems: list[str] = []
        """Mistakes in elements of lists. Such an element is left out, so that the other elements are checked too."""

    def namespace(self, document: Node) -> NamespaceDefinition:
        config = self.thing(self.thing(document, Thing.FILE)["UserConfig"], Thing.USER_CONFIG)
        if "Logging" in config:
            self._check_logging(config["Logging"])
        listed = config["Namespaces"]
        namespaces = self.elements(listed)
        if len(namespaces) != 1:
            raise self.error(listed, f"must hold exactly one namespace, not {len(namespaces)}: a broker serves one")
        node = namespaces[0]
        found = self.thing(node, Thing.NAMESPACE)
        arguments: dict[str, Any] = {
            "name": self.text(found["Name"]) if "Name" in found else DEFAULT_NAMESPACE,
            "queues": self._each(found, "Queues", self._queue),
            "topics": self._each(found, "Topics", self._topic),
        }
        if "AuthorizationRules" in found:
            arguments["authorization_rules"] = self._each(found, "AuthorizationRules", self._authorization_rule)
            if not self.elements(found["AuthorizationRules"]):
                raise self.error(
                    found["AuthorizationRules"], "must hold a rule; leave the key out to use the default one"
                )
        if self.problems:
            raise ConfigError(*self.problems)
        self._check_entities(node, found, arguments["queues"], arguments["topics"])
        return self.make(NamespaceDefinition, arguments, node, found)

    def server(self, document: Node) -> ServerSettings:
        config = self.thing(self.thing(document, Thing.FILE)["UserConfig"], Thing.USER_CONFIG)
        return read_server(self, config["Server"], self.file) if "Server" in config else ServerSettings()

    def _check_logging(self, node: Node) -> None:
        kind = self.thing(node, Thing.LOGGING)["Type"]
        named = [part.strip() for part in self.text(kind).split(",")]
        if not set(named) <= set(LOG_TARGETS) or len(set(named)) < len(named):
            both = ",".join(LOG_TARGETS)
            raise self.error(kind, f'{kind.value} must be {" or ".join(LOG_TARGETS)}, or both as in "{both}"')

    def _check_entities(
        self,
        namespace: Node,
        found: Mapping[str, Node],
        queues: tuple[QueueDefinition, ...],
        topics: tuple[TopicDefinition, ...],
    ) -> None:
        """Check queues and topics together: their number, their names, and forwarding."""
        profile = self.profile
        if len(queues) + len(topics) > profile.max_entities:
            problem = f"must hold at most {profile.max_entities} queues and topics in the {profile.name} profile"
            raise self.error(namespace, f"{problem}, not {len(queues) + len(topics)}")
        repeated = duplicate(entity.name for entity in (*queues, *topics))
        if repeated is not None:
            # Queues have different names, and so have topics (both were checked), so the repeated name is a topic's.
            node = self.elements(found["Topics"])[repeated - len(queues)]
            name = topics[repeated - len(queues)].name
            raise self.error(self.child(node, "Name"), f"there is a queue with the name {name} already")
        names = {fold(entity.name) for entity in (*queues, *topics)}
        for entity, properties in self.forwarding:
            for setting, destination in destinations(entity):
                if fold(destination) not in names:
                    problem = f"{destination} must be a queue or topic of the namespace"
                    raise self.error(properties[setting.name], problem)

    def _queue(self, node: Node) -> QueueDefinition:
        return self._entity(Thing.QUEUE, QueueDefinition, node, {"AuthorizationRules": self._authorization_rule})

    def _topic(self, node: Node) -> TopicDefinition:
        parts: dict[str, Callable[[Node], Any]] = {
            "AuthorizationRules": self._authorization_rule,
            "Subscriptions": self._subscription,
        }
        topic = self._entity(Thing.TOPIC, TopicDefinition, node, parts)
        if topic.subscriptions:
            self._check_numbers(topic, self.child(node, "Subscriptions"))
        return topic

    def _check_numbers(self, topic: TopicDefinition, subscriptions: Node) -> None:
        """Check the number of subscriptions of a topic, and of filters over all its subscriptions."""
        kinds = [rule.filter_kind for subscription in topic.subscriptions for rule in subscription.rules]
        profile = self.profile
        for what, number, most in (
            ("", len(topic.subscriptions), profile.max_subscriptions),
            (" SQL filters", kinds.count(FilterKind.SQL) + kinds.count(FilterKind.FALSE), profile.max_sql_filters),
            (" correlation filters", kinds.count(FilterKind.CORRELATION), profile.max_correlation_filters),
        ):
            if number > most:
                problem = f"must hold at most {most}{what} in the {profile.name} profile, not {number}"
                raise self.error(subscriptions, problem)

    def _subscription(self, node: Node) -> SubscriptionDefinition:
        return self._entity(Thing.SUBSCRIPTION, SubscriptionDefinition, node, {"Rules": self._rule})

    def _entity(self, thing: Thing, kind: type[D], node: Node, parts: Mapping[str, Callable[[Node], Any]]) -> D:
        found = self.thing(node, thing)
        by_key = {setting.name: (name, setting) for name, setting in settings_of(kind).items()}
        properties = self.members(found["Properties"], by_key) if "Properties" in found else {}
        arguments: dict[str, Any] = {"name": self.text(found["Name"])}
        arguments |= self.profile.defaults_for(kind)
        for key, value in properties.items():
            field, setting = by_key[key]
            try:
                arguments[field] = setting.parse(value.plain())
                setting.check(arguments[field], self.profile)
            except DefinitionError as error:
                raise self.error(value, f"{error.shown} {error.rule}") from None
        for key, part in parts.items():
            loaded = self._each(found, key, part)
            if loaded:  # a subscription without rules has the default one, as in the emulator
                arguments[_PART_FIELDS[key]] = loaded
        definition = self.make(kind, arguments, node, found | properties)
        if isinstance(definition, QueueDefinition | SubscriptionDefinition):
            self.forwarding.append((definition, properties))
        return definition

    def _rule(self, node: Node) -> RuleDefinition:
        found = self.thing(node, Thing.RULE)
        properties = self.thing(found["Properties"], Thing.RULE_PROPERTIES)
        given = {key: value for key, value in properties.items() if value.value is not None}
        arguments: dict[str, Any] = {"name": self.text(found["Name"])}
        if "FilterType" in given:
            arguments["filter_kind"] = self.text(given["FilterType"])
        elif ("SqlFilter" in given) == ("CorrelationFilter" in given):
            raise self.error(found["Properties"], "must have FilterType, which is Sql or Correlation")
        else:
            arguments["filter_kind"] = FilterKind.SQL if "SqlFilter" in given else FilterKind.CORRELATION
        if "SqlFilter" in given:
            arguments["sql_expression"], arguments["parameters"] = self._sql(given["SqlFilter"])
        if "CorrelationFilter" in given:
            arguments["correlation"] = self._correlation(given["CorrelationFilter"])
        if "Action" in given:
            arguments["action"], arguments["action_parameters"] = self._sql(given["Action"])
        rule = self.make(RuleDefinition, arguments, node, found | properties)
        try:
            check_rule(rule)
        except DefinitionError as error:
            raise self.error(self.child(given[error.setting], "SqlExpression"), error.rule) from None
        return rule

    def _sql(self, node: Node) -> tuple[str, dict[str, PropertyValue]]:
        found = self.thing(node, Thing.SQL)
        given = self._values(found, "Parameters")
        parameters = {name.removeprefix("@"): value for name, value in given.items()}
        if len(parameters) < len(given):
            raise self.error(found["Parameters"], "must not name a parameter both with @ and without")
        return self.text(found["SqlExpression"]), parameters

    def _correlation(self, node: Node) -> CorrelationFilter:
        found = self.thing(node, Thing.CORRELATION)
        arguments: dict[str, Any] = {
            field: self.text(found[key])
            for key, field in CORRELATION_FIELDS.items()
            if key in found and found[key].value is not None
        }
        arguments["properties"] = self._values(found, "Properties")
        return self.make(CorrelationFilter, arguments, node, found)

    def _values(self, found: Mapping[str, Node], key: str) -> dict[str, PropertyValue]:
        if key not in found or found[key].value is None:
            return {}
        values: dict[str, PropertyValue] = {}
        for name, node in self.members(found[key], None).items():
            try:
                values[name] = parse_value(node)
            except ValueError as error:
                raise self.error(node, str(error)) from None
        return values

    def _authorization_rule(self, node: Node) -> AuthorizationRule:
        found = self.thing(node, Thing.AUTHORIZATION_RULE)
        rights = self.elements(found["Rights"])
        for right in rights:
            if self.text(right) not in list(Right):
                problem = f"{right.value} must be one of {', '.join(Right)}"
                raise self.error(right, problem)
        arguments: dict[str, Any] = {
            "name": self.text(found["Name"]),
            "primary_key": self.text(found["PrimaryKey"]),
            "rights": frozenset(self.text(right) for right in rights),
        }
        if "SecondaryKey" in found:
            arguments["secondary_key"] = self.text(found["SecondaryKey"])
        return self.make(AuthorizationRule, arguments, node, found)

    def _each(self, found: Mapping[str, Node], key: str, part: Callable[[Node], Named]) -> tuple[Named, ...]:
        """Read the elements of the list under a key, which may be missing. Names must differ."""
        if key not in found:
            return ()
        nodes, parts = [], []
        for node in self.elements(found[key]):
            try:
                parts.append(part(node))
                nodes.append(node)
            except ConfigError as error:
                self.problems += error.problems
        repeated = duplicate(each.name for each in parts)
        if repeated is not None:
            problem = f"{parts[repeated].name} is the name of another in the list already (case aside)"
            raise self.error(self.child(nodes[repeated], "Name"), problem)
        return tuple(parts)


_PART_FIELDS = {
    "AuthorizationRules": "authorization_rules",
    "Subscriptions": "subscriptions",
    "Rules": "rules",
}
