"""Queues, topics, subscriptions and the namespace as XML: what a description says of settings, and how one is written.

The settings are those that the definitions declare, by the names that they have there; a description adds counts,
times and a few fixed values. Which elements there are, in which order, is in the tables: some readers mind the order.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote
from xml.etree.ElementTree import Element

from peeklock.admin.markup import COUNTS, branch, child, children, leaf, text_of
from peeklock.admin.moments import format_moment
from peeklock.atom.elements import FIRST_RULE, response_elements
from peeklock.broker.administration import Runtime
from peeklock.entities.authorization import AuthorizationRule, Right
from peeklock.entities.definitions import (
    AnyDefinition,
    QueueDefinition,
    SubscriptionDefinition,
    TopicDefinition,
)
from peeklock.entities.durations import format_duration
from peeklock.entities.names import DefinitionError, fold, without_origin
from peeklock.entities.settings import Form, Profile, Setting, settings_of

ENTITY_DESCRIPTIONS: Final[dict[str, type[QueueDefinition] | type[TopicDefinition]]] = {
    "QueueDescription": QueueDefinition,
    "TopicDescription": TopicDefinition,
}
SUBSCRIPTION_DESCRIPTION: Final = "SubscriptionDescription"
NAMES: Final[dict[type, str]] = {
    QueueDefinition: "QueueDescription",
    TopicDefinition: "TopicDescription",
    SubscriptionDefinition: SUBSCRIPTION_DESCRIPTION,
}

_GENERATED_KEY_BYTES: Final = 32
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Shown:
    """An entity at a moment, and for whom it is written."""

    definition: AnyDefinition
    runtime: Runtime
    profile: Profile
    origin: str
    """Where the namespace is for the client: `https://host:port`. Destinations are told as addresses there."""
    api_version: str


# --- writing ---


def write_description(shown: Shown) -> list[str]:
    """The elements of a description, every one that there is: some clients fail where one is missing."""
    kind = type(shown.definition)
    settings = {setting.name: (field, setting) for field, setting in settings_of(kind).items()}
    parts = []
    for element in response_elements(kind):
        if element in settings:
            field, setting = settings[element]
            parts.append(_write_setting(setting, getattr(shown.definition, field), shown))
        elif element != FIRST_RULE:
            parts.append(COMPUTED[element](shown))
    return parts


def _write_setting(setting: Setting[Any], value: Any, shown: Shown) -> str:
    if shown.api_version < setting.since or (setting.own and value == setting.default):
        return ""
    if value is None and setting.form is Form.COUNT:
        value = setting.ranges[shown.profile.name][1]
    match setting.form:
        case Form.DURATION:
            text = format_duration(value)
        case Form.FLAG:
            text = "true" if value else "false"
        case Form.ENTITY:
            text = "" if value is None else f"{shown.origin}/{value}"
        case _:
            text = "" if value is None else str(value)
    return leaf(setting.name, text) if text else ""


def _write_counts(shown: Shown) -> str:
    runtime = shown.runtime
    counts = {
        "ActiveMessageCount": runtime.active,
        "DeadLetterMessageCount": runtime.dead_letter,
        "ScheduledMessageCount": runtime.scheduled,
        "TransferMessageCount": runtime.transfer,
        "TransferDeadLetterMessageCount": runtime.transfer_dead_letter,
    }
    # Clients learn the prefix from the one attribute.
    parts = [leaf(f"d2p1:{name}", str(count)) for name, count in counts.items()]
    return branch("CountDetails", parts, f' xmlns:d2p1="{COUNTS}"')


def _write_authorization_rules(shown: Shown) -> str:
    runtime = shown.runtime
    rules = []
    for rule in shown.definition.authorization_rules:
        parts = [
            leaf("ClaimType", "SharedAccessKey"),
            leaf("ClaimValue", "None"),
            branch("Rights", [leaf("AccessRights", right) for right in _RIGHTS if right in rule.rights]),
            leaf("CreatedTime", format_moment(runtime.created_at)),
            leaf("ModifiedTime", format_moment(runtime.updated_at)),
            leaf("KeyName", rule.name),
            leaf("PrimaryKey", rule.primary_key),
            leaf("SecondaryKey", rule.secondary_key or ""),
        ]
        rules.append(branch("AuthorizationRule", parts, ' i:type="SharedAccessAuthorizationRule"'))
    return branch("AuthorizationRules", rules)


_RIGHTS: Final = (Right.MANAGE, Right.SEND, Right.LISTEN)

COMPUTED: Final[dict[str, Callable[[Shown], str]]] = {
    "SizeInBytes": lambda shown: leaf("SizeInBytes", str(shown.runtime.size_in_bytes)),
    "MessageCount": lambda shown: leaf("MessageCount", str(shown.runtime.total)),
    "CountDetails": _write_counts,
    "SubscriptionCount": lambda shown: leaf("SubscriptionCount", str(shown.runtime.subscription_count)),
    "SqlFilterCount": lambda shown: leaf("SqlFilterCount", str(shown.runtime.sql_filter_count)),
    "CorrelationFilterCount": lambda shown: leaf("CorrelationFilterCount", str(shown.runtime.correlation_filter_count)),
    "CreatedAt": lambda shown: leaf("CreatedAt", format_moment(shown.runtime.created_at)),
    "UpdatedAt": lambda shown: leaf("UpdatedAt", format_moment(shown.runtime.updated_at)),
    "AccessedAt": lambda shown: leaf("AccessedAt", format_moment(shown.runtime.accessed_at)),
    "AuthorizationRules": _write_authorization_rules,
    "IsAnonymousAccessible": lambda shown: leaf("IsAnonymousAccessible", "false"),
    "EntityAvailabilityStatus": lambda shown: leaf("EntityAvailabilityStatus", "Available"),
}


def write_namespace(name: str, profile: Profile, created_at: int) -> list[str]:
    """What a namespace says of itself, as the tier whose limits it has."""
    sku = "Premium" if profile.name in ("premium", "unlimited") else "Standard"
    return [
        leaf("CreatedTime", format_moment(created_at)),
        leaf("MessagingSKU", sku),
        leaf("MessagingUnits", "1") if sku == "Premium" else "",
        leaf("ModifiedTime", format_moment(created_at)),
        leaf("Name", name),
        leaf("NamespaceType", "Messaging"),
    ]


# --- reading ---


def read_settings(kind: type, description: Element, api_version: str, former: AnyDefinition | None) -> dict[str, Any]:
    """What a description says, by the fields of a definition of that kind; the rest is for others to fill in.

    Texts and destinations are always among it: a client that clears one leaves the element out. DefinitionError says
    which value cannot be read.
    """
    found: dict[str, Any] = {}
    for field, setting in settings_of(kind).items():
        text = text_of(description, setting.name)
        if api_version < setting.since:
            if text is not None and text.strip():
                rule = f"requires the api-version {setting.since} or a newer one, not {api_version}"
                raise DefinitionError(setting.name, text.strip(), rule)
            continue
        if setting.form in (Form.TEXT, Form.ENTITY):
            found[field] = _read_setting(setting, text) if text else None
        elif text is not None and text.strip():
            found[field] = _read_setting(setting, text)
    rules = child(description, "AuthorizationRules")
    if rules is not None and kind is not SubscriptionDefinition:
        found["authorization_rules"] = _read_authorization_rules(rules, former.authorization_rules if former else ())
    return found


def _read_setting(setting: Setting[Any], text: str) -> Any:
    word = text.strip()
    match setting.form:
        case Form.TEXT:
            return text
        case Form.ENTITY:
            return unquote(without_origin(word) or word).strip("/")
        case Form.FLAG if word.lower() in _FLAGS:
            return _FLAGS[word.lower()]
        case Form.COUNT if re.fullmatch(r"[+-]?[0-9]{1,18}", word):
            return int(word)
    return setting.parse(word)


def _read_authorization_rules(element: Element, former: tuple[AuthorizationRule, ...]) -> tuple[AuthorizationRule, ...]:
    """Keys that are not given stay what they were; those of a new rule are made up, as the service does."""
    known = {fold(rule.name): rule for rule in former}
    rules = []
    for each in children(element, "AuthorizationRule"):
        name = text_of(each, "KeyName") or ""
        before = known.get(fold(name))
        rights = child(each, "Rights")
        given = [] if rights is None else [(right.text or "").strip() for right in children(rights, "AccessRights")]
        rules.append(
            AuthorizationRule(
                name=name,
                primary_key=text_of(each, "PrimaryKey") or (before.primary_key if before else _new_key()),
                secondary_key=text_of(each, "SecondaryKey") or (before.secondary_key if before else _new_key()),
                rights=frozenset(given),  # type: ignore[arg-type]
            )
        )
    return tuple(rules)


def _new_key() -> str:
    return base64.b64encode(os.urandom(_GENERATED_KEY_BYTES)).decode()
