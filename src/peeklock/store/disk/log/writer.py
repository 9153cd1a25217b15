"""The log: every commit is a record at its end, synced before anyone is told; payloads stay there for good.

A record is its header, the payloads one after the other, and then what is to be done with them, which the index
understands. Records of commits that wait together are written and synced together. What was written and may not be
durable is undone: its place is written over, and where not even that can be synced, the next segment says where the
one before it ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from secrets import randbits
from struct import Struct
from typing import Final
from zlib import crc32

from ...base import StoreError
from .segments import HEADER, Place, Segment, Segments, sync

RECORD: Final = Struct("<IIQQ")
"""CRC of all that follows it in the record, begun with the segment's salt; how long the end and the payloads are; the
number of the commit."""

_RESERVE: Final = 4 * 1024 * 1024
"""Room at the end of a segment, or a quarter of it, for what takes no room otherwise: to settle a message must be
possible when there is no new segment to be had."""

_MOST_PARTS: Final = 1000  # of the 1024 that Linux takes at once

_LONG: Final = 16 * 1024
"""Payloads of this length are handed to the system one by one; to join short ones takes less."""

_NOTHING: Final = bytes(RECORD.size)


class Log:
    """Writes records. One thread uses it."""

    def __init__(self, segments: Segments, *, sync: bool) -> None:
        self._segments = segments
        self._sync = sync
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

    def go_on(self, place: Place) -> None:
        """The next record comes after this one, in a segment of its own."""
        self._place = self._end = place

    def begin(self, payload_bytes: int, records: int, *, grows: bool) -> None:
        """Records with so many bytes of payloads are added next, and then committed. OSError when there is no room."""
        needed = payload_bytes + records * RECORD.size
        room = self._size - self._place.offset
        if grows:
            room -= min(_RESERVE, self._size // 4)
        if self._descriptor < 0 or self._is_broken or needed >= room:
            self._roll(needed)

    def payloads_at(self) -> tuple[int, int]:
        """The segment, and where in it the payloads of the record that is added next begin."""
        return self._end.segment, self._end.offset + RECORD.size

    def add(self, payloads: list[bytes], end: bytes) -> None:
        segment, offset, commit = self._end
        size = sum(map(len, payloads))
        head = RECORD.pack(0, len(end), size, commit + 1)
        parts = payloads if size >= _LONG * len(payloads) else [b"".join(payloads)]
        check = crc32(head[4:], self._salt)
        for part in parts:
            check = crc32(part, check)
        check = crc32(end, check)
        self._parts += [check.to_bytes(4, "little") + head[4:], *parts, end]
        self._starts.append(offset)
        self._end = Place(segment, offset + len(head) + size + len(end), commit + 1)

    def commit(self) -> None:
        """Make durable what was added. OSError, and nothing of it was."""
        try:
            _write(self._descriptor, self._parts, self._place.offset)
            if self._sync:
                sync(self._descriptor)
        except BaseException:
            self._undo()
            self.forget()
            raise
        self._place = self._end
        self.forget()

    def forget(self) -> None:
        """What was added is not to be committed any more."""
        self._parts, self._starts = [], []
        self._end = self._place

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._segments.cut(self._place.segment, self._place.offset)

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

    def _roll(self, needed: int) -> None:
        is_synced = self._is_broken and self._sync  # up to the place, and what is behind it does not count
        if self._descriptor >= 0 and not is_synced:
            sync(self._descriptor)  # also where commits are not synced: only the last segment may lack records
        segment, offset, commit = self._place
        number = max(segment, self._segments.last) + 1
        following = Segment(number, commit + 1, segment, offset, randbits(32))
        try:
            descriptor, size = self._segments.make(following, HEADER.size + needed + min(_RESERVE, needed))
        except BaseException:
            # It is there perhaps, and says that the one before it ends here.
            self._is_broken = self._is_broken or self._segments.has_orphan
            raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._size, self._is_broken = descriptor, size, False
        self._salt = following.salt
        self._place = self._end = Place(following.number, HEADER.size, commit)


def replay(segments: Segments, after: Place) -> Iterator[tuple[Place, bytes]]:
    """The records behind this place: where each ends, and what is to be done. StoreError when some are missing."""
    found = segments.find(after.segment)
    for number in found:
        segments.sync(number)  # what a killed broker wrote need not be durable yet, and is now given out
    place = after
    while True:
        following = _following(found, place)
        ends = None if following is None else following.previous_end if following.previous == place.segment else 0
        read = None
        if place.segment in found and (ends is None or place.offset < ends):
            read = _read_record(segments.path(place.segment), place, found[place.segment].salt)
        if read is not None:
            place, end = read
            yield place, end
        elif following is None:
            return
        elif following.first_commit != place.commit + 1:
            raise StoreError(
                f"{segments.path(following.number)} begins with commit {following.first_commit}, "
                f"but the log before it ends with {place.commit}: a part of it is missing or damaged."
            )
        else:
            place = Place(following.number, HEADER.size, place.commit)


def _following(found: dict[int, Segment], place: Place) -> Segment | None:
    number = min((number for number in found if number > place.segment), default=None)
    return None if number is None else found[number]


def _read_record(file: Path, place: Place, salt: int) -> tuple[Place, bytes] | None:
    with file.open("rb") as opened:
        opened.seek(place.offset)
        head = opened.read(RECORD.size)
        if len(head) < RECORD.size:
            return None
        check, end_length, payload_length, commit = RECORD.unpack(head)
        length = payload_length + end_length
        if commit != place.commit + 1 or place.offset + len(head) + length > os.fstat(opened.fileno()).st_size:
            return None
        rest = opened.read(length)
    if check != crc32(rest, crc32(head[4:], salt)):
        return None
    return Place(place.segment, place.offset + len(head) + length, commit), rest[payload_length:]


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
