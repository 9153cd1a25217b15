"""The replay of the log at the start: finds the records that the index does not have yet, and the end of the log.

An unreadable record is either damaged or incomplete. If it was synced, it is damaged: its commit was acknowledged, and
the start is refused. The file `synced`, every later record and every later segment tell that it was synced. Otherwise
no file records its sync: a crash left it incomplete, and the log ends before it. Its commit was acknowledged only if
both the record and `synced` have lost what was synced, which is two faults of the disk.

`examine` reads everything and changes nothing. Only then `fix_end` saves incomplete records to a file and prepares the
end of the log for new records.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ...base import StoreError
from ..failures import DAMAGE_ADVICE, store_error
from .records import are_payloads_sound, claimed_length, find_records, payload_seed, read_head
from .segments import HEADER, LogPosition, Segment, Segments, sync

log = logging.getLogger(__name__)

TORN: Final = "torn"
"""The prefix of the files with incomplete records that were cut off the log; an orderly stop removes them."""


class Record(NamedTuple):
    start: int
    position: LogPosition
    """The end of the record."""
    synced: int
    """The last synced commit when the record was written."""
    is_sound: bool
    """Whether its payloads match their checksums."""
    end: bytes
    """The last part of the record, which describes the changes."""


class Examined(NamedTuple):
    end: LogPosition
    """The end of the log, where the next record begins."""
    last: Segment | None
    """The segment with the end of the log; None if there is no log yet."""
    synced: int
    """The offset in the last segment of the first record that is not known to be synced."""
    torn: int
    """The length of the incomplete records after the end of the log; 0 if there are none."""


class Replay:
    """The records of the log after the applied ones. Call `examine`, then `fix_end`, then `records`."""

    def __init__(self, segments: Segments, after: LogPosition, synced: int) -> None:
        self._segments = segments
        self._after = after
        self._known = synced
        self._found: dict[int, Segment] = {}
        self._end: LogPosition | None = None

    def examine(self) -> Examined:
        """Read all records and find the end of the log; change nothing.

        Raise StoreError if a segment is missing, or if an acknowledged record is damaged.
        """
        self._found = self._segments.find(self._after.segment)
        if self._after.commit and self._after.segment not in self._found:
            raise StoreError(f"{self._segments.path(self._after.segment)} is missing, and the index refers to it.")
        self._known = max([self._known, *(segment.first_commit - 1 for segment in self._found.values())])
        end = self._after
        doubtful: Record | None = None
        """The first record with payloads that do not match: incomplete, unless it turns out that it was synced."""
        starts: list[tuple[int, int]] = []
        """Commit and offset of each record in the last segment."""
        for record in self._read():
            if record.position.segment != end.segment:
                starts.clear()
            starts.append((record.position.commit, record.start))
            end = record.position
            self._known = max(self._known, record.synced)
            if doubtful is not None and doubtful.position.commit <= self._known:
                doubtful = None
            if doubtful is None and not record.is_sound:
                doubtful = record
        if doubtful is not None and doubtful.position.commit > self._known:
            end = LogPosition(doubtful.position.segment, doubtful.start, doubtful.position.commit - 1)
        segment = self._found.get(max(self._found, default=0))
        if segment is None:
            self._end = end
            return Examined(end, None, end.offset, 0)
        if segment.number > end.segment:
            end = LogPosition(segment.number, HEADER.size, end.commit)
            starts.clear()
        self._end = end
        behind = self._read_file(segment.number, end.offset, None)
        later = [head.synced for _, head in find_records(behind, 0, segment.salt)]
        if end.commit < max([self._known, *later]):
            raise self._damaged(end)
        unsynced = [start for commit, start in starts if commit > self._known]
        return Examined(end, segment, min([*unsynced, end.offset]), _torn_bytes(behind, segment.salt))

    def fix_end(self, examined: Examined, folder: Path) -> None:
        """Save and erase incomplete records after the end, and sync the last records. Raise StoreError."""
        if examined.last is None:
            return
        file = self._segments.path(examined.last.number)
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            try:
                if examined.torn:
                    self._save_torn(descriptor, examined, folder, file)
                _rewrite(descriptor, examined.synced, examined.end.offset)
                sync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise store_error(error, file) from error

    def records(self) -> Iterator[Record]:
        """Yield the records to apply, in order."""
        assert self._end is not None
        for record in self._read():
            if record.position.commit > self._end.commit:
                return
            yield record

    def _read(self) -> Iterator[Record]:
        """Yield records up to the first unreadable one in the last segment.

        Raise StoreError for an unreadable record in an earlier segment.
        """
        position = self._after
        numbers = sorted(self._found)
        for at, number in enumerate(numbers):
            segment = self._found[number]
            following = self._found[numbers[at + 1]] if at + 1 < len(numbers) else None
            if number != position.segment:
                if segment.first_commit != position.commit + 1:
                    raise StoreError(
                        f"{self._segments.path(number)} begins with commit {segment.first_commit}, "
                        f"but the log before it ends with {position.commit}: a part of it is missing or damaged."
                    )
                position = LogPosition(number, HEADER.size, position.commit)
            if following is None:
                end = None
            else:
                # A segment whose creation was not made durable has no records; the following segment names an earlier
                # one as its previous.
                end = following.previous_end if following.previous == number else HEADER.size
            for record in self._read_segment(segment, position, end):
                position = record.position
                yield record
            if end is not None and position.offset < end:
                raise self._damaged(position)

    def _read_segment(self, segment: Segment, position: LogPosition, end: int | None) -> Iterator[Record]:
        begin, commit = position.offset, position.commit
        data = self._read_file(segment.number, begin, end)
        seed = payload_seed(segment.number)
        at = 0
        while (head := read_head(data, at, segment.salt)) is not None and head.commit == commit + 1:
            start, commit = at, head.commit
            at += head.length
            yield Record(
                start=begin + start,
                position=LogPosition(segment.number, begin + at, commit),
                synced=head.synced,
                is_sound=are_payloads_sound(data, start, head, seed, begin),
                end=data[at - head.end_length : at],
            )

    def _read_file(self, number: int, begin: int, end: int | None) -> bytes:
        file = self._segments.path(number)
        try:
            with file.open("rb") as opened:
                opened.seek(begin)
                return opened.read(-1 if end is None else max(0, end - begin))
        except OSError as error:
            raise store_error(error, file) from error

    def _save_torn(self, descriptor: int, examined: Examined, folder: Path, file: Path) -> None:
        """Copy the incomplete records to a file, then zero every salt in them, so that they are never read again."""
        assert examined.last is not None
        start = examined.end.offset
        torn = os.pread(descriptor, examined.torn, start)
        kept = folder / f"{TORN}-{examined.last.number:010}-{start}"
        with suppress(OSError):  # on a full disk there is no copy
            kept.touch(0o600)
            kept.write_bytes(torn)
        log.warning(
            "%s: discarded %d bytes at offset %d: incomplete records at the end of the log, of which no file records "
            "that they were synced; a copy is in %s until the next orderly stop",
            file,
            len(torn),
            start,
            kept.name,
        )
        mark, at = examined.last.salt.to_bytes(4, "little"), -1
        while (at := torn.find(mark, at + 1)) >= 0:
            os.pwrite(descriptor, bytes(len(mark)), start + at)

    def _damaged(self, position: LogPosition) -> StoreError:
        return StoreError(
            f"{self._segments.path(position.segment)} is damaged: at offset {position.offset} the record of commit "
            f"{position.commit + 1}, which was acknowledged, cannot be read. {DAMAGE_ADVICE}"
        )


def remove_torn(folder: Path) -> None:
    """Remove the files with incomplete records, at an orderly stop."""
    for file in folder.glob(f"{TORN}-*"):
        with suppress(OSError):
            file.unlink(missing_ok=True)


def _torn_bytes(behind: bytes, salt: int) -> int:
    """Return how many of the bytes after the end of the log may belong to records."""
    torn = min(claimed_length(behind, 0, salt), len(behind))
    for start, head in find_records(behind, 0, salt):
        torn = max(torn, start + head.length)
    last = behind.rfind(salt.to_bytes(4, "little"))
    return max(torn, last + 4) if last >= 0 else torn


def _rewrite(descriptor: int, begin: int, end: int) -> None:
    """Write the same bytes again: after a failed sync, the next sync succeeds without writing the lost pages."""
    while begin < end:
        data = os.pread(descriptor, min(end - begin, 1 << 20), begin)
        if not data:
            break
        os.pwrite(descriptor, data, begin)
        begin += len(data)
