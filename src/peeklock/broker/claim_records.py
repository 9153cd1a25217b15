"""A claim as the broker and the store keep it: a name, an id, and runs of messages, by session where there are any.

Values and arithmetic on runs. What is done with claims is in `claims` and `claiming`.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

from peeklock.store.base import Run

Parts = dict[str | None, list[Run]]
"""Runs in ascending order by session; None is the key where there are no sessions."""


class Claim:
    """Messages that one client has set aside for itself, all with one commit."""

    __slots__ = ("_coverage", "_parts", "_waiting", "id", "is_changing", "name", "runs", "since")

    def __init__(self, id: bytes, name: str, since: int, parts: Parts) -> None:
        self.id = id
        self.name = name
        self.since = since
        """Unix milliseconds."""
        self.runs: list[Run]
        """Of all parts."""
        self.parts = parts
        self.is_changing = False
        """A commit that makes, shortens or ends it is on its way."""
        self._waiting: list[Callable[[], None]] = []

    def when_unchanging(self, action: Callable[[], None]) -> None:
        """Do that once no commit is on its way; it has to look again."""
        if self.is_changing:
            self._waiting.append(action)
        else:
            action()

    def changed(self) -> None:
        """The commit is over, whatever came of it."""
        self.is_changing = False
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            self.when_unchanging(action)

    @property
    def parts(self) -> Parts:
        """Not to be changed in place."""
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
        """What the store keeps."""
        parts = [[id, [[run.first, run.last, run.size] for run in runs]] for id, runs in self.parts.items()]
        return json.dumps({"name": self.name, "since": self.since, "parts": parts}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, id: bytes, content: bytes) -> Claim:
        value = json.loads(content)
        parts = {session: [Run(*run) for run in runs] for session, runs in value["parts"]}
        return cls(id, value["name"], value["since"], parts)


class Coverage:
    """Which numbers some runs have, looked up quickly."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, runs: Iterable[Run]) -> None:
        ordered = sorted((run.first, run.last) for run in runs)
        self._firsts = [first for first, _ in ordered]
        self._lasts = [last for _, last in ordered]

    def has(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def has_all(self, first: int, last: int) -> bool:
        """Whether one run has all numbers between these."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and last <= self._lasts[at]


Span = tuple[int, int]
"""First and last number."""


def _end(span: Span) -> int:
    return span[1]


def common(runs: Sequence[Run], spans: Sequence[Span]) -> list[Span]:
    """The numbers that both have; both are in ascending order."""
    found: list[Span] = []
    for run in runs:
        at = bisect_left(spans, run.first, key=_end)
        while at < len(spans) and spans[at][0] <= run.last:
            found.append((max(run.first, spans[at][0]), min(run.last, spans[at][1])))
            at += 1
    return found


def outside(runs: Sequence[Run], spans: Sequence[Span]) -> list[Span]:
    """The numbers of the runs that the spans do not have; both are in ascending order."""
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
    """The runs but for a few numbers. Their sizes are not known then."""
    if not numbers:
        return runs
    spans = [(number, number) for number in sorted(numbers)]
    return [Run(first, last, 0) for first, last in outside(runs, spans)]
