"""From the tree of an expression to functions of a message's properties.

A tree is gone through once; what comes out calls no tree again. What does not depend on the message is calculated here.
Conditions and values are kept apart: a condition is true, false or unknown (None), and no operand of anything but NOT,
AND and OR. The forms of functions are in `functions`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn
from uuid import uuid4

from lark import Token, Tree

from peeklock.broker.names import fold
from peeklock.broker.rules import functions
from peeklock.broker.rules.errors import EvaluationError, SqlError, shown
from peeklock.broker.rules.functions import Condition, Constant, Expression
from peeklock.broker.rules.like import PatternError
from peeklock.broker.rules.properties import SYSTEM_PROPERTIES, ChangeableProperties, Properties, system_name
from peeklock.broker.rules.values import MAX_INTEGER, MIN_INTEGER, MISSING, Operand, Value

MAX_DEPTH = 64
"""Parentheses, NOT, signs and calls within each other."""
MAX_STATEMENTS = 32

Statement = Callable[[ChangeableProperties], None]


class Compiler:
    """Makes functions of one text, with the values of its parameters (by folded name)."""

    def __init__(self, text: str, parameters: Mapping[str, Value]) -> None:
        self._text = text
        self._parameters = parameters
        self._depth = 0

    def filter(self, tree: Tree[Token]) -> Condition:
        return self._condition(_child(tree, 0))

    def action(self, tree: Tree[Token]) -> list[Statement]:
        for extra in tree.children[MAX_STATEMENTS:]:
            self._refuse(extra, f"An action has at most {MAX_STATEMENTS} statements; this is one more")
        return [self._statement(statement) for statement in _trees(tree)]

    # --- statements

    def _statement(self, tree: Tree[Token]) -> Statement:
        target = _child(tree, 1)
        system, name = self._property_name(target)
        if system and not SYSTEM_PROPERTIES[name]:
            self._refuse(target, f"An action cannot change the system property {name}")
        if tree.data == "remove":
            return functions.remove_system(name) if system else functions.remove_user(name)
        value = self._value(_child(tree, 3))
        return functions.set_system(name, value) if system else functions.set_user(name, value)

    # --- conditions

    def _condition(self, tree: Tree[Token]) -> Condition:
        make = _CONDITIONS.get(tree.data)
        if make is None:
            self._refuse(tree, "There is a value where a condition should be")
        return make(self, tree)

    def _disjunction(self, tree: Tree[Token]) -> Condition:
        return functions.disjunction([self._condition(child) for child in _trees(tree)])

    def _conjunction(self, tree: Tree[Token]) -> Condition:
        return functions.conjunction([self._condition(child) for child in _trees(tree)])

    def _negated(self, tree: Tree[Token]) -> Condition:
        return functions.negation(self._deeper(tree, self._condition, _child(tree, 1)))

    def _nested_condition(self, tree: Tree[Token]) -> Condition:
        return self._deeper(tree, self._condition, _child(tree, 1))

    def _compared(self, tree: Tree[Token]) -> Condition:
        left, symbol, right = tree.children
        return self._folded(symbol, functions.comparison, str(symbol), self._value(left), self._value(right))

    def _is_null(self, tree: Tree[Token]) -> Condition:
        return functions.is_null(self._value(_child(tree, 0)))

    def _among(self, tree: Tree[Token]) -> Condition:
        elements = [self._value(element) for element in _trees(_child(tree, -1))]
        return self._folded(tree, functions.among, self._value(_child(tree, 0)), elements)

    def _like(self, tree: Tree[Token]) -> Condition:
        *_, pattern, escape = tree.children
        compiled = self._value(_child(tree, 0)), self._value(pattern), None if escape is None else self._value(escape)
        try:
            return self._folded(pattern, functions.like, *compiled)
        except PatternError as error:
            self._refuse(pattern, str(error).removesuffix("."))

    def _exists(self, tree: Tree[Token]) -> Condition:
        target = _child(tree, 1)
        if target.data == "call":
            if fold(_child_token(target, 0)) not in _PROPERTY_FUNCTIONS:
                self._refuse(target, "EXISTS takes a property")
            return functions.exists_by_name(self._value(_child(target, 1)))
        system, name = self._property_name(target)
        return functions.exists_system(name) if system else functions.exists_user(name)

    def _truth(self, tree: Tree[Token]) -> Condition:
        value = self._value(tree)
        if isinstance(value, Constant) and not isinstance(value.value, bool | None):
            self._refuse(tree, f"{_kind(value.value)} is no condition")
        return functions.truth(value)

    # --- values

    def _value(self, tree: Any) -> Expression:
        make = _VALUES.get(tree.data)
        if make is None:
            self._refuse(tree, "There is a condition where a value should be")
        return make(self, tree)

    def _constant(self, tree: Tree[Token]) -> Expression:
        token = _child_token(tree, 0)
        match token.type:
            case "STRING":
                return Constant(token[1:-1].replace("''", "'"))
            case "INTEGER":
                return self._integer(token, int(token))
            case "DECIMAL":
                number = float(token)
                if number == float("inf"):
                    self._refuse(token, "The number is too large")
                return Constant(number)
            case literal:
                return Constant(_LITERALS[literal])

    def _integer(self, place: Token, number: int) -> Constant:
        if not MIN_INTEGER <= number <= MAX_INTEGER:
            self._refuse(place, "The number is outside the range of 64-bit integers")
        return Constant(number)

    def _parameter(self, tree: Tree[Token]) -> Expression:
        token = _child_token(tree, 0)
        name = fold(token[1:])
        if name not in self._parameters:
            self._refuse(token, f"No value is given for the parameter {shown(token)}")
        value = self._parameters[name]
        if isinstance(value, datetime) and value.tzinfo is None:
            self._refuse(token, f"The value of the parameter {shown(token)} has no time zone")
        if isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER:
            self._refuse(token, f"The value of the parameter {shown(token)} is outside the range of 64-bit integers")
        return Constant(value)

    def _property(self, tree: Tree[Token]) -> Expression:
        system, name = self._property_name(tree)
        return functions.system_property(name) if system else functions.user_property(name)

    def _call(self, tree: Tree[Token]) -> Expression:
        name, argument = tree.children
        function = fold(str(name))
        takes_argument = _FUNCTIONS.get(function)
        if takes_argument is None:
            self._refuse(name, f"There is no function {shown(str(name))}; there are newid(), property(name) and p(name)")
        if takes_argument != (argument is not None):
            self._refuse(name, f"{function} takes {'one argument' if takes_argument else 'no argument'}")
        if argument is None:
            return lambda _: uuid4()
        return functions.property_by_name(self._deeper(tree, self._value, argument))

    def _nested_value(self, tree: Tree[Token]) -> Expression:
        return self._deeper(tree, self._value, _child(tree, 1))

    def _chain(self, tree: Tree[Token]) -> Expression:
        first, *rest = tree.children
        result = self._value(first)
        steps: list[tuple[str, Expression]] = []
        for symbol, operand in zip(rest[::2], rest[1::2], strict=True):
            value = self._value(operand)
            if isinstance(result, Constant) and isinstance(value, Constant) and not steps:
                result = self._folded(symbol, functions.calculation, result, [(str(symbol), value)])
            else:
                steps.append((str(symbol), value))
        return functions.calculation(result, steps) if steps else result

    def _signed(self, tree: Tree[Token]) -> Expression:
        sign, operand = tree.children
        if sign == "-" and operand.data == "constant" and operand.children[0].type == "INTEGER":
            # The least integer has no positive counterpart.
            return self._integer(operand.children[0], -int(operand.children[0]))
        return self._folded(sign, functions.signed, str(sign), self._deeper(tree, self._value, operand))

    # --- names

    def _property_name(self, tree: Tree[Token]) -> tuple[bool, str]:
        """Whether it is a system property, and its name."""
        *scope, last = (child for child in tree.children if isinstance(child, Token))
        name = self._identifier(last)
        if not scope or fold(scope[0]) == "user":
            return False, name
        if fold(scope[0]) != "sys":
            whole = shown(f"{scope[0]}.{name}")
            self._refuse(scope[0], f"The scope is sys or user (a name with a dot in it is written [{whole}])")
        system = system_name(name)
        if system is None:
            self._refuse(last, f"There is no system property {shown(name)}; there are {', '.join(SYSTEM_PROPERTIES)}")
        return True, system

    def _identifier(self, token: Token) -> str:
        if token.type == "NAME":
            for offset, character in enumerate(token):
                # More characters are letters and digits to regular expressions than to the language.
                if character != "_" and unicodedata.category(character) not in _LETTERS_AND_DIGITS:
                    self._refuse_at(
                        (token.start_pos or 0) + offset,
                        f'"{character}" is no letter or digit; the name is written [{shown(token)}]',
                    )
            return str(token)
        closing = token[-1]
        name = token[1:-1].replace(closing * 2, closing)
        if not name:
            self._refuse(token, "The name is empty")
        return name

    # --- help for the above

    def _deeper(self, place: Tree[Token], make: Callable[[Any], Any], tree: Any) -> Any:
        if self._depth == MAX_DEPTH:
            self._refuse(place, f"The expression is nested more than {MAX_DEPTH} levels deep")
        self._depth += 1
        made = make(tree)
        self._depth -= 1
        return made

    def _folded(self, place: Any, make: Callable[..., Any], *arguments: Any) -> Any:
        """What `make` makes of it, if that does not fail already: constants are calculated at once."""
        try:
            return make(*arguments)
        except EvaluationError as error:
            self._refuse(place, str(error).removesuffix("."))

    def _refuse(self, place: Any, problem: str) -> NoReturn:
        position = place.meta.start_pos if isinstance(place, Tree) else place.start_pos
        self._refuse_at(position, problem)

    def _refuse_at(self, position: int, problem: str) -> NoReturn:
        raise SqlError(self._text, position, problem)
