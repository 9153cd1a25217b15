"""AMQP values as text: plain for people, typed for the way back."""

from __future__ import annotations

import json
import math
from typing import Any
from uuid import UUID

import pytest

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
from peeklock.spark.texts import parse_typed, plain_bytes, plain_text, typed_text

UUID_TEXT = "12345678-1234-5678-1234-567812345678"
VALUES: list[tuple[Any, str | None, str]] = [
    (None, None, '{"null":null}'),
    (True, "true", '{"boolean":true}'),
    (False, "false", '{"boolean":false}'),
    (UByte(255), "255", '{"ubyte":255}'),
    (UShort(65535), "65535", '{"ushort":65535}'),
    (UInt(4294967295), "4294967295", '{"uint":4294967295}'),
    (ULong((1 << 64) - 1), "18446744073709551615", '{"ulong":18446744073709551615}'),
    (Byte(-128), "-128", '{"byte":-128}'),
    (Short(-32768), "-32768", '{"short":-32768}'),
    (Int(-5), "-5", '{"int":-5}'),
    (-(1 << 63), "-9223372036854775808", '{"long":-9223372036854775808}'),
    (Float(1.5), "1.5", '{"float":1.5}'),
    (0.1, "0.1", '{"double":0.1}'),
    (math.inf, "inf", '{"double":"inf"}'),
    (Decimal32(b"\x01\x02\x03\x04"), "01020304", '{"decimal32":"01020304"}'),
    (Decimal64(bytes(8)), "00" * 8, '{"decimal64":"0000000000000000"}'),
    (Decimal128(bytes(16)), "00" * 16, f'{{"decimal128":"{"00" * 16}"}}'),
    (Char("é"), "é", '{"char":"é"}'),
    (Timestamp(1893456000123), "2030-01-01T00:00:00.123Z", '{"timestamp":1893456000123}'),
    (Timestamp(1 << 62), str(1 << 62), f'{{"timestamp":{1 << 62}}}'),
    (UUID(UUID_TEXT), UUID_TEXT, f'{{"uuid":"{UUID_TEXT}"}}'),
    (b"\x00\xff", "AP8=", '{"binary":"AP8="}'),
    ("snow ☃", "snow ☃", '{"string":"snow ☃"}'),
    (Symbol("sym"), "sym", '{"symbol":"sym"}'),
    ([1, "a"], '[1,"a"]', '{"list":[{"long":1},{"string":"a"}]}'),
    ({"a": Int(1)}, '{"a":1}', '{"map":[[{"string":"a"},{"int":1}]]}'),
    (Array([1, 2], int), "[1,2]", '{"array":[{"long":1},{"long":2}]}'),
    (Described(Symbol("d"), 5), "5", '{"described":[{"symbol":"d"},{"long":5}]}'),
]


@pytest.mark.parametrize(("value", "plain", "typed"), VALUES)
def test_a_value_has_a_plain_and_a_typed_text(value: object, plain: str | None, typed: str) -> None:
    assert plain_text(value) == plain
    assert typed_text(value) == typed


@pytest.mark.parametrize(("value", "_", "typed"), VALUES)
def test_the_typed_text_gives_the_same_value_of_the_same_type(value: object, _: object, typed: str) -> None:
    again = parse_typed(typed)
    assert again == value
    assert type(again) is type(value)


def test_not_a_number_is_read_back() -> None:
    assert math.isnan(parse_typed(typed_text(math.nan)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nonsense", "not JSON"),
        ("5", "object with one member"),
        ('{"int":1,"long":2}', "object with one member"),
        ('{"number":1}', "'number' is not an AMQP type; use one of null, boolean"),
        ('{"int":"5"}', "int: must be a whole number"),
        ('{"int":true}', "int: must be a whole number"),
        ('{"ubyte":256}', "ubyte: must be a whole number from 0 to 255"),
        ('{"byte":-129}', "byte: must be a whole number from -128 to 127"),
        ('{"long":9223372036854775808}', "long: must be a whole number"),
        ('{"double":"wide"}', "double: could not convert"),
        ('{"boolean":1}', "boolean: must be true or false"),
        ('{"char":"ab"}', "char: must be one character"),
        ('{"symbol":"é"}', "symbol: must be ASCII"),
        ('{"uuid":"x"}', "uuid:"),
        ('{"binary":"*"}', "binary:"),
        ('{"decimal32":"00"}', "decimal32: must be 4 bytes"),
        ('{"string":5}', "string: must be text"),
        ('{"list":5}', "list: must be a list"),
        ('{"map":[[1]]}', "map: must be a list of pairs"),
        ('{"map":[[{"list":[]},{"int":1}]]}', "map:"),
        ('{"array":[{"int":1},{"long":1}]}', "array: must be of one type"),
        ('{"described":[{"int":1}]}', "described: must be a descriptor and a value"),
        ('{"null":1}', "null: must be null"),
        ('{"list":[' * 500 + "]}" * 500, "too deep|no JSON"),
    ],
)
def test_the_error_for_an_invalid_typed_value_has_the_reason(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_typed(text)


def test_nested_values_are_json_in_plain_text() -> None:
    value = {"when": Timestamp(0), "raw": b"\x00", "deep": [{"n": None, "x": math.nan}], 5: True}
    text = plain_text(value)
    assert text is not None
    assert json.loads(text) == {
        "when": "1970-01-01T00:00:00.000Z",
        "raw": "AA==",
        "deep": [{"n": None, "x": "nan"}],
        "5": True,
    }


@pytest.mark.parametrize(
    ("value", "body"),
    [(None, None), (b"ab", b"ab"), ("é", "é".encode()), (5, b"5"), (True, b"true"), ([1], b"[1]"), ({}, b"{}")],
)
def test_the_body_of_a_value_is_its_bytes_its_text_or_json(value: object, body: bytes | None) -> None:
    assert plain_bytes(value) == body
