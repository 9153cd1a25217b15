"""Malformed bytes give a value or a DecodeError, and no memory is allocated for sizes that are not there."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp.values import values
from peeklock.amqp.codec import decode_value, encode_value
from peeklock.amqp.composites import decode_composite
from peeklock.amqp.errors import DecodeError
from peeklock.amqp.message import Message
from peeklock.amqp.types import Array

Decoder = Callable[[bytes], Any]
DECODERS: list[Decoder] = [decode_value, decode_composite, Message.decode]
EVERY_DECODER = pytest.mark.parametrize("decode", DECODERS, ids=["value", "composite", "message"])


def list32(*elements: bytes, count: int | None = None) -> bytes:
    body = b"".join(elements)
    return b"\xd0" + struct.pack(">II", len(body) + 4, len(elements) if count is None else count) + body


def array32(count: int, constructor: bytes) -> bytes:
    return b"\xf0" + struct.pack(">II", len(constructor) + 4, count) + constructor


def nested(levels: int) -> bytes:
    data = b"\x40"
    for _ in range(levels):
        data = list32(data)
    return data


def refusal(data: bytes, decode: Decoder = decode_value) -> str:
    with pytest.raises(DecodeError) as raised:
        decode(data)
    return raised.value.description


def outcome(data: bytes, decode: Decoder) -> str:
    """Return "a value" or the reason of the DecodeError. Other exceptions are raised."""
    try:
        decode(data)
    except DecodeError as error:
        return error.description
    return "a value"


@given(values)
def test_a_value_cut_short_anywhere_is_refused(value: Any) -> None:
    data = encode_value(value)
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            decode_value(data[:length])


@EVERY_DECODER
@given(st.data())
def test_arbitrary_bytes_give_a_value_or_a_decode_error(decode: Decoder, data: st.DataObject) -> None:
    described = st.integers(0x10, 0x78).map(lambda code: b"\x00\x53" + bytes((code,)))
    prefix = data.draw(st.just(b"") | described)
    assert outcome(prefix + data.draw(st.binary(max_size=60)), decode)


@EVERY_DECODER
@given(st.data())
def test_a_value_with_bytes_changed_gives_a_value_or_a_decode_error(decode: Decoder, data: st.DataObject) -> None:
    octets = bytearray(b"\x00\x53\x77" + encode_value(data.draw(values)))
    for _ in range(data.draw(st.integers(1, 3))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    assert outcome(bytes(octets), decode)


def test_empty_input_is_refused() -> None:
    assert refusal(b"") == "the bytes end within a value"


@pytest.mark.parametrize("code", [0x01, 0x3F, 0x46, 0x57, 0x99, 0xA2, 0xC2, 0xFF])
def test_an_unknown_constructor_is_named(code: int) -> None:
    assert refusal(bytes((code,)) + bytes(16)) == f"no type has the constructor {code:#04x}"
    assert f"{code:#04x}" in refusal(array32(0, bytes((code,))))


@pytest.mark.parametrize(
    ("recorded", "reason"),
    [
        ("56 02", "a boolean must be 0 or 1, not 2"),
        ("73 0000d800", "a char must be a Unicode code point, not 0xd800"),
        ("73 00110000", "a char must be a Unicode code point, not 0x110000"),
        ("a1 02 c328", "a string or symbol is not utf-8"),
        ("a1 03 eda080", "a string or symbol is not utf-8"),  # a surrogate
        ("a3 01 80", "a string or symbol is not ascii"),
        ("a0 05 0000", "a binary has 5 bytes, but only 2 bytes are left"),
        ("b1 ffffffff 61", "a string has 4294967295 bytes, but only 1 bytes are left"),
        ("c0 05 01 40", "a compound value has 4 bytes, but only 1 bytes are left"),
        ("d0 ffffffff 00000001 40", "but only 1 bytes are left"),
        ("c0 00 00", "too small to include its count"),
        ("d0 00000003 00000000", "too small to include its count"),
        ("c0 02 02 40", "a list of 2 elements has only 1 bytes"),
        ("c0 03 01 40 40", "is not the size of its elements"),
        ("c0 03 02 40 53 01", "is not the size of its elements"),
        ("c1 03 02 40 53 01", "is not the size of its elements"),
        ("c1 04 03 41 40 42", "a key has no value"),
        ("c1 02 02 40", "a map of 2 elements has only 1 bytes"),
        ("c1 03 02 45 40", "the key of a map must be a scalar"),
        ("c1 05 02 c0 01 00 40", "the key of a map must be a scalar"),
        ("c1 06 02 e0 02 00 40 40", "the key of a map must be a scalar"),
        ("c1 06 02 00 53 01 40 40", "the key of a map must be a scalar"),
        ("c1 05 04 41 40 41 42", "the same key twice"),
        ("e0 04 03 60 0001", "an array of 3 elements has only 2 bytes"),
        ("e0 04 01 50 0001", "is not the size of its elements"),
        ("e0 01 00 40", "is not the size of its elements"),
    ],
)
def test_malformed_bytes_are_refused_with_the_reason(recorded: str, reason: str) -> None:
    assert reason in refusal(bytes.fromhex(recorded))


def test_nesting_is_read_to_64_levels_and_no_further() -> None:
    value, _ = decode_value(nested(64))
    assert encode_value(value)
    assert refusal(nested(65)) == "values are nested more than 64 deep"
    assert refusal(nested(5000)) == "values are nested more than 64 deep"


def test_nesting_counts_on_from_the_depth_of_the_caller() -> None:
    assert decode_value(nested(54), 0, 10)
    with pytest.raises(DecodeError, match="nested more than 64 deep"):
        decode_value(nested(55), 0, 10)


@EVERY_DECODER
def test_descriptors_of_descriptors_do_not_exhaust_the_stack(decode: Decoder) -> None:
    assert refusal(b"\x00" * 100_000, decode) == "values are nested more than 64 deep"


def test_described_values_in_described_values_do_not_exhaust_the_stack() -> None:
    assert refusal(b"\x00\x53\x01" * 30_000) == "values are nested more than 64 deep"


def test_described_elements_of_an_array_count_as_nesting() -> None:
    assert refusal(array32(0, b"\x00\x53\x01" * 65 + b"\x40")) == "values are nested more than 64 deep"
    assert decode_value(array32(1, b"\x00\x53\x01" * 63 + b"\x40"))


def test_transactional_states_within_each_other_do_not_exhaust_the_stack() -> None:
    data = b"\x40"
    for _ in range(100):
        data = b"\x00\x53\x34" + list32(b"\xa0\x01\x01", data)
    assert refusal(data, decode_composite) == "values are nested more than 64 deep"


@pytest.mark.parametrize("constructor", [b"\x40", b"\x41", b"\x42", b"\x43", b"\x44", b"\x45"])
def test_elements_without_bytes_are_limited_like_any_others(constructor: bytes) -> None:
    values, _ = decode_value(array32(65536, constructor))
    assert isinstance(values, Array)
    assert len(values) == 65536
    assert "65537 elements; at most 65536" in refusal(array32(65537, constructor))
    assert "4294967295 elements" in refusal(array32(0xFFFFFFFF, constructor))


def test_a_list_and_a_map_hold_65536_elements_and_no_more() -> None:
    assert len(decode_value(list32(*[b"\x40"] * 65536))[0]) == 65536
    assert "65537 elements" in refusal(list32(*[b"\x40"] * 65537))
    assert "4294967294 elements" in refusal(b"\xd1" + struct.pack(">II", 4, 0xFFFFFFFE))


@pytest.mark.parametrize(
    "bomb",
    [
        list32(*[array32(65536, b"\x45")] * 1000),
        array32(65536, b"\x00\x53\x01" * 60 + b"\x45"),
        list32(*[list32(*[b"\x45"] * 1000)] * 1000),
    ],
    ids=["empty lists in arrays", "descriptors upon descriptors", "empty lists in lists"],
)
def test_small_bytes_do_not_grow_into_large_values(bomb: bytes) -> None:
    tracemalloc.start()
    try:
        assert "more than 262144 elements in total" in refusal(bomb)
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


def test_the_sections_of_a_message_count_together() -> None:
    section = b"\x00\x53\x76" + list32(array32(65536, b"\x40"))
    assert Message.decode(section * 3).sequences[2] == [[None] * 65536]
    assert "more than 262144 elements in total" in refusal(section * 4, Message.decode)


def test_a_promise_of_many_elements_allocates_nothing() -> None:
    tracemalloc.start()
    try:
        refusal(list32(b"\x40", count=65536))
        refusal(array32(65536, b"\x80"))
        refusal(b"\xb0\xff\xff\xff\xff")
        assert tracemalloc.get_traced_memory()[1] < 2**16
    finally:
        tracemalloc.stop()
