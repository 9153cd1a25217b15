"""What a namespace is made of: queues, topics, subscriptions, rules and keys, with their settings.

Every definition checks itself when it is made. Two strengths of check: what no broker could work with is
refused always (the ranges of the `unlimited` profile, so that what was stored under one profile loads under
another); what the chosen `Profile` forbids is refused by `check(profile)`, for whoever creates an entity.

Leaves reading files to the server, the SQL of filters to the rules, and what settings do to the queues.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self, cast, get_args
from uuid import UUID

from peeklock.broker.names import (
    DefinitionError,
    check_entity_name,
    check_rule_name,
    check_subscription_name,
    duplicate,
    fold,
)
from peeklock.broker.settings import (
    AUTO_DELETE_ON_IDLE,
    BATCHED_OPERATIONS,
    DEAD_LETTER_EXPIRED,
    DEAD_LETTER_FILTER_ERRORS,
    DEFAULT_TTL,
    DUPLICATE_WINDOW,
    ENABLE_EXPRESS,
    ENABLE_PARTITIONING,
    FILTERING_BEFORE_PUBLISHING,
    FORWARD_DEAD_LETTERS,
    FORWARD_TO,
    LAXEST,
    LOCK_DURATION,
    MAX_DELIVERY_COUNT,
    MAX_MESSAGE_SIZE,
    MAX_SIZE,
    MAX_TEXT,
    PROFILES,
    REQUIRES_DUPLICATE_DETECTION,
    REQUIRES_SESSION,
    STATUS,
    SUBSCRIPTION_PARTITIONING,
    SUPPORT_ORDERING,
    USER_METADATA,
    Kind,
    Profile,
    Setting,
    Status,
    settings_of,
)

DEFAULT_NAMESPACE = "sbemulatorns"
DEFAULT_KEY_NAME = "RootManageSharedAccessKey"
DEFAULT_KEY = "SAS_KEY_VALUE"
"""The emulator's well-known key: no secret, so the server refuses it off loopback."""
DEFAULT_RULE_NAME = "$Default"

MAX_AUTHORIZATION_RULES = 12

PropertyValue = str | int | float | bool | datetime | timedelta | UUID
"""What a filter compares with and an action sets; moments are aware."""


# --- keys


class Right(StrEnum):
    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


ALL_RIGHTS = frozenset(Right)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRule:
    """A named pair of keys and what they allow. Manage implies the other rights, as the service demands."""

    name: str
    primary_key: str = field(repr=False)
    secondary_key: str | None = field(default=None, repr=False)
    rights: frozenset[Right]

    def __post_init__(self) -> None:
        check_subscription_name(self.name)
        _check_key("PrimaryKey", self.primary_key)
        if self.secondary_key is not None:
            _check_key("SecondaryKey", self.secondary_key)
        unknown = sorted(str(right) for right in self.rights if right not in ALL_RIGHTS)
        if unknown or not self.rights:
            raise DefinitionError("Rights", unknown, f"must be one or more of {', '.join(Right)}")
        rights = frozenset(map(Right, self.rights))
        object.__setattr__(self, "rights", ALL_RIGHTS if Right.MANAGE in rights else rights)

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.primary_key,) if self.secondary_key is None else (self.primary_key, self.secondary_key)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "primary_key": self.primary_key,
            "secondary_key": self.secondary_key,
            "rights": sorted(self.rights),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        known = _known(cls, data)
        return cls(**known | {"rights": frozenset(known.get("rights", ()))})


def _check_key(setting: str, key: object) -> None:
    # What a connection string could not carry. The key itself stays out of the message.
    if not isinstance(key, str) or not re.fullmatch(r"[!-:<-~]{1,256}", key):
        rule = "must be 1 to 256 printable ASCII characters without blanks and semicolons"
        raise DefinitionError(setting, "(not shown)", rule)


def default_authorization_rule() -> AuthorizationRule:
    return AuthorizationRule(name=DEFAULT_KEY_NAME, primary_key=DEFAULT_KEY, rights=ALL_RIGHTS)


