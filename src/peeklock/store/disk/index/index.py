"""The index of the log: applies the committed entries to an SQLite database, from which reads are answered.

Entries are applied many at a time: when there are many, when they have waited for some seconds, and before each read. A
message that is sent and removed before that is never written to the index, and costs it nothing. Waiting entries take
memory, and time at the next start after a crash, which reads them from the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from threading import Event
from time import monotonic
from typing import Final

from ...base import StoreError, StoreFull
from ..commits.entry import Entry
from ..failures import store_error
from ..log.segments import LogPosition
from ..reserve import Reserve
from ..turns import clear
from .writer import SegmentEnd, Writer

_LARGE_ROWS: Final = 100_000
_LARGE_BYTES: Final = 128 * 1024 * 1024
"""Entries are applied when they have this many rows or this many bytes of the log."""
_MAX_ROWS: Final = 3 * _LARGE_ROWS
"""With this many rows, the log thread waits until entries are applied."""
_JOINED_BYTES: Final = 16 * 1024 * 1024
_ENTRY_ROWS: Final = 20
"""An entry takes the memory of this many rows, besides its own rows."""
_CLEARED: Final = 32
"""The number of applied entries that are freed at once."""
_PIECE_ROWS: Final = 10_000
"""The most messages of a statement: encoding them as its parameter holds the GIL, which the event loop needs."""
_DELAY: Final = 5.0
"""Seconds after which waiting entries are applied."""
_RETRY: Final = 1.0
"""Seconds after which a failed attempt is repeated."""


class Index:
    """The entries that wait to be applied to the index.

    Used by the index thread. The log thread calls `take`, and reads `failure` and `has_capacity`.
    """

    def __init__(self, writer: Writer, applied: LogPosition, reserve: Reserve) -> None:
        self.applied = applied
        """The position in the log up to which entries are applied."""
        self.failure: StoreError | None = None
        """The error of the last attempt to apply entries; None if it succeeded."""
        self.has_capacity = Event()
        """Set while the log thread may add entries."""
        self.has_capacity.set()
        self._writer = writer
        self._reserve = reserve
        self._queued: deque[tuple[Entry, LogPosition]] = deque()
        self._queued_rows = 0
        self._queued_bytes = 0
        self._waiting: list[tuple[Entry, LogPosition]] = []
        """Entries taken from the queue and not applied yet."""
        self._since: float | None = None
        """When the first waiting entry was queued."""

    def take(self, entry: Entry, position: LogPosition) -> bool:
        """Queue an entry whose record ends at this position. Called by the log thread.

        Return whether to wake the index thread, so that it computes its time-out again.
        """
        had_many = self._is_large
        self._queued_rows += entry.rows + _ENTRY_ROWS
        self._queued_bytes += entry.payload_bytes + entry.size
        self._queued.append((entry, position))
        if self._queued_rows >= _MAX_ROWS and self.failure is None:
            self.has_capacity.clear()
        if self._since is None:
            self._since = monotonic()
            return True
        return self._is_large and not had_many

    @property
    def _is_large(self) -> bool:
        return self._queued_rows >= _LARGE_ROWS or self._queued_bytes >= _LARGE_BYTES

    @property
    def timeout(self) -> float | None:
        """Seconds until the waiting entries must be applied; None if none waits."""
        if self._since is None:
            return None
        return _RETRY if self.failure else max(0.0, self._since + _DELAY - monotonic())

    @property
    def is_due(self) -> bool:
        """Whether the waiting entries must be applied now."""
        if self._since is None or self.failure is not None:
            return False
        return self._is_large or monotonic() >= self._since + _DELAY

    def catch_up(self) -> None:
        """Apply all queued entries. Raise StoreError if that failed; they stay and are retried later."""
        if self._writer.database.fatal is not None:
            self.failure = StoreError(str(self._writer.database.fatal))
            self.has_capacity.set()
            raise self.failure
        if self._since is None:
            return
        # Reset before the entries are taken, because entries queued meanwhile set these again.
        self._since, self._queued_rows, self._queued_bytes = None, 0, 0
        while self._queued:
            self._waiting.append(self._queued.popleft())
        try:
            if self.failure is not None:
                # The failed attempt may have been committed all the same.
                self.applied = self._writer.applied()
                self._waiting = [each for each in self._waiting if each[1].commit > self.applied.commit]
            if self._waiting:
                try:
                    self._apply()
                except StoreFull:
                    if not self._reserve.release():
                        raise
                    self._apply()
        except Exception as error:
            self.failure = store_error(error, self._writer.file)
            self._since = monotonic()
            self.has_capacity.set()
            raise self.failure from error
        self.failure = None
        clear(self._waiting, _CLEARED)
        self.has_capacity.set()

    def _apply(self) -> None:
        through = self._waiting[-1][1]
        entries = (
            Entry.join(group) if len(group) > 1 else group[0] for group in _groups(entry for entry, _ in self._waiting)
        )
        ends = {
            position.segment: SegmentEnd(position.segment, entry.record_at, position.offset, position.commit)
            for entry, position in self._waiting
        }
        self._writer.apply(
            (parameters for entry in entries for parameters in entry.pieces(_PIECE_ROWS)), through, ends.values()
        )
        self.applied = through


def _groups(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Divide the entries into groups that may be joined."""
    group: list[Entry] = []
    size = 0
    for entry in entries:
        if group and (entry.is_applied_alone or group[0].is_applied_alone or size + entry.size > _JOINED_BYTES):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size
    if group:
        yield group
