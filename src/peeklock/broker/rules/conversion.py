"""Converts AMQP values to values of the rule language, and back.

This module knows the Python classes of the AMQP types and the described types of Service Bus (durations, times with an
offset, URIs). It converts a new value of a property to the type of the old value. `view` has the sections of a message,
`values` the operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import inf, nan
from typing import Any, Final
from uuid import UUID

from peeklock.amqp.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from peeklock.broker.rules.values import Value

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)

TIMESPAN: Final = Symbol("com.microsoft:timespan")
DATETIME_OFFSET: Final = Symbol("com.microsoft:datetime-offset")
URI: Final = Symbol("com.microsoft:uri")

_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_TICKS: Final = 10
"""Ticks in a microsecond."""
_LONG: Final = 1 << 63
FOREVER: Final = timedelta(microseconds=(_LONG - 1) // _TICKS)
"""The longest duration in 64 bits of ticks, which means no limit."""


def plain(value: Any) -> Value:
    """Convert a decoded AMQP value to a value of the language; None for lists, maps and other types that it lacks."""
    reader = _READERS.get(type(value))
    return None if reader is None else reader(value)


def typed(value: Value, old: Any = None) -> Any:
    """Convert a value of the language to an AMQP value: of the type of `old` if possible, else of its own type."""
    if value is None:
        return None
    if isinstance(old, Described):
        converter = _DESCRIBED_WRITERS.get(old.descriptor) if isinstance(old.descriptor, str) else None
    else:
        converter = _WRITERS.get(type(old))
    if converter is not None:
        try:
            return converter(value)
        except ValueError:
            pass  # the value cannot have the old type, so the property gets a new type
    return _of_its_own_type(value)


def identifier(value: Any) -> str:
    """Convert a decoded AMQP value to text, for properties that are text in the language, such as the message id."""
    return value.hex() if isinstance(value, bytes) else str(value)


def moment(milliseconds: int) -> datetime:
    """Convert an AMQP timestamp to a time. Times beyond the range of datetime become its first or last value."""
    return _after(EPOCH, milliseconds * 1000)


def in_utc(value: datetime) -> datetime:
    """Return the time. A time without a time zone gets the time zone UTC."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value


def milliseconds_of(value: datetime) -> int:
    return (in_utc(value) - EPOCH) // MILLISECOND


def span(milliseconds: int) -> timedelta:
    """Convert a time to live to a duration."""
    return min(milliseconds, FOREVER // MILLISECOND) * MILLISECOND


def kind_of(value: Value) -> str:
    """Return the name of the type of a value, for error texts."""
    return _KINDS.get(type(value), type(value).__name__)


_KINDS: Final[dict[type, str]] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "text",
    datetime: "a time",
    timedelta: "a duration",
    UUID: "a guid",
    bytes: "binary",
}


# --- from the wire ---


def _same(value: Any) -> Any:
    return value


def _after(start: datetime, microseconds: int) -> datetime:
    try:
        return start + timedelta(microseconds=microseconds)
    except OverflowError:
        return _LAST if microseconds > 0 else _FIRST