# --- rules


class FilterKind(StrEnum):
    SQL = "Sql"
    CORRELATION = "Correlation"
    TRUE = "True"
    FALSE = "False"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """What a correlation filter compares. None: not tested."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, PropertyValue] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        tested = bool(self.properties)
        for name in CORRELATION_FIELDS.values():
            value = getattr(self, name)
            tested = tested or value is not None
            if value is not None and not isinstance(value, str):
                raise DefinitionError(name, value, "must be text")
        _check_values("Properties", self.properties)
        if not tested:
            raise DefinitionError("CorrelationFilter", "{}", "must test at least one property")


def _check_values(setting: str, values: Mapping[str, PropertyValue]) -> None:
    for key, value in values.items():
        if not isinstance(key, str) or not isinstance(value, _VALUES):
            rule = "must be text, a number, true, false, a moment, a time or a guid"
            raise DefinitionError(f"{setting}.{key}", value, rule)
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise DefinitionError(f"{setting}.{key}", value, "must fit into 64 bits")
        if isinstance(value, datetime) and value.tzinfo is None:
            raise DefinitionError(f"{setting}.{key}", value, "must say its time zone")


_VALUES = get_args(PropertyValue)


def _values_to_json(values: Mapping[str, PropertyValue]) -> dict[str, Any]:
    """What JSON has no type for is an object that names it."""
    shown: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, datetime):
            shown[key] = {"moment": value.isoformat()}
        elif isinstance(value, timedelta):
            shown[key] = {"microseconds": value // timedelta(microseconds=1)}
        elif isinstance(value, UUID):
            shown[key] = {"guid": str(value)}
        else:
            shown[key] = value
    return shown


def _values_from_json(data: Mapping[str, Any]) -> dict[str, PropertyValue]:
    values: dict[str, PropertyValue] = {}
    for key, value in data.items():
        if isinstance(value, dict) and "moment" in value:
            values[key] = datetime.fromisoformat(value["moment"])
        elif isinstance(value, dict) and "guid" in value:
            values[key] = UUID(value["guid"])
        elif isinstance(value, dict):
            values[key] = timedelta(microseconds=value["microseconds"])
        else:
            values[key] = value
    return values


CORRELATION_FIELDS = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}
"""By the names of the config file and the ATOM API; user properties come beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDefinition:
    """A filter and what to change in the messages that pass. The SQL is not parsed here."""

    name: str = DEFAULT_RULE_NAME
    filter_kind: FilterKind = FilterKind.TRUE
    sql_expression: str | None = None
    correlation: CorrelationFilter | None = None
    action: str | None = None
    parameters: Mapping[str, PropertyValue] = field(default_factory=dict, hash=False)
    """Values for the `@names` in the filter's SQL, without the `@`."""
    action_parameters: Mapping[str, PropertyValue] = field(default_factory=dict, hash=False)
    created_at: int | None = field(default=None, compare=False)
    """Unix milliseconds; None until the rule is added to a live subscription."""

    def __post_init__(self) -> None:
        check_rule_name(self.name)
        if self.filter_kind not in list(FilterKind):
            raise DefinitionError("FilterType", self.filter_kind, f"must be one of {', '.join(FilterKind)}")
        object.__setattr__(self, "filter_kind", FilterKind(self.filter_kind))
        if (self.sql_expression is None) == (self.filter_kind is FilterKind.SQL):
            rule = "must be given when FilterType is Sql, and only then"
            raise DefinitionError("SqlFilter", self.sql_expression or "(none)", rule)
        if (self.correlation is None) == (self.filter_kind is FilterKind.CORRELATION):
            rule = "must be given when FilterType is Correlation, and only then"
            raise DefinitionError("CorrelationFilter", "(given)" if self.correlation else "(none)", rule)
        for setting, text in (("SqlFilter", self.sql_expression), ("Action", self.action)):
            if text is not None and not (isinstance(text, str) and 1 <= len(text) <= MAX_TEXT):
                raise DefinitionError(setting, text, f"must be 1 to {MAX_TEXT} characters long")
        _check_values("Parameters", self.parameters)
        _check_values("Parameters", self.action_parameters)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        data["filter_kind"] = self.filter_kind.value
        if self.correlation is not None:
            tested = {name: getattr(self.correlation, name) for name in CORRELATION_FIELDS.values()}
            data["correlation"] = tested | {"properties": _values_to_json(self.correlation.properties)}
        for name in ("parameters", "action_parameters"):
            data[name] = _values_to_json(data[name])
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        known = _known(cls, data)
        if known.get("correlation") is not None:
            tested = _known(CorrelationFilter, known["correlation"])
            tested["properties"] = _values_from_json(tested.get("properties", {}))
            known["correlation"] = CorrelationFilter(**tested)
        for name in ("parameters", "action_parameters"):
            known[name] = _values_from_json(known.get(name, {}))
        return cls(**known)


