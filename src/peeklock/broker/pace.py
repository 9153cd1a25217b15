"""Limits work that clients can make expensive, such as message selectors, to a share of the time.

Such work is done in short turns, whose time is measured. After a long turn all such work in the namespace rests for
some time, so that the loop is free for other work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from peeklock.broker.agenda import Agenda

LONG_MS: Final = 5
"""A turn of at least this length is followed by a rest."""
REST: Final = 3
"""The rest is this many times as long as the turn."""


class Pace:
    """Decides whether expensive work may be done now."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._owed_ms = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self.is_resting = False

    def worked(self, since: int) -> None:
        """Record the end of a turn that began at `since` by the monotonic clock. Rest if the turn was long."""
        spent = self._agenda.monotonic() - since
        if spent >= LONG_MS:
            self._owed_ms += REST * spent
            if not self.is_resting:
                self.is_resting = True
                self._rest()

    def when_rested(self, action: Callable[[], None]) -> None:
        """Call `action` after the rest, and after the actions that were added before it."""
        self._waiting.append(action)

    def _rest(self) -> None:
        owed, self._owed_ms = self._owed_ms, 0
        self._agenda.after(owed, self._rested)

    def _rested(self) -> None:
        if self._owed_ms:
            self._rest()
            return
        self.is_resting = False
        while self._waiting and not self.is_resting:
            self._waiting.popleft()()
