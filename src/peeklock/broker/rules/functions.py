"""The functions that expressions are compiled to, with a factory for each kind of condition, value and statement.

A factory takes the compiled operands and returns a function of a message's properties, or a `Constant` if the result is
the same for all messages. It evaluates constant operands at once, so it may raise an EvaluationError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast
from uuid import uuid4

from peeklock.broker.rules.errors import EvaluationError
from peeklock.broker.rules.like import PatternError, check_escape, compile_pattern
from peeklock.broker.rules.properties import ChangeableProperties, Properties
from peeklock.broker.rules.values import (
    COMPARISONS,
    EQUATABLE,
    MISSING,
    NUMBERS,
    Operand,
    Truth,
    Value,
    affirm,
    as_float,
    calculate,
    equal,
    negate,
)

T = TypeVar("T")

Expression = Callable[[Properties], Operand]
Condition = Callable[[Properties], Truth]
Statement = Callable[[ChangeableProperties], None]


class Constant(Generic[T]):
    """An expression or condition that is the same for all messages."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __call__(self, properties: Properties) -> T:
        return self.value


def _evaluated(run: Callable[[Properties], T], *parts: Expression) -> Callable[[Properties], T]:
    """Return the function; if all operands are constants, return its result as a constant."""
    if all(isinstance(part, Constant) for part in parts):
        return Constant(run(cast(Properties, None)))
    return run


# --- AND, OR, NOT


def disjunction(terms: Sequence[Condition]) -> Condition:
    return _joined(terms, True)


def conjunction(terms: Sequence[Condition]) -> Condition:
    return _joined(terms, False)


def _joined(terms: Sequence[Condition], decisive: bool) -> Condition:
    """Combine terms with OR (`decisive` is True) or AND (`decisive` is False).

    The result is `decisive` if one term has that value. Otherwise it is unknown if one term is unknown.
    """
    fixed = [term.value for term in terms if isinstance(term, Constant)]
    if decisive in fixed:
        return Constant(decisive)
    terms = [term for term in terms if not isinstance(term, Constant)]
    undecided: Truth = None if None in fixed else not decisive
    if not terms:
        return Constant(undecided)
    if len(terms) == 1 and undecided is not None:
        return terms[0]

    def run(properties: Properties) -> Truth:
        result = undecided
        for term in terms:
            truth = term(properties)
            if truth is decisive:
                return decisive
            if truth is None:
                result = None
        return result

    return run


def negation(condition: Condition) -> Condition:
    def run(properties: Properties) -> Truth:
        truth = condition(properties)
        return None if truth is None else not truth

    return _evaluated(run, condition)


def truth(value: Expression) -> Condition:
    """Return a condition from a value: true or false if the value is that, unknown for all other values."""

    def run(properties: Properties) -> Truth:
        found = value(properties)
        return found if found is True or found is False else None

    return _evaluated(run, value)


# --- comparing


def comparison(symbol: str, left: Expression, right: Expression) -> Condition:
    operator = COMPARISONS[symbol]
    if isinstance(left, Constant) and not isinstance(right, Constant):
        return comparison(operator.mirrored, right, left)
    if not isinstance(right, Constant) or isinstance(left, Constant):
        return _evaluated(lambda properties: operator(left(properties), right(properties)), left, right)

    constant, kind, compare = right.value, type(right.value), operator.compare
    if kind not in operator.types:
        return Constant(None)
    if kind not in NUMBERS:

        def run(properties: Properties) -> Truth:
            value = left(properties)
            return compare(value, constant) if type(value) is kind else None

        return run
    double = as_float(constant)

    def run_number(properties: Properties) -> Truth:
        value = left(properties)
        if type(value) is kind:
            return compare(value, constant)
        return compare(as_float(value), double) if type(value) in NUMBERS else None

    return run_number


def is_null(value: Expression) -> Condition:
    def run(properties: Properties) -> bool:
        found = value(properties)
        return found is None or found is MISSING

    return _evaluated(run, value)


def among(value: Expression, elements: Sequence[Expression]) -> Condition:
    """Return the condition IN: the value is compared with each element as by `=`, and the results are joined by OR."""
    constants = [element.value for element in elements if isinstance(element, Constant)]
    run = _among_constants(value, constants) if len(constants) == len(elements) else _among(value, elements)
    return _evaluated(run, value, *elements)


def _among(value: Expression, elements: Sequence[Expression]) -> Condition:
    def run(properties: Properties) -> Truth:
        sought = value(properties)
        result: Truth = None if sought is None or sought is MISSING else False
        for element in elements:
            same = equal(sought, element(properties))
            if same:
                return True
            if same is None:
                result = None
        return result

    return run


