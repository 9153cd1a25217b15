"""What a namespace is made of: queues, topics, subscriptions, rules, keys, and their settings.

Each setting is declared once, under the name that the ATOM API and the emulator's config file give it, and
every definition checks itself when it is made. Two strengths of check: what no broker could work with is
refused always (the ranges of the `unlimited` profile, so that what was stored under one profile loads under
another); what the chosen `Profile` forbids is refused by `check(profile)`, for whoever creates an entity.

Leaves reading files to the server, the SQL of filters to the rules, and what settings do to the queues.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum, auto
from typing import Annotated, Any, Generic, Self, TypeVar, cast, get_type_hints

from .durations import DAY, HOUR, MAX_DURATION_MS, MINUTE, SECOND, format_duration, parse_duration

DEFAULT_NAMESPACE = "sbemulatorns"
DEFAULT_KEY_NAME = "RootManageSharedAccessKey"
DEFAULT_KEY = "SAS_KEY_VALUE"
"""The emulator's well-known key (contract 1.7): no secret, so the server refuses it off loopback."""
DEFAULT_RULE_NAME = "$Default"

MAX_ENTITY_NAME = 260
MAX_SHORT_NAME = 50
MAX_AUTHORIZATION_RULES = 12
MAX_TEXT = 1024
"""Characters of user metadata, of a filter and of an action (contract 12)."""

T = TypeVar("T")
PropertyValue = str | int | float | bool


class DefinitionError(ValueError):
    """A setting has a value that its rule forbids."""

    def __init__(self, setting: str, value: object, rule: str) -> None:
        self.setting = setting
        self.shown = _shown(value)
        self.rule = rule
        super().__init__(f"{setting} {self.shown}: {rule}")


def _shown(value: object) -> str:
    text = value if isinstance(value, str) and value and value.isprintable() else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# --- settings and profiles


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
    """One row of contract 10.1; the ranges are the profile's."""

    name: str
    kind: Kind
    default: T
    changeable: bool = True
    optional: bool = False
    """None is a value: no limit for a duration, the profile's for a size, absent for text."""

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


LOCK_DURATION = Setting("LockDuration", Kind.DURATION, MINUTE)
MAX_SIZE = Setting("MaxSizeInMegabytes", Kind.COUNT, 1024)
MAX_MESSAGE_SIZE: Setting[int | None] = Setting("MaxMessageSizeInKilobytes", Kind.COUNT, None, optional=True)
REQUIRES_DUPLICATE_DETECTION = Setting("RequiresDuplicateDetection", Kind.FLAG, False, changeable=False)
DUPLICATE_WINDOW = Setting("DuplicateDetectionHistoryTimeWindow", Kind.DURATION, 10 * MINUTE)
REQUIRES_SESSION = Setting("RequiresSession", Kind.FLAG, False, changeable=False)
DEFAULT_TTL: Setting[int | None] = Setting("DefaultMessageTimeToLive", Kind.DURATION, None, optional=True)
DEAD_LETTER_EXPIRED = Setting("DeadLetteringOnMessageExpiration", Kind.FLAG, False)
DEAD_LETTER_FILTER_ERRORS = Setting("DeadLetteringOnFilterEvaluationExceptions", Kind.FLAG, True)
MAX_DELIVERY_COUNT = Setting("MaxDeliveryCount", Kind.COUNT, 10)
BATCHED_OPERATIONS = Setting("EnableBatchedOperations", Kind.FLAG, True)
STATUS = Setting("Status", Kind.STATUS, Status.ACTIVE)
FORWARD_TO: Setting[str | None] = Setting("ForwardTo", Kind.ENTITY, None, optional=True)
FORWARD_DEAD_LETTERS: Setting[str | None] = Setting(
    "ForwardDeadLetteredMessagesTo", Kind.ENTITY, None, optional=True
)
AUTO_DELETE_ON_IDLE: Setting[int | None] = Setting("AutoDeleteOnIdle", Kind.DURATION, None, optional=True)
USER_METADATA: Setting[str | None] = Setting("UserMetadata", Kind.TEXT, None, optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Whose limits hold: which of the service's tiers the namespace passes for."""

    name: str
    max_message_bytes: int
    max_entities: int
    """Queues and topics together."""
    max_subscriptions: int
    """Of one topic."""
    ranges: Mapping[str, tuple[int, int]]
    """The smallest and the largest value by setting; durations in milliseconds."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Where they differ from those declared with the settings."""

    def defaults_for(self, kind: type[EntityDefinition]) -> dict[str, Any]:
        """Arguments for a definition of which nothing but the name is known."""
        return {
            name: self.defaults[setting.name]
            for name, setting in settings_of(kind).items()
            if setting.name in self.defaults
        }


LAXEST = "unlimited"
_FOREVER = MAX_DURATION_MS
"""As an upper bound: None, no limit, is allowed too."""
# Contract 10.1; bounds that it does not give are the widest the service is known to take.
_STANDARD = {
    LOCK_DURATION.name: (5 * SECOND, 5 * MINUTE),
    MAX_SIZE.name: (1024, 5120),
    MAX_MESSAGE_SIZE.name: (256, 256),
    DUPLICATE_WINDOW.name: (20 * SECOND, 7 * DAY),
    DEFAULT_TTL.name: (SECOND, _FOREVER),
    MAX_DELIVERY_COUNT.name: (1, 2000),
    AUTO_DELETE_ON_IDLE.name: (5 * MINUTE, _FOREVER),
}
_PREMIUM = _STANDARD | {MAX_SIZE.name: (1024, 81920), MAX_MESSAGE_SIZE.name: (1024, 102400)}
# Contract 1.7. An entity holds 100 MB there, but clients that create one ask for the service's 1024.
_EMULATOR = _STANDARD | {
    LOCK_DURATION.name: (MINUTE, 5 * MINUTE),
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
            max_entities=10_000,
            max_subscriptions=2_000,
            ranges=_STANDARD,
        ),
        Profile(
            name="premium",
            max_message_bytes=100 * 1024 * 1024,
            max_entities=1_000,
            max_subscriptions=2_000,
            ranges=_PREMIUM,
        ),
        Profile(
            name="emulator",
            max_message_bytes=256 * 1024,
            max_entities=50,
            max_subscriptions=50,
            ranges=_EMULATOR,
            defaults=_EMULATOR_DEFAULTS,
        ),
        Profile(
            name=LAXEST,
            max_message_bytes=100 * 1024 * 1024,
            max_entities=2**31 - 1,
            max_subscriptions=2**31 - 1,
            ranges=_UNLIMITED,
        ),
    )
}
DEFAULT_PROFILE = PROFILES["standard"]


