"""Time: the clock that everything asks, and the one heap that knows what is due next.

All of it is Unix milliseconds. Who waits for `next_due` is the server's business (or a test's, which moves the clock).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

log = logging.getLogger(__name__)

Clock = Callable[[], int]
MAX_CANCELLED = 100
"""Cancelled appointments that are kept in any case."""


def system_clock() -> int:
    return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: int | None = None) -> None:
        self._now = system_clock() if now is None else now

    def __call__(self) -> int:
        return self._now

    def advance(self, milliseconds: int) -> None:
        self._now += milliseconds


class Appointment:
    """Something that will be done at a time, unless it is cancelled."""

    __slots__ = ("_agenda", "action", "at")

    def __init__(self, at: int, action: Callable[[], None], agenda: Agenda) -> None:
        self.at = at
        self.action: Callable[[], None] | None = action
        self._agenda = agenda

    def cancel(self) -> None:
        if self.action is not None:
            self.action = None
            self._agenda.cancelled()


class Agenda:
    """What is to be done, by time."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock
        self.on_earlier: Callable[[], None] = lambda: None
        """Called when something became due earlier than all else: a waiting owner must wake sooner."""
        self._heap: list[tuple[int, int, Appointment]] = []
        self._order = count()
        self._cancelled = 0
        """How many of the heap, at most."""

    def at(self, when: int, action: Callable[[], None]) -> Appointment:
        appointment = Appointment(when, action, self)
        heappush(self._heap, (when, next(self._order), appointment))
        if self._heap[0][2] is appointment:
            self.on_earlier()
        return appointment

    def cancelled(self) -> None:
        """Cancelled appointments stay until their time, which may be far away, unless they become many."""
        self._cancelled += 1
        if self._cancelled > MAX_CANCELLED and self._cancelled > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapify(self._heap)
            self._cancelled = 0

    @property
    def next_due(self) -> int | None:
        while self._heap and self._heap[0][2].action is None:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run(self) -> None:
        """Do all that is due by now, in order."""
        now = self.now()
        while (due := self.next_due) is not None and due <= now:
            appointment = heappop(self._heap)[2]
            action, appointment.action = appointment.action, None
            assert action is not None
            try:
                action()
            except Exception:
                # One entity's trouble must not stop the clock for all others.
                log.exception("an appointment failed")
