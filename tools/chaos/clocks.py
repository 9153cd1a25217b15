"""The broker's clock, as far as it is known: its offset from the run's clock, except while it was being set.

This is the clock for points in time, such as when a message is due. Durations, such as that of a lock, are measured by
the monotonic clock, which runs as the run's clock does, plus the time that a run adds (`passed`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from tools.chaos.history import ClockSet

ROUNDED_MS: Final = 1
"""The broker's times are whole milliseconds."""


class BrokerClock:
    """Bounds of the broker's clock. While it was being set, both offsets are possible."""

    def __init__(self, sets: Iterable[ClockSet] = ()) -> None:
        ordered = sorted(sets, key=lambda each: each.start)
        begins = [-inf, *(each.start for each in ordered)]
        ends = [*(each.end for each in ordered), inf]
        self._spans = list(zip(begins, ends, [0, *(each.offset for each in ordered)], strict=True))
        self._passed = [(each.start, each.end, each.passed) for each in ordered]

    def latest(self, start: float, end: float) -> float:
        """Return the latest time that it can have shown between two moments of the run's clock."""
        return max(min(end, upto) + offset for since, upto, offset in self._spans if since <= end and upto >= start)

    def earliest(self, start: float, end: float) -> float:
        """Return the earliest time that it can have shown between two moments of the run's clock."""
        return min(max(start, since) + offset for since, upto, offset in self._spans if since <= end and upto >= start)

    def moments(self, shown: float, until: float = inf) -> list[float]:
        """Return the moments of the run's clock, up to `until`, at which it can have shown that time."""
        found = [(shown - offset, since, min(upto, until)) for since, upto, offset in self._spans]
        return [moment for moment, since, upto in found if since - ROUNDED_MS <= moment <= upto + ROUNDED_MS]

    def passed(self, start: float, end: float) -> float:
        """Return the longest time that can have passed on the broker's monotonic clock between two moments."""
        return end - start + sum(more for since, upto, more in self._passed if since <= end and upto >= start)

    def spread(self, until: float) -> float:
        """Return the difference of the largest and the smallest offset that it had up to then."""
        offsets = [offset for since, _, offset in self._spans if since <= until]
        return max(offsets) - min(offsets)

    def highest_until(self, end: float) -> float:
        """Return the latest time that it can have shown at any moment up to then."""
        return self.latest(-inf, end)
