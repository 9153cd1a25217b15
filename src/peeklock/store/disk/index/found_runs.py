"""Collecting of runs from keys that are read in ascending order, up to the limits of the read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ...base import Run


class RunCollector:
    """Collects runs of one entity and one state."""

    def __init__(self, before: int, limit: int, max_bytes: int, excluded: Sequence[int]) -> None:
        """`before` is the key of the entity's sequence number 0; `excluded` has the sequence numbers to leave out."""
        self._before = before
        self._excluded = {before + number for number in excluded}
        self._ordered = sorted(self._excluded)
        self._runs: list[list[int]] = []
        """First and last key, size."""
        self.remaining = limit
        """How many more messages to collect."""
        self._bytes = max_bytes
        """How many more bytes to collect."""

    @property
    def is_full(self) -> bool:
        return self.remaining <= 0 or self._bytes <= 0

    def take(self, first: int, last: int, count: int, size: int) -> bool:
        """Add the `count` messages between these keys as one run.

        Return False, and add nothing, if they are not one run or not all of them fit: then call `take_each`.
        """
        at = bisect_left(self._ordered, first)
        has_excluded = at < len(self._ordered) and self._ordered[at] <= last
        if has_excluded or last - first + 1 != count or size >= self._bytes:
            return False
        self._add(first, last, size)
        self.remaining -= count
        self._bytes -= size
        return True

    def take_each(self, keys: list[int], sizes: list[int]) -> None:
        """Add messages one by one, up to the one that reaches the limit of bytes."""
        excluded = self._excluded
        room = self._bytes
        count = total = 0
        first = last = -1
        for key, size in zip(keys, sizes, strict=True):
            if key in excluded:
                continue
            if key != last + 1:
                if first >= 0:
                    self._add(first, last, total)
                first, total = key, 0
            last = key
            count += 1
            total += size
            room -= size
            if room <= 0:
                break
        if first >= 0:
            self._add(first, last, total)
        self.remaining -= count
        self._bytes = room

    def runs(self) -> list[Run]:
        return [Run(first - self._before, last - self._before, size) for first, last, size in self._runs]

    def _add(self, first: int, last: int, size: int) -> None:
        if self._runs and self._runs[-1][1] == first - 1:
            self._runs[-1][1] = last
            self._runs[-1][2] += size
        else:
            self._runs.append([first, last, size])
