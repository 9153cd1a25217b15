"""Runs in the making: keys that were read, in order, up to what was asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ...base import Run


class Runs:
    """Of one entity and one state."""

    def __init__(self, before: int, limit: int, max_bytes: int, excluded: Sequence[int]) -> None:
        """`before` is the key before the first of the entity, `but` the numbers to leave out."""
        self._before = before
        self._are_left_out = {before + number for number in excluded}
        self._left_out = sorted(self._are_left_out)
        self._runs: list[list[int]] = []
        """First and last key, size."""
        self.room = limit
        """For so many messages."""
        self._bytes = max_bytes

    @property
    def is_full(self) -> bool:
        return self.room <= 0 or self._bytes <= 0

    def take(self, first: int, last: int, count: int, size: int) -> bool:
        """All messages between these keys, of which there are so many; False if each must be looked at."""
        at = bisect_left(self._left_out, first)
        leaves_out = at < len(self._left_out) and self._left_out[at] <= last
        if leaves_out or last - first + 1 != count or size >= self._bytes:
            return False
        self._add(first, last, size)
        self.room -= count
        self._bytes -= size
        return True

    def take_each(self, keys: list[int], sizes: list[int]) -> None:
        left_out = self._are_left_out
        room = self._bytes
        count = total = 0
        first = last = -1
        for key, size in zip(keys, sizes, strict=True):
            if key in left_out:
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
        self.room -= count
        self._bytes = room

    def runs(self) -> list[Run]:
        return [Run(first - self._before, last - self._before, size) for first, last, size in self._runs]

    def _add(self, first: int, last: int, size: int) -> None:
        if self._runs and self._runs[-1][1] == first - 1:
            self._runs[-1][1] = last
            self._runs[-1][2] += size
        else:
            self._runs.append([first, last, size])
