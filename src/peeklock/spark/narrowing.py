"""The sequence numbers and times that a read covers: the bounds of the options, narrowed by filters from Spark.

A filter can only make the read smaller, and Spark applies it to every row again. So unknown filters are ignored here,
and an approximate bound is enough.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from peeklock.spark.option_values import MAX_NUMBER
from peeklock.spark.options import Options
from peeklock.spark.texts import milliseconds

_PUSHING_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first and last sequence number and enqueued time, all inclusive."""

    first: int = 0
    last: int = MAX_NUMBER
    earliest_ms: int | None = None
    latest_ms: int | None = None

    @classmethod
    def of(cls, options: Options) -> Bounds:
        first, last = options.starting_sequence_number, options.ending_sequence_number
        return cls(first or 0, MAX_NUMBER if last is None else last, options.starting_enqueued_time_ms)

    @property
    def is_empty(self) -> bool:
        return self.last < self.first

    def at_least(self, first: int) -> Bounds:
        return replace(self, first=max(self.first, first))

    def at_most(self, last: int) -> Bounds:
        return replace(self, last=min(self.last, last))

    def not_before(self, ms: int) -> Bounds:
        return replace(self, earliest_ms=ms if self.earliest_ms is None else max(ms, self.earliest_ms))

    def not_after(self, ms: int) -> Bounds:
        return replace(self, latest_ms=ms if self.latest_ms is None else min(ms, self.latest_ms))


def pushes_filters() -> bool:
    """Whether Spark is going to push filters down.

    A reader that accepts filters makes the query fail if Spark's push-down is off. If it is on, Spark plans in a worker
    process for it; in any other process the reader must not accept filters.
    """
    return _PUSHING_WORKER in sys.modules or getattr(sys.modules["__main__"].__spec__, "name", "") == _PUSHING_WORKER


def narrow(bounds: Bounds, filters: Iterable[object]) -> Bounds:
    """Apply all filters; those on other columns, or of another kind, are ignored."""
    for each in filters:
        kind = _KINDS.get(type(each).__name__)
        attribute, value = getattr(each, "attribute", None), getattr(each, "value", None)
        if kind is None:
            continue
        if attribute == ("sequence_number",) and _all(value, int):
            bounds = kind[0](bounds, value)
        elif attribute == ("enqueued_time",) and _all(value, datetime):
            bounds = kind[1](bounds, value)
    return bounds


def _all(value: Any, kind: type) -> bool:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return bool(values) and all(isinstance(each, kind) for each in values)


_Narrow = Callable[[Bounds, Any], Bounds]
# By kind of filter: the narrowing by sequence number, and by time.
_KINDS: Final[Mapping[str, tuple[_Narrow, _Narrow]]] = {
    "EqualTo": (
        lambda bounds, number: bounds.at_least(number).at_most(number),
        lambda bounds, moment: bounds.not_before(milliseconds(moment)).not_after(milliseconds(moment)),
    ),
    "GreaterThan": (
        lambda bounds, number: bounds.at_least(number + 1),
        lambda bounds, moment: bounds.not_before(milliseconds(moment)),
    ),
    "GreaterThanOrEqual": (
        lambda bounds, number: bounds.at_least(number),
        lambda bounds, moment: bounds.not_before(milliseconds(moment)),
    ),
    "LessThan": (
        lambda bounds, number: bounds.at_most(number - 1),
        lambda bounds, moment: bounds.not_after(milliseconds(moment)),
    ),
    "LessThanOrEqual": (
        lambda bounds, number: bounds.at_most(number),
        lambda bounds, moment: bounds.not_after(milliseconds(moment)),
    ),
    "In": (
        lambda bounds, numbers: bounds.at_least(min(numbers)).at_most(max(numbers)),
        lambda bounds, moments: bounds.not_before(milliseconds(min(moments))).not_after(milliseconds(max(moments))),
    ),
}
