"""The index of the log: what was committed, in a SQLite file that answers questions.

Entries are applied many at a time: when there are many, when they have waited for a while, and before any question is
answered. A message that was sent and settled by then never gets there, and so costs the index nothing. What waits is
memory, and time at the next start, which reads it from the log.
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

_MANY_ROWS: Final = 100_000
_MANY_BYTES: Final = 128 * 1024 * 1024
"""Of the log."""
_TOO_MANY_ROWS: Final = 3 * _MANY_ROWS
"""So many keep the log waiting."""
_JOINED_BYTES: Final = 16 * 1024 * 1024
_ENTRY_ROWS: Final = 20
"""An entry takes as much memory as so many rows in it."""
_CLEARED: Final = 32
"""Entries that are freed at a time."""
_PIECE_ROWS: Final = 10_000
"""Messages that a statement takes: to write them down as its parameter keeps the interpreter from the event loop."""
_DELAY: Final = 5.0
"""Seconds that entries wait at most."""
_RETRY: Final = 1.0
"""Seconds after which what failed is tried again."""


class Index:
    """One thread uses it; another gives it entries by `take`, and asks for `failure` and `room`."""

    def __init__(self, writer: Writer, applied: LogPosition, reserve: Reserve) -> None:
        self.applied = applied
        """How far the log is applied."""
        self.failure: StoreError | None = None
        """Why entries wait for longer; None when they do not."""
        self.room = Event()
        """There are not too many that wait."""
        self.room.set()
        self._writer = writer
        self._reserve = reserve
        self._given: deque[tuple[Entry, LogPosition]] = deque()
        self._given_rows = 0
        self._given_bytes = 0
        self._waiting: list[tuple[Entry, LogPosition]] = []
        """Taken from those given, and not applied yet."""
        self._since: float | None = None
        """When the first of them was given."""

    def take(self, entry: Entry, position: LogPosition) -> bool:
        """An entry of the log, which ends there; by the thread that writes it. Whether to wake the other."""
        had_many = self._are_many
        self._given_rows += entry.rows + _ENTRY_ROWS
        self._given_bytes += entry.payload_bytes + entry.size
        self._given.append((entry, position))
        if self._given_rows >= _TOO_MANY_ROWS and self.failure is None:
            self.room.clear()
        if self._since is None:
            self._since = monotonic()
            return True
        return self._are_many and not had_many

    @property
    def _are_many(self) -> bool:
        return self._given_rows >= _MANY_ROWS or self._given_bytes >= _MANY_BYTES

    @property
    def timeout(self) -> float | None:
        """Seconds until entries have waited long enough; None when none waits."""
        if self._since is None:
            return None
        return _RETRY if self.failure else max(0.0, self._since + _DELAY - monotonic())

    @property
    def is_due(self) -> bool:
        if self._since is None or self.failure is not None:
            return False
        return self._are_many or monotonic() >= self._since + _DELAY

    def catch_up(self) -> None:
        """Apply all that was given. StoreError when that failed; it stays."""
        if self._writer.database.lost is not None:
            self.failure = StoreError(str(self._writer.database.lost))
            self.room.set()
            raise self.failure
        if self._since is None:
            return
        # Before the entries are taken: what is given meanwhile sets them again.
        self._since, self._given_rows, self._given_bytes = None, 0, 0
        while self._given:
            self._waiting.append(self._given.popleft())
        try:
            if self.failure is not None:
                # It may have been done all the same.
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
            self.room.set()
            raise self.failure from error
        self.failure = None
        clear(self._waiting, _CLEARED)
        self.room.set()

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
    """Those that may be applied as one."""
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
