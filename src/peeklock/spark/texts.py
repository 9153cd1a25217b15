"""AMQP values as text, and back: plain text, or JSON that keeps the type.

Plain text loses the type: a timestamp is written as a moment, binary as base64. The typed form is a JSON object with
one member, the name of the AMQP type: `{"int":5}`, `{"string":"x"}`, `{"timestamp":1893456000000}`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from peeklock.amqp.types import (
    Array,
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

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds(moment: datetime) -> int:
    """Unix milliseconds; a time without a zone is in UTC, whatever the zone of the machine."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)


def format_moment(ms: int) -> str:
    """RFC 3339, or the plain number for a time outside the calendar."""
    try:
        moment = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return str(int(ms))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plain_text(value: Any) -> str | None:
    """Format a value as plain text; null stays null."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[no-any-return]
    if kind is bool:
        return "true" if value else "false"
    if value is None:
        return None
    if kind is Timestamp:
        return format_moment(value)
    if isinstance(value, (str, int)):
        return str(value)
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, (Decimal32, Decimal64, Decimal128)):
        return value.hex()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, UUID):
        return str(value)
    return plain_json(value)


def plain_json(value: Any) -> str:
    """Format any value as JSON in one line; types that JSON does not have become text."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def plain_bytes(value: Any) -> bytes | None:
    """Return the body of an amqp-value: binary unchanged, text as UTF-8, all else as JSON; null for null."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return bytes(value)
    return (str(value) if isinstance(value, str) else plain_json(value)).encode()


def _plain(value: Any) -> Any:
    match value:
        case None | bool():
            return value
        case Described():
            return _plain(value.value)
        case Timestamp() | UUID() | bytes():
            return plain_text(value)
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else repr(float(value))
        case str():
            return str(value)
        case dict():
            return {str(plain_text(key)): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
    return str(value)


def typed_text(value: Any) -> str:
    """Format a value with its type; `parse_typed` restores it."""
    return json.dumps(_typed(value), ensure_ascii=False, separators=(",", ":"))


def parse_typed(text: str) -> Any:
    """Parse the output of `typed_text`. Raises ValueError for other text."""
    try:
        return _untyped(json.loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"{text!r} is not JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError("the JSON of a value is nested too deeply") from None


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _float_out(value: float) -> float | str:
    return float(value) if math.isfinite(value) else repr(float(value))


def _list_out(value: Any) -> list[Any]:
    return [_typed(each) for each in value]


def _map_out(value: Mapping[Any, Any]) -> list[Any]:
    return [[_typed(key), _typed(each)] for key, each in value.items()]


_Out = Callable[[Any], Any]
_OUT: Final[Mapping[type[Any], tuple[str, _Out]]] = {
    type(None): ("null", lambda _: None),
    bool: ("boolean", bool),
    UByte: ("ubyte", int),
    UShort: ("ushort", int),
    UInt: ("uint", int),
    ULong: ("ulong", int),
    Byte: ("byte", int),
    Short: ("short", int),
    Int: ("int", int),
    int: ("long", int),
    Float: ("float", _float_out),
    float: ("double", _float_out),
    Decimal32: ("decimal32", bytes.hex),
    Decimal64: ("decimal64", bytes.hex),
    Decimal128: ("decimal128", bytes.hex),
    Char: ("char", str),
    Timestamp: ("timestamp", int),
    UUID: ("uuid", str),
    bytes: ("binary", _base64),
    str: ("string", str),
    Symbol: ("symbol", str),
    list: ("list", _list_out),
    dict: ("map", _map_out),
    Array: ("array", _list_out),
    Described: ("described", _list_out),
}


def _typed(value: Any) -> dict[str, Any]:
    try:
        name, out = _OUT[type(value)]
    except KeyError:
        raise ValueError(f"a value of {type(value).__name__} has no AMQP type") from None
    return {name: out(value)}


def _whole(kind: type[int], bits: int, signed: bool) -> Callable[[Any], int]:
    least = -(1 << bits - 1) if signed else 0
    most = (1 << bits - signed) - 1

    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return kind(value)

    return read


def _real(kind: type[float]) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if type(value) is bool or not isinstance(value, (int, float, str)):
            raise ValueError("must be a number, or NaN, inf or -inf as text")
        return kind(value)

    return read


def _hex(kind: type[bytes], size: int) -> Callable[[Any], bytes]:
    def read(value: Any) -> bytes:
        octets = bytes.fromhex(_string(value))
        if len(octets) != size:
            raise ValueError(f"must be {size} bytes in hexadecimal")
        return kind(octets)

    return read


def _string(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("must be text")
    return value


def _null(value: Any) -> None:
    if value is not None:
        raise ValueError("must be null")


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("must be true or false")
    return value


def _char(value: Any) -> Char:
    if len(_string(value)) != 1:
        raise ValueError("must be one character")
    return Char(value)


def _symbol(value: Any) -> Symbol:
    if not _string(value).isascii():
        raise ValueError("must be ASCII")
    return Symbol(value)


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError("must be a list of typed values")
    return [_untyped(each) for each in value]


def _map(value: Any) -> dict[Any, Any]:
    if type(value) is not list or any(type(each) is not list or len(each) != 2 for each in value):
        raise ValueError("must be a list of pairs of typed values")
    try:
        return {_untyped(key): _untyped(each) for key, each in value}
    except TypeError:
        raise ValueError("must not have lists or maps as keys") from None


def _array(value: Any) -> Array:
    items = _list(value)
    kinds = {type(item) for item in items} or {str}
    if len(kinds) > 1:
        raise ValueError("must be of one type")
    return Array(items, kinds.pop())


def _described(value: Any) -> Described:
    parts = _list(value)
    if len(parts) != 2:
        raise ValueError("must be a descriptor and a value")
    return Described(parts[0], parts[1])


_IN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "null": _null,
    "boolean": _boolean,
    "ubyte": _whole(UByte, 8, False),
    "ushort": _whole(UShort, 16, False),
    "uint": _whole(UInt, 32, False),
    "ulong": _whole(ULong, 64, False),
    "byte": _whole(Byte, 8, True),
    "short": _whole(Short, 16, True),
    "int": _whole(Int, 32, True),
    "long": _whole(int, 64, True),
    "float": _real(Float),
    "double": _real(float),
    "decimal32": _hex(Decimal32, 4),
    "decimal64": _hex(Decimal64, 8),
    "decimal128": _hex(Decimal128, 16),
    "char": _char,
    "timestamp": _whole(Timestamp, 64, True),
    "uuid": lambda value: UUID(_string(value)),
    "binary": lambda value: base64.b64decode(_string(value), validate=True),
    "string": _string,
    "symbol": _symbol,
    "list": _list,
    "map": _map,
    "array": _array,
    "described": _described,
}


def _untyped(value: Any) -> Any:
    if type(value) is not dict or len(value) != 1:
        raise ValueError(f'a typed value is an object with one member such as {{"int": 5}}, not {json.dumps(value)}')
    ((name, inner),) = value.items()
    if name not in _IN:
        raise ValueError(f"'{name}' is not an AMQP type; use one of {', '.join(_IN)}")
    try:
        return _IN[name](inner)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
