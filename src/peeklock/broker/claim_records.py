"""A claim as the broker and the store keep it: a name, an id, and runs of messages, by session in a session queue.

This module has values and arithmetic on runs only. `claims` and `claim_search` change claims.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

from peeklock.store.base import Run

Parts = dict[str | None, list[Run]]
"""Runs in ascending order, by session. A queue without sessions has the one key None."""


class Claim:
    """Messages that one commit has assigned to one client."""

    __slots__ = ("_coverage", "_parts", "_waiting", "id", "is_changing", "name", "runs", "since")

    def __init__(self, id: bytes, name: str, since: int, parts: Parts) -> None:
        self.id = id
        self.name = name
        self.since = since
        """When it was made, in Unix milliseconds."""
        self.runs: list[Run]
        """The runs of all parts."""
        self.parts = parts
        self.is_changing = False
        """Whether a commit that makes, shortens or ends the claim is under way."""
        self._waiting: list[Callable[[], None]] = []

    def when_unchanging(self, action: Callable[[], None]) -> None:
        """Call `action` when no commit of the claim is under way. The action must check the claim again."""
        if self.is_changing:
            self._waiting.append(action)
        else:
            action()

    def end_change(self) -> None:
        """End a change: its commit is done or has failed. Call the actions that wait for this."""
        self.is_changing = False
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            self.when_unchanging(action)

    @property
    def parts(self) -> Parts:
        """The messages. Assign a new value to change them; do not change it in place."""
        return self._parts

    @parts.setter
    def parts(self, parts: Parts) -> None:
        self._parts = parts
        self.runs = [run for runs in parts.values() for run in runs]
        self._coverage: Coverage | None = None

    @property
    def coverage(self) -> Coverage:
        if self._coverage is None:
            self._coverage = Coverage(self.runs)
        return self._coverage

    @property
    def count(self) -> int:
        return sum(run.count for run in self.runs)

    @property
    def size(self) -> int:
        return sum(run.size for run in self.runs)

    def encode(self) -> bytes:
        """Encode the claim for the store. The store has its id separately."""
        parts = [[id, [[run.first, run.last, run.size] for run in runs]] for id, runs in self.parts.items()]
        return json.dumps({"name": self.name, "since": self.since, "parts": parts}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, id: bytes, content: bytes) -> Claim:
        value = json.loads(content)
        parts = {session: [Run(*run) for run in runs] for session, runs in value["parts"]}
        return cls(id, value["name"], value["since"], parts)


class Coverage:
    """The sequence numbers in some runs, for lookups by bisection."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, runs: Iterable[Run]) -> None:
        ordered = sorted((run.first, run.last) for run in runs)
        self._firsts = [first for first, _ in ordered]
        self._lasts = [last for _, last in ordered]

    def has(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def has_all(self, first: int, last: int) -> bool:
        """Return whether one run covers all numbers from `first` to `last`."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and last <= self._lasts[at]


Span = tuple[int, int]
"""First and last number."""


def _end(span: Span) -> int:
    return span[1]


def common(runs: Sequence[Run], spans: Sequence[Span]) -> list[Span]:
    """Return the numbers that are both in the runs and in the spans. Both arguments are in ascending order."""
    found: list[Span] = []
    for run in runs:
        at = bisect_left(spans, run.first, key=_end)
        while at < len(spans) and spans[at][0] <= run.last:
            found.append((max(run.first, spans[at][0]), min(run.last, spans[at][1])))
            at += 1
    return found


def outside(runs: Sequence[Run], spans: Sequence[Span]) -> list[Span]:
    """Return the numbers of the runs that are not in the spans. Both arguments are in ascending order."""
    found: list[Span] = []
    for run in runs:
        first = run.first
        for begin, end in common([run], spans):
            if first < begin:
                found.append((first, begin - 1))
            first = end + 1
        if first <= run.last:
            found.append((first, run.last))
    return found


def without(runs: list[Run], numbers: Sequence[int]) -> list[Run]:
    """Return the runs without some numbers. If there are any to leave out, the sizes are 0: they are not known."""
    if not numbers:
        return runs
    spans = [(number, number) for number in sorted(numbers)]
    return [Run(first, last, 0) for first, last in outside(runs, spans)]
