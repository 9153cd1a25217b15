"""The writing side of the log: every commit is a record at its end, synced before anyone is told.

Records of commits that wait together are written and synced together. What was written and may not be durable is
undone: its place is written over, and where not even that can be synced, the next segment says where the one before it
ends.
"""

from __future__ import annotations

import errno
import os
from secrets import randbits
from typing import Final

from ..failures import NO_ROOM
from ..reserve import Reserve
from .records import RECORD, record_head
from .segments import HEADER, Place, Segment, Segments, sync
from .synced import Synced

_RESERVE: Final = 4 * 1024 * 1024
"""Room at the end of a segment, or a quarter of it, for commits that add no message: settling a message must be
possible when there is no room for a new segment. It is kept when the broker stops."""

_MOST_PARTS: Final = 1000  # of the 1024 that Linux takes at once

_LONG: Final = 16 * 1024
"""Payloads of this length are handed to the system one by one; to join short ones takes less."""

_NOTHING: Final = bytes(RECORD.size)


class Log:
    """Writes records. One thread uses it."""

    def __init__(self, segments: Segments, synced: Synced, reserve: Reserve) -> None:
        self._segments = segments
        self._synced = synced
        self._reserve = reserve
        self._descriptor = -1
        self._salt = 0
        self._size = 0
        self._place = Place(0, 0, 0)
        """The end of the last record that is committed."""
        self._is_broken = False
        """What is behind the end may be durable, and must not be: only a new segment can say so."""
        self._parts: list[bytes] = []
        self._starts: list[int] = []
        """Where each of the records begins that were added."""
        self._end = self._place

    @property
    def place(self) -> Place:
        """The end of what was added."""
        return self._end

    def go_on(self, place: Place, last: Segment | None) -> None:
        """The next record comes after this place, in the last segment, as long as that has room. OSError."""
        self._place = self._end = place
        if last is not None:
            self._descriptor, self._size = self._segments.open_for_writing(last.number)
            self._salt = last.salt

    def begin(self, payload_bytes: int, records: int, *, grows: bool) -> None:
        """Records with so many bytes of payloads are added next, and then committed. OSError when there is no room."""
        needed = payload_bytes + records * RECORD.size
        room = self._size - self._place.offset
        if grows:
            if not self._reserve.hold():  # what is added now would need the room that settling is to have
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            room -= min(_RESERVE, self._size // 4)
        if self._descriptor < 0 or self._is_broken or needed >= room:
            self._roll(needed, grows)

    def payloads_at(self) -> tuple[int, int]:
        """The segment, and where in it the payloads of the record that is added next begin."""
        return self._end.segment, self._end.offset + RECORD.size

    def add(self, payloads: list[bytes], end: bytes) -> None:
        """Payloads with their heads, as `records` has them, and the end of the record."""
        segment, offset, commit = self._end
        size = sum(map(len, payloads))
        head = record_head(self._salt, end, size, commit + 1, self._place.commit)
        self._parts.append(head)
        if size >= _LONG * (len(payloads) // 2):
            self._parts += payloads
        else:
            self._parts.append(b"".join(payloads))
        self._parts.append(end)
        self._starts.append(offset)
        self._end = Place(segment, offset + len(head) + size + len(end), commit + 1)

    def commit(self) -> None:
        """Make durable what was added. OSError, and nothing of it was."""
        try:
            _write(self._descriptor, self._parts, self._place.offset)
            sync(self._descriptor)
        except BaseException:
            self._undo()
            self.forget()
            raise
        self._place = self._end
        self._synced.write(self._place.commit)
        self.forget()

    def forget(self) -> None:
        """What was added is not to be committed any more."""
        self._parts, self._starts = [], []
        self._end = self._place

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._segments.cut(self._place.segment, self._place.offset + min(_RESERVE, self._size // 4))

    def _undo(self) -> None:
        """Every record: one that stays would fit behind another that is as long as the first."""
        try:
            size = os.fstat(self._descriptor).st_size
            for start in self._starts:
                if start < size:
                    os.pwrite(self._descriptor, _NOTHING, start)
            sync(self._descriptor)
        except OSError:
            self._is_broken = True

    def _roll(self, needed: int, grows: bool) -> None:
        segment, offset, commit = self._place
        number = max(segment, self._segments.last) + 1
        following = Segment(number, commit + 1, segment, offset, randbits(31) << 1 | 1)  # never 0
        try:
            descriptor, size = self._make(following, HEADER.size + needed + min(_RESERVE, needed), grows)
        except BaseException:
            # It is there perhaps, and says that the one before it ends here.
            self._is_broken = self._is_broken or self._segments.has_orphan
            raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._size, self._is_broken = descriptor, size, False
        self._salt = following.salt
        self._place = self._end = Place(following.number, HEADER.size, commit)

    def _make(self, following: Segment, size: int, grows: bool) -> tuple[int, int]:
        try:
            return self._segments.make(following, size)
        except OSError as error:
            if grows or error.errno not in NO_ROOM or self._segments.has_orphan or not self._reserve.release():
                raise
            return self._segments.make(following, size)


def _write(descriptor: int, parts: list[bytes], offset: int) -> None:
    """All of it, however little of it a call takes."""
    if len(parts) > _MOST_PARTS or not hasattr(os, "pwritev"):
        parts = [b"".join(parts)]
    written = os.pwritev(descriptor, parts, offset) if len(parts) > 1 else os.pwrite(descriptor, parts[0], offset)
    if written < sum(map(len, parts)):
        rest = memoryview(b"".join(parts))[written:]
        while rest:
            offset += written
            written = os.pwrite(descriptor, rest, offset)
            rest = rest[written:]
