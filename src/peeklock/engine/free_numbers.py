"""Channel and handle numbers: the lowest free one is used next."""

from __future__ import annotations

from heapq import heappop, heappush


class FreeNumbers:
    """Hands out numbers from 0 on."""

    def __init__(self) -> None:
        self._next = 0
        """The lowest number that was never taken."""
        self._returned: list[int] = []

    def take(self, highest: int) -> int | None:
        """Return the lowest free number, None if all up to `highest` are taken."""
        if self._returned:
            return heappop(self._returned)
        if self._next > highest:
            return None
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        heappush(self._returned, number)
