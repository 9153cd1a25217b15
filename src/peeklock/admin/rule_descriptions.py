"""Rules as XML: filters, actions, and the typed values in them.

The SQL stays text here; whether it can be parsed is for the broker to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID
from xml.etree.ElementTree import Element

from peeklock.admin.markup import SCHEMA, branch, child, children, leaf, text_of, type_of
from peeklock.admin.moments import format_moment
from peeklock.entities.durations import format_time, parse_time
from peeklock.entities.names import DefinitionError
from peeklock.entities.rules import (
    CORRELATION_FIELDS,
    DEFAULT_RULE_NAME,
    CorrelationFilter,
    FilterKind,
    PropertyValue,
    RuleDefinition,
)

COMPATIBILITY: Final = leaf("CompatibilityLevel", "20")
CONSTANT_FILTERS: Final = {FilterKind.TRUE: "1=1", FilterKind.FALSE: "1=0"}
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)


def read_rule(description: Element, name: str | None = None) -> RuleDefinition:
    """A rule from its description; the name is the one given, else the description's own.

    DefinitionError says what is wrong with it.
    """
    found = child(description, "Filter")
    kind = FilterKind.TRUE if found is None else _filter_kind(found)
    sql, correlation, parameters = None, None, {}
    if found is not None and kind is FilterKind.SQL:
        sql = text_of(found, "SqlExpression") or ""
        parameters = _read_parameters(found)
    elif found is not None and kind is FilterKind.CORRELATION:
        correlation = _read_correlation(found)
    action = child(description, "Action")
    action_sql = None if action is None or _is_empty(action) else text_of(action, "SqlExpression") or ""
    return RuleDefinition(
        name=name or text_of(description, "Name") or DEFAULT_RULE_NAME,
        filter_kind=kind,
        sql_expression=sql,
        correlation=correlation,
        action=action_sql,
        parameters=parameters,
        action_parameters={} if action is None or action_sql is None else _read_parameters(action),
    )


def write_rule(rule: RuleDefinition) -> list[str]:
    """The elements of a description, in the order that readers expect."""
    if rule.action is None:
        action = branch("Action", (), ' i:type="EmptyRuleAction"')
    else:
        action = branch("Action", _sql(rule.action, rule.action_parameters), ' i:type="SqlRuleAction"')
    return [_write_filter(rule), action, leaf("CreatedAt", format_moment(rule.created_at)), leaf("Name", rule.name)]


def _write_filter(rule: RuleDefinition) -> str:
    if rule.correlation is not None:
        tested = [(element, getattr(rule.correlation, field)) for element, field in CORRELATION_FIELDS.items()]
        parts = [leaf(element, value) for element, value in tested if value is not None]
        if rule.correlation.properties:
            parts.append(branch("Properties", _write_values(rule.correlation.properties)))
        return branch("Filter", parts, ' i:type="CorrelationFilter"')
    if rule.sql_expression is not None:
        return branch("Filter", _sql(rule.sql_expression, rule.parameters), ' i:type="SqlFilter"')
    return branch("Filter", _sql(CONSTANT_FILTERS[rule.filter_kind], {}), f' i:type="{rule.filter_kind}Filter"')


def _sql(expression: str, parameters: Mapping[str, PropertyValue]) -> list[str]:
    parts = [leaf("SqlExpression", expression), COMPATIBILITY]
    if parameters:
        parts.append(branch("Parameters", _write_values({f"@{name}": value for name, value in parameters.items()})))
    return parts


def _filter_kind(element: Element) -> FilterKind:
    said = type_of(element)
    kind = {f"{kind}Filter": kind for kind in FilterKind}.get(said or "")
    if kind is None:
        allowed = ", ".join(f"{kind}Filter" for kind in FilterKind)
        raise DefinitionError("Filter", said or "(no type)", f"must have a type, one of {allowed}")
    return kind


def _is_empty(action: Element) -> bool:
    said = type_of(action)
    if said not in (None, "EmptyRuleAction", "SqlRuleAction"):
        raise DefinitionError("Action", said, "must be of the type EmptyRuleAction or SqlRuleAction")
    return said != "SqlRuleAction"


def _read_correlation(element: Element) -> CorrelationFilter:
    tested = {field: text_of(element, name) for name, field in CORRELATION_FIELDS.items()}
    return CorrelationFilter(**tested, properties=_read_values("Properties", child(element, "Properties")))


def _read_parameters(element: Element) -> dict[str, PropertyValue]:
    found = _read_values("Parameters", child(element, "Parameters"))
    return {name.removeprefix("@"): value for name, value in found.items()}


# --- typed values ---


def _read_values(setting: str, element: Element | None) -> dict[str, PropertyValue]:
    values: dict[str, PropertyValue] = {}
    for pair in () if element is None else children(element, "KeyValueOfstringanyType"):
        key, value = text_of(pair, "Key"), child(pair, "Value")
        if not key or value is None:
            raise DefinitionError(setting, key or "(no key)", "must have a key and a value each")
        if key in values:
            raise DefinitionError(setting, key, "must not have the same key twice")
        values[key] = _read_value(f"{setting}.{key}", value)
    return values


def _read_value(setting: str, element: Element) -> PropertyValue:
    kind, text = type_of(element) or "string", element.text or ""
    read = _READERS.get(kind)
    if read is None:
        raise DefinitionError(setting, kind, f"must be of one of the types {', '.join(sorted(_READERS))}")
    try:
        return read(text)
    except (ValueError, KeyError, OverflowError):
        raise DefinitionError(setting, text, f"must be a value of the type {kind}") from None


def _write_values(values: Mapping[str, PropertyValue]) -> list[str]:
    pairs = []
    for key, value in values.items():
        kind, text = _typed(value)
        # Some clients cut a prefix of exactly four letters off the type.
        attributes = f' i:type="d6p1:{kind}" xmlns:d6p1="{SCHEMA}"'
        pairs.append(branch("KeyValueOfstringanyType", (leaf("Key", key), leaf("Value", text, attributes))))
    return pairs


def _typed(value: PropertyValue) -> tuple[str, str]:
    match value:
        case bool():
            return "boolean", "true" if value else "false"
        case int():
            return "int" if value in _INT32 else "long", str(value)
        case float():
            return "double", {"inf": "INF", "-inf": "-INF", "nan": "NaN"}.get(repr(value), repr(value))
        case datetime() if value.tzinfo is None:
            return "dateTime", value.isoformat()  # as it came: the Python SDK takes a zone for another value
        case datetime():
            return "dateTime", value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case timedelta():
            return "duration", format_time(value)
        case UUID():
            return "guid", str(value)
        case str():
            return "string", value


def _parse_boolean(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]


def _parse_integer(text: str) -> int:
    number = int(text)
    if number not in _INT64:
        raise ValueError(text)
    return number


_READERS: Final[dict[str, Callable[[str], PropertyValue]]] = {
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
