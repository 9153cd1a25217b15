"""Idle time-outs of one connection (2.4.5): when to send a heartbeat, and when the peer has been silent for too long.

Has no clock: `now` is an argument, in seconds from any origin.
"""

from __future__ import annotations

from typing import Final

MIN_IDLE_TIME_OUT_MS: Final = 100
"""A peer with a shorter idle-time-out is refused."""
_MAX_INTERVAL: Final = 10.0


class Idleness:
    """Two flags: bytes were read, bytes were written. `look` turns them into times."""

    __slots__ = ("_heard_at", "_ours", "_spoke_at", "_theirs", "heard", "spoke")

    def __init__(self, idle_time_out_ms: int | None) -> None:
        self.heard = self.spoke = False
        self._heard_at: float | None = None
        self._spoke_at: float | None = None
        self._ours = 2 * (idle_time_out_ms or 0) / 1000  # the open has half of the actual limit (2.4.5)
        self._theirs = 0.0

    @property
    def limit(self) -> float:
        """Seconds of silence after which the connection is closed; 0 for never."""
        return self._ours

    def set_remote(self, idle_time_out_ms: int | None) -> None:
        """Set the peer's idle-time-out."""
        self._theirs = (idle_time_out_ms or 0) / 1000

    def look(self, now: float) -> None:
        if self.heard or self._heard_at is None:
            self._heard_at, self.heard = now, False
        if self.spoke or self._spoke_at is None:
            self._spoke_at, self.spoke = now, False

    def is_silent(self, now: float) -> bool:
        """Whether the peer has been silent for longer than `limit`."""
        return bool(self._ours) and self._heard_at is not None and now - self._heard_at > self._ours

    def owes_heartbeat(self, now: float) -> bool:
        """Whether a heartbeat is due: half of the peer's time-out would do, a quarter leaves room for late calls."""
        return bool(self._theirs) and self._spoke_at is not None and now - self._spoke_at >= self._theirs / 4

    @property
    def interval(self) -> float:
        """Seconds between calls of `look` that keep both sides' time-outs."""
        return min(_MAX_INTERVAL, self._theirs / 4 or _MAX_INTERVAL, self._ours / 8 or _MAX_INTERVAL)
