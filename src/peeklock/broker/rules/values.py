"""The values of the language: their types and operators.

Values have exactly these Python types. Operators treat a value of another type, even of a subclass, as unknown, like
null. If the types of the operands do not fit the operator, the result is unknown too. As in C#, on which the hosted
service is based, an integer is converted to a double if the other operand is one. There are no other conversions.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, cast
from uuid import UUID

from peeklock.broker.rules.errors import EvaluationError
from peeklock.limits.broker import MAX_TEXT_MADE

Value = None | bool | int | float | str | datetime | timedelta | UUID | bytes
"""The values of properties and expressions. Datetimes have a time zone. None is null, which is unknown."""


class Missing(Enum):
    """The type of `MISSING`. It differs from None, because a property can exist and be null."""

    MISSING = "missing"


MISSING = Missing.MISSING
"""The value of a property that a message does not have. Operators treat it as unknown, like null."""


def plain(value: Value) -> Value:
    """Return the value in its base type. A subclass, such as one for an AMQP type, is removed."""
    if type(value) not in EQUATABLE:
        for kind in (int, float, str, bytes):
            if isinstance(value, kind):
                return cast(Value, kind(value))  # type: ignore[arg-type]
    return value


Operand = Value | Missing
Truth = bool | None
"""The value of a condition; None is unknown."""

MIN_INTEGER = -(1 << 63)
MAX_INTEGER = (1 << 63) - 1


# --- comparing

NUMBERS = frozenset({int, float})
ORDERED: frozenset[type] = NUMBERS | {str, datetime, timedelta}
EQUATABLE: frozenset[type] = ORDERED | {bool, UUID, bytes}


class Comparison:
    """One of the comparison operators."""

    __slots__ = ("compare", "mirrored", "types")

    def __init__(self, compare: Callable[[Any, Any], bool], types: frozenset[type], mirrored: str) -> None:
        self.compare = compare
        self.types = types
        """The types that the operator can compare."""
        self.mirrored = mirrored
        """The operator that gives the same result with exchanged operands."""

    def __call__(self, left: Operand, right: Operand) -> Truth:
        kind, other = type(left), type(right)
        if kind is other:
            return self.compare(left, right) if kind in self.types else None
        if kind in NUMBERS and other in NUMBERS:
            return self.compare(as_float(left), as_float(right))
        return None


COMPARISONS = {
    "=": Comparison(operator.eq, EQUATABLE, "="),
    "<>": Comparison(operator.ne, EQUATABLE, "<>"),
    "!=": Comparison(operator.ne, EQUATABLE, "!="),
    "<": Comparison(operator.lt, ORDERED, ">"),
    "<=": Comparison(operator.le, ORDERED, ">="),
    ">": Comparison(operator.gt, ORDERED, "<"),
    ">=": Comparison(operator.ge, ORDERED, "<="),
}

equal = COMPARISONS["="]


def as_float(number: Any) -> float:
    """Convert a number to a double, as C# does before it compares. Python would compare an integer exactly."""
    try:
        return float(number)
    except OverflowError:
        raise EvaluationError(f"The integer {_digits(number)} is outside the range of doubles.") from None


# --- calculating

Arithmetic = dict[tuple[type, type], Callable[[Any, Any], Value]]
"""One arithmetic operator: its functions by the types of the operands. For other types the result is unknown."""


def _integer(result: int) -> int:
    if MIN_INTEGER <= result <= MAX_INTEGER:
        return result
    raise EvaluationError(f"The result {_digits(result)} is outside the range of 64-bit integers.")


def _digits(number: int) -> str:
    # Python refuses to format integers of thousands of digits.
    return str(number) if number.bit_length() <= 256 else "(very long)"


def _add_integers(left: int, right: int) -> int:
    return _integer(left + right)


def _subtract_integers(left: int, right: int) -> int:
    return _integer(left - right)


def _multiply_integers(left: int, right: int) -> int:
    return _integer(left * right)


def _divide_integers(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return _integer(quotient if (left < 0) == (right < 0) else -quotient)


def _remainder_of_integers(left: int, right: int) -> int:
    remainder = abs(left) % abs(right)
    return _integer(-remainder if left < 0 else remainder)


def _remainder_of_floats(left: float, right: float) -> float:
    if right == 0:
        raise ZeroDivisionError
    return math.fmod(left, right) if math.isfinite(left) else math.nan


def _join(left: str, right: str) -> str:
    if len(left) + len(right) > MAX_TEXT_MADE:
        raise EvaluationError(f"The concatenated text has more than {MAX_TEXT_MADE} characters.")
    return left + right


def _of_numbers(integers: Callable[[int, int], int], floats: Callable[[float, float], float]) -> Arithmetic:
    def mixed(left: Any, right: Any) -> float:
        return floats(as_float(left), as_float(right))

    return {(int, int): integers, (float, float): floats, (int, float): mixed, (float, int): mixed}


ARITHMETIC: dict[str, Arithmetic] = {
    "+": {
        **_of_numbers(_add_integers, operator.add),
        (str, str): _join,
        (datetime, timedelta): operator.add,
        (timedelta, timedelta): operator.add,
    },
    "-": {
        **_of_numbers(_subtract_integers, operator.sub),
        (datetime, datetime): operator.sub,
        (datetime, timedelta): operator.sub,
        (timedelta, timedelta): operator.sub,
    },
    "*": _of_numbers(_multiply_integers, operator.mul),
    "/": _of_numbers(_divide_integers, operator.truediv),
    "%": _of_numbers(_remainder_of_integers, _remainder_of_floats),
}


def calculate(symbol: str, left: Operand, right: Operand) -> Value:
    """Return the result of an arithmetic operator; None if the types of the operands do not fit."""
    apply = ARITHMETIC[symbol].get((type(left), type(right)))
    if apply is None:
        return None
    try:
        return apply(left, right)
    except ZeroDivisionError:
        raise EvaluationError(f"Division by zero: {left} {symbol} {right}.") from None
    except OverflowError:
        raise EvaluationError(f"The result of {left} {symbol} {right} is outside the range of its type.") from None


_ZEROS: dict[type, Value] = {int: 0, timedelta: timedelta()}


def negate(value: Operand) -> Value:
    """Return the negated value, with the type that `0 - value` has."""
    if type(value) is float:
        # A float zero has a sign, which a subtraction from zero would lose.
        return -value
    return calculate("-", _ZEROS.get(type(value)), value)


def affirm(value: Operand) -> Value:
    """Return the value with the sign `+`: unchanged for numbers and durations, None for other types."""
    return value if isinstance(value, int | float | timedelta) and not isinstance(value, bool) else None
