"""The reading side of the log, at the start: what is in it behind what the index has, and where it ends.

A record that cannot be read is one of two things. Where it was known to be synced, it is damage: the commit was
acknowledged, and the start is refused. That is known from the file `synced`, from any later record, and from any later
segment. Otherwise a crash tore it, no one was told of it, and the log ends before it.

Nothing is changed before all was read (`examine`); only then what was torn is put aside and the end made fit to be
written on (`mend`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ...base import StoreError
from ..failures import WHAT_TO_DO, store_error
from .records import are_payloads_sound, find_records, payload_seed, read_head, stated_length
from .segments import HEADER, Place, Segment, Segments, sync

log = logging.getLogger(__name__)

TORN: Final = "torn"
"""Files of this prefix have what was cut off the log; an orderly stop removes them."""


class Record(NamedTuple):
    start: int
    place: Place
    """Where it ends."""
    synced: int
    is_sound: bool
    """So are its payloads."""
    end: bytes


class Examined(NamedTuple):
    end: Place
    """Where the next record belongs."""
    last: Segment | None
    """The segment that is in; None if there is no log yet."""
    synced: int
    """Where the part of the last segment begins whose commits are not known to be synced."""
    torn: int
    """Bytes behind the end that belong to records of no effect; 0 if there are none."""


class Replay:
    """The log behind what was applied. One after the other: `examine`, `mend`, `records`."""

    def __init__(self, segments: Segments, after: Place, synced: int) -> None:
        self._segments = segments
        self._after = after
        self._known = synced
        self._found: dict[int, Segment] = {}
        self._end: Place | None = None

    def examine(self) -> Examined:
        """Read all of it and change nothing. StoreError when something is missing or damaged."""
        self._found = self._segments.find(self._after.segment)
        if self._after.commit and self._after.segment not in self._found:
            raise StoreError(f"{self._segments.path(self._after.segment)} is missing, and the store needs it.")
        self._known = max([self._known, *(segment.first_commit - 1 for segment in self._found.values())])
        end = self._after
        doubtful: Record | None = None
        """The first whose payloads are not sound: damaged, if it is known to have been synced, or else torn."""
        starts: list[tuple[int, int]] = []
        """Commit and start of each record in the last segment."""
        for record in self._read():
            if record.place.segment != end.segment:
                starts.clear()
            starts.append((record.place.commit, record.start))
            end = record.place
            self._known = max(self._known, record.synced)
            if doubtful is not None and doubtful.place.commit <= self._known:
                doubtful = None
            if doubtful is None and not record.is_sound:
                doubtful = record
        if doubtful is not None and doubtful.place.commit > self._known:
            end = Place(doubtful.place.segment, doubtful.start, doubtful.place.commit - 1)
        segment = self._found.get(max(self._found, default=0))
        if segment is None:
            self._end = end
            return Examined(end, None, end.offset, 0)
        if segment.number > end.segment:
            end = Place(segment.number, HEADER.size, end.commit)
            starts.clear()
        self._end = end
        behind = self._read_file(segment.number, end.offset, None)
        later = [head.synced for _, head in find_records(behind, 0, segment.salt)]
        if end.commit < max([self._known, *later]):
            raise self._damaged(end)
        unsynced = [start for commit, start in starts if commit > self._known]
        return Examined(end, segment, min([*unsynced, end.offset]), _torn_bytes(behind, segment.salt))

    def mend(self, examined: Examined, folder: Path) -> None:
        """Put aside what was torn, and make durable what is not known to be. StoreError."""
        if examined.last is None:
            return
        file = self._segments.path(examined.last.number)
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            try:
                if examined.torn:
                    self._put_aside(descriptor, examined, folder, file)
                _rewrite(descriptor, examined.synced, examined.end.offset)
                sync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise store_error(error, file) from error

    def records(self) -> Iterator[Record]:
        """What is to be applied, in order."""
        assert self._end is not None
        for record in self._read():
            if record.place.commit > self._end.commit:
                return
            yield record

    def _read(self) -> Iterator[Record]:
        """Up to the first that cannot be read in the last segment. StoreError for one in another."""
        place = self._after
        numbers = sorted(self._found)
        for at, number in enumerate(numbers):
            segment = self._found[number]
            following = self._found[numbers[at + 1]] if at + 1 < len(numbers) else None
            if number != place.segment:
                if segment.first_commit != place.commit + 1:
                    raise StoreError(
                        f"{self._segments.path(number)} begins with commit {segment.first_commit}, "
                        f"but the log before it ends with {place.commit}: a part of it is missing or damaged."
                    )
                place = Place(number, HEADER.size, place.commit)
            if following is None:
                end = None
            else:  # one that could not be made durable stays empty, and the next follows the one before it
                end = following.previous_end if following.previous == number else HEADER.size
            for record in self._read_segment(segment, place, end):
                place = record.place
                yield record
            if end is not None and place.offset < end:
                raise self._damaged(place)

    def _read_segment(self, segment: Segment, place: Place, end: int | None) -> Iterator[Record]:
        begin, commit = place.offset, place.commit
        data = self._read_file(segment.number, begin, end)
        seed = payload_seed(segment.number)
        at = 0
        while (head := read_head(data, at, segment.salt)) is not None and head.commit == commit + 1:
            start, commit = at, head.commit
            at += head.length
            yield Record(
                start=begin + start,
                place=Place(segment.number, begin + at, commit),
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

    def _put_aside(self, descriptor: int, examined: Examined, folder: Path, file: Path) -> None:
        """Copy it, then see that no record is found in it any more."""
        assert examined.last is not None
        start = examined.end.offset
        torn = os.pread(descriptor, examined.torn, start)
        kept = folder / f"{TORN}-{examined.last.number:010}-{start}"
        with suppress(OSError):  # on a full disk it is not kept: no one was told of it
            kept.touch(0o600)
            kept.write_bytes(torn)
        log.warning(
            "%s: discarded %d bytes at offset %d that were being written when the broker ended and were never "
            "acknowledged; a copy is in %s until the next orderly stop",
            file,
            len(torn),
            start,
            kept.name,
        )
        mark, at = examined.last.salt.to_bytes(4, "little"), -1
        while (at := torn.find(mark, at + 1)) >= 0:
            os.pwrite(descriptor, bytes(len(mark)), start + at)

    def _damaged(self, place: Place) -> StoreError:
        return StoreError(
            f"{self._segments.path(place.segment)} is damaged: at offset {place.offset} the record of commit "
            f"{place.commit + 1}, which was acknowledged, cannot be read. {WHAT_TO_DO}"
        )


def remove_torn(folder: Path) -> None:
    """At an orderly stop: who wanted to look at them has had the time."""
    for file in folder.glob(f"{TORN}-*"):
        with suppress(OSError):
            file.unlink(missing_ok=True)


def _torn_bytes(behind: bytes, salt: int) -> int:
    """Of what lies behind the end of the log: how many there are up to the last that may belong to a record."""
    torn = min(stated_length(behind, 0, salt), len(behind))
    for start, head in find_records(behind, 0, salt):
        torn = max(torn, start + head.length)
    last = behind.rfind(salt.to_bytes(4, "little"))
    return max(torn, last + 4) if last >= 0 else torn


def _rewrite(descriptor: int, begin: int, end: int) -> None:
    """Write the same bytes again: after a sync that failed, the next one succeeds without writing what that dropped."""
    while begin < end:
        data = os.pread(descriptor, min(end - begin, 1 << 20), begin)
        if not data:
            break
        os.pwrite(descriptor, data, begin)
        begin += len(data)
