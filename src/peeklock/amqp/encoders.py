"""Encoders of values: one writer for each Python class that represents an AMQP type (part 1, section 1.6).

A writer returns the constructor and the value in the smallest encoding that fits. Numbers are checked against their
type; the limits are those of `decoders`. Writers raise EncodeError, or one of `FAILURES` if a value is of the wrong
class; `codec`, `composites` and `message` convert those to an EncodeError. `arrays` and `composites` add their classes
to the table.
"""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from peeklock.amqp.errors import EncodeError
from peeklock.amqp.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Encoded,
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
from peeklock.limits.amqp import MAX_VALUE_DEPTH, MAX_VALUE_ELEMENTS

Pack = Callable[..., bytes]
Writer = Callable[[Any, int], bytes]
Body = Callable[[Any, int], tuple[int, bytes]]
"""Returns the count of a compound value, and the bytes after the count."""

FAILURES = (TypeError, ValueError, AttributeError, OverflowError, struct.error)

NULL = b"\x40"
pack_uint = struct.Struct(">I").pack


def write_value(value: Any, depth: int) -> bytes:
    writer = WRITERS.get(type(value))
    if writer is None:
        writer = writer_of(type(value))
    return writer(value, depth)


def writer_of(kind: type) -> Writer:
    """Return the writer of the nearest base class that has one. For example, a StrEnum is written as a string."""
    for ancestor in kind.__mro__:
        if ancestor in WRITERS:
            return WRITERS[ancestor]
    raise EncodeError(f"AMQP has no type for the Python class {kind.__name__}")


def does_not_fit(kind: str, value: Any) -> EncodeError:
    if isinstance(value, int) and value.bit_length() > 64:
        return EncodeError(f"an integer of {value.bit_length()} bits does not fit {kind}")
    return EncodeError(f"{reprlib.repr(value)} does not fit {kind}")


def too_deep() -> EncodeError:
    return EncodeError(f"values are nested more than {MAX_VALUE_DEPTH} deep")


def write_null(value: Any, depth: int) -> bytes:
    return NULL


def write_encoded(value: Any, depth: int) -> bytes:
    return value  # type: ignore[no-any-return]


def write_boolean(value: Any, depth: int) -> bytes:
    if value is True:
        return b"\x41"
    if value is False:
        return b"\x42"
    raise does_not_fit("a boolean", value)


def unsigned(kind: str, zero: int, small: int, wide: int, layout: str) -> Writer:
    """Return a writer of uint or ulong. 0 has no byte, values up to 255 have one, and others have the full width."""
    zeros = bytes((zero,))
    smalls = [bytes((small, number)) for number in range(256)]
    pack: Pack = struct.Struct(">B" + layout).pack
    limit = 1 << (8 * struct.calcsize(">" + layout))

    def write(value: int, depth: int) -> bytes:
        if 0 < value < 256:
            return smalls[value]
        if value == 0:
            return zeros
        if 0 < value < limit:
            return pack(wide, value)
        raise does_not_fit(kind, value)

    return write


def signed(kind: str, small: int, wide: int, layout: str) -> Writer:
    """Return a writer of int or long. Values from -128 to 127 have one byte, and others have the full width."""
    pack_small: Pack = struct.Struct(">Bb").pack
    pack: Pack = struct.Struct(">B" + layout).pack
    limit = 1 << (8 * struct.calcsize(">" + layout) - 1)

    def write(value: int, depth: int) -> bytes:
        if -128 <= value < 128:
            return pack_small(small, value)
        if -limit <= value < limit:
            return pack(wide, value)
        raise does_not_fit(kind, value)

    return write


def fixed(kind: str, code: int, layout: str) -> Writer:
    """Return a writer of a type with one encoding of fixed width."""
    pack: Pack = struct.Struct(">B" + layout).pack

    def write(value: Any, depth: int) -> bytes:
        try:
            return pack(code, value)
        except (struct.error, OverflowError):
            raise does_not_fit(kind, value) from None

    return write


def opaque(kind: str, code: int, width: int) -> Writer:
    constructor = bytes((code,))

    def write(value: Any, depth: int) -> bytes:
        if len(value) != width:
            raise EncodeError(f"{kind} must have {width} bytes, not {len(value)}")
        return constructor + octets(value)

    return write


def sized(code: int, octets_of: Callable[[Any], bytes]) -> Writer:
    """Return a writer of binary, string or symbol. The length has one byte, or four if the value is longer than 255."""
    short = [bytes((code, length)) for length in range(256)]
    long = bytes((code + 0x10,))

    def write(value: Any, depth: int) -> bytes:
        octets = octets_of(value)
        length = len(octets)
        return short[length] + octets if length < 256 else long + pack_uint(length) + octets

    return write


