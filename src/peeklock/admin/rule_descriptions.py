"""Conversion between definitions and documents of rules.

The SQL stays text here; the broker parses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from xml.etree.ElementTree import Element

from peeklock.atom import rules
from peeklock.atom.entries import description
from peeklock.atom.moments import format_moment
from peeklock.atom.rules import (
    CORRELATION_FILTER,
    EMPTY_ACTION,
    SQL_ACTION,
    VALUE_READERS,
    Pairs,
    RuleDocument,
    Typed,
    format_value,
)
from peeklock.entities.names import DefinitionError
from peeklock.entities.rules import (
    CORRELATION_FIELDS,
    DEFAULT_RULE_NAME,
    CorrelationFilter,
    FilterKind,
    PropertyValue,
    RuleDefinition,
)

RULE_DESCRIPTION: Final = "RuleDescription"
_FILTERS: Final = {f"{kind}Filter": kind for kind in FilterKind}


def read_rule(element: Element, name: str | None = None) -> RuleDefinition:
    """Convert a description to a definition. `name` replaces the name in the description. Raise DefinitionError."""
    document = rules.read_rule(element)
    kind = FilterKind.TRUE if document.filter is None else _filter_kind(document.filter)
    action = _action_sql(document)
    return RuleDefinition(
        name=name or document.name or DEFAULT_RULE_NAME,
        filter_kind=kind,
        sql_expression=document.sql or "" if kind is FilterKind.SQL else None,
        correlation=_correlation(document) if kind is FilterKind.CORRELATION else None,
        action=action,
        parameters=_parameters(document.parameters) if kind is FilterKind.SQL else {},
        action_parameters={} if action is None else _parameters(document.action_parameters),
    )


def describe_rule(rule: RuleDefinition) -> Element:
    """Create the description of a rule."""
    correlation = rule.correlation
    tested = {name: getattr(correlation, field, None) for name, field in CORRELATION_FIELDS.items()}
    document = RuleDocument(
        name=rule.name,
        filter=CORRELATION_FILTER if correlation is not None else f"{rule.filter_kind}Filter",
        sql=rule.sql_expression,
        parameters=_typed(rule.parameters, "@"),
        correlation={name: value for name, value in tested.items() if value is not None},
        properties=[] if correlation is None else _typed(correlation.properties),
        action_sql=rule.action,
        action_parameters=_typed(rule.action_parameters, "@"),
    )
    root = description(RULE_DESCRIPTION)
    rules.write_rule(root, document, CreatedAt=format_moment(rule.created_at))
    return root


def _typed(values: Mapping[str, PropertyValue], prefix: str = "") -> Pairs:
    return [(prefix + name, format_value(value)) for name, value in values.items()]


def _filter_kind(found: str) -> FilterKind:
    kind = _FILTERS.get(found)
    if kind is None:
        raise DefinitionError("Filter", found or "(no type)", f"must have a type, one of {', '.join(_FILTERS)}")
    return kind


def _action_sql(document: RuleDocument) -> str | None:
    """Return the SQL of the action; None if the rule has no action."""
    if document.action not in (None, "", EMPTY_ACTION, SQL_ACTION):
        raise DefinitionError("Action", document.action, f"must be of the type {EMPTY_ACTION} or {SQL_ACTION}")
    return document.action_sql or "" if document.action == SQL_ACTION else None


def _correlation(document: RuleDocument) -> CorrelationFilter:
    tested = {CORRELATION_FIELDS[name]: text for name, text in document.correlation.items()}
    return CorrelationFilter(**tested, properties=_values("Properties", document.properties))


def _parameters(pairs: Pairs) -> dict[str, PropertyValue]:
    return {name.removeprefix("@"): value for name, value in _values("Parameters", pairs).items()}


def _values(setting: str, pairs: Pairs) -> dict[str, PropertyValue]:
    values: dict[str, PropertyValue] = {}
    for key, value in pairs:
        if not key or value is None:
            raise DefinitionError(setting, key or "(no key)", "each must have a key and a value")
        if key in values:
            raise DefinitionError(setting, key, "must not have the same key twice")
        values[key] = _value(f"{setting}.{key}", value)
    return values


def _value(setting: str, typed: Typed) -> PropertyValue:
    read = VALUE_READERS.get(typed.kind)
    if read is None:
        raise DefinitionError(setting, typed.kind, f"must be of one of the types {', '.join(sorted(VALUE_READERS))}")
    try:
        return read(typed.text)
    except (ValueError, KeyError, OverflowError):
        raise DefinitionError(setting, typed.text, f"must be a value of the type {typed.kind}") from None
