"""The settings of queues, topics and subscriptions. This is the only place where settings are declared.

A setting is declared by a `Setting` and by a field of each kind of entity that has it. The fields have the order of the
hosted service's responses over the ATOM API. Everything else is derived from these declarations: the ATOM documents in
both directions, the client, the options of the command line, the JSON schema and docs/configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from peeklock.entities.authorization import AuthorizationRule
from peeklock.entities.base import EntityDefinition, EntityKind
from peeklock.entities.durations import DAY, HOUR, MAX_DURATION_MS, MINUTE, SECOND
from peeklock.entities.names import (
    DefinitionError,
    check_client_scoped_name,
    check_subscription_name,
    is_client_scoped,
)
from peeklock.entities.rules import RuleDefinition
from peeklock.entities.settings import Form, Setting, Status, in_profiles

_FOREVER = MAX_DURATION_MS
"""The upper bound of settings that also allow None (no limit)."""
_MOST = 2**31 - 1

# The ranges are documented by the service. If it documents none, they are the widest range that it is known to accept.
LOCK_DURATION = Setting(
    "LockDuration",
    Form.DURATION,
    MINUTE,
    "How long a message or a session stays locked for its receiver",
    # The emulator's schema requires at least 5 seconds for queues and a minute for subscriptions, but its users have
    # files with shorter locks.
    ranges=in_profiles((5 * SECOND, 5 * MINUTE), unlimited=(1, 7 * DAY)),
)
MAX_SIZE = Setting(
    "MaxSizeInMegabytes",
    Form.COUNT,
    1024,
    "The size at which the entity refuses further messages",
    # An entity of the emulator holds 100 MB, but clients that create one ask for the service's 1024.
    ranges=in_profiles((1024, 5120), premium=(1024, 81920), emulator=(1, 5120), unlimited=(1, _MOST)),
    profile_defaults={"emulator": 100},
)
REQUIRES_DUPLICATE_DETECTION = Setting(
    "RequiresDuplicateDetection",
    Form.FLAG,
    False,
    "A message is dropped if a message with the same id arrived within the window",
    changeable=False,
)
DUPLICATE_WINDOW = Setting(
    "DuplicateDetectionHistoryTimeWindow",
    Form.DURATION,
    10 * MINUTE,
    "How long message ids are remembered",
    ranges=in_profiles((20 * SECOND, 7 * DAY), emulator=(5 * SECOND, 5 * MINUTE), unlimited=(1, 365 * DAY)),
    profile_defaults={"emulator": 20 * SECOND},
)
REQUIRES_SESSION = Setting(
    "RequiresSession", Form.FLAG, False, "Messages are received session by session", changeable=False
)
DEFAULT_TTL: Setting[int | None] = Setting(
    "DefaultMessageTimeToLive",
    Form.DURATION,
    None,
    "How long a message lives at most; messages may ask for less",
    optional=True,
    ranges=in_profiles((SECOND, _FOREVER), emulator=(5 * MINUTE, HOUR), unlimited=(1, _FOREVER)),
    profile_defaults={"emulator": HOUR},
)
DEAD_LETTER_EXPIRED = Setting(
    "DeadLetteringOnMessageExpiration", Form.FLAG, False, "Expired messages are dead-lettered instead of deleted"
)
DEAD_LETTER_FILTER_ERRORS = Setting(
    "DeadLetteringOnFilterEvaluationExceptions", Form.FLAG, True, "Messages on which a rule fails are dead-lettered"
)
MAX_DELIVERY_COUNT = Setting(
    "MaxDeliveryCount",
    Form.COUNT,
    10,
    "Deliveries after which a message is dead-lettered",
    # The service documents 2000 and accepts more: NServiceBus creates its queues with the highest count.
    ranges=in_profiles((1, _MOST), emulator=(1, 10)),
    profile_defaults={"emulator": 3},
)
BATCHED_OPERATIONS = Setting(
    "EnableBatchedOperations", Form.FLAG, True, "Stored and returned, no effect: operations always share commits"
)
STATUS = Setting("Status", Form.STATUS, Status.ACTIVE, "Whether the entity accepts and delivers messages")
FORWARD_TO: Setting[str | None] = Setting(
    "ForwardTo",
    Form.ENTITY,
    None,
    "The queue or topic to which messages are forwarded; no effect with RequiresSession",
    optional=True,
)
FORWARD_DEAD_LETTERS: Setting[str | None] = Setting(
    "ForwardDeadLetteredMessagesTo",
    Form.ENTITY,
    None,
    "The queue or topic to which dead letters are forwarded",
    optional=True,
)
AUTO_DELETE_ON_IDLE: Setting[int | None] = Setting(
    "AutoDeleteOnIdle",
    Form.DURATION,
    None,
    "The entity is deleted after this time without use",
    optional=True,
    ranges=in_profiles((5 * MINUTE, _FOREVER), unlimited=(SECOND, _FOREVER)),
)
USER_METADATA: Setting[str | None] = Setting(
    "UserMetadata", Form.TEXT, None, "Text of your own, stored and returned", optional=True
)
MAX_MESSAGE_SIZE: Setting[int | None] = Setting(
    "MaxMessageSizeInKilobytes",
    Form.COUNT,
    None,
    "The size of the largest message that the entity accepts",
    optional=True,
    ranges=in_profiles((256, 256), premium=(1024, 102400), unlimited=(1, 102400)),
    since="2021-05",
)
ENABLE_PARTITIONING = Setting(
    "EnablePartitioning",
    Form.FLAG,
    False,
    "Duplicates are detected by message id and partition key, not by message id alone",
    changeable=False,
)
ORDER_BY_PRIORITY = Setting(
    "OrderByPriority",
    Form.FLAG,
    False,
    "Messages of a higher priority are delivered first; on a topic: by all its subscriptions without sessions. "
    "Peeklock only",
    changeable=False,
    own=True,
)
ENABLE_EXPRESS = Setting(
    "EnableExpress", Form.FLAG, False, "Stored and returned, no effect: accepted is durable anyway"
)
SUPPORT_ORDERING = Setting(
    "SupportOrdering", Form.FLAG, True, "Stored and returned, no effect: messages are always in order"
)
FILTERING_BEFORE_PUBLISHING = Setting(
    "FilteringMessagesBeforePublishing", Form.FLAG, False, "Stored and returned, no effect"
)
SUBSCRIPTION_PARTITIONING = Setting(
    "EnableSubscriptionPartitioning", Form.FLAG, False, "Stored and returned, no effect"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDefinition(EntityDefinition):
    kind: ClassVar[EntityKind] = EntityKind.QUEUE
    parts: ClassVar[Mapping[str, tuple[type[Any], str]]] = {
        "authorization_rules": (AuthorizationRule, "AuthorizationRules")
    }

    lock_duration_ms: Annotated[int, LOCK_DURATION] = LOCK_DURATION.default
    max_size_in_megabytes: Annotated[int, MAX_SIZE] = MAX_SIZE.default
    requires_duplicate_detection: Annotated[bool, REQUIRES_DUPLICATE_DETECTION] = REQUIRES_DUPLICATE_DETECTION.default
    requires_session: Annotated[bool, REQUIRES_SESSION] = REQUIRES_SESSION.default
    default_message_ttl_ms: Annotated[int | None, DEFAULT_TTL] = DEFAULT_TTL.default
    dead_lettering_on_message_expiration: Annotated[bool, DEAD_LETTER_EXPIRED] = DEAD_LETTER_EXPIRED.default
    duplicate_detection_window_ms: Annotated[int, DUPLICATE_WINDOW] = DUPLICATE_WINDOW.default
    max_delivery_count: Annotated[int, MAX_DELIVERY_COUNT] = MAX_DELIVERY_COUNT.default
    enable_batched_operations: Annotated[bool, BATCHED_OPERATIONS] = BATCHED_OPERATIONS.default
    status: Annotated[Status, STATUS] = STATUS.default
    support_ordering: Annotated[bool, SUPPORT_ORDERING] = SUPPORT_ORDERING.default
    auto_delete_on_idle_ms: Annotated[int | None, AUTO_DELETE_ON_IDLE] = AUTO_DELETE_ON_IDLE.default
    enable_partitioning: Annotated[bool, ENABLE_PARTITIONING] = ENABLE_PARTITIONING.default
    enable_express: Annotated[bool, ENABLE_EXPRESS] = ENABLE_EXPRESS.default
    forward_to: Annotated[str | None, FORWARD_TO] = FORWARD_TO.default
    user_metadata: Annotated[str | None, USER_METADATA] = USER_METADATA.default
    forward_dead_lettered_messages_to: Annotated[str | None, FORWARD_DEAD_LETTERS] = FORWARD_DEAD_LETTERS.default
    max_message_size_in_kilobytes: Annotated[int | None, MAX_MESSAGE_SIZE] = MAX_MESSAGE_SIZE.default
    order_by_priority: Annotated[bool, ORDER_BY_PRIORITY] = ORDER_BY_PRIORITY.default
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    temporary: bool = False
    """Whether the queue is deleted when the connection that created it closes, or when the broker stops."""

    def _check_together(self) -> None:
        if self.order_by_priority and self.requires_session:
            rule = f"must be false with {REQUIRES_SESSION.name}: the messages of a session stay in order"
            raise DefinitionError(ORDER_BY_PRIORITY.name, "true", rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDefinition(EntityDefinition):
    """The settings and rules of a subscription."""

    kind: ClassVar[EntityKind] = EntityKind.SUBSCRIPTION
    parts: ClassVar[Mapping[str, tuple[type[Any], str]]] = {"rules": (RuleDefinition, "Rules")}

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
    """By default `$Default`, which matches every message. A subscription without rules gets no messages."""
    temporary: bool = False
    """Whether the subscription is deleted when the connection that created it closes, or when the broker stops."""
    shared: bool | None = None
    """Whether other consumers may share the subscription. None if it was not created by a JMS consumer."""

    # Settings that a subscription does not have. The topic checks them before a message reaches a subscription.
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
    """The settings, authorization rules and subscriptions of a topic."""

    kind: ClassVar[EntityKind] = EntityKind.TOPIC
    parts: ClassVar[Mapping[str, tuple[type[Any], str]]] = {
        "authorization_rules": (AuthorizationRule, "AuthorizationRules"),
        "subscriptions": (SubscriptionDefinition, "Subscriptions"),
    }

    default_message_ttl_ms: Annotated[int | None, DEFAULT_TTL] = DEFAULT_TTL.default
    max_size_in_megabytes: Annotated[int, MAX_SIZE] = MAX_SIZE.default
    requires_duplicate_detection: Annotated[bool, REQUIRES_DUPLICATE_DETECTION] = REQUIRES_DUPLICATE_DETECTION.default
    duplicate_detection_window_ms: Annotated[int, DUPLICATE_WINDOW] = DUPLICATE_WINDOW.default
    enable_batched_operations: Annotated[bool, BATCHED_OPERATIONS] = BATCHED_OPERATIONS.default
    filtering_messages_before_publishing: Annotated[bool, FILTERING_BEFORE_PUBLISHING] = (
        FILTERING_BEFORE_PUBLISHING.default
    )
    status: Annotated[Status, STATUS] = STATUS.default
    support_ordering: Annotated[bool, SUPPORT_ORDERING] = SUPPORT_ORDERING.default
    auto_delete_on_idle_ms: Annotated[int | None, AUTO_DELETE_ON_IDLE] = AUTO_DELETE_ON_IDLE.default
    enable_partitioning: Annotated[bool, ENABLE_PARTITIONING] = ENABLE_PARTITIONING.default
    enable_subscription_partitioning: Annotated[bool, SUBSCRIPTION_PARTITIONING] = SUBSCRIPTION_PARTITIONING.default
    enable_express: Annotated[bool, ENABLE_EXPRESS] = ENABLE_EXPRESS.default
    user_metadata: Annotated[str | None, USER_METADATA] = USER_METADATA.default
    max_message_size_in_kilobytes: Annotated[int | None, MAX_MESSAGE_SIZE] = MAX_MESSAGE_SIZE.default
    order_by_priority: Annotated[bool, ORDER_BY_PRIORITY] = ORDER_BY_PRIORITY.default
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    temporary: bool = False
    """Whether the topic is deleted when the connection that created it closes, or when the broker stops."""
    subscriptions: tuple[SubscriptionDefinition, ...] = ()

    # Settings that a topic does not have: it stores only scheduled messages, and receivers attach to its subscriptions.
    lock_duration_ms: ClassVar[int] = 0
    requires_session: ClassVar[bool] = False
    dead_lettering_on_message_expiration: ClassVar[bool] = False
    max_delivery_count: ClassVar[int] = 1
    forward_to: ClassVar[str | None] = None
    forward_dead_lettered_messages_to: ClassVar[str | None] = None


AnyDefinition = QueueDefinition | SubscriptionDefinition | TopicDefinition


def destinations(entity: AnyDefinition) -> list[tuple[Setting[str | None], str]]:
    """Return the forwarding settings of an entity that are set, each with the name of the destination."""
    pairs = (
        (FORWARD_TO, entity.forward_to),
        (FORWARD_DEAD_LETTERS, entity.forward_dead_lettered_messages_to),
    )
    return [(setting, name) for setting, name in pairs if name is not None]
