"""What the broker's clock may have shown: its distance from ours is known but for the moments when it was set."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from chaos.history import ClockSet


class BrokerClock:
    """Answers are bounds, never too narrow: while it is being set either distance may hold."""

    def __init__(self, sets: Iterable[ClockSet] = ()) -> None:
        ordered = sorted(sets, key=lambda each: each.start)
        begins = [-inf, *(each.start for each in ordered)]
        ends = [*(each.end for each in ordered), inf]
        self._spans = list(zip(begins, ends, [0, *(each.offset for each in ordered)], strict=True))

    def latest(self, start: float, end: float) -> float:
        """The highest it can have shown between two moments of ours."""
        return max(min(end, upto) + offset for since, upto, offset in self._spans if since <= end and upto >= start)

    def earliest(self, start: float, end: float) -> float:
        """The lowest."""
        return min(max(start, since) + offset for since, upto, offset in self._spans if since <= end and upto >= start)

    def highest_until(self, end: float) -> float:
        """The highest it can have shown at all up to then."""
        return self.latest(-inf, end)
