"""Reads of the store that are on their way, and which messages changed since they were asked for.

The store answers a read as things were when it was asked. Of a message that changed meanwhile the answer may tell what
is no longer so, and whoever asked has to pass it by or ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from peeklock.store.base import Run

Read = Callable[[Callable[[Any], None]], None]
Found = Callable[[Any, set[int]], None]
"""Called with the answer, and the numbers of the messages that changed since the question."""


class Watches:
    """The reads of one entity."""

    __slots__ = ("_numbers", "under_way")

    def __init__(self) -> None:
        self.under_way: dict[int, set[int]] = {}
        """What changed, for each read that is on its way. Nothing has to be noted while there is none."""
        self._numbers = count()

    def read(self, read: Read, found: Found) -> None:
        watch = self.start()
        read(lambda answer: found(answer, self.end(watch)))

    def start(self) -> int:
        """Note from now on which messages change; returns what to end it with."""
        watch = next(self._numbers)
        self.under_way[watch] = set()
        return watch

    def end(self, watch: int) -> set[int]:
        return self.under_way.pop(watch)

    def note(self, number: int) -> None:
        """That message changed."""
        for changed in self.under_way.values():
            changed.add(number)

    def note_runs(self, runs: Iterable[Run]) -> None:
        if self.under_way:
            for run in runs:
                for changed in self.under_way.values():
                    changed.update(range(run.first, run.last + 1))
