"""Parse values of the command line: properties with types, durations, points in time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn
from uuid import UUID

from peeklock.amqp.types import Int, Timestamp
from peeklock.cli.failing import fail
from peeklock.client.descriptions import Duration
from peeklock.entities.durations import DAY, HOUR, MAX_DURATION_MS, MINUTE, SECOND, format_duration, parse_duration

_SHORT = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
_SHORT_UNITS = (DAY, HOUR, MINUTE, SECOND, 1)
NO_LIMIT = "max"


def milliseconds(text: str, option: str) -> int | None:
    """Parse a duration: `PT1M30S`, `90s`, `1m30s`, `500ms`. None for `max`, which is no limit."""
    if text.lower() == NO_LIMIT:
        return None
    match = _SHORT.fullmatch(text)
    if match is not None and text:
        total = sum(int(count) * unit for count, unit in zip(match.groups(), _SHORT_UNITS, strict=True) if count)
        return total if total < MAX_DURATION_MS else None
    try:
        return parse_duration(text.upper())
    except ValueError:
        _refuse(option, text, "a duration: PT1M30S, 90s, 2h, 14d, 500ms, or max for no limit")


def duration(text: str, option: str) -> str:
    """Parse a duration and format it in ISO 8601, as settings have it."""
    return format_duration(milliseconds(text, option))


def moment(text: str, option: str, now_ms: int) -> int:
    """Parse `2030-01-31T12:00:00Z` (local time without a zone), or `+5m` from now, as Unix milliseconds."""
    if text.startswith("+"):
        later = milliseconds(text[1:], option)
        return now_ms + (later if later is not None else MAX_DURATION_MS)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        _refuse(option, text, "a time: 2030-01-31T12:00:00Z, or +5m from now")


def pairs(given: Iterable[str], option: str) -> dict[str, str]:
    """Parse texts of the form `name=value`, each name once."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            _refuse(option, text, "name=value")
        if name in found:
            fail(f"{option} has '{name}' twice")
        found[name] = value
    return found


def typed_pairs(given: Iterable[str], option: str, types: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Parse texts of the form `name=text` or `name:type=value`."""
    found: dict[str, Any] = {}
    for name, text in pairs(given, option).items():
        plain, colon, kind = name.rpartition(":")
        if not colon:
            plain, kind = name, "string"
        if kind not in types:
            fail(f"{option}: '{kind}' is not a type; use one of {', '.join(types)}")
        if not plain:
            fail(f"{option}: '{name}' has no name before the type")
        if plain in found:
            fail(f"{option} has '{plain}' twice, the second time as '{name}'")
        try:
            found[plain] = types[kind](text)
        except (ValueError, OverflowError):
            fail(f"{option}: '{text}' is not of type {kind}")
    return found


def _flag(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _integer(bits: int, kind: type[int]) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise ValueError(text)
        return kind(number)

    return read


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _span(text: str) -> Duration:
    parse_duration(text)
    return Duration(text)


_COMMON: dict[str, Callable[[str], Any]] = {
    "string": str,
    "int": _integer(32, Int),
    "long": _integer(64, int),
    "double": float,
    "bool": _flag,
}
MESSAGE_TYPES: Mapping[str, Callable[[str], Any]] = {
    **_COMMON,
    "datetime": lambda text: Timestamp(int(_moment(text).timestamp() * 1000)),
    "guid": UUID,
}
RULE_TYPES: Mapping[str, Callable[[str], Any]] = {**_COMMON, "datetime": _moment, "duration": _span, "guid": UUID}


def _refuse(option: str, text: str, expected: str) -> NoReturn:
    fail(f"{option}: '{text}' is not {expected}")
