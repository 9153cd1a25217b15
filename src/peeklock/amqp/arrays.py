"""Encoders of arrays: all elements of an array share one constructor, which is written once (1.6.24).

So each type has a packer here, in addition to its writer in `encoders`. A packer returns the smallest constructor that
fits all items, and the items without a constructor.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from peeklock.amqp.encoders import (
    NULL,
    WRITERS,
    Body,
    ascii_text,
    check,
    code_point,
    compound,
    list_body,
    map_body,
    narrow_body,
    octets,
    pack_uint,
    text,
    too_deep,
    wide_body,
    write_value,
)
from peeklock.amqp.errors import EncodeError
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
from peeklock.limits.amqp import MAX_VALUE_DEPTH

Packer = Callable[[list[Any], int], tuple[bytes, bytes]]


def array_body(value: Any, depth: int) -> tuple[int, bytes]:
    """Return the count of an array, and the constructor of its elements followed by the elements."""
    check(len(value), depth)
    constructor, elements = pack_elements(value.element, value, depth + 1)
    return len(value), constructor + elements


write_array = compound(0xE0, array_body)
WRITERS[Array] = write_array


def pack_elements(element: Any, items: list[Any], depth: int) -> tuple[bytes, bytes]:
    """Return the constructor for all items of an array, and the encoded items without a constructor."""
    if isinstance(element, Described):
        if depth > MAX_VALUE_DEPTH:
            raise too_deep()
        for item in items:
            if not isinstance(item, Described) or item.descriptor != element.descriptor:
                raise EncodeError(f"every element of this array must be described by {element.descriptor!r}")
        values = [item.value for item in items]
        constructor, elements = pack_elements(element.value, values, depth + 1)
        return b"\x00" + write_value(element.descriptor, depth) + constructor, elements
    packer = PACKERS.get(element)
    if packer is None:
        raise EncodeError(f"an array cannot have elements of {element!r}")
    return packer(items, depth)


def pack_nulls(items: list[Any], depth: int) -> tuple[bytes, bytes]:
    if any(item is not None for item in items):
        raise EncodeError("every element of an array of null must be null")
    return NULL, b""


def pack_booleans(items: list[Any], depth: int) -> tuple[bytes, bytes]:
    return b"\x56", bytes([1 if item else 0 for item in items])


def numbers(
    kind: str, code: int, layout: str, small: int | None = None, convert: Callable[[Any], Any] | None = None
) -> Packer:
    """Return a packer for elements of one width. `small` is the constructor to use if each item fits in one byte."""
    lowest, highest = (-128, 127) if layout.islower() else (0, 255)
    small_layout = "b" if layout.islower() else "B"

    def pack(items: list[Any], depth: int) -> tuple[bytes, bytes]:
        values = [convert(item) for item in items] if convert else items
        try:
            if small is not None and values and lowest <= min(values) and max(values) <= highest:
                return bytes((small,)), struct.pack(f">{len(values)}{small_layout}", *values)
            return bytes((code,)), struct.pack(f">{len(values)}{layout}", *values)
        except (struct.error, OverflowError, TypeError):
            raise EncodeError(f"not every element of the array is {kind}") from None

    return pack


def opaques(kind: str, code: int, width: int, convert: Callable[[Any], bytes] = octets) -> Packer:
    def pack(items: list[Any], depth: int) -> tuple[bytes, bytes]:
        values = [convert(item) for item in items]
        if any(len(value) != width for value in values):
            raise EncodeError(f"not every element of the array is {kind} of {width} bytes")
        return bytes((code,)), b"".join(values)

    return pack


def uuid_octets(value: Any) -> bytes:
    return octets(value.bytes)


def variable(code: int, octets_of: Callable[[Any], bytes]) -> Packer:
    def pack(items: list[Any], depth: int) -> tuple[bytes, bytes]:
        values = [octets_of(item) for item in items]
        if all(len(value) < 256 for value in values):
            return bytes((code,)), b"".join([bytes((len(value),)) + value for value in values])
        return bytes((code + 0x10,)), b"".join([pack_uint(len(value)) + value for value in values])

    return pack


def compounds(kind: type, code: int, body_of: Body) -> Packer:
    def pack(items: list[Any], depth: int) -> tuple[bytes, bytes]:
        if not all(isinstance(item, kind) for item in items):
            raise EncodeError(f"not every element of the array is of {kind.__name__}")
        bodies = [body_of(item, depth) for item in items]
        if all(count < 256 and len(body) < 255 for count, body in bodies):
            return bytes((code,)), b"".join([narrow_body(*body) for body in bodies])
        return bytes((code + 0x10,)), b"".join([wide_body(*body) for body in bodies])

    return pack


PACKERS: dict[Any, Packer] = {
    type(None): pack_nulls,
    bool: pack_booleans,
    UByte: numbers("a ubyte", 0x50, "B"),
    UShort: numbers("a ushort", 0x60, "H"),
    UInt: numbers("a uint", 0x70, "I", small=0x52),
    ULong: numbers("a ulong", 0x80, "Q", small=0x53),
    Byte: numbers("a byte", 0x51, "b"),
    Short: numbers("a short", 0x61, "h"),
    Int: numbers("an int", 0x71, "i", small=0x54),
    int: numbers("a long", 0x81, "q", small=0x55),
    Float: numbers("a float", 0x72, "f"),
    float: numbers("a double", 0x82, "d"),
    Char: numbers("a char", 0x73, "I", convert=code_point),
    Timestamp: numbers("a timestamp", 0x83, "q"),
    Decimal32: opaques("a decimal32", 0x74, 4),
    Decimal64: opaques("a decimal64", 0x84, 8),
    Decimal128: opaques("a decimal128", 0x94, 16),
    UUID: opaques("a uuid", 0x98, 16, uuid_octets),
    bytes: variable(0xA0, octets),
    str: variable(0xA1, text),
    Symbol: variable(0xA3, ascii_text),
    list: compounds(list, 0xC0, list_body),
    dict: compounds(dict, 0xC1, map_body),
    Array: compounds(Array, 0xE0, array_body),
}
