"""Records which messages change while the store is being read.

The store answers with the state at the time of the request. The rows of messages that changed meanwhile may be stale:
the caller ignores them or reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from peeklock.store.base import Run

Read = Callable[[Callable[[Any], None]], None]
Found = Callable[[Any, set[int]], None]
"""Called with the answer, and with the numbers of messages that changed since the read began."""


class Watches:
    """The reads of one entity that are under way."""

    __slots__ = ("_numbers", "under_way")

    def __init__(self) -> None:
        self.under_way: dict[int, set[int]] = {}
        """For each read, the numbers of messages that changed. Changes need not be recorded while it is empty."""
        self._numbers = count()

    def read(self, read: Read, found: Found) -> None:
        watch = self.start()
        read(lambda answer: found(answer, self.end(watch)))

    def start(self) -> int:
        """Begin to record changes. Return the key for `end`."""
        watch = next(self._numbers)
        self.under_way[watch] = set()
        return watch

    def end(self, watch: int) -> set[int]:
        """Stop recording, and return the numbers of messages that changed."""
        return self.under_way.pop(watch)

    def note(self, number: int) -> None:
        """Record that a message changed."""
        for changed in self.under_way.values():
            changed.add(number)

    def note_runs(self, runs: Iterable[Run]) -> None:
        if self.under_way:
            for run in runs:
                for changed in self.under_way.values():
                    changed.update(range(run.first, run.last + 1))
