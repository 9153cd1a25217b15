"""What the broker's clock may have shown: its distance from ours is known but for the moments when it was set.

That is the clock for moments, such as when a message is due. What lasts, such as a lock, lasts by a clock that nobody
sets, and which goes as ours does, but for what a run adds to it (`passed`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from tools.chaos.history import ClockSet

ROUNDED_MS: Final = 1
"""The broker counts whole milliseconds."""


class BrokerClock:
    """Answers are bounds, never too narrow: while it is being set either distance may hold."""

    def __init__(self, sets: Iterable[ClockSet] = ()) -> None:
        ordered = sorted(sets, key=lambda each: each.start)
        begins = [-inf, *(each.start for each in ordered)]
        ends = [*(each.end for each in ordered), inf]
        self._spans = list(zip(begins, ends, [0, *(each.offset for each in ordered)], strict=True))
        self._passed = [(each.start, each.end, each.passed) for each in ordered]

    def latest(self, start: float, end: float) -> float:
        """The highest it can have shown between two moments of ours."""
        return max(min(end, upto) + offset for since, upto, offset in self._spans if since <= end and upto >= start)

    def earliest(self, start: float, end: float) -> float:
        """The lowest."""
        return min(max(start, since) + offset for since, upto, offset in self._spans if since <= end and upto >= start)

    def moments(self, shown: float, until: float = inf) -> list[float]:
        """The moments of ours, not later than that, at which it can have shown so much."""
        found = [(shown - offset, since, min(upto, until)) for since, upto, offset in self._spans]
        return [moment for moment, since, upto in found if since - ROUNDED_MS <= moment <= upto + ROUNDED_MS]

    def passed(self, start: float, end: float) -> float:
        """The longest time that can have passed for the broker between two moments of ours."""
        return end - start + sum(more for since, upto, more in self._passed if since <= end and upto >= start)

    def spread(self, until: float) -> float:
        """How far apart the distances are that it had up to then."""
        distances = [offset for since, _, offset in self._spans if since <= until]
        return max(distances) - min(distances)

    def highest_until(self, end: float) -> float:
        """The highest it can have shown at all up to then."""
        return self.latest(-inf, end)
