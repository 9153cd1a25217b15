"""The clock of the broker, and its appointments: actions that run at a given time.

The clock has two readings, in milliseconds. Points in time are Unix time: when a message expires or is enqueued, when a
token expires, times sent to clients. The operator may set that clock, forwards or back. Durations use the monotonic
clock, which is never set: locks, time-outs, retries, idle entities, the window for duplicates. So a change of the
system's clock does not end a lock.

The server waits for `next_due` and calls `run`; tests move the clock instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Protocol

log = logging.getLogger(__name__)

MAX_CANCELLED = 100
"""Cancelled appointments that may stay in a heap, if they are not more than half of it."""


class Clock(Protocol):
    """A source of Unix time and of elapsed time."""

    def now(self) -> int:
        """Return the Unix time in milliseconds, for points in time. The operator may set it."""
        ...

    def monotonic(self) -> int:
        """Return milliseconds since an arbitrary origin, for durations. They do not count while the machine sleeps."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> int:
        return time.monotonic_ns() // 1_000_000


system_clock: Final = SystemClock()


class ManualClock:
    """A clock that tests move. Calling it returns the Unix time."""

    def __init__(self, now: int | None = None) -> None:
        self._now = system_clock.now() if now is None else now
        self._monotonic = 1_000_000

    def __call__(self) -> int:
        return self._now

    def now(self) -> int:
        return self._now

    def monotonic(self) -> int:
        return self._monotonic

    def advance(self, milliseconds: int) -> None:
        """Move both readings forward: time passes."""
        self._now += milliseconds
        self._monotonic += milliseconds

    def step(self, milliseconds: int) -> None:
        """Change the Unix time only, as an operator does: no time passes."""
        self._now += milliseconds


class Appointment:
    """An action that runs at a time, unless it is cancelled."""

    __slots__ = ("_heap", "action", "at")

    def __init__(self, at: int, action: Callable[[], None], heap: _Heap) -> None:
        self.at = at
        """The time when it is due, in the reading of the clock that it was made for."""
        self.action: Callable[[], None] | None = action
        self._heap = heap

    def cancel(self) -> None:
        if self.action is not None:
            self.action = None
            self._heap.cancelled()


class _Heap:
    """The appointments for one of the two readings of the clock."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Appointment]] = []
        self._order = count()
        self._cancelled = 0
        """An upper bound of the cancelled entries."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, when: int, action: Callable[[], None]) -> Appointment:
        appointment = Appointment(when, action, self)
        heappush(self._entries, (when, next(self._order), appointment))
        return appointment

    def cancelled(self) -> None:
        """Count a cancelled appointment. It stays in the heap until it is due, unless too many are cancelled."""
        self._cancelled += 1
        if self._cancelled > MAX_CANCELLED and self._cancelled > len(self._entries) // 2:
            self._entries = [entry for entry in self._entries if entry[2].action is not None]
            heapify(self._entries)
            self._cancelled = 0

    @property
    def next(self) -> Appointment | None:
        while self._entries and self._entries[0][2].action is None:
            heappop(self._entries)
        return self._entries[0][2] if self._entries else None

    def pop(self) -> Callable[[], None] | None:
        appointment = heappop(self._entries)[2]
        action, appointment.action = appointment.action, None
        return action


class Agenda:
    """Appointments by time."""

    def __init__(self, clock: Clock) -> None:
        self.now: Callable[[], int] = clock.now
        self.monotonic: Callable[[], int] = clock.monotonic
        self.on_earlier: Callable[[], None] = lambda: None
        """Called when a new appointment may be the earliest: the server must wake sooner."""
        self._moments = _Heap()
        self._durations = _Heap()

    def at(self, moment: int, action: Callable[[], None]) -> Appointment:
        """Run an action when the Unix time reaches `moment`."""
        return self._notify_if_earliest(self._moments, self._moments.add(moment, action))

    def after(self, delay_ms: int, action: Callable[[], None]) -> Appointment:
        """Run an action after a delay. Setting the Unix time has no effect on it."""
        return self.when_elapsed(self.monotonic() + delay_ms, action)

    def when_elapsed(self, monotonic: int, action: Callable[[], None]) -> Appointment:
        """Run an action when the monotonic clock reaches a value."""
        return self._notify_if_earliest(self._durations, self._durations.add(monotonic, action))

    def _notify_if_earliest(self, heap: _Heap, appointment: Appointment) -> Appointment:
        # The other heap may have an earlier appointment. The server then wakes without need, which does no harm.
        if heap.next is appointment:
            self.on_earlier()
        return appointment

    @property
    def next_due(self) -> int | None:
        """The Unix time when the next appointment is due, if the system clock is not set before."""
        moment, elapsed = self._moments.next, self._durations.next
        if elapsed is None:
            return None if moment is None else moment.at
        due = self.now() + elapsed.at - self.monotonic()
        return due if moment is None else min(moment.at, due)

    def run(self) -> None:
        """Run all appointments that are due, in the order of their times."""
        now, monotonic = self.now(), self.monotonic()
        while True:
            moment, elapsed = self._moments.next, self._durations.next
            late_moment = -1 if moment is None else now - moment.at
            late_elapsed = -1 if elapsed is None else monotonic - elapsed.at
            if late_moment < 0 and late_elapsed < 0:
                return
            action = (self._moments if late_moment > late_elapsed else self._durations).pop()
            assert action is not None
            try:
                action()
            except Exception:
                # A failure in one entity must not stop the appointments of other entities.
                log.exception("an appointment failed")
