"""The SQL language of filters and actions: text in, functions of a message's properties out.

The public face of the language. The grammar is `sql.lark`; `parser` reads a text with it, `compiler` makes functions
of what was read, `values` and `like` are what those work with.
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
"""Whether a message matches; unknown is no match. Raises EvaluationError."""
Action = Callable[[ChangeableProperties], None]
"""Changes a message, statement by statement. Raises EvaluationError, with the earlier statements done."""

NO_PARAMETERS: Mapping[str, PropertyValue] = MappingProxyType({})
_Key = tuple[tuple[str, type, PropertyValue], ...]


def matches_everything(properties: Properties) -> bool:
    """What a filter is compiled to that is true of all messages, such as `1=1`."""
    return True


def matches_nothing(properties: Properties) -> bool:
    """What a filter is compiled to that is true of no message, such as `1=0`."""
    return False


def compile_filter(text: str, parameters: Mapping[str, PropertyValue] = NO_PARAMETERS) -> Filter:
    """SqlError if it is no filter. Parameters are named with or without their `@`, in any case."""
    return _compile_filter(text, _key(parameters))


def compile_action(text: str, parameters: Mapping[str, PropertyValue] = NO_PARAMETERS) -> Action:
    """SqlError if it is no action. Parameters are named with or without their `@`, in any case."""
    return _compile_action(text, _key(parameters))


def _key(parameters: Mapping[str, PropertyValue]) -> _Key:
    # The type belongs to it, because 1, 1.0 and True are equal.
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
