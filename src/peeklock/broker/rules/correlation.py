"""An index of correlation filters, which finds the filters that match a message by hash.

Filters that test the same properties have the same shape. Each shape has one dictionary from the expected values to the
filters. So a message costs one lookup for each shape, whatever the number of filters.
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
    """The properties that a filter tests: names of system properties and of user properties."""

    system: tuple[str, ...]
    user: tuple[str, ...]


class CorrelationIndex(Generic[Owner]):
    """Correlation filters with their owners."""

    def __init__(self) -> None:
        self._shapes: dict[Shape, dict[_Key, dict[Owner, None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def add(self, correlation: CorrelationFilter, owner: Owner) -> None:
        shape, key = _shape(correlation), _expected(correlation)
        self._shapes.setdefault(shape, {}).setdefault(key, {})[owner] = None

    def discard(self, correlation: CorrelationFilter, owner: Owner) -> None:
        """Remove a filter that was added."""
        shape, key = _shape(correlation), _expected(correlation)
        by_key = self._shapes[shape]
        del by_key[key][owner]
        if not by_key[key]:
            del by_key[key]
        if not by_key:
            del self._shapes[shape]

    def find(self, view: Properties, hits: list[Owner], failures: list[tuple[Owner, str]]) -> None:
        """Add the owners of matching filters to `hits`, and those of failing filters, with reasons, to `failures`."""
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
"""The values of the properties of a shape, in its order. The keys of a filter and a message are equal if they match."""


def _shape(correlation: CorrelationFilter) -> Shape:
    tested = (name for name, field in CORRELATION_FIELDS.items() if getattr(correlation, field) is not None)
    return Shape(tuple(tested), tuple(sorted(correlation.properties)))


def _expected(correlation: CorrelationFilter) -> _Key:
    shape = _shape(correlation)
    system = (getattr(correlation, CORRELATION_FIELDS[name]) for name in shape.system)
    return (*system, *(_comparable(correlation.properties[name]) for name in shape.user))


def _found(shape: Shape, view: Properties) -> _Key | None:
    """Return the values of the shape's properties in a message; None if the message lacks one of them."""
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
        return bool, value  # in Python True equals 1, but not in a filter
    if isinstance(value, datetime):
        # AMQP timestamps have milliseconds, so a filter with microseconds could never match.
        return datetime, milliseconds_of(value)
    return value
