"""Records which messages of a queue were returned, for consumers with selectors that have passed their positions.

The numbers are recorded once for all consumers, up to a limit. Each consumer has only the count of those it evaluated.
"""

from __future__ import annotations

from collections import deque
from typing import Final

MAX_RETURNS: Final = 4096


class ReturnLog:
    """The numbers of returned messages, in the order of their return; indexes count from 0."""

    def __init__(self) -> None:
        self._numbers: deque[int] = deque()
        self._first = 0
        """The number of dropped entries."""
        self.lowest_forgotten = 0
        """The lowest number that was dropped; 0 if none was."""

    @property
    def first(self) -> int:
        """The index of the first number that was not dropped."""
        return self._first

    @property
    def end(self) -> int:
        """The index after the last number."""
        return self._first + len(self._numbers)

    def note(self, number: int) -> None:
        """Record that a message was returned. Drop the oldest number if there are too many."""
        self._numbers.append(number)
        if len(self._numbers) > MAX_RETURNS:
            forgotten = self._numbers.popleft()
            self.lowest_forgotten = min(self.lowest_forgotten or forgotten, forgotten)
            self._first += 1

    def note_all_from(self, number: int) -> None:
        """Record that many messages from a number on were returned. All recorded numbers are dropped."""
        self._first = self.end + 1
        self._numbers.clear()
        self.lowest_forgotten = min(self.lowest_forgotten or number, number)

    def at(self, index: int) -> int:
        return self._numbers[index - self._first]
