"""Generated values of all AMQP types, and a comparison that includes the types."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

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


def unsigned(kind: Any, bits: int) -> st.SearchStrategy[Any]:
    return (st.integers(0, 300) | st.integers(0, 2**bits - 1)).filter(lambda n: n < 2**bits).map(kind)


def signed(kind: Any, bits: int) -> st.SearchStrategy[Any]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return (st.integers(-130, 130) | st.integers(low, high)).filter(lambda n: low <= n <= high).map(kind)


def octets(kind: Any, width: int) -> st.SearchStrategy[Any]:
    return st.binary(min_size=width, max_size=width).map(kind)


ASCII = st.text(st.characters(max_codepoint=127), max_size=20)

SCALARS: dict[type, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    bool: st.booleans(),
    UByte: st.integers(0, 255).map(UByte),
    UShort: unsigned(UShort, 16),
    UInt: unsigned(UInt, 32),
    ULong: unsigned(ULong, 64),
    Byte: st.integers(-128, 127).map(Byte),
    Short: signed(Short, 16),
    Int: signed(Int, 32),
    int: signed(int, 64),
    Float: st.floats(width=32, allow_nan=False).map(Float),
    float: st.floats(allow_nan=False),
    Decimal32: octets(Decimal32, 4),
    Decimal64: octets(Decimal64, 8),
    Decimal128: octets(Decimal128, 16),
    Char: st.characters(exclude_categories=["Cs"]).map(Char),
    Timestamp: signed(Timestamp, 64),
    UUID: st.uuids(),
    bytes: st.binary(max_size=20) | st.integers(250, 260).map(bytes),
    str: st.text(max_size=20) | st.integers(250, 260).map(lambda n: "ü" * n),
    Symbol: (ASCII | st.integers(250, 260).map(lambda n: "s" * n)).map(Symbol),
}

scalars = st.one_of(*SCALARS.values())
descriptors = SCALARS[ULong] | SCALARS[Symbol]


def array_of(element: Any, items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(items, max_size=6).map(lambda values: Array(values, element))


def described_array(descriptor: Any, array: Array) -> Array:
    return Array([Described(descriptor, item) for item in array], Described(descriptor, array.element))


scalar_arrays = st.one_of(*(array_of(kind, items) for kind, items in SCALARS.items()))


def compounds(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=5)
    maps = st.dictionaries(scalars, inner, max_size=5)
    arrays = scalar_arrays | array_of(list, lists) | array_of(dict, maps) | array_of(Array, scalar_arrays)
    return st.one_of(
        lists,
        maps,
        arrays,
        st.builds(described_array, descriptors, arrays),
        st.builds(Described, descriptors, inner),
    )


values = st.recursive(scalars, compounds, max_leaves=12)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal and have the same AMQP types at all levels."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Array):
        return same_element(one.element, other.element) and same(list(one), list(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    return bool(one == other)


def same_element(one: Any, other: Any) -> bool:
    if isinstance(one, Described) and isinstance(other, Described):
        return same(one.descriptor, other.descriptor) and same_element(one.value, other.value)
    return one is other
