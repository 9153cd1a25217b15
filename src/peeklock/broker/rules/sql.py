"""The SQL language of filters and actions: compiles a text to a function of a message's properties.

This module is the public interface of the language. The grammar is `sql.lark`; `parser` parses a text with it,
`compiler` makes functions from the tree, and these use `values` and `like`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from peeklock.broker.rules.compiler import Compiler
from peeklock.broker.rules.errors import EvaluationError, SqlError
from peeklock.broker.rules.functions import Constant
from peeklock.broker.rules.parser import parse
from peeklock.broker.rules.properties import SYSTEM_PROPERTIES, ChangeableProperties, Properties
from peeklock.broker.rules.values import MISSING, Missing, Value, plain
from peeklock.entities.names import fold
from peeklock.entities.rules import PropertyValue

__all__ = [
    "MISSING",
    "SYSTEM_PROPERTIES",
    "Action",
    "ChangeableProperties",
    "EvaluationError",
    "Filter",
    "Missing",
    "Properties",
    "SqlError",
    "Value",
    "compile_action",
    "compile_filter",
    "matches_everything",
    "matches_nothing",
]

Filter = Callable[[Properties], bool]
"""Returns whether a message matches. An unknown result is no match. May raise EvaluationError."""
Action = Callable[[ChangeableProperties], None]
"""Changes a message, statement by statement. May raise EvaluationError after some statements were executed."""

NO_PARAMETERS: Mapping[str, PropertyValue] = MappingProxyType({})
_Key = tuple[tuple[str, type, PropertyValue], ...]


def matches_everything(properties: Properties) -> bool:
    """Return True. It is the compiled form of filters that match all messages, such as `1=1`."""
    return True


def matches_nothing(properties: Properties) -> bool:
    """Return False. It is the compiled form of filters that match no message, such as `1=0`."""
    return False


def compile_filter(text: str, parameters: Mapping[str, PropertyValue] = NO_PARAMETERS) -> Filter:
    """Compile a filter. Raise SqlError if it is invalid.

    Names of parameters are case-insensitive, and have `@` or not.
    """
    return _compile_filter(text, _key(parameters))


def compile_action(text: str, parameters: Mapping[str, PropertyValue] = NO_PARAMETERS) -> Action:
    """Compile an action. Raise SqlError if it is invalid.

    Names of parameters are case-insensitive, and have `@` or not.
    """
    return _compile_action(text, _key(parameters))


def _key(parameters: Mapping[str, PropertyValue]) -> _Key:
    # The key has the types, because 1, 1.0 and True are equal in Python.
    return tuple((fold(name.removeprefix("@")), type(value), value) for name, value in parameters.items())


@lru_cache(maxsize=1024)
def _compile_filter(text: str, key: _Key) -> Filter:
    condition = Compiler(text, _values(key)).filter(parse(text, "filter"))
    if isinstance(condition, Constant):
        return matches_everything if condition.value else matches_nothing
    return lambda properties: condition(properties) is True


@lru_cache(maxsize=1024)
def _compile_action(text: str, key: _Key) -> Action:
    statements = Compiler(text, _values(key)).action(parse(text, "action"))

    def run(properties: ChangeableProperties) -> None:
        for statement in statements:
            statement(properties)

    return run


def _values(key: _Key) -> dict[str, Value]:
    return {name: plain(value) for name, _, value in key}
