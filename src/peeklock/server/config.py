"""The configuration file: the official emulator's JSON, read into a namespace definition.

Knows the shape of the file (the official emulator's, and `AuthorizationRules`, which is ours) and where each thing
stands in it; what a setting may be is declared with the definitions. Every mistake becomes a `ConfigError`
of one sentence that names the file, the line and the key.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from peeklock.broker.definitions import (
    CORRELATION_FIELDS,
    DEFAULT_NAMESPACE,
    AuthorizationRule,
    CorrelationFilter,
    EntityDefinition,
    FilterKind,
    NamespaceDefinition,
    QueueDefinition,
    Right,
    RuleDefinition,
    SubscriptionDefinition,
    TopicDefinition,
    destinations,
)
from peeklock.broker.names import DefinitionError, duplicate, fold
from peeklock.broker.settings import DEFAULT_PROFILE, Profile, settings_of

from .jsonc import JsonError, Node, load

MAX_FILE_BYTES = 1 << 20

T = TypeVar("T")
D = TypeVar("D", bound=EntityDefinition)
Named = TypeVar("Named", bound=EntityDefinition | AuthorizationRule | RuleDefinition)


class ConfigError(ValueError):
    """The configuration cannot be used. `str()` is one clear sentence."""


def default_namespace(profile: Profile = DEFAULT_PROFILE) -> NamespaceDefinition:
    """What there is without a configuration file: enough to try everything."""
    queue, topic = profile.defaults_for(QueueDefinition), profile.defaults_for(TopicDefinition)
    subscription = profile.defaults_for(SubscriptionDefinition)
    return NamespaceDefinition(
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


def load_config(path: Path, profile: Profile) -> NamespaceDefinition:
    """Read the file and check it against the profile; ConfigError for whatever is wrong."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: the configuration file does not exist") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"{path}: the configuration file cannot be read: {reason}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: the configuration file is larger than {MAX_FILE_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: the configuration file is not UTF-8 here") from None
    try:
        document = load(text)
    except JsonError as error:
        raise ConfigError(f"{path}:{error.line}:{error.column}: {error.problem}") from None
    return _Reader(path, profile).namespace(document)


