"""Descriptions of rules: filters, actions and the typed values in them.

`RuleDocument` has the values of a rule's document. Names of types and SQL stay text: the broker and the client convert
them to their own types, with their own errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID
from xml.etree.ElementTree import Element

from peeklock.atom.markup import SCHEMA, branch, child, children, leaf, text_of, type_of
from peeklock.entities.durations import format_time, parse_time
from peeklock.entities.rules import CORRELATION_FIELDS, PropertyValue

CONSTANT_FILTERS: Final = {"TrueFilter": "1=1", "FalseFilter": "1=0"}
"""The SQL expressions that documents have for the filters True and False."""
SQL_FILTER: Final = "SqlFilter"
CORRELATION_FILTER: Final = "CorrelationFilter"
EMPTY_ACTION: Final = "EmptyRuleAction"
SQL_ACTION: Final = "SqlRuleAction"

_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)


class Typed(NamedTuple):
    """A value as text, and the name of its type."""

    kind: str
    text: str
    namespace: str = SCHEMA
    """The XML namespace of the type."""


Pairs = list[tuple[str | None, Typed | None]]
"""Keys and values of a document; None for a missing key or value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDocument:
    """The values of a rule's document."""

    name: str | None
    filter: str | None
    """The type of the filter; empty if the filter has no type, None if there is no filter."""
    sql: str | None = None
    """The expression of a SQL filter."""
    parameters: Pairs = field(default_factory=list)
    correlation: Mapping[str, str] = field(default_factory=dict)
    """The values that a correlation filter compares, by the names in `CORRELATION_FIELDS`."""
    properties: Pairs = field(default_factory=list)
    """The application properties that a correlation filter compares."""
    action: str | None = None
    """The type of the action; empty if the action has no type, None if there is no action."""
    action_sql: str | None = None
    action_parameters: Pairs = field(default_factory=list)


def read_rule(description: Element) -> RuleDocument:
    test, action = child(description, "Filter"), child(description, "Action")
    fields = () if test is None else [(name, text_of(test, name)) for name in CORRELATION_FIELDS]
    return RuleDocument(
        name=text_of(description, "Name"),
        filter=None if test is None else type_of(test) or "",
        sql=None if test is None else text_of(test, "SqlExpression"),
        parameters=_read_values(test, "Parameters"),
        correlation={name: text for name, text in fields if text is not None},
        properties=_read_values(test, "Properties"),
        action=None if action is None else type_of(action) or "",
        action_sql=None if action is None else text_of(action, "SqlExpression"),
        action_parameters=_read_values(action, "Parameters"),
    )


def write_rule(root: Element, rule: RuleDocument, **times: str) -> None:
    """Add the elements of a rule in the order that clients expect. `times` are elements in responses only."""
    test = branch(root, "Filter", i_type=rule.filter or "")
    if rule.filter == CORRELATION_FILTER:
        for name in CORRELATION_FIELDS:
            if name in rule.correlation:
                leaf(test, name, rule.correlation[name])
        _write_values(test, "Properties", rule.properties)
    else:
        _write_sql(test, CONSTANT_FILTERS.get(rule.filter or "", rule.sql or ""), rule.parameters)
    if rule.action_sql is None:
        branch(root, "Action", i_type=EMPTY_ACTION)
    else:
        _write_sql(branch(root, "Action", i_type=SQL_ACTION), rule.action_sql, rule.action_parameters)
    for name, time in times.items():
        leaf(root, name, time)
    leaf(root, "Name", rule.name or "")


def _write_sql(element: Element, expression: str, parameters: Pairs) -> None:
    leaf(element, "SqlExpression", expression)
    leaf(element, "CompatibilityLevel", "20")
    _write_values(element, "Parameters", parameters)


# --- typed values


def _read_values(element: Element | None, name: str) -> Pairs:
    holder = None if element is None else child(element, name)
    return [] if holder is None else [_read_pair(pair) for pair in children(holder, "KeyValueOfstringanyType")]


def _read_pair(pair: Element) -> tuple[str | None, Typed | None]:
    value = child(pair, "Value")
    return text_of(pair, "Key"), None if value is None else Typed(type_of(value) or "string", value.text or "")


def _write_values(element: Element, name: str, values: Iterable[tuple[str | None, Typed | None]]) -> None:
    pairs = [(key, value) for key, value in values if key is not None and value is not None]
    if not pairs:
        return
    holder = branch(element, name)
    for key, (kind, text, namespace) in pairs:
        pair = branch(holder, "KeyValueOfstringanyType")
        leaf(pair, "Key", key)
        # Some clients remove the prefix of the type by its length, so it must have exactly four characters.
        leaf(pair, "Value", text, i_type=f"d6p1:{kind}", xmlns_d6p1=namespace)


def format_value(value: PropertyValue) -> Typed:
    match value:
        case bool():
            return Typed("boolean", "true" if value else "false")
        case int():
            return Typed("int" if value in _INT32 else "long", str(value))
        case float():
            return Typed("double", {"inf": "INF", "-inf": "-INF", "nan": "NaN"}.get(repr(value), repr(value)))
        case datetime() if value.tzinfo is None:
            return Typed("dateTime", value.isoformat())  # for the Python SDK, a time zone makes it a different value
        case datetime():
            return Typed("dateTime", value.astimezone(UTC).isoformat().replace("+00:00", "Z"))
        case timedelta():
            return Typed("duration", format_time(value))
        case UUID():
            return Typed("guid", str(value))
        case str():
            return Typed("string", value)


def _parse_boolean(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]


def _parse_integer(text: str) -> int:
    number = int(text)
    if number not in _INT64:
        raise ValueError(text)
    return number


VALUE_READERS: Final[Mapping[str, Callable[[str], PropertyValue]]] = {
    "string": str,
    "guid": UUID,
    "anyURI": str,
    "char": str,
    "boolean": _parse_boolean,
    **dict.fromkeys(
        ("byte", "unsignedByte", "short", "unsignedShort", "int", "unsignedInt", "long", "unsignedLong"), _parse_integer
    ),
    **dict.fromkeys(("float", "double", "decimal"), float),
    "dateTime": lambda text: datetime.fromisoformat(text.strip()),
    "duration": lambda text: parse_time(text.strip()),
}
"""Functions that parse a value, by type. They raise ValueError, KeyError or OverflowError for an invalid text."""
