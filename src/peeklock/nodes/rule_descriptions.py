"""Decodes rules, which clients send as maps or described lists, and encodes them as described lists.

This module knows the keys, the descriptors and the types of values. The broker parses the SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from peeklock.amqp.types import Described, Int, Timestamp, ULong
from peeklock.broker.errors import InvalidProperty
from peeklock.broker.rules.conversion import FOREVER, plain, typed
from peeklock.entities.rules import CorrelationFilter, FilterKind, PropertyValue, RuleDefinition
from peeklock.nodes.fields import Field, Kind, check_keys

COMPATIBILITY: Final = Int(20)
"""The version of the SQL language."""
CONSTANT_FILTERS: Final = {"1=1": FilterKind.TRUE, "1=0": FilterKind.FALSE}
"""Expressions that clients send for the true and the false filter."""

_OR_DESCRIBED: Final = "or the described list"
_EXPRESSION: Final = (Field("expression", Kind.STRING),)
_CORRELATION: Final = (
    Field("correlation-id", Kind.STRING, required=False),
    Field("message-id", Kind.STRING, required=False),
    Field("to", Kind.STRING, required=False),
    Field("reply-to", Kind.STRING, required=False),
    Field("label", Kind.STRING, required=False),
    Field("session-id", Kind.STRING, required=False),
    Field("reply-to-session-id", Kind.STRING, required=False),
    Field("content-type", Kind.STRING, required=False),
    Field("properties", Kind.MAP, required=False, note="application properties and the values that they must have"),
)
"""The keys of the map, in the order of the list."""
_SQL_FILTER: Final = Field(
    "sql-filter",
    Kind.MAP,
    required=False,
    note=f"{_OR_DESCRIBED} of any filter; this or a correlation-filter, not both",
    keys=_EXPRESSION,
    or_described=True,
)
_CORRELATION_FILTER: Final = Field(
    "correlation-filter",
    Kind.MAP,
    required=False,
    note=f"{_OR_DESCRIBED}; at least one of its keys",
    keys=_CORRELATION,
    or_described=True,
)
_ACTION: Final = Field(
    "sql-rule-action",
    Kind.MAP,
    required=False,
    note=f"{_OR_DESCRIBED} of an action; an empty map is no action",
    keys=_EXPRESSION,
    or_described=True,
)

DESCRIPTION: Final = Field(
    "rule-description",
    Kind.MAP,
    note=_OR_DESCRIBED,
    keys=(
        _SQL_FILTER,
        _CORRELATION_FILTER,
        _ACTION,
        Field("rule-name", Kind.STRING, required=False, note="accepted, no effect"),
    ),
    or_described=True,
)


@dataclass(frozen=True, slots=True)
class Form:
    """A described list."""

    symbol: str
    code: int
    items: str
    """The items of the list, for the documentation."""

    def __call__(self, *values: Any) -> Described:
        """Make the list with its numeric descriptor, because some clients do not know the symbolic one."""
        return Described(ULong(self.code), list(values))

    def is_named(self, descriptor: Any) -> bool:
        """Return whether a descriptor is the symbolic one or a numeric one of the form.

        The codes of filters have one zero less than the codes of rules and actions, and some clients send the wrong
        number of zeros. Both are accepted, because the position distinguishes filters from actions.
        """
        last = self.code & 0xF
        return descriptor in (self.symbol, 0x137_000_0000 | last, 0x137_0000_0000 | last)


RULE: Final = Form(
    "com.microsoft:rule-description:list", 0x137_0000_0004, "filter, action, name (string), created at (timestamp)"
)
FILTERS: Final = {
    FilterKind.SQL: Form(
        "com.microsoft:sql-filter:list", 0x137_000_0006, "expression (string), version of the language (int 20)"
    ),
    FilterKind.TRUE: Form("com.microsoft:true-filter:list", 0x137_000_0007, "nothing: all messages match"),
    FilterKind.FALSE: Form("com.microsoft:false-filter:list", 0x137_000_0008, "nothing: no message matches"),
    FilterKind.CORRELATION: Form(
        "com.microsoft:correlation-filter:list", 0x137_000_0009, ", ".join(field.name for field in _CORRELATION)
    ),
}
NO_ACTION: Final = Form("com.microsoft:empty-rule-action:list", 0x137_0000_0005, "nothing: no action")
SQL_ACTION: Final = Form(
    "com.microsoft:sql-rule-action:list", 0x137_0000_0006, "expression (string), version of the language (int 20)"
)
FORMS: Final = (RULE, *FILTERS.values(), NO_ACTION, SQL_ACTION)


# --- from the wire ---


def read_rule(name: str, description: dict[Any, Any] | Described) -> RuleDefinition:
    """Decode the rule that a client describes. Raise InvalidProperty or DefinitionError if it is invalid."""
    if isinstance(description, Described):
        if not RULE.is_named(description.descriptor):
            raise _wrong(DESCRIPTION, description)
        found, action = (*_items(DESCRIPTION, description), None, None)[:2]
        if not isinstance(found, Described):
            raise InvalidProperty(f"The first item of '{DESCRIPTION.name}' must be the described list of a filter.")
        where = DESCRIPTION
    else:
        given = check_keys(DESCRIPTION.keys, description)
        filters = [field for field in (_SQL_FILTER, _CORRELATION_FILTER) if given[field.name] is not None]
        if len(filters) != 1:
            raise InvalidProperty(
                f"'{DESCRIPTION.name}' must have either '{_SQL_FILTER.name}' or '{_CORRELATION_FILTER.name}'."
            )
        where, action = filters[0], given[_ACTION.name]
        found = given[where.name]
    return RuleDefinition(name=name, action=_read_action(action), **_read_filter(where, found))


def _read_filter(where: Field, found: dict[Any, Any] | Described) -> dict[str, Any]:
    """Return the arguments of RuleDefinition for the filter."""
    if isinstance(found, Described):
        kind = next((kind for kind, form in FILTERS.items() if form.is_named(found.descriptor)), None)
    else:
        kind = FilterKind.SQL if where is _SQL_FILTER else FilterKind.CORRELATION
    match kind:
        case None:
            raise _wrong(where, found)
        case FilterKind.SQL:
            expression = _keys(where, _EXPRESSION, found)["expression"]
            constant = CONSTANT_FILTERS.get(expression)
            return {"filter_kind": constant} if constant else {"filter_kind": kind, "sql_expression": expression}
        case FilterKind.CORRELATION:
            tested = _keys(where, _CORRELATION, found)
            properties = _read_values(tested.pop("properties") or {})
            named = {name.replace("-", "_"): value for name, value in tested.items()}
            return {"filter_kind": kind, "correlation": CorrelationFilter(**named, properties=properties)}
        case _:
            return {"filter_kind": kind}


def _read_action(found: Any) -> str | None:
    if found is None:
        return None
    if isinstance(found, Described):
        if NO_ACTION.is_named(found.descriptor):
            return None
        if not SQL_ACTION.is_named(found.descriptor):
            raise _wrong(_ACTION, found)
    elif not found:
        return None
    expression: str = _keys(_ACTION, _EXPRESSION, _ACTION.check(found))["expression"]
    return expression


def _keys(where: Field, keys: tuple[Field, ...], found: dict[Any, Any] | Described) -> dict[str, Any]:
    """Return the values of a map, or of a list that has them in the order of the keys. The list may be shorter."""
    if isinstance(found, Described):
        found = dict(zip((key.name for key in keys), _items(where, found), strict=False))
    return check_keys(keys, found)


def _items(where: Field, found: Described) -> list[Any]:
    if not isinstance(found.value, list):
        raise InvalidProperty(f"The described value in '{where.name}' must be a list.")
    return found.value


def _wrong(where: Field, found: Any) -> InvalidProperty:
    return InvalidProperty(f"'{where.name}' has an unknown descriptor: {found.descriptor!r}.")


def _read_values(properties: dict[Any, Any]) -> dict[Any, Any]:
    """Convert values to the types of rules. A value of another type is left unchanged, and is refused later."""
    found: dict[Any, Any] = {}
    for key, value in properties.items():
        simple = plain(value)
        found[str(key) if isinstance(key, str) else key] = value if simple is None else simple
    return found


# --- to the wire ---


def write_rule(rule: RuleDefinition, created_at: int) -> Described:
    """Make the description of a rule for a listing."""
    action = NO_ACTION() if rule.action is None else SQL_ACTION(rule.action, COMPATIBILITY)
    return RULE(_write_filter(rule), action, rule.name, Timestamp(created_at))


def _write_filter(rule: RuleDefinition) -> Described:
    form = FILTERS[rule.filter_kind]
    if rule.correlation is not None:
        tested = [getattr(rule.correlation, field.name.replace("-", "_")) for field in _CORRELATION[:-1]]
        # The map is never null, because clients fail on a null.
        return form(*tested, _write_values(rule.correlation.properties))
    return form() if rule.sql_expression is None else form(rule.sql_expression, COMPATIBILITY)


def _write_values(properties: Mapping[str, PropertyValue]) -> dict[str, Any]:
    return {name: _write_value(value) for name, value in properties.items()}


def _write_value(value: PropertyValue) -> Any:
    # The width of an integer is not stored; most clients send an int.
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 31) <= value < 1 << 31:
        return Int(value)
    if isinstance(value, timedelta):
        value = max(-FOREVER, min(value, FOREVER))
    return typed(value)
