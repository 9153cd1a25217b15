"""All constructors: encoding and decoding, compared with bytes from the specification (1.6)."""

from __future__ import annotations

import copy
import pickle
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given

from amqp.values import same, values
from peeklock.amqp.codec import decode_value, encode_value
from peeklock.amqp.errors import AmqpError, Condition, DecodeError, EncodeError
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

UUID_HEX = "00112233445566778899aabbccddeeff"

# The bytes we write for a value, and read.
CANONICAL: list[tuple[str, Any]] = [
    ("40", None),
    ("41", True),
    ("42", False),
    ("50 ff", UByte(255)),
    ("60 ffff", UShort(65535)),
    ("43", UInt(0)),
    ("52 01", UInt(1)),
    ("52 ff", UInt(255)),
    ("70 00000100", UInt(256)),
    ("70 ffffffff", UInt(0xFFFFFFFF)),
    ("44", ULong(0)),
    ("53 70", ULong(0x70)),
    ("80 0000000000000100", ULong(256)),
    ("80 ffffffffffffffff", ULong(2**64 - 1)),
    ("51 80", Byte(-128)),
    ("61 8000", Short(-32768)),
    ("54 80", Int(-128)),
    ("54 7f", Int(127)),
    ("71 00000080", Int(128)),
    ("71 80000000", Int(-(2**31))),
    ("55 ff", -1),
    ("81 0000000000000080", 128),
    ("81 8000000000000000", -(2**63)),
    ("72 3fc00000", Float(1.5)),
    ("82 3ff8000000000000", 1.5),
    ("74 22500001", Decimal32(bytes.fromhex("22500001"))),
    ("84 2238000000000001", Decimal64(bytes.fromhex("2238000000000001"))),
    ("94 22080000000000000000000000000001", Decimal128(bytes.fromhex("2208" + "00" * 13 + "01"))),
    ("73 0001f600", Char("\U0001f600")),
    ("83 0000015d3ef79800", Timestamp(1500000000000)),
    ("83 ffffc77cedd32800", Timestamp(-62135596800000)),  # the year 1, which Python's SDK sends for "unset"
    ("83 0000e677d21fdc00", Timestamp(253402300800000)),  # the year 10000, which datetime cannot hold
    ("98" + UUID_HEX, UUID(UUID_HEX)),
    ("a0 00", b""),
    ("a0 02 00ff", b"\x00\xff"),
    ("b0 00000100" + "aa" * 256, b"\xaa" * 256),
    ("a1 00", ""),
    ("a1 02 c3a9", "é"),
    ("b1 00000100" + "61" * 256, "a" * 256),
    ("a3 03 666f6f", Symbol("foo")),
    ("b3 00000100" + "61" * 256, Symbol("a" * 256)),
    ("45", []),
    ("c0 03 02 40 41", [None, True]),
    ("c0 ff fe" + "41" * 254, [True] * 254),
    ("d0 00000103 000000ff" + "41" * 255, [True] * 255),
    ("c1 01 00", {}),
    ("c1 06 02 a3 01 61 5501", {Symbol("a"): 1}),
    ("d1 00000105 00000002 a1 01 61 a0 fc" + "00" * 252, {"a": bytes(252)}),
    ("e0 02 00 a3", Array([], Symbol)),
    ("e0 08 02 a3 01 61 03 626364", Array(["a", "bcd"], Symbol)),
    ("e0 12 01 98" + UUID_HEX, Array([UUID(UUID_HEX)], UUID)),
    ("e0 04 02 52 01 02", Array([1, 2], UInt)),
    ("e0 0a 02 70 00000001 00000100", Array([1, 256], UInt)),
    ("e0 04 02 53 00 ff", Array([0, 255], ULong)),
    ("e0 04 02 54 80 7f", Array([-128, 127], Int)),
    ("e0 12 02 81 ffffffffffffff7f 000000000000007f", Array([-129, 127], int)),
    ("e0 04 02 56 01 00", Array([True, False], bool)),
    ("e0 02 03 40", Array([None, None, None], type(None))),
    ("e0 0a 02 73 00000061 000000e9", Array(["a", "é"], Char)),
    ("e0 07 02 c0 01 00 02 01 41", Array([[], [True]], list)),
    ("e0 06 01 c1 03 02 41 42", Array([{True: False}], dict)),
    ("e0 09 02 e0 03 01 50 07 02 00 a1", Array([Array([7], UByte), Array([], str)], Array)),
    (
        "e0 08 02 00 a3 01 78 50 01 02",
        Array([Described("x", UByte(1)), Described("x", UByte(2))], Described(Symbol("x"), UByte)),
    ),
    ("f0 00000105 00000100 50 00" + "01" * 255, Array([0] + [1] * 255, UByte)),
    ("00 53 77 a1 01 61", Described(ULong(0x77), "a")),
    ("00 a3 01 78 00 53 01 40", Described(Symbol("x"), Described(ULong(1), None))),
]

# Other bytes for the same values, which a peer may choose.
ALTERNATIVES: list[tuple[str, Any]] = [
    ("56 01", True),
    ("56 00", False),
    ("52 00", UInt(0)),
    ("70 00000000", UInt(0)),
    ("53 00", ULong(0)),
    ("80 0000000000000000", ULong(0)),
    ("71 00000001", Int(1)),
    ("81 0000000000000001", 1),
    ("b0 00000001 61", b"a"),
    ("b1 00000001 61", "a"),
    ("b3 00000001 61", Symbol("a")),
    ("c0 01 00", []),
    ("d0 00000004 00000000", []),
    ("d0 00000005 00000001 40", [None]),
    ("d1 00000004 00000000", {}),
    ("f0 00000006 00000001 50 01", Array([UByte(1)], UByte)),
    ("f0 00000009 00000000 00 a3 01 78 b1", Array([], Described(Symbol("x"), str))),
    ("e0 02 02 41", Array([True, True], bool)),
    ("e0 02 02 42", Array([False, False], bool)),
    ("e0 02 02 43", Array([UInt(0), UInt(0)], UInt)),
    ("e0 02 02 44", Array([ULong(0), ULong(0)], ULong)),
    ("e0 02 02 45", Array([[], []], list)),
]


