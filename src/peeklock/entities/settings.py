"""Settings of entities, each declared once, and the profiles that say which values are allowed.

A setting has the name that the ATOM API and the emulator's config file give it. Which entity has which settings is
for `definitions` to say. The tables of docs/configuration.md and the schema of the config file are made from what is
declared here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum, auto
from typing import Any, Generic, TypeVar, get_type_hints

from peeklock.entities.durations import (
    DAY,
    HOUR,
    MAX_DURATION_MS,
    MINUTE,
    SECOND,
    format_duration,
    parse_duration,
)
from peeklock.entities.names import DefinitionError, check_entity_name

MAX_TEXT = 1024
"""Characters of user metadata, of a filter and of an action."""

T = TypeVar("T")


class Kind(Enum):
    FLAG = auto()
    COUNT = auto()
    DURATION = auto()
    STATUS = auto()
    TEXT = auto()
    ENTITY = auto()


class Status(StrEnum):
    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """One setting of an entity; the ranges are the profile's."""

    name: str
    kind: Kind
    default: T
    changeable: bool = True
    optional: bool = False
    """None is a value: no limit for a duration, the profile's for a size, absent for text."""
    note: str = ""
    """What it is for, in the words of the documentation."""

    def parse(self, value: object) -> object:
        """The value of the field from that of a JSON file; types and ranges are left to `check`."""
        if self.kind is Kind.DURATION:
            if not isinstance(value, str):
                raise DefinitionError(self.name, value, 'must be an ISO 8601 duration such as "PT1M"')
            try:
                return parse_duration(value)
            except ValueError:
                rule = "must be an ISO 8601 duration such as PT30S, PT5M or P1DT12H"
                raise DefinitionError(self.name, value, rule) from None
        # The emulator's own files write "" for a destination that is not set.
        return None if self.optional and value == "" else value

    def check(self, value: object, profile: Profile) -> None:
        if value is None and self.optional and self.kind is not Kind.DURATION:
            return
        match self.kind:
            case Kind.FLAG:
                if not isinstance(value, bool):
                    raise DefinitionError(self.name, repr(value), "must be true or false")
            case Kind.COUNT | Kind.DURATION:
                self._check_range(value, profile)
            case Kind.STATUS:
                if value not in list(Status):
                    raise DefinitionError(self.name, value, f"must be one of {', '.join(Status)}")
            case Kind.TEXT:
                if not isinstance(value, str) or len(value) > MAX_TEXT:
                    raise DefinitionError(self.name, value, f"must be text of at most {MAX_TEXT} characters")
            case Kind.ENTITY:
                check_entity_name(value, self.name)

    def _check_range(self, value: object, profile: Profile) -> None:
        duration = self.kind is Kind.DURATION
        low, high = profile.ranges[self.name]
        if value is None and duration:
            value = MAX_DURATION_MS
        if not isinstance(value, int) or isinstance(value, bool):
            raise DefinitionError(self.name, repr(value), "must be a whole number")
        if not low <= value <= high:
            shown = format_duration if duration else str
            bounds = shown(low) if low == high else f"from {shown(low)} to {shown(high)}"
            where = "" if profile.name == LAXEST else f" in the {profile.name} profile"
            found = f"{value} ms" if duration and value < 0 else shown(value)
            raise DefinitionError(self.name, found, f"must be {bounds}{where}")


