"""Collects the dispositions of one turn, so that adjacent deliveries share a frame (2.7.6).

They are sent at the end of a turn, before a performative of the same session, and when the owner of the connection
flushes them because its next output must follow them.
"""

from __future__ import annotations

from collections.abc import Iterator

from peeklock.engine.serial import serial_sub


class DispositionRange:
    """Adjacent deliveries with the same state."""

    __slots__ = ("first", "last", "settled", "state")

    def __init__(self, delivery_id: int, settled: bool, state: bytes) -> None:
        self.first = self.last = delivery_id
        self.settled = settled
        self.state = state
        """The delivery state, encoded."""


class Dispositions:
    """The dispositions of one session in one role. The states of one delivery keep their order."""

    def __init__(self) -> None:
        self._runs: list[DispositionRange] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, delivery_id: int, settled: bool, state: bytes) -> None:
        runs = self._runs
        if runs:
            run = runs[-1]
            if run.last + 1 == delivery_id and run.settled is settled and run.state == state:
                run.last = delivery_id
                return
        runs.append(DispositionRange(delivery_id, settled, state))

    def take(self) -> Iterator[DispositionRange]:
        """Return and remove all dispositions, in as few ranges as possible.

        Messages that arrived in turn on many links are answered link by link. After sorting they are adjacent again.
        """
        runs, self._runs = self._runs, []
        if len(runs) > 1:
            origin = runs[0].first
            runs.sort(key=lambda run: serial_sub(run.first, origin))
        last: DispositionRange | None = None
        for run in runs:
            if last is not None:
                if last.last + 1 == run.first and last.settled is run.settled and last.state == run.state:
                    last.last = run.last
                    continue
                yield last
            last = run
        if last is not None:
            yield last
