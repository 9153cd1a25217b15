"""The SQL language of filters and actions: text in, functions of a message's properties out.

The public face of the language. The grammar is `sql.lark`; `parser` reads a text with it, `compiler` makes functions
of what was read, `values` and `like` are what those work with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from peeklock.broker.definitions import PropertyValue
from peeklock.broker.rules.errors import EvaluationError, SqlError
from peeklock.broker.rules.properties import SYSTEM_PROPERTIES, ChangeableProperties, Properties
from peeklock.broker.rules.values import MISSING, Missing, Value

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


def matches_everything(properties: Properties) -> bool:
    """What a filter is compiled to that is true of all messages, such as `1=1`."""
    return True


def matches_nothing(properties: Properties) -> bool:
    """What a filter is compiled to that is true of no message, such as `1=0`."""
    return False


def compile_filter(text: str, parameters: Mapping[str, PropertyValue] = {}) -> Filter:
    """SqlError if it is no filter. Parameters are named with or without their `@`, in any case."""
    raise NotImplementedError


def compile_action(text: str, parameters: Mapping[str, PropertyValue] = {}) -> Action:
    """SqlError if it is no action. Parameters are named with or without their `@`, in any case."""
    raise NotImplementedError
