"""Rules of subscriptions: a filter, and an action on the messages that match it. Checked on construction.

SQL is text here; `broker.rules.sql` parses it, and `broker.rules.matching` applies rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self, get_args
from uuid import UUID

from peeklock.entities.names import DefinitionError, check_rule_name
from peeklock.entities.settings import known_fields
from peeklock.limits.broker import MAX_TEXT

DEFAULT_RULE_NAME = "$Default"

PropertyValue = str | int | float | bool | datetime | timedelta | UUID
"""A value that a filter compares or an action sets. A datetime without a time zone is in UTC, and formatted without
one."""


class FilterKind(StrEnum):
    """The kinds of filters, by their names in the configuration file."""

    SQL = "Sql"
    CORRELATION = "Correlation"
    TRUE = "True"
    FALSE = "False"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """The values that a correlation filter compares. Properties that are None are not compared."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, PropertyValue] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        tested = bool(self.properties)
        for name in CORRELATION_FIELDS.values():
            value = getattr(self, name)
            tested = tested or value is not None
            if value is not None and not isinstance(value, str):
                raise DefinitionError(name, value, "must be text")
        _check_values("Properties", self.properties)
        if not tested:
            raise DefinitionError("CorrelationFilter", "{}", "must test at least one property")


def _check_values(setting: str, values: Mapping[str, PropertyValue]) -> None:
    for key, value in values.items():
        if not isinstance(key, str) or not isinstance(value, _VALUES):
            rule = "must be text, a number, true, false, a date and time, a duration or a GUID"
            raise DefinitionError(f"{setting}.{key}", value, rule)
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise DefinitionError(f"{setting}.{key}", value, "must fit into 64 bits")


_VALUES = get_args(PropertyValue)


def _values_to_json(values: Mapping[str, PropertyValue]) -> dict[str, Any]:
    """Convert the values to JSON; values of other types become an object with the type as the key."""
    shown: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, datetime):
            shown[key] = {"moment": value.isoformat()}
        elif isinstance(value, timedelta):
            shown[key] = {"microseconds": value // timedelta(microseconds=1)}
        elif isinstance(value, UUID):
            shown[key] = {"guid": str(value)}
        else:
            shown[key] = value
    return shown


def _values_from_json(data: Mapping[str, Any]) -> dict[str, PropertyValue]:
    values: dict[str, PropertyValue] = {}
    for key, value in data.items():
        if isinstance(value, dict) and "moment" in value:
            values[key] = datetime.fromisoformat(value["moment"])
        elif isinstance(value, dict) and "guid" in value:
            values[key] = UUID(value["guid"])
        elif isinstance(value, dict):
            values[key] = timedelta(microseconds=value["microseconds"])
        else:
            values[key] = value
    return values


CORRELATION_FIELDS = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}
"""The fields of a correlation filter, by their names in the configuration file and the ATOM API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDefinition:
    """A filter, and an action on the messages that match it. The SQL is not parsed here."""

    name: str = DEFAULT_RULE_NAME
    filter_kind: FilterKind = FilterKind.TRUE
    sql_expression: str | None = None
    correlation: CorrelationFilter | None = None
    action: str | None = None
    parameters: Mapping[str, PropertyValue] = field(default_factory=dict, hash=False)
    """Values for the `@names` in the filter's SQL, without the `@`."""
    action_parameters: Mapping[str, PropertyValue] = field(default_factory=dict, hash=False)
    created_at: int | None = field(default=None, compare=False)
    """Unix milliseconds; None until the rule is added to a live subscription."""

    def __post_init__(self) -> None:
        check_rule_name(self.name)
        if self.filter_kind not in list(FilterKind):
            raise DefinitionError("FilterType", self.filter_kind, f"must be one of {', '.join(FilterKind)}")
        object.__setattr__(self, "filter_kind", FilterKind(self.filter_kind))
        if (self.sql_expression is None) == (self.filter_kind is FilterKind.SQL):
            rule = "must be given when FilterType is Sql, and only then"
            raise DefinitionError("SqlFilter", self.sql_expression or "(none)", rule)
        if (self.correlation is None) == (self.filter_kind is FilterKind.CORRELATION):
            rule = "must be given when FilterType is Correlation, and only then"
            raise DefinitionError("CorrelationFilter", "(given)" if self.correlation else "(none)", rule)
        for setting, text in (("SqlFilter", self.sql_expression), ("Action", self.action)):
            if text is not None and not (isinstance(text, str) and 1 <= len(text) <= MAX_TEXT):
                raise DefinitionError(setting, text, f"must be 1 to {MAX_TEXT} characters long")
        _check_values("Parameters", self.parameters)
        _check_values("Parameters", self.action_parameters)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        data["filter_kind"] = self.filter_kind.value
        if self.correlation is not None:
            tested = {name: getattr(self.correlation, name) for name in CORRELATION_FIELDS.values()}
            data["correlation"] = tested | {"properties": _values_to_json(self.correlation.properties)}
        for name in ("parameters", "action_parameters"):
            data[name] = _values_to_json(data[name])
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        known = known_fields(cls, data)
        if known.get("correlation") is not None:
            tested = known_fields(CorrelationFilter, known["correlation"])
            tested["properties"] = _values_from_json(tested.get("properties", {}))
            known["correlation"] = CorrelationFilter(**tested)
        for name in ("parameters", "action_parameters"):
            known[name] = _values_from_json(known.get(name, {}))
        return cls(**known)
