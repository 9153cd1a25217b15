"""Parsing and formatting of ISO 8601 durations.

Settings have whole milliseconds; values in rules have microseconds. None represents .NET's `TimeSpan.MaxValue`, which
the service and its SDKs use for "no limit"; the declaration of a setting determines whether it allows that.
"""

from __future__ import annotations

import re
from datetime import timedelta

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

MAX_DURATION_TEXT = "P10675199DT2H48M5.4775807S"
MAX_DURATION_MS = 922_337_203_685_477
"""The same in whole milliseconds. Java writes the value with three decimals, so durations from here on mean "max"."""

_LONGEST_TEXT = 64
_DURATION = re.compile(
    r"P(?=[0-9T])"
    r"(?:([0-9]+)Y)?(?:([0-9]+)M)?(?:([0-9]+)W)?(?:([0-9]+)D)?"
    r"(?:T(?=[0-9])(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)(?:\.([0-9]+))?S)?)?"
)
# Years and months have no fixed length; .NET's XmlConvert reads them as 365 and 30 days.
_UNITS_MS = (365 * DAY, 30 * DAY, 7 * DAY, DAY, HOUR, MINUTE, SECOND)


def parse_duration(text: str) -> int | None:
    """Parse to milliseconds, cutting off finer digits; None for the .NET maximum and longer durations.

    Raise ValueError if the text is not a duration.
    """
    match = _DURATION.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if match is None:
        shown = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."
        raise ValueError(f"{shown!r} is not an ISO 8601 duration such as PT30S, PT5M or P1DT12H")
    *counts, fraction = match.groups()
    total = sum(int(count) * unit for count, unit in zip(counts, _UNITS_MS, strict=True) if count)
    if fraction:
        total += int(fraction[:3].ljust(3, "0"))
    return total if total < MAX_DURATION_MS else None


def format_duration(ms: int | None) -> str:
    """Return the shortest text in days, hours, minutes and seconds that parses to the same duration."""
    if ms is None or ms >= MAX_DURATION_MS:
        return MAX_DURATION_TEXT
    if ms < 0:
        raise ValueError(f"The duration {ms} ms must not be negative")
    return _format(ms * 1000)


def parse_time(text: str) -> timedelta:
    """Parse a value of a rule, which has microseconds and may be negative.

    Raise ValueError if the text is not a duration.
    """
    ms = parse_duration(text.removeprefix("-"))
    finer = text.partition(".")[2].removesuffix("S")[3:6].ljust(3, "0")
    time = timedelta(milliseconds=MAX_DURATION_MS if ms is None else ms, microseconds=int(finer))
    return -time if text.startswith("-") else time


def format_time(time: timedelta) -> str:
    """Format a value of a rule; `parse_time` parses the result to the same duration."""
    return ("-" if time < timedelta() else "") + _format(abs(time) // timedelta(microseconds=1))


def _format(microseconds: int) -> str:
    days, rest = divmod(microseconds, DAY * 1000)
    hours, rest = divmod(rest, HOUR * 1000)
    minutes, rest = divmod(rest, MINUTE * 1000)
    seconds, rest = divmod(rest, SECOND * 1000)
    date = f"{days}D" if days else ""
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if rest:
        time += f"{seconds}." + f"{rest:06}".rstrip("0") + "S"
    elif seconds or not (date or time):
        time += f"{seconds}S"
    return f"P{date}T{time}" if time else f"P{date}"