def text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise EncodeError(f"a string must be a str, not a {type(value).__name__}")
    return value.encode("utf-8")


def ascii_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise EncodeError(f"a symbol must be a str, not a {type(value).__name__}")
    try:
        return value.encode("ascii")
    except UnicodeEncodeError:
        raise EncodeError(f"a symbol must be ASCII, not {reprlib.repr(value)}") from None


def octets(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise EncodeError(f"a binary must be bytes, not a {type(value).__name__}")


def code_point(value: Any) -> int:
    if not isinstance(value, str) or len(value) != 1 or "\ud800" <= value <= "\udfff":
        raise EncodeError(f"a char must be one Unicode code point, not {reprlib.repr(value)}")
    return ord(value)


def write_char(value: Any, depth: int) -> bytes:
    return b"\x73" + pack_uint(code_point(value))


def write_uuid(value: Any, depth: int) -> bytes:
    return b"\x98" + octets(value.bytes)


def list_body(value: Any, depth: int) -> tuple[int, bytes]:
    """Return the count of a list, and its elements."""
    check(len(value), depth)
    return len(value), b"".join([write_value(item, depth + 1) for item in value])


def map_body(value: Any, depth: int) -> tuple[int, bytes]:
    check(2 * len(value), depth)
    parts = []
    for key, item in value.items():
        if isinstance(key, tuple | list | dict):
            raise EncodeError("the key of a map must be a scalar")
        parts.append(write_value(key, depth + 1))
        parts.append(write_value(item, depth + 1))
    return len(parts), b"".join(parts)


def check(count: int, depth: int) -> None:
    if depth >= MAX_VALUE_DEPTH:
        raise too_deep()
    if count > MAX_VALUE_ELEMENTS:
        raise EncodeError(f"a compound value has {count} elements; at most {MAX_VALUE_ELEMENTS} are allowed")


def compound(code: int, body_of: Body) -> Writer:
    narrow = bytes((code,))
    wide = bytes((code + 0x10,))

    def write(value: Any, depth: int) -> bytes:
        count, body = body_of(value, depth)
        if count < 256 and len(body) < 255:
            return narrow + narrow_body(count, body)
        return wide + wide_body(count, body)

    return write


def narrow_body(count: int, body: bytes) -> bytes:
    return bytes((len(body) + 1, count)) + body


def wide_body(count: int, body: bytes) -> bytes:
    return pack_uint(len(body) + 4) + pack_uint(count) + body


write_filled_list = compound(0xC0, list_body)


def write_list(value: Any, depth: int) -> bytes:
    if value:
        return write_filled_list(value, depth)
    check(0, depth)
    return b"\x45"


def write_described(value: Any, depth: int) -> bytes:
    if depth >= MAX_VALUE_DEPTH:
        raise too_deep()
    return b"\x00" + write_value(value.descriptor, depth + 1) + write_value(value.value, depth + 1)


write_ubyte = fixed("a ubyte", 0x50, "B")
write_ushort = fixed("a ushort", 0x60, "H")
write_uint = unsigned("a uint", 0x43, 0x52, 0x70, "I")
write_ulong = unsigned("a ulong", 0x44, 0x53, 0x80, "Q")
write_timestamp = fixed("a timestamp", 0x83, "q")
write_binary = sized(0xA0, octets)
write_string = sized(0xA1, text)
write_symbol = sized(0xA3, ascii_text)
write_map = compound(0xC1, map_body)

WRITERS: dict[type, Writer] = {
    type(None): write_null,
    bool: write_boolean,
    UByte: write_ubyte,
    UShort: write_ushort,
    UInt: write_uint,
    ULong: write_ulong,
    Byte: fixed("a byte", 0x51, "b"),
    Short: fixed("a short", 0x61, "h"),
    Int: signed("an int", 0x54, 0x71, "i"),
    int: signed("a long", 0x55, 0x81, "q"),
    Float: fixed("a float", 0x72, "f"),
    float: fixed("a double", 0x82, "d"),
    Decimal32: opaque("a decimal32", 0x74, 4),
    Decimal64: opaque("a decimal64", 0x84, 8),
    Decimal128: opaque("a decimal128", 0x94, 16),
    Char: write_char,
    Timestamp: write_timestamp,
    UUID: write_uuid,
    bytes: write_binary,
    Encoded: write_encoded,
    bytearray: write_binary,
    memoryview: write_binary,
    str: write_string,
    Symbol: write_symbol,
    list: write_list,
    dict: write_map,
    Described: write_described,
}
