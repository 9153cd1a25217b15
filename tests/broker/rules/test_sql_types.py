"""The types of operands that operators accept: every pair of types with every operator."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID

import pytest

from broker.rules.sql_cases import Properties
from peeklock.broker.rules.sql import compile_filter

SAMPLES: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "integer": 7,
    "double": 2.5,
    "text": "x",
    "moment": datetime(2024, 5, 1, tzinfo=UTC),
    "span": timedelta(hours=1),
    "guid": UUID(int=1),
    "binary": b"\x00",
}
COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=")
ARITHMETIC = ("+", "-", "*", "/", "%")

EQUALITY = {"=", "<>", "!="}
ALL = set(COMPARISONS) | set(ARITHMETIC)
KNOWN: dict[tuple[str, str], set[str]] = {
    ("boolean", "boolean"): EQUALITY,
    ("integer", "integer"): ALL,
    ("integer", "double"): ALL,
    ("double", "integer"): ALL,
    ("double", "double"): ALL,
    ("text", "text"): {*COMPARISONS, "+"},
    ("moment", "moment"): {*COMPARISONS, "-"},
    ("moment", "span"): {"+", "-"},
    ("span", "span"): {*COMPARISONS, "+", "-"},
    ("guid", "guid"): EQUALITY,
    ("binary", "binary"): EQUALITY,
}
"""The defined results for pairs of types. The results for all other pairs are unknown."""


def is_known(symbol: str, properties: Properties) -> bool:
    if symbol in ARITHMETIC:
        return compile_filter(f"a {symbol} b IS NOT NULL")(properties)
    return compile_filter(f"a {symbol} b OR NOT a {symbol} b")(properties)


@pytest.mark.parametrize(("left", "right"), list(product(SAMPLES, SAMPLES)))
def test_a_pair_of_types_supports_exactly_its_operators(left: str, right: str) -> None:
    properties = Properties({"a": SAMPLES[left], "b": SAMPLES[right]})
    known = {symbol for symbol in (*COMPARISONS, *ARITHMETIC) if is_known(symbol, properties)}
    assert known == KNOWN.get((left, right), set())


@pytest.mark.parametrize(("left", "right"), list(product(SAMPLES, SAMPLES)))
def test_a_constant_compares_as_the_same_value_of_a_property_does(left: str, right: str) -> None:
    one, other = SAMPLES[left], SAMPLES[right]
    both = Properties({"a": one, "b": other})
    forms = ("a {} b", "NOT a {} b")
    for symbol, form in product(COMPARISONS, forms):
        expected = compile_filter(form.format(symbol))(both)
        with_right = compile_filter(form.format(symbol).replace(" b", " @b"), {"b": other})
        with_left = compile_filter(form.format(symbol).replace("a ", "@a "), {"a": one})
        with_both = compile_filter("NOT " * form.startswith("NOT") + f"@a {symbol} @b", {"a": one, "b": other})
        assert [with_right(both), with_left(both), with_both(both)] == [expected] * 3


@pytest.mark.parametrize(("left", "right"), list(product(SAMPLES, SAMPLES)))
def test_in_compares_as_equality_does(left: str, right: str) -> None:
    one, other = SAMPLES[left], SAMPLES[right]
    both = Properties({"a": one, "b": other})
    for equality, constants, computed in (
        ("a = b", "a IN (@b)", "a IN (b)"),
        ("NOT a = b", "a NOT IN (@b)", "a NOT IN (b)"),
        ("a = b OR a = 'y'", "a IN (@b, 'y')", "a IN (b, 'y')"),
        ("NOT (a = b OR a = 8)", "a NOT IN (@b, 8)", "a NOT IN (b, 8)"),
    ):
        expected = compile_filter(equality)(both)
        assert compile_filter(constants, {"b": other})(both) == expected
        assert compile_filter(computed)(both) == expected


@pytest.mark.parametrize("kind", list(SAMPLES))
def test_a_sign_is_allowed_before_numbers_and_durations(kind: str) -> None:
    properties = Properties({"a": SAMPLES[kind]})
    for sign in "+-":
        assert compile_filter(f"{sign}a IS NOT NULL")(properties) == (kind in ("integer", "double", "span"))