# --- entities


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityDefinition:
    """What queues, topics and subscriptions share: a name, and settings that are checked on construction."""

    name: str

    def __post_init__(self) -> None:
        self._check_name()
        self.check(PROFILES[LAXEST])
        for name, setting in settings_of(type(self)).items():
            if setting.kind is Kind.STATUS:
                object.__setattr__(self, name, Status(getattr(self, name)))
        self._check_forwarding()
        for name, (part, key) in _PARTS.items():
            _check_parts(key, getattr(self, name, ()), part)

    def check(self, profile: Profile) -> None:
        """DefinitionError unless every setting is one that the profile allows."""
        for name, setting in settings_of(type(self)).items():
            setting.check(getattr(self, name), profile)

    def _check_name(self) -> None:
        check_entity_name(self.name)

    def _check_forwarding(self) -> None:
        """Who may forward. Whether the destination exists is for the namespace to say."""
        destination = getattr(self, "forward_to", None)
        if destination is None:
            return
        if getattr(self, "requires_session", False):
            raise DefinitionError(FORWARD_TO.name, destination, "must be empty when RequiresSession is true")
        if isinstance(self, QueueDefinition) and fold(destination) == fold(self.name):
            raise DefinitionError(FORWARD_TO.name, destination, "must name another entity")

    def to_json(self) -> dict[str, Any]:
        """For the store: every setting, so that a later default changes nothing that exists."""
        data: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in _PARTS:
                value = [part.to_json() for part in value]
            data[f.name] = value.value if isinstance(value, Status) else value
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """What `to_json` gave, also that of a later version: keys that are not known are passed over."""
        known = _known(cls, data)
        for name, (part, _) in _PARTS.items():
            if name in known:
                known[name] = tuple(part.from_json(each) for each in known[name])
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDefinition(EntityDefinition):
    lock_duration_ms: Annotated[int, LOCK_DURATION] = LOCK_DURATION.default
    max_size_in_megabytes: Annotated[int, MAX_SIZE] = MAX_SIZE.default
    requires_duplicate_detection: Annotated[bool, REQUIRES_DUPLICATE_DETECTION] = REQUIRES_DUPLICATE_DETECTION.default
    duplicate_detection_window_ms: Annotated[int, DUPLICATE_WINDOW] = DUPLICATE_WINDOW.default
    requires_session: Annotated[bool, REQUIRES_SESSION] = REQUIRES_SESSION.default
    default_message_ttl_ms: Annotated[int | None, DEFAULT_TTL] = DEFAULT_TTL.default
    dead_lettering_on_message_expiration: Annotated[bool, DEAD_LETTER_EXPIRED] = DEAD_LETTER_EXPIRED.default
    max_delivery_count: Annotated[int, MAX_DELIVERY_COUNT] = MAX_DELIVERY_COUNT.default
    enable_batched_operations: Annotated[bool, BATCHED_OPERATIONS] = BATCHED_OPERATIONS.default
    status: Annotated[Status, STATUS] = STATUS.default
    forward_to: Annotated[str | None, FORWARD_TO] = FORWARD_TO.default
    forward_dead_lettered_messages_to: Annotated[str | None, FORWARD_DEAD_LETTERS] = FORWARD_DEAD_LETTERS.default
    auto_delete_on_idle_ms: Annotated[int | None, AUTO_DELETE_ON_IDLE] = AUTO_DELETE_ON_IDLE.default
    user_metadata: Annotated[str | None, USER_METADATA] = USER_METADATA.default
    max_message_size_in_kilobytes: Annotated[int | None, MAX_MESSAGE_SIZE] = MAX_MESSAGE_SIZE.default
    enable_partitioning: Annotated[bool, ENABLE_PARTITIONING] = ENABLE_PARTITIONING.default
    enable_express: Annotated[bool, ENABLE_EXPRESS] = ENABLE_EXPRESS.default
    support_ordering: Annotated[bool, SUPPORT_ORDERING] = SUPPORT_ORDERING.default
    authorization_rules: tuple[AuthorizationRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDefinition(EntityDefinition):
    lock_duration_ms: Annotated[int, LOCK_DURATION] = LOCK_DURATION.default
    requires_session: Annotated[bool, REQUIRES_SESSION] = REQUIRES_SESSION.default
    default_message_ttl_ms: Annotated[int | None, DEFAULT_TTL] = DEFAULT_TTL.default
    dead_lettering_on_message_expiration: Annotated[bool, DEAD_LETTER_EXPIRED] = DEAD_LETTER_EXPIRED.default
    dead_lettering_on_filter_evaluation_exceptions: Annotated[bool, DEAD_LETTER_FILTER_ERRORS] = (
        DEAD_LETTER_FILTER_ERRORS.default
    )
    max_delivery_count: Annotated[int, MAX_DELIVERY_COUNT] = MAX_DELIVERY_COUNT.default
    enable_batched_operations: Annotated[bool, BATCHED_OPERATIONS] = BATCHED_OPERATIONS.default
    status: Annotated[Status, STATUS] = STATUS.default
    forward_to: Annotated[str | None, FORWARD_TO] = FORWARD_TO.default
    forward_dead_lettered_messages_to: Annotated[str | None, FORWARD_DEAD_LETTERS] = FORWARD_DEAD_LETTERS.default
    auto_delete_on_idle_ms: Annotated[int | None, AUTO_DELETE_ON_IDLE] = AUTO_DELETE_ON_IDLE.default
    user_metadata: Annotated[str | None, USER_METADATA] = USER_METADATA.default
    rules: tuple[RuleDefinition, ...] = (RuleDefinition(),)
    """A subscription begins with `$Default`, which lets everything pass; one without rules gets nothing."""

    # What a queue has of its own, a subscription has of its topic, which has looked before anything gets here.
    max_size_in_megabytes: ClassVar[int] = 1 << 31
    max_message_size_in_kilobytes: ClassVar[int | None] = None
    requires_duplicate_detection: ClassVar[bool] = False
    duplicate_detection_window_ms: ClassVar[int] = 0
    enable_partitioning: ClassVar[bool] = False
    authorization_rules: ClassVar[tuple[AuthorizationRule, ...]] = ()

    def _check_name(self) -> None:
        check_subscription_name(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefinition(EntityDefinition):
    max_size_in_megabytes: Annotated[int, MAX_SIZE] = MAX_SIZE.default
    requires_duplicate_detection: Annotated[bool, REQUIRES_DUPLICATE_DETECTION] = REQUIRES_DUPLICATE_DETECTION.default
    duplicate_detection_window_ms: Annotated[int, DUPLICATE_WINDOW] = DUPLICATE_WINDOW.default
    default_message_ttl_ms: Annotated[int | None, DEFAULT_TTL] = DEFAULT_TTL.default
    enable_batched_operations: Annotated[bool, BATCHED_OPERATIONS] = BATCHED_OPERATIONS.default
    status: Annotated[Status, STATUS] = STATUS.default
    auto_delete_on_idle_ms: Annotated[int | None, AUTO_DELETE_ON_IDLE] = AUTO_DELETE_ON_IDLE.default
    user_metadata: Annotated[str | None, USER_METADATA] = USER_METADATA.default
    max_message_size_in_kilobytes: Annotated[int | None, MAX_MESSAGE_SIZE] = MAX_MESSAGE_SIZE.default
    enable_partitioning: Annotated[bool, ENABLE_PARTITIONING] = ENABLE_PARTITIONING.default
    enable_express: Annotated[bool, ENABLE_EXPRESS] = ENABLE_EXPRESS.default
    support_ordering: Annotated[bool, SUPPORT_ORDERING] = SUPPORT_ORDERING.default
    filtering_messages_before_publishing: Annotated[bool, FILTERING_BEFORE_PUBLISHING] = (
        FILTERING_BEFORE_PUBLISHING.default
    )
    enable_subscription_partitioning: Annotated[bool, SUBSCRIPTION_PARTITIONING] = SUBSCRIPTION_PARTITIONING.default
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    subscriptions: tuple[SubscriptionDefinition, ...] = ()

    # A topic keeps only messages for later; what concerns receivers is for its subscriptions.
    lock_duration_ms: ClassVar[int] = 0
    requires_session: ClassVar[bool] = False
    dead_lettering_on_message_expiration: ClassVar[bool] = False
    max_delivery_count: ClassVar[int] = 1


AnyDefinition = QueueDefinition | SubscriptionDefinition | TopicDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceDefinition:
    """Everything a broker starts with."""

    name: str = DEFAULT_NAMESPACE
    only_if_empty: bool = False
    """The entities are a start for a store that has none: what people changed since is not changed back."""
    queues: tuple[QueueDefinition, ...] = ()
    topics: tuple[TopicDefinition, ...] = ()
    authorization_rules: tuple[AuthorizationRule, ...] = field(default_factory=lambda: (default_authorization_rule(),))

    def __post_init__(self) -> None:
        check_subscription_name(self.name)
        _check_parts("Queues and Topics", (*self.queues, *self.topics), EntityDefinition)
        _check_parts("AuthorizationRules", self.authorization_rules, AuthorizationRule)
        names = {fold(entity.name) for entity in (*self.queues, *self.topics)}
        subscriptions = [each for topic in self.topics for each in topic.subscriptions]
        sources: list[QueueDefinition | SubscriptionDefinition] = [*self.queues, *subscriptions]
        for entity in sources:
            for setting, destination in destinations(entity):
                if fold(destination) not in names:
                    rule = "must name a queue or topic of the namespace"
                    raise DefinitionError(setting.name, destination, rule)


def destinations(
    entity: QueueDefinition | SubscriptionDefinition,
) -> list[tuple[Setting[str | None], str]]:
    """Where an entity forwards to, by setting."""
    pairs = (
        (FORWARD_TO, entity.forward_to),
        (FORWARD_DEAD_LETTERS, entity.forward_dead_lettered_messages_to),
    )
    return [(setting, name) for setting, name in pairs if name is not None]


_PARTS: dict[str, tuple[type[Any], str]] = {
    "authorization_rules": (AuthorizationRule, "AuthorizationRules"),
    "subscriptions": (SubscriptionDefinition, "Subscriptions"),
    "rules": (RuleDefinition, "Rules"),
}


def _check_parts(setting: str, parts: tuple[Any, ...], kind: type[Any]) -> None:
    for part in parts:
        if not isinstance(part, kind):
            raise DefinitionError(setting, part, f"must be of the kind {kind.__name__}")
    if kind is AuthorizationRule and len(parts) > MAX_AUTHORIZATION_RULES:
        raise DefinitionError(setting, f"({len(parts)})", f"must be at most {MAX_AUTHORIZATION_RULES}")
    repeated = duplicate(part.name for part in parts)
    if repeated is not None:
        raise DefinitionError(setting, parts[repeated].name, "must not have the name of another (case aside)")


def _known(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return cast(dict[str, Any], {name: value for name, value in data.items() if name in names})
