"""Readers for the values of options, one for each kind of value; each raises ValueError for text that it refuses.

The rule in words, and the name of the option, are added where the option is declared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from peeklock.client import parse_endpoint
from peeklock.spark.texts import milliseconds

MAX_NUMBER: Final = (1 << 63) - 1


def text(value: str) -> str:
    if not value.strip():
        raise ValueError
    return value.strip()


def entity(value: str) -> str:
    name = text(value).strip("/")
    if not name or "$" in name:
        raise ValueError
    return name


def choice(*choices: str) -> Callable[[str], str]:
    known = {choice.lower(): choice for choice in choices}

    def read(value: str) -> str:
        try:
            return known[value.strip().lower()]
        except KeyError:
            raise ValueError from None

    return read


def integer(least: int, most: int = MAX_NUMBER) -> Callable[[str], int]:
    def read(value: str) -> int:
        number = int(value)
        if not least <= number <= most:
            raise ValueError
        return number

    return read


def flag(value: str) -> bool:
    return choice("true", "false")(value) == "true"


_SIZES: Final = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
_SECONDS: Final = {"ms": 0.001, "s": 1, "second": 1, "seconds": 1, "m": 60, "minute": 60, "minutes": 60, "h": 3600}
_NUMBER_AND_UNIT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def _with_unit(value: str, units: Mapping[str, float]) -> float:
    match = _NUMBER_AND_UNIT.fullmatch(value.strip().lower())
    if match is None or match[2] not in units:
        raise ValueError
    return float(match[1]) * units[match[2]]


def size(value: str) -> int:
    size = int(_with_unit(value, _SIZES))
    if size < 1:
        raise ValueError
    return size


def seconds(least: float) -> Callable[[str], float]:
    def read(value: str) -> float:
        seconds = _with_unit(value, _SECONDS)
        if not least <= seconds <= 24 * 3600:
            raise ValueError
        return seconds

    return read


def moment_ms(value: str) -> int:
    """Unix milliseconds; a time without a zone is in UTC, whatever the zone of the machine."""
    if value.strip().isdigit():
        return int(value)
    return milliseconds(datetime.fromisoformat(value.strip()))


def connection_string(value: str) -> str:
    parse_endpoint(value)
    return value.strip()


def bad_messages(value: str) -> str:
    kind, colon, folder = value.strip().partition(":")
    if colon and kind.lower() == "path" and folder:
        return f"path:{folder}"
    return choice("fail", "drop", "raw")(value)
