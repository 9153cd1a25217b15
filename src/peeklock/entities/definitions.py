"""What a namespace is made of: queues, topics and subscriptions, with their settings.

Every definition checks itself when it is made. Two strengths of check: what no broker could work with is
refused always (the ranges of the `unlimited` profile, so that what was stored under one profile loads under
another); what the chosen `Profile` forbids is refused by `check(profile)`, for whoever creates an entity.

Leaves reading files to the server, what a rule says to `entities.rules`, and what settings do to the queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from peeklock.entities.authorization import AuthorizationRule, default_authorization_rule
from peeklock.entities.names import (
    DefinitionError,
    check_client_scoped_name,
    check_entity_name,
    check_subscription_name,
    duplicate,
    fold,
    is_client_scoped,
)
from peeklock.entities.rules import RuleDefinition
from peeklock.entities.settings import (
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
    ORDER_BY_PRIORITY,
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
    known_fields,
    settings_of,
)

DEFAULT_NAMESPACE = "sbemulatorns"

MAX_AUTHORIZATION_RULES = 12


class EntityKind(StrEnum):
    """What an entity is, in the words of the store, of metrics and of people."""

    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityDefinition:
    """What queues, topics and subscriptions share: a name, and settings that are checked on construction."""

    name: str

    def __post_init__(self) -> None:
        self._check_name()
        self.check(PROFILES[LAXEST])
        self._check_together()
        for name, setting in settings_of(type(self)).items():
            if setting.kind is Kind.STATUS:
                object.__setattr__(self, name, Status(getattr(self, name)))
        for name, (part, key) in _PARTS.items():
            _check_parts(key, getattr(self, name, ()), part)

    def check(self, profile: Profile) -> None:
        """DefinitionError unless every setting is one that the profile allows."""
        for name, setting in settings_of(type(self)).items():
            setting.check(getattr(self, name), profile)

    def _check_name(self) -> None:
        check_entity_name(self.name)

    def _check_together(self) -> None:
        """DefinitionError for settings that exclude each other."""

    def to_json(self) -> dict[str, Any]:
        """For the store: every setting, so that a later default changes nothing that exists."""
        data: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in _MARKS and value == f.default:
                continue
            if f.name in _PARTS:
                value = [part.to_json() for part in value]
            data[f.name] = value.value if isinstance(value, Status) else value
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """What `to_json` gave, also that of a later version: keys that are not known are passed over."""
        known = known_fields(cls, data)
        for name, (part, _) in _PARTS.items():
            if name in known:
                known[name] = tuple(part.from_json(each) for each in known[name])
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDefinition(EntityDefinition):
    kind: ClassVar[EntityKind] = EntityKind.QUEUE
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
    order_by_priority: Annotated[bool, ORDER_BY_PRIORITY] = ORDER_BY_PRIORITY.default
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    temporary: bool = False
    """It ends with the connection that made it, or with the broker."""

    def _check_together(self) -> None:
        if self.order_by_priority and self.requires_session:
            rule = f"must be false with {REQUIRES_SESSION.name}: the messages of a session stay in order"
            raise DefinitionError(ORDER_BY_PRIORITY.name, "true", rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDefinition(EntityDefinition):
    kind: ClassVar[EntityKind] = EntityKind.SUBSCRIPTION
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
    temporary: bool = False
    """As of a queue."""
    shared: bool | None = None
    """Of one that a consumer of JMS made: whether others may share it."""

    # What a queue has of its own, a subscription has of its topic, which has looked before anything gets here.
    max_size_in_megabytes: ClassVar[int] = 1 << 31
    max_message_size_in_kilobytes: ClassVar[int | None] = None
    requires_duplicate_detection: ClassVar[bool] = False
    duplicate_detection_window_ms: ClassVar[int] = 0
    enable_partitioning: ClassVar[bool] = False
    authorization_rules: ClassVar[tuple[AuthorizationRule, ...]] = ()

    def _check_name(self) -> None:
        if is_client_scoped(self.name, self.temporary):
            check_client_scoped_name(self.name)
        else:
            check_subscription_name(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefinition(EntityDefinition):
    kind: ClassVar[EntityKind] = EntityKind.TOPIC
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
    order_by_priority: Annotated[bool, ORDER_BY_PRIORITY] = ORDER_BY_PRIORITY.default
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    temporary: bool = False
    """As of a queue."""
    subscriptions: tuple[SubscriptionDefinition, ...] = ()

    # A topic keeps only messages for later; what concerns receivers is for its subscriptions.
    lock_duration_ms: ClassVar[int] = 0
    requires_session: ClassVar[bool] = False
    dead_lettering_on_message_expiration: ClassVar[bool] = False
    max_delivery_count: ClassVar[int] = 1
    forward_to: ClassVar[str | None] = None
    forward_dead_lettered_messages_to: ClassVar[str | None] = None


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
        sources: list[AnyDefinition] = [*self.queues, *subscriptions]
        for entity in sources:
            for setting, destination in destinations(entity):
                if fold(destination) not in names:
                    rule = "must name a queue or topic of the namespace"
                    raise DefinitionError(setting.name, destination, rule)


def destinations(entity: AnyDefinition) -> list[tuple[Setting[str | None], str]]:
    """Where an entity forwards to, by setting."""
    pairs = (
        (FORWARD_TO, entity.forward_to),
        (FORWARD_DEAD_LETTERS, entity.forward_dead_lettered_messages_to),
    )
    return [(setting, name) for setting, name in pairs if name is not None]


_MARKS = ("temporary", "shared")
"""What no administrator sets; the store has it of the few that have it."""
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
