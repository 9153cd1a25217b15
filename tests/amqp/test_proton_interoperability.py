"""qpid-proton's codec decodes our encodings, and we decode its encodings."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import proton
from hypothesis import assume, given
from proton import Data

from amqp.values import same, values
from peeklock.amqp.codec import decode_value, encode_value
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

# Our class, proton's class, proton's code. Decimals of 32 and 64 bits are integers there.
SCALARS: list[tuple[type, Any, int]] = [
    (type(None), None, Data.NULL),
    (bool, bool, Data.BOOL),
    (UByte, proton.ubyte, Data.UBYTE),
    (UShort, proton.ushort, Data.USHORT),
    (UInt, proton.uint, Data.UINT),
    (ULong, proton.ulong, Data.ULONG),
    (Byte, proton.byte, Data.BYTE),
    (Short, proton.short, Data.SHORT),
    (Int, proton.int32, Data.INT),
    (int, int, Data.LONG),
    (Float, proton.float32, Data.FLOAT),
    (float, float, Data.DOUBLE),
    (Decimal32, proton.decimal32, Data.DECIMAL32),
    (Decimal64, proton.decimal64, Data.DECIMAL64),
    (Decimal128, proton.decimal128, Data.DECIMAL128),
    (Char, proton.char, Data.CHAR),
    (Timestamp, proton.timestamp, Data.TIMESTAMP),
    (UUID, UUID, Data.UUID),
    (bytes, bytes, Data.BINARY),
    (str, str, Data.STRING),
    (Symbol, proton.symbol, Data.SYMBOL),
    (list, list, Data.LIST),
    (dict, dict, Data.MAP),
    (Array, proton.Array, Data.ARRAY),
]
PROTONS = {ours: theirs for ours, theirs, _ in SCALARS}
OURS = {theirs: ours for ours, theirs, _ in SCALARS}
CODES = {ours: code for ours, _, code in SCALARS}
ELEMENTS = {code: ours for ours, _, code in SCALARS}


def to_proton(value: Any) -> Any:
    if value is None or isinstance(value, bool | UUID):
        return value
    if isinstance(value, Array):
        # proton knows one descriptor for an array, not several within each other.
        described = isinstance(value.element, Described)
        element = value.element.value if described else value.element
        descriptor = to_proton(value.element.descriptor) if described else proton.UNDESCRIBED
        items = [to_proton(item.value if described else item) for item in value]
        return proton.Array(descriptor, CODES[element], *items)
    if isinstance(value, Described):
        return proton.Described(to_proton(value.descriptor), to_proton(value.value))
    if isinstance(value, list):
        return [to_proton(item) for item in value]
    if isinstance(value, dict):
        return {to_proton(key): to_proton(item) for key, item in value.items()}
    if isinstance(value, Decimal32 | Decimal64):
        return PROTONS[type(value)](int.from_bytes(value, "big"))
    return PROTONS[type(value)](value)


def from_proton(value: Any) -> Any:
    if value is None or isinstance(value, bool | UUID):
        return value
    if isinstance(value, proton.Array):
        element: Any = ELEMENTS[value.type]
        items = [from_proton(item) for item in value.elements]
        if value.descriptor == proton.UNDESCRIBED:
            return Array(items, element)
        descriptor = from_proton(value.descriptor)
        return Array([Described(descriptor, item) for item in items], Described(descriptor, element))
    if isinstance(value, proton.Described):
        return Described(from_proton(value.descriptor), from_proton(value.value))
    if isinstance(value, list):
        return [from_proton(item) for item in value]
    if isinstance(value, dict):
        return {from_proton(key): from_proton(item) for key, item in value.items()}
    if isinstance(value, proton.decimal32):
        return Decimal32(value.to_bytes(4, "big"))
    if isinstance(value, proton.decimal64):
        return Decimal64(value.to_bytes(8, "big"))
    return bytes(value) if isinstance(value, memoryview) else OURS[type(value)](value)


def test_nested_descriptions_within_arrays_are_told_apart() -> None:
    nested = Described(ULong(0), Described(ULong(0), None))
    assert has_nested_description(Array([[nested, None]], list))
    assert not has_nested_description([nested, Array([[Described(ULong(0), None)]], list)])
    assert decode_value(encode_value(Array([[nested, None]], list)))[0] == Array([[nested, None]], list)


def has_binary_key(value: Any) -> bool:
    if isinstance(value, dict):
        return any(type(key) is bytes for key in value) or any(map(has_binary_key, value.values()))
    return isinstance(value, list | tuple) and any(map(has_binary_key, value))


def has_nested_description(value: Any, is_in_array: bool = False) -> bool:
    """Whether a described value is described again, within an array: proton loses the values after it."""
    if isinstance(value, Described):
        inner = is_in_array and isinstance(value.value, Described)
        return inner or any(has_nested_description(each, is_in_array) for each in value)
    if isinstance(value, dict):
        return any(has_nested_description(each, is_in_array) for pair in value.items() for each in pair)
    is_in_array = is_in_array or isinstance(value, Array)
    return isinstance(value, list | tuple) and any(has_nested_description(each, is_in_array) for each in value)


@given(values)
def test_proton_reads_our_encoding(value: Any) -> None:
    assume(not has_binary_key(value))  # proton's binding reads a binary as a memoryview, which no dict takes as key
    assume(not has_nested_description(value))
    written = encode_value(value)
    data = Data()
    assert data.decode(written) == len(written)
    data.rewind()
    data.next()
    assert same(from_proton(data.get_object()), value)


@given(values)
def test_we_read_the_encoding_of_proton(value: Any) -> None:
    data = Data()
    data.put_object(to_proton(value))
    written = bytes(data.encode())
    decoded, end = decode_value(written)
    assert end == len(written)
    assert same(decoded, value)
