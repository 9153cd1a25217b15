"""Idle time-outs of one connection (2.4.5): when to say something, and when the peer has been silent for too long.

Knows no clock: `now` is an argument, in seconds from any origin.
"""

from __future__ import annotations

from typing import Final

MIN_IDLE_TIME_OUT_MS: Final = 100
"""A peer that wants to hear from us more often than this is refused."""
_MAX_INTERVAL: Final = 10.0


class Idleness:
    """Two marks: something was read, something was written. Looking at the time turns them into moments."""

    __slots__ = ("_heard_at", "_ours", "_spoke_at", "_theirs", "heard", "spoke")

    def __init__(self, idle_time_out_ms: int | None) -> None:
        self.heard = self.spoke = False
        self._heard_at: float | None = None
        self._spoke_at: float | None = None
        self._ours = 2 * (idle_time_out_ms or 0) / 1000  # we advertise half of what we bear (2.4.5)
        self._theirs = 0.0

    @property
    def limit(self) -> float:
        """Seconds of silence that we bear; 0 for any number."""
        return self._ours

    def peer_wants(self, idle_time_out_ms: int | None) -> None:
        self._theirs = (idle_time_out_ms or 0) / 1000

    def look(self, now: float) -> None:
        if self.heard or self._heard_at is None:
            self._heard_at, self.heard = now, False
        if self.spoke or self._spoke_at is None:
            self._spoke_at, self.spoke = now, False

    def is_silent(self, now: float) -> bool:
        """Whether the peer has said nothing for longer than we bear."""
        return bool(self._ours) and self._heard_at is not None and now - self._heard_at > self._ours

    def owes_heartbeat(self, now: float) -> bool:
        """Whether the peer should hear from us. Half of the time-out is due; a quarter leaves room for late calls."""
        return bool(self._theirs) and self._spoke_at is not None and now - self._spoke_at >= self._theirs / 4

    @property
    def interval(self) -> float:
        """Seconds between looks that keep both sides' time-outs."""
        return min(_MAX_INTERVAL, self._theirs / 4 or _MAX_INTERVAL, self._ours / 8 or _MAX_INTERVAL)
