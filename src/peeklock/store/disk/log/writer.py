"""The writer of the log: appends a record for each commit and syncs it before the commit is acknowledged.

Records of commits that wait at the same time are written and synced together. If the write or the sync fails, the
records are undone by overwriting their heads with zeros. If that cannot be synced either, the log continues in a new
segment, whose header states where the previous segment ends.
"""

from __future__ import annotations

import errno
import os
from secrets import randbits
from typing import Final

from ..failures import NO_SPACE
from ..reserve import Reserve
from .records import RECORD, record_head
from .segments import HEADER, LogPosition, Segment, Segments, sync
from .synced import Synced

_RESERVE: Final = 4 * 1024 * 1024
"""Space at the end of a segment (at most a quarter of it) for commits that add no message: settling a message must be
possible when the disk has no space for a new segment. It stays allocated when the broker stops."""

_MAX_PARTS: Final = 1000  # Linux accepts 1024 buffers in one pwritev call

_LONG: Final = 16 * 1024
"""Payloads of this average length are passed to pwritev as separate buffers; joining shorter ones is faster."""

_ZEROED_HEAD: Final = bytes(RECORD.size)


class Log:
    """Appends records to the last segment. Used by one thread."""

    def __init__(self, segments: Segments, synced: Synced, reserve: Reserve) -> None:
        self._segments = segments
        self._synced = synced
        self._reserve = reserve
        self._descriptor = -1
        self._salt = 0
        self._size = 0
        self._position = LogPosition(0, 0, 0)
        """The end of the last record that is committed."""
        self._is_broken = False
        """Records of a failed commit could not be undone in this segment: the log must continue in a new one."""
        self._parts: list[bytes] = []
        """The bytes of the added records."""
        self._starts: list[int] = []
        """The offset of each added record."""
        self._end = self._position

    @property
    def position(self) -> LogPosition:
        """The end of the last added record."""
        return self._end

    def resume(self, position: LogPosition, last: Segment | None) -> None:
        """Continue the log at this position of the last segment. Raise OSError."""
        self._position = self._end = position
        if last is not None:
            self._descriptor, self._size = self._segments.open_for_writing(last.number)
            self._salt = last.salt

    def begin(self, payload_bytes: int, records: int, *, grows: bool) -> None:
        """Prepare for records with this many bytes of payloads; start a new segment if they do not fit in this one.

        `grows` means that the commits add data: these cannot use the space reserved for settling. Raise OSError, also
        if the disk is full.
        """
        needed = payload_bytes + records * RECORD.size
        free = self._size - self._position.offset
        if grows:
            if not self._reserve.hold():  # the reserve was released for settling and cannot be allocated again
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            free -= min(_RESERVE, self._size // 4)
        if self._descriptor < 0 or self._is_broken or needed >= free:
            self._start_segment(needed, grows)

    def payloads_at(self) -> tuple[int, int]:
        """Return the segment of the next record, and the offset at which its payloads begin."""
        return self._end.segment, self._end.offset + RECORD.size

    def add(self, payloads: list[bytes], end: bytes) -> None:
        """Add a record. `payloads` alternates heads and payloads; `end` is the end of the record."""
        segment, offset, commit = self._end
        size = sum(map(len, payloads))
        head = record_head(self._salt, end, size, commit + 1, self._position.commit)
        self._parts.append(head)
        if size >= _LONG * (len(payloads) // 2):
            self._parts += payloads
        else:
            self._parts.append(b"".join(payloads))
        self._parts.append(end)
        self._starts.append(offset)
        self._end = LogPosition(segment, offset + len(head) + size + len(end), commit + 1)

    def commit(self) -> None:
        """Write and sync the added records. Raise OSError if that failed; then none of them counts."""
        try:
            _write(self._descriptor, self._parts, self._position.offset)
            sync(self._descriptor)
        except BaseException:
            self._undo()
            self.discard()
            raise
        self._position = self._end
        self._synced.write(self._position.commit)
        self.discard()

    def discard(self) -> None:
        """Remove the added records, which are not committed."""
        self._parts, self._starts = [], []
        self._end = self._position

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._segments.cut(self._position.segment, self._position.offset + min(_RESERVE, self._size // 4))

    def _undo(self) -> None:
        """Overwrite the heads of the added records.

        All of them: a remaining one would count as the next record if a later record ended at its start.
        """
        try:
            size = os.fstat(self._descriptor).st_size
            for start in self._starts:
                if start < size:
                    os.pwrite(self._descriptor, _ZEROED_HEAD, start)
            sync(self._descriptor)
        except OSError:
            self._is_broken = True

    def _start_segment(self, needed: int, grows: bool) -> None:
        segment, offset, commit = self._position
        number = max(segment, self._segments.last) + 1
        following = Segment(number, commit + 1, segment, offset, randbits(31) << 1 | 1)  # never 0
        try:
            descriptor, size = self._make(following, HEADER.size + needed + min(_RESERVE, needed), grows)
        except BaseException:
            # The new segment may exist after a crash, and its header states that the current segment ends here.
            self._is_broken = self._is_broken or self._segments.has_uncertain_file
            raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._size, self._is_broken = descriptor, size, False
        self._salt = following.salt
        self._position = self._end = LogPosition(following.number, HEADER.size, commit)

    def _make(self, following: Segment, size: int, grows: bool) -> tuple[int, int]:
        try:
            return self._segments.make(following, size)
        except OSError as error:
            if grows or error.errno not in NO_SPACE or self._segments.has_uncertain_file or not self._reserve.release():
                raise
            return self._segments.make(following, size)


def _write(descriptor: int, parts: list[bytes], offset: int) -> None:
    """Write all parts at this offset, also if a call writes only some of the bytes."""
    if len(parts) > _MAX_PARTS or not hasattr(os, "pwritev"):
        parts = [b"".join(parts)]
    written = os.pwritev(descriptor, parts, offset) if len(parts) > 1 else os.pwrite(descriptor, parts[0], offset)
    if written < sum(map(len, parts)):
        rest = memoryview(b"".join(parts))[written:]
        while rest:
            offset += written
            written = os.pwrite(descriptor, rest, offset)
            rest = rest[written:]
