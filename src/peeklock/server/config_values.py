"""Values in filters, as the configuration file has them.

Text, numbers, true and false are JSON values. A value of another type is an object whose only key is the name of the
type: `{"DateTime": "2026-01-31T12:00:00Z"}`, `{"Duration": "PT1M"}`, `{"Guid": "..."}`,
`{"Double": "NaN"}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from peeklock.broker.rules.conversion import in_utc
from peeklock.entities.durations import format_time, parse_time
from peeklock.entities.rules import PropertyValue
from peeklock.server.jsonc import Node


def parse_value(node: Node) -> PropertyValue:
    """Read a value. ValueError names the allowed values."""
    value = node.value
    if isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, dict) and len(value) == 1 and set(value) <= set(TYPES):
        ((name, member),) = value.items()
        known = TYPES[name]
        try:
            if isinstance(member.value, str):
                return known.parse(member.value)
        except (ValueError, OverflowError):
            pass
        raise ValueError(f"must be {known.rule}")
    shown = ", ".join(f'{{"{name}": ...}}' for name in TYPES)
    raise ValueError(f"must be text, a number, true, false or one of {shown}")


def format_value(value: PropertyValue) -> Any:
    """Return the JSON value that `parse_value` reads as the same value."""
    if isinstance(value, datetime):
        return {"DateTime": in_utc(value).isoformat().replace("+00:00", "Z")}
    if isinstance(value, timedelta):
        return {"Duration": format_time(value)}
    if isinstance(value, UUID):
        return {"Guid": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"Double": str(value)}
    return value


def format_values(values: Mapping[str, PropertyValue]) -> dict[str, Any]:
    return {name: format_value(value) for name, value in values.items()}


class _Type(NamedTuple):
    parse: Callable[[str], PropertyValue]
    rule: str


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment


TYPES = {
    "DateTime": _Type(_moment, "a moment with its time zone, such as 2026-01-31T12:00:00Z"),
    "Duration": _Type(parse_time, "an ISO 8601 duration such as PT30S or -PT5M"),
    "Guid": _Type(UUID, "a guid such as 6f9619ff-8b86-d011-b42d-00c04fc964ff"),
    "Double": _Type(float, 'a number in text, such as "NaN" or "-inf"'),
}
"""Types by key; their values are text."""