_DESCRIBED_READERS: Final[dict[tuple[object, type], Callable[[Any], Value]]] = {
    (TIMESPAN, int): lambda ticks: timedelta(microseconds=ticks // _TICKS),
    (DATETIME_OFFSET, int): lambda ticks: _after(_FIRST, ticks // _TICKS),
    (URI, str): _same,
}


def _described(value: Described) -> Value:
    if not isinstance(value.descriptor, str):
        return None
    reader = _DESCRIBED_READERS.get((value.descriptor, type(value.value)))
    return None if reader is None else reader(value.value)


def _decimal(exponent_bits: int, digits: int) -> Callable[[bytes], float]:
    """Return a function that converts an IEEE 754-2008 decimal, in the binary encoding, to the nearest double."""

    def read(value: bytes) -> float:
        number = int.from_bytes(value, "big")
        width = 8 * len(value)
        fraction_bits = width - 1 - exponent_bits
        sign = -1.0 if number >> (width - 1) else 1.0
        number &= (1 << (width - 1)) - 1
        leading = number >> (width - 6)
        if leading >= 0b11110:
            return nan if leading & 1 else sign * inf
        if leading >= 0b11000:
            # The first three bits of the coefficient are 100 and not encoded.
            fraction_bits -= 2
            coefficient = 0b100 << fraction_bits | number & ((1 << fraction_bits) - 1)
        else:
            coefficient = number & ((1 << fraction_bits) - 1)
        exponent = (number >> fraction_bits) & ((1 << exponent_bits) - 1)
        if coefficient >= 10**digits:
            coefficient = 0  # the standard defines coefficients that are too large as 0
        bias = 3 * (1 << (exponent_bits - 2)) // 2 + digits - 2
        return sign * float(f"{coefficient}e{exponent - bias}")

    return read


_READERS: Final[dict[type, Callable[[Any], Value]]] = {
    type(None): _same,
    bool: _same,
    int: _same,
    float: _same,
    str: _same,
    bytes: _same,
    UUID: _same,
    **dict.fromkeys((UByte, UShort, UInt, ULong, Byte, Short, Int), int),
    Float: float,
    Decimal32: _decimal(8, 7),
    Decimal64: _decimal(10, 16),
    Decimal128: _decimal(14, 34),
    Symbol: str,
    Char: str,
    Timestamp: moment,
    Described: _described,
}


# --- to the wire ---

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")
_FLOAT_MAX: Final = 3.4028234663852886e38


def _of_its_own_type(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value < _LONG else ULong(value)
    if isinstance(value, datetime):
        return Timestamp(milliseconds_of(value))
    if isinstance(value, timedelta):
        return Described(TIMESPAN, value // _MICROSECOND * _TICKS)
    return value


def _integer(kind: type[int], least: int, most: int) -> Callable[[Value], int]:
    def convert(value: Value) -> int:
        if (isinstance(value, str) and _INTEGER.fullmatch(value)) or (isinstance(value, float) and value.is_integer()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError
        return kind(value)

    return convert


def _floating(kind: type[float], most: float) -> Callable[[Value], float]:
    def convert(value: Value) -> float:
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or most < abs(value) < inf:
            raise ValueError
        return kind(value)

    return convert


def _boolean(value: Value) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError


def _text(value: Value) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, bool | int | UUID):
        return str(value)
    raise ValueError


def _symbol(value: Value) -> str:
    text = _text(value)
    return Symbol(text) if text.isascii() else text


def _char(value: Value) -> Char:
    if not isinstance(value, str) or len(value) != 1:
        raise ValueError
    return Char(value)


def _uuid(value: Value) -> UUID:
    if isinstance(value, str):
        return UUID(value)
    if not isinstance(value, UUID):
        raise ValueError
    return value


def _moment(value: Value) -> datetime:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
        value = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if not isinstance(value, datetime):
        raise ValueError
    return value


def _timespan(value: Value) -> Described:
    if not isinstance(value, timedelta):
        raise ValueError
    return Described(TIMESPAN, value // _MICROSECOND * _TICKS)


_WRITERS: Final[dict[type, Callable[[Value], Any]]] = {
    bool: _boolean,
    UByte: _integer(UByte, 0, 0xFF),
    UShort: _integer(UShort, 0, 0xFFFF),
    UInt: _integer(UInt, 0, 0xFFFFFFFF),
    ULong: _integer(ULong, 0, 2 * _LONG - 1),
    Byte: _integer(Byte, -0x80, 0x7F),
    Short: _integer(Short, -0x8000, 0x7FFF),
    Int: _integer(Int, -(1 << 31), (1 << 31) - 1),
    int: _integer(int, -_LONG, _LONG - 1),
    Float: _floating(Float, _FLOAT_MAX),
    float: _floating(float, inf),
    str: _text,
    Symbol: _symbol,
    Char: _char,
    UUID: _uuid,
    Timestamp: lambda value: Timestamp(milliseconds_of(_moment(value))),
}
_DESCRIBED_WRITERS: Final[dict[Any, Callable[[Value], Any]]] = {
    TIMESPAN: _timespan,
    DATETIME_OFFSET: lambda value: Described(DATETIME_OFFSET, (_moment(value) - _FIRST) // _MICROSECOND * _TICKS),
    URI: lambda value: Described(URI, _text(value)),
}
