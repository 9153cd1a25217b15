"""The conversion of AMQP values to values of the language, and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf, isnan
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from peeklock.broker.rules.conversion import DATETIME_OFFSET, TIMESPAN, URI, plain, typed
from peeklock.broker.rules.values import Value

GUID = UUID("00112233-4455-6677-8899-aabbccddeeff")
NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)
NEW_YEAR_MS = 1_704_067_200_000
NEW_YEAR_TICKS = 638_396_640_000_000_000

READ: list[tuple[Any, Value]] = [
    (None, None),
    (True, True),
    (False, False),
    (UByte(200), 200),
    (UShort(60_000), 60_000),
    (UInt(4_000_000_000), 4_000_000_000),
    (ULong(2**64 - 1), 2**64 - 1),
    (Byte(-5), -5),
    (Short(-500), -500),
    (Int(-70_000), -70_000),
    (-(2**63), -(2**63)),
    (Float(1.5), 1.5),
    (2.25, 2.25),
    (Char("x"), "x"),
    (Symbol("red"), "red"),
    ("grün", "grün"),
    (b"\x00\xff", b"\x00\xff"),
    (GUID, GUID),
    (Timestamp(NEW_YEAR_MS), NEW_YEAR),
    (Described(TIMESPAN, 90 * 10_000_000), timedelta(seconds=90)),
    (Described(TIMESPAN, -10), timedelta(microseconds=-1)),
    (Described(DATETIME_OFFSET, NEW_YEAR_TICKS), NEW_YEAR),
    (Described(URI, "http://example.org/"), "http://example.org/"),
]


@pytest.mark.parametrize(("wire", "value"), READ, ids=[repr(wire) for wire, _ in READ])
def test_every_amqp_type_is_a_plain_value(wire: Any, value: Value) -> None:
    seen = plain(decode_value(encode_value(wire))[0])
    assert seen == value
    assert type(seen) is type(value)


@pytest.mark.parametrize(
    "wire",
    [
        [1, 2],
        {"a": 1},
        Array([1], int),
        Described(Symbol("com.example:other"), 1),
        Described(ULong(5), 1),
        Described(TIMESPAN, "long"),
        Described(URI, 5),
        Described([1], 5),
    ],
    ids=repr,
)
def test_a_value_without_a_type_in_the_language_is_null(wire: Any) -> None:
    assert plain(decode_value(encode_value(wire))[0]) is None


@pytest.mark.parametrize(
    ("wire", "moment"),
    [
        (Timestamp(2**63 - 1), datetime.max),
        (Timestamp(-(2**63)), datetime.min),
        (Timestamp(-62_135_596_800_000), datetime.min),
        (Described(DATETIME_OFFSET, 2**63 - 1), datetime.max),
        (Described(DATETIME_OFFSET, -1), datetime.min),
    ],
)
def test_moments_beyond_the_calendar_are_its_ends(wire: Any, moment: datetime) -> None:
    assert plain(wire) == moment.replace(tzinfo=UTC)


def decimal128(sign: int, coefficient: int, exponent: int) -> Decimal128:
    """Encode a number as the .NET client encodes a System.Decimal."""
    return Decimal128((sign << 127 | (exponent + 6176) << 113 | coefficient).to_bytes(16, "big"))


@pytest.mark.parametrize(
    ("wire", "number"),
    [
        (decimal128(0, 12345, -2), 123.45),
        (decimal128(1, 1, 0), -1.0),
        (decimal128(0, 0, 0), 0.0),
        (decimal128(0, 79228162514264337593543950335, 0), 79228162514264337593543950335.0),
        (Decimal128(b"\x78" + bytes(15)), inf),
        (Decimal128(b"\xf8" + bytes(15)), -inf),
        (Decimal64((398 << 53 | 15).to_bytes(8, "big")), 15.0),
        (Decimal64((1 << 63 | 397 << 53 | 15).to_bytes(8, "big")), -1.5),
        (Decimal64((3 << 61 | 398 << 51).to_bytes(8, "big")), float(1 << 53)),
        (Decimal32((101 << 23 | 7).to_bytes(4, "big")), 7.0),
        (Decimal32((3 << 29 | 101 << 21 | 5).to_bytes(4, "big")), float((1 << 23) + 5)),
        (Decimal32((3 << 29 | 101 << 21 | 0x1FFFFF).to_bytes(4, "big")), 0.0),
    ],
)
def test_decimals_are_doubles(wire: Any, number: float) -> None:
    assert plain(wire) == number


def test_a_decimal_can_be_no_number() -> None:
    value = plain(Decimal128(b"\x7c" + bytes(15)))
    assert isinstance(value, float)
    assert isnan(value)


@given(st.binary(min_size=16, max_size=16))
def test_no_bytes_of_a_decimal_are_an_error(data: bytes) -> None:
    for wire in (Decimal128(data), Decimal64(data[:8]), Decimal32(data[:4])):
        assert isinstance(plain(wire), float)


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (None, None),
        (True, True),
        (5, 5),
        (2**64 - 1, ULong(2**64 - 1)),
        (1.5, 1.5),
        ("text", "text"),
        (NEW_YEAR, Timestamp(NEW_YEAR_MS)),
        (timedelta(seconds=90), Described(TIMESPAN, 900_000_000)),
        (GUID, GUID),
        (b"\x01", b"\x01"),
    ],
    ids=repr,
)
def test_a_value_has_an_amqp_type_of_its_own(value: Value, wire: Any) -> None:
    found = typed(value)
    assert found == wire
    assert type(found) is type(wire)
    assert encode_value(found)


KEPT: list[tuple[Any, Value, Any]] = [
    (Int(1), 7, Int(7)),
    (Int(1), 2**31, 2**31),
    (Int(1), 7.0, Int(7)),
    (Int(1), 7.5, 7.5),
    (Int(1), "7", Int(7)),
    (Int(1), "seven", "seven"),
    (Int(1), "٧", "٧"),
    (Int(1), True, True),
    (Int(1), inf, inf),
    (UByte(1), 255, UByte(255)),
    (UByte(1), -1, -1),
    (UShort(1), 2, UShort(2)),
    (UInt(1), 2, UInt(2)),
    (ULong(1), 2**64 - 1, ULong(2**64 - 1)),
    (Byte(1), -128, Byte(-128)),
    (Short(1), 2, Short(2)),
    (1, "-9", -9),
    (Float(1.0), 2.5, Float(2.5)),
    (Float(1.0), 1e300, 1e300),
    (Float(1.0), 3, Float(3.0)),
    (1.0, 3, 3.0),
    (1.0, "2.5e1", 25.0),
    (1.0, "nan", "nan"),
    (1.0, False, False),
    ("old", 5, "5"),
    ("old", 2.0, "2"),
    ("old", 2.5, "2.5"),
    ("old", True, "True"),
    ("old", GUID, str(GUID)),
    ("old", NEW_YEAR, "2024-01-01T00:00:00Z"),
    ("old", timedelta(seconds=1), Described(TIMESPAN, 10_000_000)),
    ("old", b"\x01", b"\x01"),
    ("old", None, None),
    (Symbol("old"), "new", Symbol("new")),
    (Symbol("old"), "größer", "größer"),
    (Char("a"), "b", Char("b")),
    (Char("a"), "bc", "bc"),
    (True, "False", False),
    (True, "no", "no"),
    (True, 0, 0),
    (GUID, str(GUID).upper(), GUID),
    (GUID, "no guid", "no guid"),
    (GUID, 5, 5),
    (Timestamp(0), NEW_YEAR, Timestamp(NEW_YEAR_MS)),
    (Timestamp(0), "2024-01-01T01:00:00+01:00", Timestamp(NEW_YEAR_MS)),
    (Timestamp(0), "2024-01-01", Timestamp(NEW_YEAR_MS)),
    (Timestamp(0), "soon", "soon"),
    (Timestamp(0), 5, 5),
    (Described(TIMESPAN, 0), timedelta(seconds=1), Described(TIMESPAN, 10_000_000)),
    (Described(TIMESPAN, 0), 5, 5),
    (Described(DATETIME_OFFSET, 0), NEW_YEAR, Described(DATETIME_OFFSET, NEW_YEAR_TICKS)),
    (Described(URI, "http://a"), "http://b", Described(URI, "http://b")),
    (Described([1], 5), "new", "new"),
    (None, 5, 5),
    (b"\x01", "text", "text"),
    ([1], "text", "text"),
    (Decimal32(bytes(4)), 5, 5),
]


@pytest.mark.parametrize(("old", "value", "wire"), KEPT, ids=[f"{old!r} to {value!r}" for old, value, _ in KEPT])
def test_a_replaced_value_keeps_the_old_type_if_possible(old: Any, value: Value, wire: Any) -> None:
    found = typed(value, old)
    assert found == wire
    assert type(found) is type(wire)
    assert encode_value(found)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=20),
    st.datetimes(timezones=st.just(UTC)),
    st.timedeltas(timedelta(days=-10_000_000), timedelta(days=10_000_000)),
    st.uuids(),
    st.binary(max_size=20),
)


@given(value=values, old=st.sampled_from([old for old, _, _ in KEPT]))
def test_every_value_can_replace_any_other_and_be_read(value: Value, old: Any) -> None:
    wire = decode_value(encode_value(typed(value, old)))[0]
    seen = plain(wire)
    assert (seen is None) == (value is None)
    if type(seen) is type(value) and not isinstance(value, datetime | float):  # which may lose digits
        assert seen == value
