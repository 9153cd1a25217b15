"""Conversion of message properties from headers and JSON to AMQP values, and back.

The value of a header is a quoted string, a number, `true` or `false`. A string in the format of an HTTP date is a
timestamp.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from math import inf, isfinite
from typing import Any, Final
from uuid import UUID

from peeklock.amqp.service_bus import END_OF_TIME, START_OF_TIME
from peeklock.amqp.types import Char, Int, Symbol, Timestamp
from peeklock.broker.errors import InvalidProperty

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_HTTP_DATE: Final = re.compile(
    rf"(?:{'|'.join(_DAYS)}), (\d\d) ({'|'.join(_MONTHS)}) (\d{{4}}) (\d\d):(\d\d):(\d\d) GMT", re.ASCII
)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER: Final = re.compile(r"[+-]?(?:(?=[0-9]*[.eE])[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?")
_TIME_SPAN: Final = re.compile(r"(?:([0-9]{1,8})\.)?([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,7}))?)?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)
_MAX_SHOWN: Final = 100


class NotAProperty(Exception):
    """The value of a header is not in the format of a property."""


# --- reading ---


def read_header(name: str, text: str) -> Any:
    """Convert the value of a header to that of a property.

    Raise NotAProperty if it has another format: an unquoted text may be from a proxy.
    """
    if len(text) > 1 and text[0] == text[-1] == '"':
        inner = _read_quoted(text)
        moment = parse_http_date(inner)
        return inner if moment is None else moment
    word = text.lower()
    if word in ("true", "false"):
        return word == "true"
    if _INTEGER.fullmatch(text):
        return _whole(name, int(text))
    if _NUMBER.fullmatch(text):
        return float(text)
    raise NotAProperty


def read_json(name: str, value: Any) -> Any:
    """Convert a JSON value to that of a property. Raise InvalidProperty."""
    if isinstance(value, bool) or value is None or isinstance(value, str | float):
        return value
    if isinstance(value, int):
        return _whole(name, value)
    raise InvalidProperty(f"The property '{name[:_MAX_SHOWN]}' must be a string, a number, true, false or null.")


def _whole(name: str, number: int) -> int:
    if number in _INT32:
        return Int(number)
    if number in _INT64:
        return number
    raise InvalidProperty(f"The property '{name[:_MAX_SHOWN]}' must fit into 64 bits.")


def _read_quoted(text: str) -> str:
    """Decode a quoted string as JSON, or, if it is not valid JSON, as old clients write it: they escape only quotes."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text[1:-1].replace('\\"', '"')
    return str(found)


def parse_http_date(text: str) -> Timestamp | None:
    """Parse a date such as `Sun, 06 Nov 1994 08:49:37 GMT`; None if the text has another format."""
    found = _HTTP_DATE.fullmatch(text)
    if found is None:
        return None
    day, month, year, hour, minute, second = found.groups()
    try:
        moment = datetime(
            int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second), tzinfo=UTC
        )
    except ValueError:
        return None
    return Timestamp((moment - _EPOCH) // _MILLISECOND)


def parse_moment(name: str, value: Any) -> Timestamp:
    """Parse an HTTP date or an ISO 8601 date and time. Raise InvalidProperty.

    A time without a time zone is in UTC.
    """
    if isinstance(value, str):
        found = parse_http_date(value.strip())
        if found is not None:
            return found
        try:
            moment = datetime.fromisoformat(value.strip())
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
            return Timestamp((moment - _EPOCH) // _MILLISECOND)
        except (ValueError, OverflowError):
            pass
    raise InvalidProperty(f"{name} must be a date and time such as 'Sun, 06 Nov 1994 08:49:37 GMT'.")


def parse_seconds(name: str, value: Any) -> int:
    """Convert seconds, a number or a string, to milliseconds. Raise InvalidProperty unless it is more than 0."""
    if isinstance(value, str) and (_INTEGER.fullmatch(value.strip()) or _NUMBER.fullmatch(value.strip())):
        value = float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf:
        return max(1, int(min(value, END_OF_TIME / 1000) * 1000))
    raise InvalidProperty(f"{name} must be a number of seconds above 0.")


def parse_time_span(name: str, value: Any) -> int:
    """Convert a .NET TimeSpan, `days.hours:minutes:seconds`, to milliseconds.

    Raise InvalidProperty unless it is more than 0.
    """
    found = _TIME_SPAN.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is not None:
        days, hours, minutes, seconds, fraction = (part or "0" for part in found.groups())
        total = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60_000 + int(seconds) * 1000
        total += int(fraction[:3].ljust(3, "0"))
        if total > 0:
            return min(total, END_OF_TIME)
    raise InvalidProperty(f"{name} must be a duration above 0 such as '0.00:00:40'.")


# --- writing ---


def format_http_date(ms: int) -> str:
    """Format Unix milliseconds as an HTTP date, to the second. Times outside the years 1 to 9999 are clamped."""
    moment = _EPOCH + timedelta(milliseconds=max(START_OF_TIME, min(ms, END_OF_TIME)))
    weekday, month = _DAYS[moment.weekday()], _MONTHS[moment.month - 1]
    return f"{weekday}, {moment.day:02} {month} {moment.year:04} {moment:%H:%M:%S} GMT"


def format_header(value: Any) -> str | None:
    """Format the value of a property for a header, in ASCII; None if its type cannot be in a header."""
    match value:
        case bool():
            return "true" if value else "false"
        case Timestamp():
            return f'"{format_http_date(value)}"'
        case int():
            return str(int(value))
        case float():
            return repr(float(value)) if isfinite(value) else None
        case str() | Char() | Symbol():
            return json.dumps(str(value))
        case UUID():
            return f'"{value}"'
    return None