def cases(table: list[tuple[str, Any]]) -> list[Any]:
    return [pytest.param(recorded, value, id=recorded[:30]) for recorded, value in table]


@pytest.mark.parametrize(("recorded", "value"), cases(CANONICAL))
def test_a_value_is_written_as_the_specification_has_it(recorded: str, value: Any) -> None:
    assert encode_value(value).hex() == recorded.replace(" ", "")


@pytest.mark.parametrize(("recorded", "value"), cases(CANONICAL + ALTERNATIVES))
def test_recorded_bytes_are_read_up_to_their_end(recorded: str, value: Any) -> None:
    data = bytes.fromhex(recorded)
    decoded, end = decode_value(b"\xff" + data + b"\xff", 1)
    assert type(decoded) is type(value)
    assert decoded == value
    assert end == len(data) + 1


@given(values)
def test_every_value_is_encoded_and_decoded_unchanged(value: Any) -> None:
    data = encode_value(value)
    decoded, end = decode_value(data)
    assert same(decoded, value)
    assert end == len(data)


def test_the_elements_of_a_decoded_array_have_its_type() -> None:
    decoded, _ = decode_value(encode_value(Array(["a", "b"], Symbol)))
    assert same(decoded, Array([Symbol("a"), Symbol("b")], Symbol))


def test_empty_lists_of_an_array_are_not_one_and_the_same() -> None:
    lists, _ = decode_value(bytes.fromhex("e0020245"))
    lists[0].append(1)
    assert lists == [[1], []]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (UByte(256), "does not fit a ubyte"),
        (UByte(-1), "does not fit a ubyte"),
        (UShort(65536), "does not fit a ushort"),
        (UInt(2**32), "does not fit a uint"),
        (UInt(-1), "does not fit a uint"),
        (ULong(2**64), "an integer of 65 bits does not fit a ulong"),
        (ULong(-1), "does not fit a ulong"),
        (Byte(128), "does not fit a byte"),
        (Short(-32769), "does not fit a short"),
        (Int(2**31), "does not fit an int"),
        (2**63, "does not fit a long"),
        pytest.param(10**5000, "an integer of 16610 bits does not fit a long", id="10**5000"),
        (Timestamp(2**63), "does not fit a timestamp"),
        (Float(1e300), "does not fit a float"),
        (Char("ab"), "one Unicode code point"),
        (Char("\ud800"), "one Unicode code point"),
        (Decimal64(b"123"), "a decimal64 must have 8 bytes, not 3"),
        (Symbol("é"), "a symbol must be ASCII"),
        ("\ud800", "surrogates not allowed"),
        (object(), "no type for the Python class object"),
        ({1, 2}, "no type for the Python class set"),
        ({(1, 2): 3}, "the key of a map must be a scalar"),
        ({Described(1, 2): 3}, "the key of a map must be a scalar"),
        ([None] * 65537, "65537 elements"),
        (Array([256], UByte), "not every element of the array is a ubyte"),
        (Array(["a"], UInt), "not every element of the array is a uint"),
        (Array([1], str), "a string must be a str"),
        (Array(["1"], bytes), "a binary must be bytes"),
        (Array([1], Symbol), "a symbol must be a str"),
        (Array([1], type(None)), "must be null"),
        (Array([b"1"], Decimal32), "a decimal32 of 4 bytes"),
        (Array(["1"], UUID), "cannot be encoded"),
        (Array([[]], dict), "not every element of the array is of dict"),
        (Array([1], object), "an array cannot have elements of"),
        (Array([1], []), "cannot be encoded"),
        (Array([1], Described(Symbol("x"), int)), "must be described by Symbol"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_reason(value: Any, reason: str) -> None:
    with pytest.raises(EncodeError) as raised:
        encode_value(value)
    assert reason in raised.value.description


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(EncodeError, match="nested more than 64 deep"):
        encode_value(endless)


def test_a_subclass_is_encoded_as_its_base_class() -> None:
    class Colour(StrEnum):
        RED = "red"

    assert encode_value(Colour.RED) == encode_value("red")
    assert encode_value(bytearray(b"ab")) == encode_value(memoryview(b"ab")) == encode_value(b"ab")


def test_numbers_print_as_text_and_show_their_type() -> None:
    assert str(ULong(7)) == f"{ULong(7)}" == "7"
    assert repr([ULong(7), Symbol("a")]) == "[ULong(7), Symbol('a')]"
    assert repr(Array([1], int)) == "Array([1], int)"


@pytest.mark.parametrize(
    "error", [AmqpError(Condition.NOT_FOUND, "no queue"), DecodeError("bad"), EncodeError("worse")]
)
def test_errors_keep_condition_and_description_when_copied(error: AmqpError) -> None:
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(twin), str(twin)) == (type(error), str(error))
        assert (twin.condition, twin.description) == (error.condition, error.description)


def test_a_decode_error_carries_the_condition_a_peer_reads() -> None:
    assert str(DecodeError("bad")) == "amqp:decode-error: bad"
