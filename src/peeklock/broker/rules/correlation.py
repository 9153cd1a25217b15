"""Correlation filters found by hash: which of many a message meets, without asking one after the other.

Filters that test the same properties have the same shape. Each shape is one dictionary from the values that its
filters expect to those filters, so a message costs one lookup for each shape, however many filters there are.
"""

from __future__ import annotations

from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

from peeklock.broker.rules.conversion import milliseconds_of
from peeklock.broker.rules.errors import sentence_of
from peeklock.broker.rules.properties import Properties
from peeklock.broker.rules.values import MISSING, Value
from peeklock.entities.rules import CORRELATION_FIELDS, CorrelationFilter

Owner = TypeVar("Owner")


class Shape(NamedTuple):
    """What a filter tests: names of system properties and of user properties."""

    system: tuple[str, ...]
    user: tuple[str, ...]


class CorrelationIndex(Generic[Owner]):
    """Correlation filters, each with whom it belongs to."""

    def __init__(self) -> None:
        self._shapes: dict[Shape, dict[_Key, dict[Owner, None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def add(self, correlation: CorrelationFilter, owner: Owner) -> None:
        shape, key = _shape(correlation), _expected(correlation)
        self._shapes.setdefault(shape, {}).setdefault(key, {})[owner] = None

    def discard(self, correlation: CorrelationFilter, owner: Owner) -> None:
        """Take back what was added."""
        shape, key = _shape(correlation), _expected(correlation)
        by_key = self._shapes[shape]
        del by_key[key][owner]
        if not by_key[key]:
            del by_key[key]
        if not by_key:
            del self._shapes[shape]

    def find(self, view: Properties, hits: list[Owner], failures: list[tuple[Owner, str]]) -> None:
        """Add the owners of the filters that the message meets, and of those that it cannot be asked, with why."""
        for shape, by_key in self._shapes.items():
            try:
                key = _found(shape, view)
                found = () if key is None else by_key.get(key, ())
            except Exception as error:
                sentence = sentence_of(error)
                failures += [(owner, sentence) for owners in by_key.values() for owner in owners]
                continue
            hits += found


_Key = tuple[object, ...]
"""The values of a shape's properties, in its order, in a form in which equal means that they match."""


def _shape(correlation: CorrelationFilter) -> Shape:
    tested = (name for name, field in CORRELATION_FIELDS.items() if getattr(correlation, field) is not None)
    return Shape(tuple(tested), tuple(sorted(correlation.properties)))


def _expected(correlation: CorrelationFilter) -> _Key:
    shape = _shape(correlation)
    system = (getattr(correlation, CORRELATION_FIELDS[name]) for name in shape.system)
    return (*system, *(_comparable(correlation.properties[name]) for name in shape.user))


def _found(shape: Shape, view: Properties) -> _Key | None:
    """None when the message lacks one of them."""
    key: list[object] = []
    for name in shape.system:
        text = view.system(name)
        if text is None:
            return None
        key.append(text)
    for name in shape.user:
        value = view.user(name)
        if value is None or value is MISSING:
            return None
        key.append(_comparable(value))
    return tuple(key)


def _comparable(value: Value) -> object:
    if isinstance(value, bool):
        return bool, value  # to Python, True is 1
    if isinstance(value, datetime):
        # A timestamp on the wire has milliseconds; what a filter says beyond them no message could meet.
        return datetime, milliseconds_of(value)
    return value
