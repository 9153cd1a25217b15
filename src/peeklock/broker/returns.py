"""Which messages of a queue came back, or came late with a low number: for those who went past their numbers before.

Remembered once for all of them, up to a limit; each keeps only how many it has looked at.
"""

from __future__ import annotations

from collections import deque
from typing import Final

MAX_RETURNS: Final = 4096


class Returns:
    """The numbers of messages that came back, in that order; counted from 0."""

    def __init__(self) -> None:
        self._numbers: deque[int] = deque()
        self._first = 0
        """How many are forgotten."""
        self.lowest_forgotten = 0
        """The lowest number among those that are forgotten."""

    @property
    def first(self) -> int:
        """The first that is not forgotten."""
        return self._first

    @property
    def end(self) -> int:
        """Behind the last."""
        return self._first + len(self._numbers)

    def note(self, number: int) -> None:
        self._numbers.append(number)
        if len(self._numbers) > MAX_RETURNS:
            forgotten = self._numbers.popleft()
            self.lowest_forgotten = min(self.lowest_forgotten or forgotten, forgotten)
            self._first += 1

    def note_all_from(self, number: int) -> None:
        """Many came back at once, with that number and higher ones; which, is not remembered."""
        self._first = self.end + 1
        self._numbers.clear()
        self.lowest_forgotten = min(self.lowest_forgotten or number, number)

    def at(self, index: int) -> int:
        return self._numbers[index - self._first]
