"""The keys of the configuration file, each declared once.

The reader, the schema and the tables of docs/configuration.md follow from here. The settings of an entity (its
`Properties`) are declared in `entities.definitions`, limits in `limits.server`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from peeklock.broker.watermark import DEFAULT_BYTES
from peeklock.entities.authorization import Right
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.namespaces import DEFAULT_NAMESPACE
from peeklock.entities.rules import CORRELATION_FIELDS, FilterKind
from peeklock.limits.broker import MAX_AUTHORIZATION_RULES
from peeklock.limits.server import Configured, Limits, configured_limits

DISK_FREE_LOW = "DiskFreeLowInMegabytes"
LOG_TARGETS = ("Console", "File")
"""The values of `Logging.Type`, one or both. The broker always logs to standard error."""

MAX_COUNT = 1_000_000
"""The largest number that a key of `Server` may have."""


class Thing(StrEnum):
    """The objects of the file, as the documentation names them."""

    FILE = "the file"
    USER_CONFIG = "`UserConfig`"
    LOGGING = "`Logging`"
    SERVER = "`Server`"
    NAMESPACE = "namespace"
    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    RULE = "rule"
    RULE_PROPERTIES = "`Properties` of a rule"
    SQL = "`SqlFilter`, `Action`"
    CORRELATION = "`CorrelationFilter`"
    AUTHORIZATION_RULE = "authorization rule"


class Value(StrEnum):
    """The types of values in the file, except objects that have their own table of keys."""

    TEXT = "text"
    ENTITY_NAME = "the name of a queue or topic"
    SHORT_NAME = "the name of a subscription, key or namespace"
    RULE_NAME = "the name of a rule"
    SETTINGS = "the settings of an entity"
    PROPERTIES = "values by name"
    LOG_TARGETS = "where the log goes"
    FILTER_KIND = "the kind of a filter"
    SQL = "an expression"
    RIGHT = "a right"
    SECRET = "a key"
    FLAG = "true or false"
    COUNT = "a number"
    FILE = "a file"


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    holds: Thing | Value
    required: bool = False
    many: bool = False
    """Whether it is a list of these."""
    note: str = ""


def _default(field: str, configured: Configured) -> str:
    value = getattr(Limits(), field)
    return "half of `MaxConnections`" if value is None else f"{value / configured.unit:g}"


_AUTHORIZATION_RULES = Key(
    "AuthorizationRules",
    Thing.AUTHORIZATION_RULE,
    many=True,
    note=f"up to {MAX_AUTHORIZATION_RULES}; not the emulator's",
)
_PROPERTIES = Key("Properties", Value.SETTINGS, note="see below")

KEYS: dict[Thing, tuple[Key, ...]] = {
    Thing.FILE: (
        Key("UserConfig", Thing.USER_CONFIG, required=True),
        Key("$schema", Value.TEXT, note="for editors; not the emulator's"),
    ),
    Thing.USER_CONFIG: (
        Key("Namespaces", Thing.NAMESPACE, required=True, many=True, note="exactly one"),
        Key("Logging", Thing.LOGGING),
        Key("Server", Thing.SERVER, note="not the emulator's"),
    ),
    Thing.LOGGING: (
        Key(
            "Type",
            Value.LOG_TARGETS,
            required=True,
            note=f"{', '.join(f'`{target}`' for target in LOG_TARGETS)} or `{','.join(LOG_TARGETS)}`; "
            "the broker always logs to standard error",
        ),
    ),
    Thing.SERVER: (
        Key("AllowedHosts", Value.TEXT, many=True, note="host names that HTTP clients may use"),
        Key("AllowedOrigins", Value.TEXT, many=True, note="web pages that may connect, such as `https://app.example`"),
        Key("RequireTls", Value.FLAG, note="refuse connections without TLS"),
        Key("MtlsCa", Value.FILE, note="PEM; clients must have a certificate that it signed"),
        Key("Audit", Value.FILE, note="the file in which administration and denied access are recorded"),
        *(
            Key(each.key, Value.COUNT, note=f"default {_default(field, each)}; {each.note}")
            for field, each in configured_limits().items()
        ),
        Key(
            DISK_FREE_LOW,
            Value.COUNT,
            note=f"default {DEFAULT_BYTES >> 20} or 5 % of the disk, if that is less; sends are refused while less is "
            "free; 0 for never",
        ),
    ),
    Thing.NAMESPACE: (
        Key("Name", Value.SHORT_NAME, note=f"default `{DEFAULT_NAMESPACE}`"),
        Key("Queues", Thing.QUEUE, many=True),
        Key("Topics", Thing.TOPIC, many=True),
        _AUTHORIZATION_RULES,
    ),
    Thing.QUEUE: (
        Key("Name", Value.ENTITY_NAME, required=True),
        _PROPERTIES,
        _AUTHORIZATION_RULES,
    ),
    Thing.TOPIC: (
        Key("Name", Value.ENTITY_NAME, required=True),
        _PROPERTIES,
        Key("Subscriptions", Thing.SUBSCRIPTION, many=True),
        _AUTHORIZATION_RULES,
    ),
    Thing.SUBSCRIPTION: (
        Key("Name", Value.SHORT_NAME, required=True),
        _PROPERTIES,
        Key("Rules", Thing.RULE, many=True, note="without rules: `$Default`, which every message passes"),
    ),
    Thing.RULE: (
        Key("Name", Value.RULE_NAME, required=True),
        Key("Properties", Thing.RULE_PROPERTIES, required=True),
    ),
    Thing.RULE_PROPERTIES: (
        Key(
            "FilterType",
            Value.FILTER_KIND,
            note=f"{', '.join(f'`{kind}`' for kind in FilterKind)}; by default the kind of the given filter; "
            f"`{FilterKind.TRUE}` and `{FilterKind.FALSE}` are not the emulator's",
        ),
        Key("SqlFilter", Thing.SQL),
        Key("CorrelationFilter", Thing.CORRELATION),
        Key("Action", Thing.SQL),
    ),
    Thing.SQL: (
        Key("SqlExpression", Value.SQL, required=True),
        Key("Parameters", Value.PROPERTIES, note="values for `@names`; not the emulator's"),
    ),
    Thing.CORRELATION: (
        *(Key(name, Value.TEXT) for name in CORRELATION_FIELDS),
        Key("Properties", Value.PROPERTIES, note="application properties; at least one of all these keys is required"),
    ),
    Thing.AUTHORIZATION_RULE: (
        Key("Name", Value.SHORT_NAME, required=True),
        Key(
            "Rights",
            Value.RIGHT,
            required=True,
            many=True,
            note=f"{', '.join(f'`{right}`' for right in Right)}; {Right.MANAGE} includes the others",
        ),
        Key("PrimaryKey", Value.SECRET, required=True),
        Key("SecondaryKey", Value.SECRET),
    ),
}

SETTINGS = {
    Thing.QUEUE: QueueDefinition,
    Thing.TOPIC: TopicDefinition,
    Thing.SUBSCRIPTION: SubscriptionDefinition,
}
"""The definition that declares the `Properties` of each object."""