# --- names

_ENTITY_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9/_.~-]*[A-Za-z0-9])?")
_SHORT_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.~-]*[A-Za-z0-9])?")
_NOT_IN_RULE_NAMES = frozenset("/\\@?#*")


def fold(name: str) -> str:
    """The form under which names are compared: they differ in more than case, or they are the same."""
    return name.casefold()


def duplicate(names: Iterable[str]) -> int | None:
    """The index of the first name that an earlier one already has."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if fold(name) in seen:
            return index
        seen.add(fold(name))
    return None


def check_entity_name(name: object, setting: str = "Name") -> None:
    """DefinitionError unless `name` can be the path of a queue or a topic."""
    _check_length(name, setting, MAX_ENTITY_NAME)
    assert isinstance(name, str)
    if not _ENTITY_NAME.fullmatch(name):
        rule = "must be letters, digits and / - _ . ~, with a letter or digit first and last"
        raise DefinitionError(setting, name, rule)
    first, *rest = fold(name).split("/")
    for segment in (first, *rest):
        if not segment:
            raise DefinitionError(setting, name, "must have something between two slashes")
        if not segment.strip("."):
            # An HTTP client resolves such a path before it sends it.
            raise DefinitionError(setting, name, "must not have a segment of dots alone")
    if "subscriptions" in rest:
        # topic/subscriptions/name is the address of a subscription (contract 3.1).
        rule = "must not have 'subscriptions' between slashes or last: that addresses a subscription"
        raise DefinitionError(setting, name, rule)


def check_subscription_name(name: object, setting: str = "Name") -> None:
    """DefinitionError unless `name` can be that of a subscription, an authorization rule or a namespace."""
    _check_length(name, setting, MAX_SHORT_NAME)
    assert isinstance(name, str)
    if not _SHORT_NAME.fullmatch(name):
        rule = "must be letters, digits and - _ . ~, with a letter or digit first and last"
        raise DefinitionError(setting, name, rule)


def check_rule_name(name: object, setting: str = "Name") -> None:
    """Rules have wider names: `$Default` is one."""
    _check_length(name, setting, MAX_SHORT_NAME)
    assert isinstance(name, str)
    if not name.isprintable() or name.strip() != name or _NOT_IN_RULE_NAMES & set(name):
        rule = "must be printable, without blanks at the ends and without / \\ @ ? # *"
        raise DefinitionError(setting, name, rule)


def _check_length(name: object, setting: str, longest: int) -> None:
    if not isinstance(name, str):
        raise DefinitionError(setting, name, "must be text")
    if not 1 <= len(name) <= longest:
        raise DefinitionError(setting, name, f"must be 1 to {longest} characters long, not {len(name)}")


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
    """Contract 9.2. None: not tested."""

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
        for key, value in self.properties.items():
            if not isinstance(key, str) or not isinstance(value, str | int | float | bool):
                raise DefinitionError(f"Properties.{key}", value, "must be text, a number, true or false")
        if not tested:
            raise DefinitionError("CorrelationFilter", "{}", "must test at least one property")


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

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        data["filter_kind"] = self.filter_kind.value
        if self.correlation is not None:
            tested = {name: getattr(self.correlation, name) for name in CORRELATION_FIELDS.values()}
            data["correlation"] = tested | {"properties": dict(self.correlation.properties)}
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        known = _known(cls, data)
        if known.get("correlation") is not None:
            known["correlation"] = CorrelationFilter(**_known(CorrelationFilter, known["correlation"]))
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
        """Contract 10.5. Whether the destination exists is for the namespace to say."""
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
    requires_duplicate_detection: Annotated[bool, REQUIRES_DUPLICATE_DETECTION] = (
        REQUIRES_DUPLICATE_DETECTION.default
    )
    duplicate_detection_window_ms: Annotated[int, DUPLICATE_WINDOW] = DUPLICATE_WINDOW.default
    requires_session: Annotated[bool, REQUIRES_SESSION] = REQUIRES_SESSION.default
    default_message_ttl_ms: Annotated[int | None, DEFAULT_TTL] = DEFAULT_TTL.default
    dead_lettering_on_message_expiration: Annotated[bool, DEAD_LETTER_EXPIRED] = DEAD_LETTER_EXPIRED.default
    max_delivery_count: Annotated[int, MAX_DELIVERY_COUNT] = MAX_DELIVERY_COUNT.default
    enable_batched_operations: Annotated[bool, BATCHED_OPERATIONS] = BATCHED_OPERATIONS.default
    status: Annotated[Status, STATUS] = STATUS.default
    forward_to: Annotated[str | None, FORWARD_TO] = FORWARD_TO.default
    forward_dead_lettered_messages_to: Annotated[str | None, FORWARD_DEAD_LETTERS] = (
        FORWARD_DEAD_LETTERS.default
    )
    auto_delete_on_idle_ms: Annotated[int | None, AUTO_DELETE_ON_IDLE] = AUTO_DELETE_ON_IDLE.default
    user_metadata: Annotated[str | None, USER_METADATA] = USER_METADATA.default
    max_message_size_in_kilobytes: Annotated[int | None, MAX_MESSAGE_SIZE] = MAX_MESSAGE_SIZE.default
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
    forward_dead_lettered_messages_to: Annotated[str | None, FORWARD_DEAD_LETTERS] = (
        FORWARD_DEAD_LETTERS.default
    )
    auto_delete_on_idle_ms: Annotated[int | None, AUTO_DELETE_ON_IDLE] = AUTO_DELETE_ON_IDLE.default
    user_metadata: Annotated[str | None, USER_METADATA] = USER_METADATA.default
    rules: tuple[RuleDefinition, ...] = (RuleDefinition(),)
    """A subscription begins with `$Default`, which lets everything pass; one without rules gets nothing."""

    def _check_name(self) -> None:
        check_subscription_name(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefinition(EntityDefinition):
    max_size_in_megabytes: Annotated[int, MAX_SIZE] = MAX_SIZE.default
    requires_duplicate_detection: Annotated[bool, REQUIRES_DUPLICATE_DETECTION] = (
        REQUIRES_DUPLICATE_DETECTION.default
    )
    duplicate_detection_window_ms: Annotated[int, DUPLICATE_WINDOW] = DUPLICATE_WINDOW.default
    default_message_ttl_ms: Annotated[int | None, DEFAULT_TTL] = DEFAULT_TTL.default
    enable_batched_operations: Annotated[bool, BATCHED_OPERATIONS] = BATCHED_OPERATIONS.default
    status: Annotated[Status, STATUS] = STATUS.default
    auto_delete_on_idle_ms: Annotated[int | None, AUTO_DELETE_ON_IDLE] = AUTO_DELETE_ON_IDLE.default
    user_metadata: Annotated[str | None, USER_METADATA] = USER_METADATA.default
    max_message_size_in_kilobytes: Annotated[int | None, MAX_MESSAGE_SIZE] = MAX_MESSAGE_SIZE.default
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    subscriptions: tuple[SubscriptionDefinition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceDefinition:
    """Everything a broker starts with."""

    name: str = DEFAULT_NAMESPACE
    queues: tuple[QueueDefinition, ...] = ()
    topics: tuple[TopicDefinition, ...] = ()
    authorization_rules: tuple[AuthorizationRule, ...] = field(
        default_factory=lambda: (default_authorization_rule(),)
    )

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


def settings_of(kind: type[EntityDefinition]) -> dict[str, Setting[Any]]:
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


_SETTINGS: dict[type[EntityDefinition], dict[str, Setting[Any]]] = {}
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