LOCK_DURATION = Setting(
    "LockDuration", Kind.DURATION, MINUTE, note="how long a message or a session stays with its receiver"
)
MAX_SIZE = Setting("MaxSizeInMegabytes", Kind.COUNT, 1024, note="how much it holds before it takes no more")
MAX_MESSAGE_SIZE: Setting[int | None] = Setting(
    "MaxMessageSizeInKilobytes", Kind.COUNT, None, optional=True, note="the largest message it takes"
)
REQUIRES_DUPLICATE_DETECTION = Setting(
    "RequiresDuplicateDetection",
    Kind.FLAG,
    False,
    changeable=False,
    note="a message is dropped when another with its id came within the window",
)
DUPLICATE_WINDOW = Setting(
    "DuplicateDetectionHistoryTimeWindow", Kind.DURATION, 10 * MINUTE, note="how long the ids of messages are kept"
)
REQUIRES_SESSION = Setting(
    "RequiresSession", Kind.FLAG, False, changeable=False, note="messages are received session by session"
)
DEFAULT_TTL: Setting[int | None] = Setting(
    "DefaultMessageTimeToLive",
    Kind.DURATION,
    None,
    optional=True,
    note="how long a message lives that does not ask for less",
)
DEAD_LETTER_EXPIRED = Setting(
    "DeadLetteringOnMessageExpiration", Kind.FLAG, False, note="expired messages become dead letters"
)
DEAD_LETTER_FILTER_ERRORS = Setting(
    "DeadLetteringOnFilterEvaluationExceptions",
    Kind.FLAG,
    True,
    note="messages on which a rule fails become dead letters",
)
MAX_DELIVERY_COUNT = Setting(
    "MaxDeliveryCount", Kind.COUNT, 10, note="deliveries after which a message becomes a dead letter"
)
BATCHED_OPERATIONS = Setting(
    "EnableBatchedOperations", Kind.FLAG, True, note="kept and told; operations share their commits anyway"
)
STATUS = Setting("Status", Kind.STATUS, Status.ACTIVE, note="whether it takes and gives messages")
FORWARD_TO: Setting[str | None] = Setting(
    "ForwardTo", Kind.ENTITY, None, optional=True, note="where its messages go; no effect with `RequiresSession`"
)
FORWARD_DEAD_LETTERS: Setting[str | None] = Setting(
    "ForwardDeadLetteredMessagesTo", Kind.ENTITY, None, optional=True, note="where its dead letters go"
)
AUTO_DELETE_ON_IDLE: Setting[int | None] = Setting(
    "AutoDeleteOnIdle", Kind.DURATION, None, optional=True, note="it is deleted when unused for so long"
)
USER_METADATA: Setting[str | None] = Setting(
    "UserMetadata", Kind.TEXT, None, optional=True, note="words of your own, kept and told"
)
ENABLE_PARTITIONING = Setting(
    "EnablePartitioning",
    Kind.FLAG,
    False,
    changeable=False,
    note="duplicates are told apart by partition key too",
)
ORDER_BY_PRIORITY = Setting(
    "OrderByPriority",
    Kind.FLAG,
    False,
    changeable=False,
    note="messages of a higher priority are delivered first; of a topic: by all its subscriptions without sessions; "
    "not the emulator's",
)
# Kept and told, because clients ask for them; a broker of one process has nothing to do for them.
ENABLE_EXPRESS = Setting("EnableExpress", Kind.FLAG, False, note="kept and told; accepted is durable anyway")
SUPPORT_ORDERING = Setting("SupportOrdering", Kind.FLAG, True, note="kept and told; messages are in order anyway")
FILTERING_BEFORE_PUBLISHING = Setting(
    "FilteringMessagesBeforePublishing", Kind.FLAG, False, note="kept and told; has no effect"
)
SUBSCRIPTION_PARTITIONING = Setting(
    "EnableSubscriptionPartitioning", Kind.FLAG, False, note="kept and told; has no effect"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Whose limits hold: which of the service's tiers the namespace passes for."""

    name: str
    max_message_bytes: int
    max_deleted_messages: int
    """By one request."""
    max_entities: int
    """Queues and topics together."""
    max_subscriptions: int
    """Of one topic."""
    max_sql_filters: int
    """Of one topic, over all its subscriptions."""
    max_correlation_filters: int
    """As above."""
    ranges: Mapping[str, tuple[int, int]]
    """The smallest and the largest value by setting; durations in milliseconds."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Where they differ from those declared with the settings."""

    def defaults_for(self, kind: type) -> dict[str, Any]:
        """Arguments for a definition of that kind of which nothing but the name is known."""
        return {
            name: self.defaults[setting.name]
            for name, setting in settings_of(kind).items()
            if setting.name in self.defaults
        }


LAXEST = "unlimited"
_FOREVER = MAX_DURATION_MS
"""As an upper bound: None, no limit, is allowed too."""
# What the service documents; bounds that it does not give are the widest the service is known to take.
_STANDARD = {
    LOCK_DURATION.name: (5 * SECOND, 5 * MINUTE),
    MAX_SIZE.name: (1024, 5120),
    MAX_MESSAGE_SIZE.name: (256, 256),
    DUPLICATE_WINDOW.name: (20 * SECOND, 7 * DAY),
    DEFAULT_TTL.name: (SECOND, _FOREVER),
    # The service documents 2000 and accepts more: NServiceBus creates its queues with the highest count.
    MAX_DELIVERY_COUNT.name: (1, 2**31 - 1),
    AUTO_DELETE_ON_IDLE.name: (5 * MINUTE, _FOREVER),
}
_PREMIUM = _STANDARD | {MAX_SIZE.name: (1024, 81920), MAX_MESSAGE_SIZE.name: (1024, 102400)}
# The official emulator's. An entity holds 100 MB there, but clients that create one ask for the service's 1024. Its
# schema has locks of 5 seconds for queues and of a minute for subscriptions; files with shorter ones are in use.
_EMULATOR = _STANDARD | {
    MAX_SIZE.name: (1, 5120),
    DUPLICATE_WINDOW.name: (5 * SECOND, 5 * MINUTE),
    DEFAULT_TTL.name: (5 * MINUTE, HOUR),
    MAX_DELIVERY_COUNT.name: (1, 10),
}
_UNLIMITED = {
    LOCK_DURATION.name: (1, 7 * DAY),
    MAX_SIZE.name: (1, 2**31 - 1),
    MAX_MESSAGE_SIZE.name: (1, 102400),
    DUPLICATE_WINDOW.name: (1, 365 * DAY),
    DEFAULT_TTL.name: (1, _FOREVER),
    MAX_DELIVERY_COUNT.name: (1, 2**31 - 1),
    AUTO_DELETE_ON_IDLE.name: (SECOND, _FOREVER),
}
_EMULATOR_DEFAULTS = {
    MAX_SIZE.name: 100,
    DUPLICATE_WINDOW.name: 20 * SECOND,
    DEFAULT_TTL.name: HOUR,
    MAX_DELIVERY_COUNT.name: 3,
}

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="standard",
            max_message_bytes=256 * 1024,
            max_deleted_messages=500,
            max_entities=10_000,
            max_subscriptions=2_000,
            max_sql_filters=2_000,
            max_correlation_filters=100_000,
            ranges=_STANDARD,
        ),
        Profile(
            name="premium",
            max_message_bytes=100 * 1024 * 1024,
            max_deleted_messages=4000,
            max_entities=1_000,
            max_subscriptions=2_000,
            max_sql_filters=2_000,
            max_correlation_filters=100_000,
            ranges=_PREMIUM,
        ),
        Profile(
            name="emulator",
            max_message_bytes=256 * 1024,
            max_deleted_messages=500,
            max_entities=50,
            max_subscriptions=50,
            max_sql_filters=20,
            max_correlation_filters=1_000,
            ranges=_EMULATOR,
            defaults=_EMULATOR_DEFAULTS,
        ),
        Profile(
            name=LAXEST,
            max_message_bytes=100 * 1024 * 1024,
            max_deleted_messages=4000,
            max_entities=2**31 - 1,
            max_subscriptions=2**31 - 1,
            max_sql_filters=2**31 - 1,
            max_correlation_filters=2**31 - 1,
            ranges=_UNLIMITED,
        ),
    )
}
DEFAULT_PROFILE = PROFILES["standard"]


def settings_of(kind: type) -> dict[str, Setting[Any]]:
    """The settings of a kind of entity, by the name of the field."""
    found = _SETTINGS.get(kind)
    if found is None:
        hints = get_type_hints(kind, include_extras=True)
        found = _SETTINGS[kind] = {
            f.name: note
            for f in fields(kind)
            for note in getattr(hints[f.name], "__metadata__", ())
            if isinstance(note, Setting)
        }
    return found


_SETTINGS: dict[type, dict[str, Setting[Any]]] = {}


def known_fields(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """What of stored data that kind of definition has fields for: a later version may have written more."""
    names = {f.name for f in fields(kind)}
    return {name: value for name, value in data.items() if name in names}
