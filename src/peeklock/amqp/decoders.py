"""Decoders of values: one reader for each constructor of the AMQP 1.0 type system (part 1, section 1.6).

A reader is called with the offset after the constructor, the nesting depth, and the budget of elements. It returns the
value and the offset after it. Readers raise DecodeError, or one of `FAILURES` if the bytes end too early or are not
text. `codec`, `composites` and `message` convert those to a DecodeError once, in the outermost call, so that readers
need not check every byte twice.

Three limits are checked before memory is allocated: nesting (`MAX_VALUE_DEPTH`), the elements of one compound value
(`MAX_VALUE_ELEMENTS`), and the elements of all values decoded by one call (the budget, `MAX_TOTAL_ELEMENTS`). The last
limit is needed because some array elements have no bytes (null, true, uint0, list0, ...).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from peeklock.amqp.errors import DecodeError
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
from peeklock.limits.amqp import MAX_TOTAL_ELEMENTS, MAX_VALUE_DEPTH, MAX_VALUE_ELEMENTS

Budget = list[int]
"""The number of elements that may still be decoded, as a list with one item that all readers of a call share."""
Reader = Callable[[bytes, int, int, Budget], tuple[Any, int]]

FAILURES = (IndexError, struct.error, UnicodeDecodeError)

unpack_uint = struct.Struct(">I").unpack_from
unpack_two_uints = struct.Struct(">II").unpack_from


def new_budget() -> Budget:
    return [MAX_TOTAL_ELEMENTS]


def failure(error: Exception) -> DecodeError:
    """Convert one of FAILURES to a DecodeError."""
    if isinstance(error, UnicodeDecodeError):
        return DecodeError(f"a string or symbol is not {error.encoding}: {error.reason}")
    return DecodeError("the bytes end within a value")


def constant(value: Any) -> Reader:
    """Return a reader for a constructor that stands for one value, without further bytes."""

    def read(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
        return value, offset

    return read


def plain(layout: str) -> Reader:
    """Return a reader of numbers that become plain Python numbers: long, double, and all numbers in performatives."""
    unpack = struct.Struct(layout).unpack_from
    width = struct.calcsize(layout)

    def read(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
        return unpack(data, offset)[0], offset + width

    return read


def fixed(kind: Callable[[Any], Any], layout: str) -> Reader:
    unpack = struct.Struct(layout).unpack_from
    width = struct.calcsize(layout)

    def read(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
        return kind(unpack(data, offset)[0]), offset + width

    return read


def boolean(byte: int) -> bool:
    if byte > 1:
        raise DecodeError(f"a boolean must be 0 or 1, not {byte}")
    return byte == 1


def char(code_point: int) -> Char:
    if code_point > 0x10FFFF or 0xD800 <= code_point <= 0xDFFF:
        raise DecodeError(f"a char must be a Unicode code point, not {code_point:#x}")
    return Char(chr(code_point))


def uuid(octets: bytes) -> UUID:
    return UUID(bytes=octets)


def binary(convert: Callable[[bytes], Any], wide: bool, name: str) -> Reader:
    """Return a reader of values of variable length. The length has one byte, or four if `wide`."""

    def read(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
        if wide:
            start = offset + 4
            end = start + unpack_uint(data, offset)[0]
        else:
            start = offset + 1
            end = start + data[offset]
        if end > len(data):
            raise DecodeError(f"a {name} has {end - start} bytes, but only {len(data) - start} bytes are left")
        return convert(data[start:end]), end

    return read


def text(octets: bytes) -> str:
    return str(octets, "utf-8")


def ascii_text(octets: bytes) -> str:
    return str(octets, "ascii")


def symbol(octets: bytes) -> Symbol:
    return Symbol(octets, "ascii")


def compound_header(code: int, data: bytes, offset: int) -> tuple[int, int, int]:
    """Return the count of a list, map or array, the offset after the count, and the offset after the value."""
    if code & 0x10:
        size, count = unpack_two_uints(data, offset)
        end = offset + 4 + size
        offset += 8
    else:
        count = data[offset + 1]
        end = offset + 1 + data[offset]
        offset += 2
    if end > len(data):
        raise DecodeError(f"a compound value has {end - offset} bytes, but only {len(data) - offset} bytes are left")
    if offset > end:
        raise DecodeError("the size of a compound value is too small to include its count")
    return count, offset, end


def claim(count: int, depth: int, budget: Budget) -> None:
    """Take `count` elements of a compound value from the budget. Raise DecodeError if a limit is exceeded."""
    if depth >= MAX_VALUE_DEPTH:
        raise too_deep()
    if count > MAX_VALUE_ELEMENTS:
        raise DecodeError(f"a compound value has {count} elements; at most {MAX_VALUE_ELEMENTS} are allowed")
    budget[0] -= count
    if budget[0] < 0:
        raise DecodeError(f"the values have more than {MAX_TOTAL_ELEMENTS} elements in total")


def too_deep() -> DecodeError:
    return DecodeError(f"values are nested more than {MAX_VALUE_DEPTH} deep")


def wrong_size(kind: str) -> DecodeError:
    return DecodeError(f"the size of {kind} is not the size of its elements")


def empty_list(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
    return [], offset


def list_of(code: int) -> Reader:
    def read(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
        count, offset, end = compound_header(code, data, offset)
        claim(count, depth, budget)
        if count > end - offset:
            raise DecodeError(f"a list of {count} elements has only {end - offset} bytes")
        values = []
        for _ in range(count):
            value, offset = READERS[data[offset]](data, offset + 1, depth + 1, budget)
            values.append(value)
        if offset != end:
            raise wrong_size("a list")
        return values, offset

    return read


def map_of(code: int) -> Reader:
    def read(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
        count, offset, end = compound_header(code, data, offset)
        claim(count, depth, budget)
        if count & 1:
            raise DecodeError(f"a map has {count} elements, so that a key has no value")
        if count > end - offset:
            raise DecodeError(f"a map of {count} elements has only {end - offset} bytes")
        values = {}
        for _ in range(count >> 1):
            constructor = data[offset]
            if constructor >= 0xC0 or constructor in (0x00, 0x45):
                raise DecodeError("the key of a map must be a scalar")
            key, offset = READERS[constructor](data, offset + 1, depth + 1, budget)
            values[key], offset = READERS[data[offset]](data, offset + 1, depth + 1, budget)
        if offset != end:
            raise wrong_size("a map")
        if len(values) != count >> 1:
            raise DecodeError("a map has the same key twice")
        return values, offset

    return read


def array_of(code: int) -> Reader:
    def read(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
        count, offset, end = compound_header(code, data, offset)
        claim(count, depth, budget)
        descriptors: list[Any] = []
        while data[offset] == 0x00:
            claim(count, depth, budget)  # each described element counts as one more value
            depth += 1
            descriptor, offset = READERS[data[offset + 1]](data, offset + 2, depth, budget)
            descriptors.append(descriptor)
        constructor = data[offset]
        offset += 1
        element: Any = element_of(constructor)
        if offset > end:
            raise wrong_size("an array")
        if count * LEAST_WIDTH[constructor >> 4] > end - offset:
            raise DecodeError(f"an array of {count} elements has only {end - offset} bytes")
        read_element = READERS[constructor]
        values = []
        for _ in range(count):
            value, offset = read_element(data, offset, depth + 1, budget)
            values.append(value)
        if offset != end:
            raise wrong_size("an array")
        for descriptor in reversed(descriptors):
            element = Described(descriptor, element)
            values = [Described(descriptor, value) for value in values]
        return Array(values, element), offset

    return read


def described(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
    if depth >= MAX_VALUE_DEPTH:
        raise too_deep()
    descriptor, offset = READERS[data[offset]](data, offset + 1, depth + 1, budget)
    value, offset = READERS[data[offset]](data, offset + 1, depth + 1, budget)
    return Described(descriptor, value), offset


def unknown(code: int) -> Reader:
    def read(data: bytes, offset: int, depth: int, budget: Budget) -> tuple[Any, int]:
        raise DecodeError(f"no type has the constructor {code:#04x}")

    return read


# For each constructor: the class of its values (as in Array.element), and the reader.
TYPES: dict[int, tuple[type, Reader]] = {
    0x40: (type(None), constant(None)),
    0x56: (bool, fixed(boolean, ">B")),
    0x41: (bool, constant(True)),
    0x42: (bool, constant(False)),
    0x50: (UByte, fixed(UByte, ">B")),
    0x60: (UShort, fixed(UShort, ">H")),
    0x70: (UInt, fixed(UInt, ">I")),
    0x52: (UInt, fixed(UInt, ">B")),
    0x43: (UInt, constant(UInt(0))),
    0x80: (ULong, fixed(ULong, ">Q")),
    0x53: (ULong, fixed(ULong, ">B")),
    0x44: (ULong, constant(ULong(0))),
    0x51: (Byte, fixed(Byte, ">b")),
    0x61: (Short, fixed(Short, ">h")),
    0x71: (Int, fixed(Int, ">i")),
    0x54: (Int, fixed(Int, ">b")),
    0x81: (int, plain(">q")),
    0x55: (int, plain(">b")),
    0x72: (Float, fixed(Float, ">f")),
    0x82: (float, plain(">d")),
    0x74: (Decimal32, fixed(Decimal32, ">4s")),
    0x84: (Decimal64, fixed(Decimal64, ">8s")),
    0x94: (Decimal128, fixed(Decimal128, ">16s")),
    0x73: (Char, fixed(char, ">I")),
    0x83: (Timestamp, fixed(Timestamp, ">q")),
    0x98: (UUID, fixed(uuid, ">16s")),
    0xA0: (bytes, binary(bytes, False, "binary")),
    0xB0: (bytes, binary(bytes, True, "binary")),
    0xA1: (str, binary(text, False, "string")),
    0xB1: (str, binary(text, True, "string")),
    0xA3: (Symbol, binary(symbol, False, "symbol")),
    0xB3: (Symbol, binary(symbol, True, "symbol")),
    0x45: (list, empty_list),
    0xC0: (list, list_of(0xC0)),
    0xD0: (list, list_of(0xD0)),
    0xC1: (dict, map_of(0xC1)),
    0xD1: (dict, map_of(0xD1)),
    0xE0: (Array, array_of(0xE0)),
    0xF0: (Array, array_of(0xF0)),
}

READERS: list[Reader] = [TYPES[code][1] if code in TYPES else unknown(code) for code in range(256)]
READERS[0x00] = described

# For each value of the first half of a constructor: the least number of bytes of a value (1.2, figure 1.1).
LEAST_WIDTH = (0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 1, 4, 2, 8, 3, 9)


def element_of(constructor: int) -> type:
    if constructor not in TYPES:
        raise DecodeError(f"no type has the constructor {constructor:#04x}")
    return TYPES[constructor][0]
