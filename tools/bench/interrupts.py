"""Ctrl-C, SIGTERM or the time limit ends a run with an exception, but never while a process is being started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


class Stopped(BaseException):
    """The run must end. Started processes are ended while the exception is handled."""


class Interrupts:
    """The signals of this process, from `watch` on."""

    def __init__(self) -> None:
        self._held = 0
        self._pending: Stopped | None = None

    def watch(self, seconds: int) -> None:
        """Raise Stopped at a signal, or after so many seconds."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        signal.alarm(seconds)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay signals within this context, so that a process being started is always registered for its end."""
        with self._holding(self._held + 1):
            yield
        self._raise()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Deliver signals within this context, inside one that delays them."""
        with self._holding(0):
            self._raise()
            yield

    @contextmanager
    def _holding(self, level: int) -> Iterator[None]:
        before, self._held = self._held, level
        try:
            yield
        finally:
            self._held = before

    def _raise(self) -> None:
        if self._pending is not None and not self._held:
            pending, self._pending = self._pending, None
            raise pending

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        stopped = Stopped("the time limit is reached" if number == signal.SIGALRM else "stopped")
        if self._held:
            self._pending = stopped
        else:
            raise stopped


interrupts: Final = Interrupts()
