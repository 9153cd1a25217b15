"""Compiles the syntax tree of an expression to functions of a message's properties.

A tree is walked once; the functions do not use it again. Parts that do not depend on the message are evaluated during
compilation. Conditions and values are different: a condition is true, false or unknown (None), and can be an operand of
NOT, AND and OR only. `functions` has the functions for each kind of expression.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NoReturn, ParamSpec, TypeVar

from lark import Token, Tree

from peeklock.broker.rules import functions
from peeklock.broker.rules.conversion import in_utc
from peeklock.broker.rules.errors import EvaluationError, SqlError, shown
from peeklock.broker.rules.functions import Condition, Constant, Expression, Statement
from peeklock.broker.rules.like import EscapeError, PatternError
from peeklock.broker.rules.properties import SYSTEM_PROPERTIES, system_name
from peeklock.broker.rules.values import MAX_INTEGER, MIN_INTEGER, Value
from peeklock.entities.names import fold
from peeklock.limits.broker import MAX_RULE_DEPTH, MAX_STATEMENTS

T = TypeVar("T")
P = ParamSpec("P")
Part = Tree[Token] | Token


class Compiler:
    """Compiles the expressions of one text. `parameters` has the values of its parameters by folded name."""

    def __init__(self, text: str, parameters: Mapping[str, Value]) -> None:
        self._text = text
        self._parameters = parameters
        self._depth = 0

    def filter(self, tree: Tree[Token]) -> Condition:
        return self._condition(_tree(tree, 0))

    def action(self, tree: Tree[Token]) -> list[Statement]:
        if len(tree.children) > MAX_STATEMENTS:
            problem = f"An action has at most {MAX_STATEMENTS} statements; this one is too many"
            self._refuse(tree.children[MAX_STATEMENTS], problem)
        return [self._statement(statement) for statement in _trees(tree)]

    # --- statements

    def _statement(self, tree: Tree[Token]) -> Statement:
        target = _tree(tree, 1)
        system, name = self._property_name(target)
        if system and not SYSTEM_PROPERTIES.get(name):
            self._refuse(target, f"An action cannot change the system property {name}")
        if tree.data == "remove":
            return functions.remove_system(name) if system else functions.remove_user(name)
        value = self._value(_tree(tree, 3))
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
        return functions.negation(self._deeper(tree, self._condition, _tree(tree, 1)))

    def _nested_condition(self, tree: Tree[Token]) -> Condition:
        return self._deeper(tree, self._condition, _tree(tree, 1))

    def _compared(self, tree: Tree[Token]) -> Condition:
        symbol = _token(tree, 1)
        left, right = self._value(_tree(tree, 0)), self._value(_tree(tree, 2))
        return self._folded(symbol, functions.comparison, str(symbol), left, right)

    def _is_null(self, tree: Tree[Token]) -> Condition:
        return functions.is_null(self._value(_tree(tree, 0)))

    def _among(self, tree: Tree[Token]) -> Condition:
        value = self._value(_tree(tree, 0))
        return functions.among(value, [self._value(element) for element in _trees(_tree(tree, -1))])

    def _like(self, tree: Tree[Token]) -> Condition:
        value, pattern = _tree(tree, 0), _tree(tree, -2)
        # The parser puts None at the place of a missing ESCAPE.
        escape = _tree(tree, -1) if tree.children[-1] is not None else None
        compiled = None if escape is None else self._value(escape)
        try:
            return self._folded(pattern, functions.like, self._value(value), self._value(pattern), compiled)
        except PatternError as error:
            place = escape if escape is not None and isinstance(error, EscapeError) else pattern
            self._refuse(place, str(error).removesuffix("."))

    def _negative(self, tree: Tree[Token]) -> Condition:
        """Compile IS NOT NULL, NOT IN and NOT LIKE as the negation of the form without NOT."""
        return functions.negation(_OPPOSITES[tree.data](self, tree))

    def _exists(self, tree: Tree[Token]) -> Condition:
        target = _tree(tree, 1)
        if target.data == "call":
            if fold(_token(target, 0)) == "newid":
                self._refuse(target, "EXISTS requires a property, not newid()")
            return functions.exists_by_name(self._property_function(target))
        system, name = self._property_name(target)
        return functions.exists_system(name) if system else functions.exists_user(name)

    def _truth(self, tree: Tree[Token]) -> Condition:
        value = self._value(tree)
        if value is functions.new_id:
            self._refuse(tree, "newid() is not a condition")
        if isinstance(value, Constant) and not isinstance(value.value, bool | None):
            self._refuse(tree, f"{_kind(value.value).capitalize()} is not a condition")
        return functions.truth(value)

    # --- values

    def _value(self, tree: Tree[Token]) -> Expression:
        make = _VALUES.get(tree.data)
        if make is None:
            self._refuse(tree, "There is a condition where a value should be")
        return make(self, tree)

    def _constant(self, tree: Tree[Token]) -> Expression:
        token = _token(tree, 0)
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

    def _integer(self, place: Token, number: int) -> Expression:
        if not MIN_INTEGER <= number <= MAX_INTEGER:
            self._refuse(place, "The number is outside the range of 64-bit integers")
        return Constant(number)

    def _parameter(self, tree: Tree[Token]) -> Expression:
        token = _token(tree, 0)
        name = fold(token[1:])
        if name not in self._parameters:
            self._refuse(token, f"No value is given for the parameter {shown(token)}")
        value = self._parameters[name]
        if isinstance(value, datetime):
            value = in_utc(value)
        if isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER:
            self._refuse(token, f"The value of the parameter {shown(token)} is outside the range of 64-bit integers")
        return Constant(value)

    def _property(self, tree: Tree[Token]) -> Expression:
        system, name = self._property_name(tree)
        return functions.system_property(name) if system else functions.user_property(name)

    def _call(self, tree: Tree[Token]) -> Expression:
        if fold(_token(tree, 0)) == "newid":
            if tree.children[1] is not None:
                self._refuse(tree.children[1], "newid() takes no argument")
            return functions.new_id
        return functions.property_by_name(self._property_function(tree))

    def _property_function(self, tree: Tree[Token]) -> Expression:
        """Compile property(name) or p(name)."""
        function = _token(tree, 0)
        if fold(function) not in _PROPERTY_FUNCTIONS:
            problem = f"There is no function {shown(function)}; there are newid(), property(name) and p(name)"
            self._refuse(function, problem)
        if tree.children[1] is None:
            self._refuse(function, f"{function}(name) requires the name of a property")
        name = self._deeper(tree, self._value, _tree(tree, 1))
        if isinstance(name, Constant) and not isinstance(name.value, str | None):
            self._refuse(tree.children[1], f"The name of a property is a text, not {_kind(name.value)}")
        return name

    def _nested_value(self, tree: Tree[Token]) -> Expression:
        return self._deeper(tree, self._value, _tree(tree, 1))

    def _chain(self, tree: Tree[Token]) -> Expression:
        result = self._value(_tree(tree, 0))
        steps: list[tuple[str, Expression]] = []
        for index in range(1, len(tree.children), 2):
            symbol, value = _token(tree, index), self._value(_tree(tree, index + 1))
            if not steps and isinstance(result, Constant) and isinstance(value, Constant):
                result = self._folded(symbol, functions.calculation, result, [(str(symbol), value)])
            else:
                steps.append((str(symbol), value))
        return functions.calculation(result, steps) if steps else result

    def _signed(self, tree: Tree[Token]) -> Expression:
        sign, operand = _token(tree, 0), _tree(tree, 1)
        number = operand.children[0]
        if sign == "-" and isinstance(number, Token) and number.type == "INTEGER":
            # The least integer has no positive counterpart.
            return self._integer(number, -int(number))
        value = self._deeper(tree, self._value, operand)
        return self._folded(sign, functions.signed, str(sign), value)

    # --- names

    def _property_name(self, tree: Tree[Token]) -> tuple[bool, str]:
        """Return whether the name has the scope `sys`, and the name itself."""
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
                # The grammar's regular expression accepts more characters than the language does.
                if character != "_" and unicodedata.category(character) not in _LETTERS_AND_DIGITS:
                    self._refuse_at(
                        (token.start_pos or 0) + offset,
                        f'"{character}" is not a letter or digit; the name is written [{shown(token)}]',
                    )
            return str(token)
        closing = token[-1]
        name = token[1:-1].replace(closing * 2, closing)
        if not name:
            self._refuse(token, "The name is empty")
        return name

    # --- helpers

    def _deeper(self, place: Tree[Token], make: Callable[[Tree[Token]], T], tree: Tree[Token]) -> T:
        if self._depth == MAX_RULE_DEPTH:
            self._refuse(place, f"The expression is nested more than {MAX_RULE_DEPTH} levels deep")
        self._depth += 1
        made = make(tree)
        self._depth -= 1
        return made

    def _folded(self, place: Part, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of `make`. Raise SqlError if it fails, as it may for constants."""
        try:
            return make(*args, **kwargs)
        except EvaluationError as error:
            self._refuse(place, str(error).removesuffix("."))

    def _refuse(self, place: Part, problem: str) -> NoReturn:
        self._refuse_at((place.meta.start_pos if isinstance(place, Tree) else place.start_pos) or 0, problem)

    def _refuse_at(self, position: int, problem: str) -> NoReturn:
        raise SqlError(self._text, position, problem)


