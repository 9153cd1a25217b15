"""Conversion between definitions and ATOM descriptions of queues, topics, subscriptions and the namespace.

Descriptions have the settings that the definitions declare, and also counts, times and a few constant values.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from xml.etree.ElementTree import Element

from peeklock.atom import descriptions
from peeklock.atom.descriptions import (
    Content,
    read_authorization_rules,
    setting_text,
    write_authorization_rules,
    write_counts,
    write_description,
)
from peeklock.atom.elements import AUTHORIZATION_RULES, response_elements
from peeklock.atom.entries import description
from peeklock.atom.markup import leaf, text_of
from peeklock.atom.moments import format_moment
from peeklock.broker.administration import Runtime
from peeklock.entities.authorization import AuthorizationRule, Right
from peeklock.entities.definitions import (
    AnyDefinition,
    QueueDefinition,
    SubscriptionDefinition,
    TopicDefinition,
)
from peeklock.entities.names import DefinitionError, fold
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
_RIGHTS: Final = (Right.MANAGE, Right.SEND, Right.LISTEN)


@dataclass(frozen=True, slots=True)
class EntityState:
    """The definition and the counts of an entity, and properties of the request that its description depends on."""

    definition: AnyDefinition
    runtime: Runtime
    profile: Profile
    origin: str
    """The address of the broker in the request, `https://host:port`; the addresses of destinations begin with it."""
    api_version: str


# --- writing ---


def describe(state: EntityState) -> Element:
    """Create a description with all elements: some clients fail if an element is missing."""
    kind = type(state.definition)
    contents: dict[str, Content] = _computed(state)
    for field, setting in settings_of(kind).items():
        text = _setting_text(setting, getattr(state.definition, field), state)
        if text:
            contents[setting.name] = text
    return write_description(NAMES[kind], response_elements(kind), contents)


def _setting_text(setting: Setting[Any], value: Any, state: EntityState) -> str:
    """Return the text of a setting; empty if the description must not contain the setting."""
    if state.api_version < setting.since or (setting.own and value == setting.default):
        return ""
    if value is None and setting.form is Form.COUNT:
        value = setting.ranges[state.profile.name][1]
    plain = setting.format(value)
    return "" if plain is None else setting_text(setting, plain, state.origin)


def _computed(state: EntityState) -> dict[str, Content]:
    """Return the elements that are not settings. `response_elements` selects the ones of a kind of entity."""
    runtime = state.runtime
    counts = (
        runtime.active,
        runtime.dead_letter,
        runtime.scheduled,
        runtime.transfer,
        runtime.transfer_dead_letter,
    )
    return {
        "SizeInBytes": str(runtime.size_in_bytes),
        "MessageCount": str(runtime.total),
        "CountDetails": lambda root: write_counts(root, counts, (runtime.claimed,)),
        "SubscriptionCount": str(runtime.subscription_count),
        "SqlFilterCount": str(runtime.sql_filter_count),
        "CorrelationFilterCount": str(runtime.correlation_filter_count),
        "CreatedAt": format_moment(runtime.created_at),
        "UpdatedAt": format_moment(runtime.updated_at),
        "AccessedAt": format_moment(runtime.accessed_at),
        AUTHORIZATION_RULES: lambda root: _describe_authorization_rules(root, state),
        "IsAnonymousAccessible": "false",
        "EntityAvailabilityStatus": "Available",
    }


def _describe_authorization_rules(root: Element, state: EntityState) -> None:
    documents = [
        descriptions.AuthorizationRule(
            name=rule.name,
            rights=tuple(right for right in _RIGHTS if right in rule.rights),
            primary_key=rule.primary_key,
            secondary_key=rule.secondary_key or "",
        )
        for rule in state.definition.authorization_rules
    ]
    created, modified = format_moment(state.runtime.created_at), format_moment(state.runtime.updated_at)
    write_authorization_rules(root, documents, CreatedTime=created, ModifiedTime=modified)


def describe_namespace(name: str, profile: Profile, created_at: int) -> Element:
    """Create the description of the namespace. Its SKU is the tier whose limits the profile has."""
    premium = profile.name in ("premium", "unlimited")
    root = description("NamespaceInfo")
    leaf(root, "CreatedTime", format_moment(created_at))
    leaf(root, "MessagingSKU", "Premium" if premium else "Standard")
    if premium:
        leaf(root, "MessagingUnits", "1")
    leaf(root, "ModifiedTime", format_moment(created_at))
    leaf(root, "Name", name)
    leaf(root, "NamespaceType", "Messaging")
    return root


# --- reading ---


def read_settings(kind: type, element: Element, api_version: str, former: AnyDefinition | None) -> dict[str, Any]:
    """Return the values in a description, by the fields of a definition of that kind. Raise DefinitionError.

    Texts and destinations are always included: a client clears one by omitting its element.
    """
    settings = settings_of(kind)
    plain = descriptions.read_settings(element, settings.values())
    _check_version(element, settings, api_version)
    found: dict[str, Any] = {}
    for field, setting in settings.items():
        if setting.name in plain:
            value = plain[setting.name]
            found[field] = setting.parse(value) if setting.form is Form.DURATION else value
        elif setting.form in (Form.TEXT, Form.ENTITY):
            found[field] = None
    rules = read_authorization_rules(element)
    if rules is not None and kind is not SubscriptionDefinition:
        found["authorization_rules"] = _with_keys(rules, former.authorization_rules if former else ())
    return found


def _check_version(element: Element, settings: Mapping[str, Setting[Any]], api_version: str) -> None:
    for setting in settings.values():
        text = (text_of(element, setting.name) or "").strip()
        if text and api_version < setting.since:
            rule = f"requires the api-version {setting.since} or newer, not {api_version}"
            raise DefinitionError(setting.name, text, rule)


def _with_keys(
    rules: tuple[descriptions.AuthorizationRule, ...], former: tuple[AuthorizationRule, ...]
) -> tuple[AuthorizationRule, ...]:
    """Create definitions of authorization rules.

    Keys that the request does not contain stay unchanged; a new rule gets random keys, as at the service.
    """
    known = {fold(rule.name): rule for rule in former}
    made = []
    for rule in rules:
        before = known.get(fold(rule.name))
        made.append(
            AuthorizationRule(
                name=rule.name,
                primary_key=rule.primary_key or (before.primary_key if before else _new_key()),
                secondary_key=rule.secondary_key or (before.secondary_key if before else _new_key()),
                rights=frozenset(rule.rights),  # type: ignore[arg-type]
            )
        )
    return tuple(made)


def _new_key() -> str:
    return base64.b64encode(os.urandom(_GENERATED_KEY_BYTES)).decode()