def _among_constants(value: Expression, constants: Sequence[Operand]) -> Condition:
    """Return the condition IN for constants only: one lookup, whatever their number."""
    kinds = {type(constant) for constant in constants}
    by_kind = {kind: frozenset(each for each in constants if type(each) is kind) for kind in EQUATABLE}
    floats = by_kind[float]
    by_kind[float] = frozenset(as_float(each) for each in constants if type(each) in NUMBERS)
    # The result if no constant equals the value: false if all constants have its type, otherwise unknown.
    absent: dict[type, Truth] = {
        kind: False if kinds <= (NUMBERS if kind in NUMBERS else {kind}) else None for kind in EQUATABLE
    }

    def run(properties: Properties) -> Truth:
        sought = value(properties)
        kind = type(sought)
        if kind not in EQUATABLE:
            return None
        if sought in by_kind[kind] or (kind is int and floats and as_float(sought) in floats):
            return True
        return absent[kind]

    return run


def like(value: Expression, pattern: Expression, escape: Expression | None) -> Condition:
    """Return the condition LIKE. Raise PatternError if a constant cannot be a pattern or an escape character."""
    if isinstance(escape, Constant) and escape.value is not None:
        check_escape(escape.value)
    if isinstance(pattern, Constant) and (escape is None or isinstance(escape, Constant)):
        return _like_constant(value, pattern.value, escape)

    def run(properties: Properties) -> Truth:
        text, form = value(properties), pattern(properties)
        escaping = "" if escape is None else escape(properties)
        if not (isinstance(text, str) and isinstance(form, str) and isinstance(escaping, str)):
            return None
        try:
            matches = compile_pattern(form, None if escape is None else escaping)
        except PatternError as error:
            raise EvaluationError(str(error)) from None
        return matches(text)

    return run


def _like_constant(value: Expression, pattern: Operand, escape: Constant[Operand] | None) -> Condition:
    if not isinstance(pattern, str | None):
        raise PatternError("The pattern of LIKE must be a text.")
    if pattern is None or (escape is not None and escape.value is None):
        return Constant(None)
    matches = compile_pattern(pattern, None if escape is None else str(escape.value))

    def run(properties: Properties) -> Truth:
        text = value(properties)
        return matches(text) if isinstance(text, str) else None

    return _evaluated(run, value)


# --- values


def user_property(name: str) -> Expression:
    return lambda properties: properties.user(name)


def system_property(name: str) -> Expression:
    return lambda properties: properties.system(name)


def property_by_name(name: Expression) -> Expression:
    """Return the expression `property(name)`: the application property with a calculated name."""
    if isinstance(name, Constant):
        return user_property(name.value) if isinstance(name.value, str) else Constant(None)

    def run(properties: Properties) -> Operand:
        found = name(properties)
        return properties.user(found) if isinstance(found, str) else None

    return run


def new_id(properties: Properties) -> Operand:
    return uuid4()


def calculation(first: Expression, steps: Sequence[tuple[str, Expression]]) -> Expression:
    """Return the expression for arithmetic operators of one precedence, evaluated from left to right."""

    def run(properties: Properties) -> Operand:
        result = first(properties)
        for symbol, operand in steps:
            result = calculate(symbol, result, operand(properties))
        return result

    return _evaluated(run, first, *(operand for _, operand in steps))


def signed(sign: str, value: Expression) -> Expression:
    apply = negate if sign == "-" else affirm
    return _evaluated(lambda properties: apply(value(properties)), value)


# --- whether a property exists


def exists_user(name: str) -> Condition:
    return lambda properties: properties.user(name) is not MISSING


def exists_system(name: str) -> Condition:
    return lambda properties: properties.system(name) is not None


def exists_by_name(name: Expression) -> Condition:
    def run(properties: Properties) -> bool:
        found = name(properties)
        return isinstance(found, str) and properties.user(found) is not MISSING

    return run


# --- statements


def set_user(name: str, value: Expression) -> Statement:
    return lambda properties: properties.set_user(name, _null_if_missing(value(properties)))


def set_system(name: str, value: Expression) -> Statement:
    return lambda properties: properties.set_system(name, _null_if_missing(value(properties)))


def _null_if_missing(value: Operand) -> Value:
    return None if value is MISSING else value


def remove_user(name: str) -> Statement:
    return lambda properties: properties.remove_user(name)


def remove_system(name: str) -> Statement:
    return lambda properties: properties.remove_system(name)