def _tree(parent: Tree[Token], index: int) -> Tree[Token]:
    child = parent.children[index]
    assert isinstance(child, Tree)
    return child


def _trees(parent: Tree[Token]) -> list[Tree[Token]]:
    return [_tree(parent, index) for index in range(len(parent.children))]


def _token(parent: Tree[Token], index: int) -> Token:
    child = parent.children[index]
    assert isinstance(child, Token)
    return child


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "a value of its type")


_LITERALS: dict[str, Value] = {"TRUE": True, "FALSE": False, "NULL": None}
_KINDS: dict[type, str] = {str: "a text", int: "a number", float: "a number", bool: "a boolean"}
_LETTERS_AND_DIGITS = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nd"})
_PROPERTY_FUNCTIONS = frozenset({"property", "p"})

_Conditions = dict[str, Callable[[Compiler, Tree[Token]], Condition]]
_OPPOSITES: _Conditions = {
    "is_not_null": Compiler._is_null,
    "not_among": Compiler._among,
    "not_like": Compiler._like,
}
_CONDITIONS: _Conditions = {
    "disjunction": Compiler._disjunction,
    "conjunction": Compiler._conjunction,
    "negated": Compiler._negated,
    "nested": Compiler._nested_condition,
    "compared": Compiler._compared,
    "is_null": Compiler._is_null,
    "among": Compiler._among,
    "like": Compiler._like,
    **dict.fromkeys(_OPPOSITES, Compiler._negative),
    "exists": Compiler._exists,
    **dict.fromkeys(("constant", "parameter", "property", "call"), Compiler._truth),
}
_VALUES: dict[str, Callable[[Compiler, Tree[Token]], Expression]] = {
    "constant": Compiler._constant,
    "parameter": Compiler._parameter,
    "property": Compiler._property,
    "call": Compiler._call,
    "nested": Compiler._nested_value,
    "sum": Compiler._chain,
    "product": Compiler._chain,
    "signed": Compiler._signed,
}
"""Methods that compile values, by the names of the grammar's rules. The tables before it have those for conditions."""
