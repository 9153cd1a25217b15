"""What is to be said of deliveries, gathered until it must be said: neighbours share a frame (2.7.6).

It must be said at the end of a turn, before a performative of the same session, and when the owner of the connection
flushes it because what is sent next should come after it.
"""

from __future__ import annotations

from collections.abc import Iterator

from peeklock.engine.serial import serial_sub


class Said:
    """One thing that is to be said of neighbouring deliveries."""

    __slots__ = ("first", "last", "settled", "state")

    def __init__(self, delivery_id: int, settled: bool, state: bytes) -> None:
        self.first = self.last = delivery_id
        self.settled = settled
        self.state = state
        """Encoded."""


class Dispositions:
    """Of one session in one role. What is said of one delivery keeps its order."""

    def __init__(self) -> None:
        self._runs: list[Said] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def say(self, delivery_id: int, settled: bool, state: bytes) -> None:
        runs = self._runs
        if runs:
            run = runs[-1]
            if run.last + 1 == delivery_id and run.settled is settled and run.state == state:
                run.last = delivery_id
                return
        runs.append(Said(delivery_id, settled, state))

    def take(self) -> Iterator[Said]:
        """All of it, in as few pieces as can be, and forget it.

        Messages that came in turn on many links are answered link by link: only in order they are neighbours again.
        """
        runs, self._runs = self._runs, []
        if len(runs) > 1:
            origin = runs[0].first
            runs.sort(key=lambda run: serial_sub(run.first, origin))
        last: Said | None = None
        for run in runs:
            if last is not None:
                if last.last + 1 == run.first and last.settled is run.settled and last.state == run.state:
                    last.last = run.last
                    continue
                yield last
            last = run
        if last is not None:
            yield last
