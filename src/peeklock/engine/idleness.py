"""The idle time-outs of a connection (2.4.5): when a heartbeat is due, and when the peer was silent for too long.

It has no clock: `now` is an argument, in seconds from any origin.
"""

from __future__ import annotations

from typing import Final

MIN_IDLE_TIME_OUT_MS: Final = 100
"""Peers with a shorter idle-time-out are refused."""
_MAX_INTERVAL: Final = 10.0


class Idleness:
    """Records when bytes were last read and written. I/O only sets two flags; `update` converts them to times."""

    __slots__ = ("_limit", "_read_at", "_remote_time_out", "_written_at", "has_read", "has_written")

    def __init__(self, idle_time_out_ms: int | None) -> None:
        self.has_read = self.has_written = False
        self._read_at: float | None = None
        self._written_at: float | None = None
        self._limit = 2 * (idle_time_out_ms or 0) / 1000  # our open offers half of it (2.4.5)
        self._remote_time_out = 0.0

    @property
    def limit(self) -> float:
        """Seconds of silence after which the connection is closed; 0: never."""
        return self._limit

    def set_remote(self, idle_time_out_ms: int | None) -> None:
        """Set the peer's idle-time-out."""
        self._remote_time_out = (idle_time_out_ms or 0) / 1000

    def update(self, now: float) -> None:
        if self.has_read or self._read_at is None:
            self._read_at, self.has_read = now, False
        if self.has_written or self._written_at is None:
            self._written_at, self.has_written = now, False

    def is_silent(self, now: float) -> bool:
        """Return whether the peer has been silent for longer than `limit`."""
        return bool(self._limit) and self._read_at is not None and now - self._read_at > self._limit

    def is_heartbeat_due(self, now: float) -> bool:
        """Return whether a heartbeat is due: after a quarter of the peer's time-out.

        The specification suggests half of it (2.4.5). A quarter leaves room for late calls.
        """
        return (
            bool(self._remote_time_out)
            and self._written_at is not None
            and now - self._written_at >= self._remote_time_out / 4
        )

    @property
    def interval(self) -> float:
        """The most seconds between calls of `update`, so that the time-outs of both sides are kept."""
        return min(_MAX_INTERVAL, self._remote_time_out / 4 or _MAX_INTERVAL, self._limit / 8 or _MAX_INTERVAL)
