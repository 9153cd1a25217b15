"""Allocates channel and handle numbers: always the lowest free number."""

from __future__ import annotations

from heapq import heappop, heappush


class FreeNumbers:
    """The free numbers from 0 on."""

    def __init__(self) -> None:
        self._next = 0
        """The lowest number that was never taken."""
        self._returned: list[int] = []

    def take(self, highest: int) -> int | None:
        """Take the lowest free number. Return None if all up to `highest` are taken."""
        if self._returned:
            return heappop(self._returned)
        if self._next > highest:
            return None
        self._next += 1
        return self._next - 1

    def release(self, number: int) -> None:
        heappush(self._returned, number)
