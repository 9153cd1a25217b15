"""Names of entities, rules and keys: the check of allowed names, and case-insensitive comparison."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from peeklock.limits.broker import MAX_CLIENT_SCOPED_PART, MAX_ENTITY_NAME, MAX_SHORT_NAME

SUBSCRIPTIONS: Final = "Subscriptions"
"""The segment between the name of a topic and the name of its subscription."""
DEAD_LETTER_SUFFIX: Final = "$DeadLetterQueue"
TRANSFER_DEAD_LETTER_SUFFIX: Final = "$Transfer/$DeadLetterQueue"


class DefinitionError(ValueError):
    """The value of a setting is not allowed. `rule` states the allowed values."""

    def __init__(self, setting: str, value: object, rule: str) -> None:
        self.setting = setting
        self.shown = _shown(value)
        self.rule = rule
        super().__init__(f"{setting} {self.shown}: {rule}")


def _shown(value: object) -> str:
    text = value if isinstance(value, str) and value and value.isprintable() else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


_ENTITY_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9/_.~-]*[A-Za-z0-9])?")
_SHORT_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.~-]*[A-Za-z0-9])?")
_CLIENT_SCOPED = re.compile(r"(?P<name>[A-Za-z0-9_.~-]+)\$(?P<client>[A-Za-z0-9_.~-]*)\$(?P<suffix>N?D)")
_TO_ESCAPE = re.compile(r"[^A-Za-z0-9_.-]")
_NOT_IN_RULE_NAMES = frozenset("/\\@?#*")
_SUBSCRIPTION = re.compile(f"(?P<topic>.+)/{SUBSCRIPTIONS}/(?P<name>.*)", re.IGNORECASE | re.DOTALL)
_ORIGIN = re.compile(r"^[a-z][a-z0-9+.-]*://[^/?#]*", re.IGNORECASE)


def fold(name: str) -> str:
    """Return the form of a name for comparisons: names are case-insensitive."""
    return name.casefold()


def without_origin(address: str) -> str:
    """Remove scheme and host, if there are any: `sb://host/orders` becomes `/orders`."""
    return _ORIGIN.sub("", address)


def subscription_path(topic: str, name: str) -> str:
    return f"{topic}/{SUBSCRIPTIONS}/{name}"


def split_subscription(path: str) -> tuple[str, str] | None:
    """Return the topic of a subscription's path and what follows `/Subscriptions/`; None for any other path."""
    found = _SUBSCRIPTION.fullmatch(path)
    return None if found is None else (found["topic"], found["name"])


def duplicate(names: Iterable[str]) -> int | None:
    """Return the index of the first name that is equal to an earlier one."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if fold(name) in seen:
            return index
        seen.add(fold(name))
    return None


def check_entity_name(name: object, setting: str = "Name") -> None:
    """Raise DefinitionError unless `name` can be the path of a queue or topic."""
    _check_length(name, setting, MAX_ENTITY_NAME)
    assert isinstance(name, str)
    if not _ENTITY_NAME.fullmatch(name):
        rule = "must be letters, digits and / - _ . ~, with a letter or digit first and last"
        raise DefinitionError(setting, name, rule)
    first, *rest = fold(name).split("/")
    for segment in (first, *rest):
        if not segment:
            raise DefinitionError(setting, name, "must not have two slashes in a row")
        if not segment.strip("."):
            # HTTP clients resolve the segments `.` and `..` before they send a path.
            raise DefinitionError(setting, name, "must not have a segment that consists of dots")
    if fold(SUBSCRIPTIONS) in rest:
        # topic/subscriptions/name is the address of a subscription.
        rule = "must not have the segment 'subscriptions' after the first: that is the address of a subscription"
        raise DefinitionError(setting, name, rule)


def check_subscription_name(name: object, setting: str = "Name") -> None:
    """Raise DefinitionError unless `name` can be the name of a subscription, an authorization rule or a namespace."""
    _check_length(name, setting, MAX_SHORT_NAME)
    assert isinstance(name, str)
    if not _SHORT_NAME.fullmatch(name):
        rule = "must be letters, digits and - _ . ~, with a letter or digit first and last"
        raise DefinitionError(setting, name, rule)


def client_scoped_name(name: str, client: str, *, durable: bool) -> str:
    """Return the name of a JMS subscription, in the form that the service uses.

    JMS allows characters that are not allowed in names of subscriptions: they are escaped as `~` and two hexadecimal
    digits for each octet.
    """
    return f"{_escaped(name)}${_escaped(client)}${'D' if durable else 'ND'}"


def is_client_scoped(name: object, temporary: bool) -> bool:
    """Return whether this is the name of a durable JMS subscription; with `temporary`, of any JMS subscription."""
    found = _CLIENT_SCOPED.fullmatch(name) if isinstance(name, str) else None
    return found is not None and (temporary or found["suffix"] == "D")


def check_client_scoped_name(name: str, setting: str = "Name") -> None:
    """Raise DefinitionError if the name or the client id in the name of a JMS subscription is too long."""
    found = _CLIENT_SCOPED.fullmatch(name)
    for part in () if found is None else (found["name"], found["client"]):
        if len(part) > MAX_CLIENT_SCOPED_PART:
            rule = f"must have at most {MAX_CLIENT_SCOPED_PART} characters, not {len(part)}"
            raise DefinitionError(setting, part, rule)


def check_rule_name(name: object, setting: str = "Name") -> None:
    """Raise DefinitionError unless `name` can be the name of a rule; `$Default` is allowed."""
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


def _escaped(text: str) -> str:
    return _TO_ESCAPE.sub(lambda found: "".join(f"~{octet:02x}" for octet in found[0].encode()), text)
