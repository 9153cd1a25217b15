"""Descriptions of queues, topics and subscriptions: settings as text, authorization rules, counts of messages.

Values have the same form as in the configuration file: a duration is ISO 8601 text, a destination is a name. The broker
checks their ranges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote
from xml.etree.ElementTree import Element

from peeklock.atom.elements import AUTHORIZATION_RULES, COUNT_DETAILS, OWN_COUNTS
from peeklock.atom.entries import description
from peeklock.atom.markup import COUNTS, branch, child, children, leaf, local_name, text_of
from peeklock.entities.names import without_origin
from peeklock.entities.settings import Form, Plain, Setting

Content = str | Callable[[Element], object]
"""The text of an element, or a function that adds the element."""

_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRule:
    """An authorization rule in a document: a named pair of keys and their rights."""

    name: str
    rights: tuple[str, ...]
    primary_key: str = field(repr=False)
    """Empty if the document has none."""
    secondary_key: str | None = field(default=None, repr=False)


def write_description(name: str, elements: Iterable[str], contents: Mapping[str, Content]) -> Element:
    """Create a description from the elements that have a content, in this order."""
    root = description(name)
    for element in elements:
        content = contents.get(element)
        if isinstance(content, str):
            leaf(root, element, content)
        elif content is not None:
            content(root)
    return root


def setting_text(setting: Setting[Any], value: Plain, origin: str) -> str:
    """Return the text of a value. A destination is written as an address, which begins with `origin`."""
    if setting.form is Form.FLAG:
        return "true" if value else "false"
    if setting.form is Form.ENTITY and value:
        return f"{origin}/{value}"
    return str(value)


def read_settings(element: Element, settings: Iterable[Setting[Any]]) -> dict[str, Plain]:
    """Return the settings that have a text, by name. A text that is not a valid value is returned unchanged."""
    found = {}
    for setting in settings:
        text = text_of(element, setting.name)
        if text and (text.strip() or setting.form in (Form.TEXT, Form.ENTITY)):
            found[setting.name] = _read_setting(setting, text)
    return found


def _read_setting(setting: Setting[Any], text: str) -> Plain:
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
    return word


# --- authorization rules


def write_authorization_rules(root: Element, rules: Iterable[AuthorizationRule], **times: str) -> None:
    """Add the list of rules. `times` are elements that each rule has in responses only."""
    holder = branch(root, AUTHORIZATION_RULES)
    for rule in rules:
        element = branch(holder, "AuthorizationRule", i_type="SharedAccessAuthorizationRule")
        leaf(element, "ClaimType", "SharedAccessKey")
        leaf(element, "ClaimValue", "None")
        rights = branch(element, "Rights")
        for right in rule.rights:
            leaf(rights, "AccessRights", right)
        for name, time in times.items():
            leaf(element, name, time)
        leaf(element, "KeyName", rule.name)
        leaf(element, "PrimaryKey", rule.primary_key)
        if rule.secondary_key is not None:
            leaf(element, "SecondaryKey", rule.secondary_key)


def read_authorization_rules(root: Element) -> tuple[AuthorizationRule, ...] | None:
    """Return the rules of a description; None if it has no list of them."""
    holder = child(root, AUTHORIZATION_RULES)
    return None if holder is None else tuple(map(_read_authorization_rule, children(holder, "AuthorizationRule")))


def _read_authorization_rule(element: Element) -> AuthorizationRule:
    rights = child(element, "Rights")
    return AuthorizationRule(
        name=text_of(element, "KeyName") or "",
        rights=() if rights is None else tuple((each.text or "").strip() for each in children(rights, "AccessRights")),
        primary_key=text_of(element, "PrimaryKey") or "",
        secondary_key=text_of(element, "SecondaryKey") or None,
    )


# --- counts of messages


def write_counts(root: Element, counts: Iterable[int], own: Iterable[int]) -> None:
    """Add `CountDetails`, with the counts in the order of its elements, and Peeklock's own if they are not 0."""
    details = branch(root, "CountDetails", xmlns_d2p1=COUNTS)
    for name, count in zip(COUNT_DETAILS, counts, strict=True):
        # Clients read the prefix from the only attribute of the parent.
        leaf(details, f"d2p1:{name}", str(count))
    for name, count in zip(OWN_COUNTS, own, strict=True):
        if count:
            leaf(details, f"d2p1:{name}", str(count))


def read_counts(root: Element) -> dict[str, str]:
    """Return the texts of `CountDetails` by name."""
    details = child(root, "CountDetails")
    found = {} if details is None else {local_name(each): each.text or "" for each in details}
    return {name: text for name, text in found.items() if name in COUNT_DETAILS or name in OWN_COUNTS}