class _Reader:
    def __init__(self, file: Path, profile: Profile) -> None:
        self.file = file
        self.profile = profile
        self.forwarding: list[tuple[QueueDefinition | SubscriptionDefinition, dict[str, Node]]] = []
        """The entities that may forward, with their properties: the destinations are checked last."""

    def namespace(self, document: Node) -> NamespaceDefinition:
        top = self._members(document, ["UserConfig"])
        config = self._members(self._required(document, top, "UserConfig"), ["Namespaces", "Logging"])
        if "Logging" in config:
            # Where the emulator logs. Ours go to standard error; the key is read so that files are portable.
            self._members(config["Logging"], ["Type"])
        listed = self._required(top["UserConfig"], config, "Namespaces")
        namespaces = self._elements(listed)
        if len(namespaces) != 1:
            raise self._error(listed, f"must hold exactly one namespace, not {len(namespaces)}")
        node = namespaces[0]
        found = self._members(node, ["Name", "Queues", "Topics", "AuthorizationRules"])
        arguments: dict[str, Any] = {
            "name": self._text(found["Name"]) if "Name" in found else DEFAULT_NAMESPACE,
            "queues": self._each(found, "Queues", self._queue),
            "topics": self._each(found, "Topics", self._topic),
        }
        if "AuthorizationRules" in found:
            arguments["authorization_rules"] = self._each(found, "AuthorizationRules", self._authorization_rule)
            if not arguments["authorization_rules"]:
                raise self._error(
                    found["AuthorizationRules"], "must hold a rule; leave the key out to use the default one"
                )
        self._check_entities(node, found, arguments["queues"], arguments["topics"])
        return self._make(NamespaceDefinition, arguments, node, found)

    def _check_entities(
        self,
        namespace: Node,
        found: Mapping[str, Node],
        queues: tuple[QueueDefinition, ...],
        topics: tuple[TopicDefinition, ...],
    ) -> None:
        """What holds between queues and topics: their number, one set of names, and forwarding."""
        profile = self.profile
        if len(queues) + len(topics) > profile.max_entities:
            problem = f"must hold at most {profile.max_entities} queues and topics in the {profile.name} profile"
            raise self._error(namespace, f"{problem}, not {len(queues) + len(topics)}")
        repeated = duplicate(entity.name for entity in (*queues, *topics))
        if repeated is not None:
            # Among themselves neither has a name twice, so it is a topic's.
            node = self._elements(found["Topics"])[repeated - len(queues)]
            name = topics[repeated - len(queues)].name
            raise self._error(self._child(node, "Name"), f"there is a queue with the name {name} already")
        names = {fold(entity.name) for entity in (*queues, *topics)}
        for entity, properties in self.forwarding:
            for setting, destination in destinations(entity):
                if fold(destination) not in names:
                    problem = f"{destination} must be a queue or topic of the namespace"
                    raise self._error(properties[setting.name], problem)

    def _queue(self, node: Node) -> QueueDefinition:
        return self._entity(QueueDefinition, node, {"AuthorizationRules": self._authorization_rule})

    def _topic(self, node: Node) -> TopicDefinition:
        parts: dict[str, Callable[[Node], Any]] = {
            "AuthorizationRules": self._authorization_rule,
            "Subscriptions": self._subscription,
        }
        topic = self._entity(TopicDefinition, node, parts)
        limit = self.profile.max_subscriptions
        if len(topic.subscriptions) > limit:
            problem = f"must hold at most {limit} in the {self.profile.name} profile"
            subscriptions = self._child(node, "Subscriptions")
            raise self._error(subscriptions, f"{problem}, not {len(topic.subscriptions)}")
        return topic

    def _subscription(self, node: Node) -> SubscriptionDefinition:
        return self._entity(SubscriptionDefinition, node, {"Rules": self._rule})

    def _entity(self, kind: type[D], node: Node, parts: Mapping[str, Callable[[Node], Any]]) -> D:
        found = self._members(node, ["Name", "Properties", *parts])
        by_key = {setting.name: (name, setting) for name, setting in settings_of(kind).items()}
        properties = self._members(found["Properties"], by_key) if "Properties" in found else {}
        arguments: dict[str, Any] = {"name": self._text(self._required(node, found, "Name"))}
        arguments |= self.profile.defaults_for(kind)
        for key, value in properties.items():
            field, setting = by_key[key]
            try:
                arguments[field] = setting.parse(value.plain())
                setting.check(arguments[field], self.profile)
            except DefinitionError as error:
                raise self._error(value, f"{error.shown} {error.rule}") from None
        for key, part in parts.items():
            loaded = self._each(found, key, part)
            if loaded:  # a subscription without rules has the default one, as in the emulator
                arguments[_PART_FIELDS[key]] = loaded
        definition = self._make(kind, arguments, node, found | properties)
        if isinstance(definition, QueueDefinition | SubscriptionDefinition):
            self.forwarding.append((definition, properties))
        return definition

    def _rule(self, node: Node) -> RuleDefinition:
        found = self._members(node, ["Name", "Properties"])
        properties = self._members(
            self._required(node, found, "Properties"),
            ["FilterType", "SqlFilter", "CorrelationFilter", "Action"],
        )
        given = {key: value for key, value in properties.items() if value.value is not None}
        arguments: dict[str, Any] = {"name": self._text(self._required(node, found, "Name"))}
        if "FilterType" in given:
            arguments["filter_kind"] = self._text(given["FilterType"])
        elif ("SqlFilter" in given) == ("CorrelationFilter" in given):
            raise self._error(found["Properties"], "must have FilterType, which is Sql or Correlation")
        else:
            arguments["filter_kind"] = FilterKind.SQL if "SqlFilter" in given else FilterKind.CORRELATION
        if "SqlFilter" in given:
            arguments["sql_expression"] = self._sql(given["SqlFilter"])
        if "CorrelationFilter" in given:
            arguments["correlation"] = self._correlation(given["CorrelationFilter"])
        if "Action" in given:
            arguments["action"] = self._sql(given["Action"])
        return self._make(RuleDefinition, arguments, node, found | properties)

    def _sql(self, node: Node) -> str:
        found = self._members(node, ["SqlExpression"])
        return self._text(self._required(node, found, "SqlExpression"))

    def _correlation(self, node: Node) -> CorrelationFilter:
        found = self._members(node, [*CORRELATION_FIELDS, "Properties"])
        arguments: dict[str, Any] = {
            field: self._text(found[key])
            for key, field in CORRELATION_FIELDS.items()
            if key in found and found[key].value is not None
        }
        if "Properties" in found:
            properties = self._members(found["Properties"], None)
            for value in properties.values():
                if not isinstance(value.value, str | int | float | bool):
                    raise self._error(value, "must be text, a number, true or false")
            arguments["properties"] = {key: value.plain() for key, value in properties.items()}
        return self._make(CorrelationFilter, arguments, node, found)

    def _authorization_rule(self, node: Node) -> AuthorizationRule:
        found = self._members(node, ["Name", "Rights", "PrimaryKey", "SecondaryKey"])
        rights = self._elements(self._required(node, found, "Rights"))
        for right in rights:
            if self._text(right) not in list(Right):
                problem = f"{right.value} must be one of {', '.join(Right)}"
                raise self._error(right, problem)
        arguments: dict[str, Any] = {
            "name": self._text(self._required(node, found, "Name")),
            "primary_key": self._text(self._required(node, found, "PrimaryKey")),
            "rights": frozenset(self._text(right) for right in rights),
        }
        if "SecondaryKey" in found:
            arguments["secondary_key"] = self._text(found["SecondaryKey"])
        return self._make(AuthorizationRule, arguments, node, found)

    # --- the shape of the file

    def _make(self, kind: type[T], arguments: Mapping[str, Any], node: Node, keys: Mapping[str, Node]) -> T:
        """Construct, and turn a refusal into one that points at the key it is about."""
        try:
            return kind(**arguments)
        except DefinitionError as error:
            problem = f"{error.shown} {error.rule}"
            where = keys.get(error.setting)
            if where is None and error.setting not in node.path:
                problem = f"{error.setting} {problem}"
            raise self._error(where or node, problem) from None

    def _members(self, node: Node, known: Collection[str] | None) -> dict[str, Node]:
        if not isinstance(node.value, dict):
            raise self._error(node, "must be an object, in braces")
        for key, member in node.value.items():
            if known is not None and key not in known:
                raise self._error(member, f"is not a key that is known here; {_suggestion(key, known)}")
        return node.value

    def _elements(self, node: Node) -> list[Node]:
        if not isinstance(node.value, list):
            raise self._error(node, "must be a list, in brackets")
        return node.value

    def _each(self, found: Mapping[str, Node], key: str, part: Callable[[Node], Named]) -> tuple[Named, ...]:
        """The parts in the list under a key, which may be missing; no two with one name."""
        if key not in found:
            return ()
        nodes = self._elements(found[key])
        parts = tuple(part(node) for node in nodes)
        repeated = duplicate(each.name for each in parts)
        if repeated is not None:
            name = parts[repeated].name
            problem = f"{name} is the name of another in the list already (case aside)"
            raise self._error(self._child(nodes[repeated], "Name"), problem)
        return parts

    def _required(self, node: Node, found: Mapping[str, Node], key: str) -> Node:
        if key not in found:
            raise self._error(node, f"must have the key {key}")
        return found[key]

    def _child(self, node: Node, key: str) -> Node:
        return self._members(node, None).get(key, node)

    def _text(self, node: Node) -> str:
        if not isinstance(node.value, str):
            raise self._error(node, "must be text, in double quotes")
        return node.value

    def _error(self, node: Node, problem: str) -> ConfigError:
        # Everything stands under UserConfig, so a path begins below it.
        steps = node.path[1:] if len(node.path) > 1 else node.path
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")
        return ConfigError(f"{self.file}:{node.line}: {path or 'the file'}: {problem}")


_PART_FIELDS = {
    "AuthorizationRules": "authorization_rules",
    "Subscriptions": "subscriptions",
    "Rules": "rules",
}


def _suggestion(key: str, known: Collection[str]) -> str:
    by_folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(key.casefold(), by_folded, n=1)
    if near:
        return f"did you mean {by_folded[near[0]]}?"
    return f"known are {', '.join(known)}"
