"""Entities and rules of the client between their documents and `descriptions`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final
from xml.etree.ElementTree import Element

from peeklock.amqp.types import Int
from peeklock.atom import rules
from peeklock.atom.descriptions import (
    Content,
    read_authorization_rules,
    read_counts,
    read_settings,
    setting_text,
    write_authorization_rules,
    write_description,
)
from peeklock.atom.elements import AUTHORIZATION_RULES, FIRST_RULE, MOMENTS, NUMBERS, request_elements
from peeklock.atom.entries import add_content, description, description_of, document, title_of
from peeklock.atom.markup import SERIALIZATION, MarkupError, branch, local_name, parse, to_text
from peeklock.atom.rules import SQL_ACTION, VALUE_READERS, Pairs, RuleDocument, Typed, format_value
from peeklock.client.descriptions import (
    DEFINITIONS,
    SETTINGS,
    Duration,
    Entity,
    FilterKind,
    Kind,
    Rule,
    RuleValue,
)
from peeklock.entities.settings import Form

MAX_ELEMENTS: Final = 1_000_000
"""The most XML elements in an answer: a page has up to 100 entities or rules, each with all its values."""


# --- reading


def parse_answer(data: bytes) -> Element:
    return parse(data, MAX_ELEMENTS)


def read_entity(entry: Element, topic: str | None = None) -> Entity:
    root = description_of(entry)
    kind_name = local_name(root).removesuffix("Description")
    try:
        kind = Kind(kind_name)
    except ValueError:
        raise MarkupError(f"It describes a {kind_name}.") from None
    settings = read_settings(root, SETTINGS[kind].values())
    for name, value in settings.items():
        expected = {Form.COUNT: int, Form.FLAG: bool}.get(SETTINGS[kind][name].form, str)
        if not isinstance(value, expected):
            raise MarkupError(f"{name} has the value '{value}', which is no {expected.__name__}.")
    texts = _texts(root)
    numbers = read_counts(root) | {name: texts[name] for name in NUMBERS if texts.get(name)}
    return Entity(
        kind=kind,
        name=title_of(entry),
        topic=topic,
        settings=settings,
        authorization_rules=read_authorization_rules(root) or (),
        runtime={name: _number(name, text) for name, text in numbers.items()}
        | {name: texts[name] for name in MOMENTS if texts.get(name)},
    )


def read_rule(entry: Element) -> Rule:
    root = description_of(entry)
    name, kind = title_of(entry), local_name(root)
    if kind != "RuleDescription":
        raise MarkupError(f"It describes a {kind.removesuffix('Description')}.")
    found = rules.read_rule(root)
    try:
        filter_kind = FilterKind(found.filter or "")
    except ValueError:
        raise MarkupError(f"The rule '{name}' has a filter of an unknown kind '{found.filter or ''}'.") from None
    acts = found.action == SQL_ACTION
    return Rule(
        name=name,
        filter=filter_kind,
        expression=found.sql if filter_kind is FilterKind.SQL else None,
        parameters=_values(found.parameters),
        correlation={field: text for field, text in found.correlation.items() if text},
        properties=_values(found.properties),
        action=found.action_sql if acts else None,
        action_parameters=_values(found.action_parameters) if acts else {},
    )


def read_facts(entry: Element) -> dict[str, str]:
    """Return the elements of a description that hold text only, such as those of a namespace."""
    return _texts(description_of(entry))


def read_failure(data: bytes) -> str:
    """Return the sentence of an error document; empty if it has none."""
    try:
        root = parse_answer(data)
    except MarkupError:
        return ""
    return (next((each.text for each in root.iter() if local_name(each) == "Detail"), None) or "").strip()


def _texts(root: Element) -> dict[str, str]:
    return {local_name(each): each.text or "" for each in root}


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise MarkupError(f"{name} has the value '{text}', which is no int.") from None


def _values(pairs: Pairs) -> dict[str, RuleValue]:
    return {key or "": _value(value) for key, value in pairs if key is not None and value is not None}


def _value(typed: Typed) -> RuleValue:
    read = _READERS.get(typed.kind) or VALUE_READERS.get(typed.kind, str)
    try:
        value = read(typed.text)
    except (ValueError, KeyError, OverflowError):
        raise MarkupError(f"A value of the type {typed.kind} cannot be read: '{typed.text}'.") from None
    assert isinstance(value, RuleValue)
    return value


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text.strip())
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


_READERS: Final[Mapping[str, Callable[[str], RuleValue]]] = {"int": Int, "dateTime": _moment, "duration": Duration}
"""Where the client has other types than the broker."""


# --- writing


def write_entity(entity: Entity, host: str, first_rule: Rule | None = None) -> bytes:
    """Write the entry that creates or replaces an entity, a new subscription with the rule that it starts with."""
    settings = SETTINGS[entity.kind]
    contents: dict[str, Content] = {
        name: setting_text(settings[name], value, f"sb://{host}") for name, value in entity.settings.items()
    }
    if entity.authorization_rules:
        contents[AUTHORIZATION_RULES] = lambda root: write_authorization_rules(root, entity.authorization_rules)
    if first_rule is not None:
        contents[FIRST_RULE] = lambda root: rules.write_rule(branch(root, FIRST_RULE), _document(first_rule))
    elements = request_elements(DEFINITIONS[entity.kind])
    return _entry(write_description(f"{entity.kind}Description", elements, contents))


def write_rule(rule: Rule) -> bytes:
    root = description("RuleDescription")
    rules.write_rule(root, _document(rule))
    return _entry(root)


def _entry(description: Element) -> bytes:
    entry = document("entry")
    add_content(entry, description)
    return b'<?xml version="1.0" encoding="utf-8"?>' + to_text(entry).encode()


def _document(rule: Rule) -> RuleDocument:
    return RuleDocument(
        name=rule.name,
        filter=rule.filter.value,
        sql=rule.expression,
        parameters=_typed_values(rule.parameters),
        correlation=rule.correlation,
        properties=_typed_values(rule.properties),
        action_sql=rule.action,
        action_parameters=_typed_values(rule.action_parameters),
    )


def _typed_values(values: Mapping[str, RuleValue]) -> Pairs:
    return [(key, _typed(value)) for key, value in values.items()]


def _typed(value: RuleValue) -> Typed:
    match value:
        case Duration():
            return Typed("duration", value, SERIALIZATION)
        case Int():
            return Typed("int", str(value))
        case datetime():
            return format_value(value.astimezone(UTC))
    typed = format_value(value)
    if typed.kind == "int":
        return typed._replace(kind="long")
    return typed._replace(namespace=SERIALIZATION) if typed.kind == "guid" else typed
