"""Reading the records after the applied ones from a damaged log.

A start stops at the first acknowledged record that it cannot read. This module continues after it: it searches for the
salt that records begin with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...base import StoreError
from ..log.records import are_payloads_sound, find_records, payload_seed, sound_payloads
from ..log.segments import HEADER, LogPosition, Segment, Segments

_SALT = slice(48, 52)
"""The position of the salt in a segment's header."""


class Readable(NamedTuple):
    """A readable record that is not applied yet."""

    segment: int
    commit: int
    is_sound: bool
    """Whether its payloads match their checksums."""
    end: bytes
    """The last part of the record, which describes the changes."""


class Region(NamedTuple):
    """A range of bytes of a file."""

    file: Path
    begin: int
    end: int


class Lost(NamedTuple):
    """Acknowledged commits that cannot be read, and the bytes where they may have been."""

    first_commit: int
    last_commit: int
    regions: list[Region]

    def describe(self) -> str:
        first, last = self.first_commit, self.last_commit
        commits = f"Commit {first}" if first == last else f"Commits {first} to {last}"
        left = ", ".join(f"{end - begin} bytes at offset {begin} of {file.name}" for file, begin, end in self.regions)
        return f"{commits} cannot be read: {left or 'the segment of the log is missing'}."


@dataclass(slots=True)
class Salvaged:
    """The records and the lost commits of a damaged log."""

    records: list[Readable] = field(default_factory=list)
    """The records to apply, in order."""
    lost: list[Lost] = field(default_factory=list)
    last_commit: int = 0
    """The highest number of a commit that was acknowledged or is among the records."""


class _Found(NamedTuple):
    record: Readable
    synced: int
    before: list[Region]
    """The bytes between the previous readable record and this one."""


def salvage(segments: Segments, folder: Path, applied: LogPosition, synced: int) -> Salvaged:
    """Read the records after the applied ones: all acknowledged ones, and intact later ones. Changes nothing.

    Raise OSError.
    """
    files = [(number, file) for number, file in segments.files(folder) if number >= applied.segment]
    headers = readable_headers(segments, [number for number, _ in files])
    known = max([synced, applied.commit, *(header.first_commit - 1 for header in headers.values())])
    found: list[_Found] = []
    unread: list[Region] = []
    for number, file in files:
        data = file.read_bytes()
        if number not in headers:
            unread.append(Region(file, 0, len(data)))
            continue
        end = end_of(number, headers)
        data = data[:end]
        at = applied.offset if number == applied.segment else HEADER.size
        last = found[-1].record.commit if found else applied.commit
        for start, head in find_records(data, at, headers[number].salt):
            if head.commit <= last:
                continue
            if at < start:
                unread.append(Region(file, at, start))
            is_sound = are_payloads_sound(data, start, head, payload_seed(number), 0)
            at = start + head.length
            record = Readable(number, head.commit, is_sound, data[at - head.end_length : at])
            found.append(_Found(record, head.synced, unread))
            known = max(known, head.synced)
            last, unread = head.commit, []
        written = len(data) if end is not None else len(data.rstrip(b"\0"))
        if at < written:
            unread.append(Region(file, at, written))
    return _choose(found, applied.commit, known, unread)


def _choose(found: list[_Found], last: int, known: int, rest: list[Region]) -> Salvaged:
    """Choose the acknowledged records, and the intact ones that follow without a gap, as a start does."""
    salvaged = Salvaged()
    for record, _, before in found:
        is_next = record.commit == last + 1
        if record.commit > known and not (is_next and record.is_sound):
            break
        if not is_next:
            salvaged.lost.append(Lost(last + 1, record.commit - 1, before))
        salvaged.records.append(record)
        last = record.commit
    if last < known:
        salvaged.lost.append(Lost(last + 1, known, rest))
    salvaged.last_commit = max(last, known)
    return salvaged


def readable_headers(segments: Segments, numbers: list[int]) -> dict[int, Segment]:
    headers = {}
    for number in numbers:
        try:
            headers[number] = segments.header(number)
        except StoreError:
            continue
    return headers


def end_of(number: int, headers: dict[int, Segment]) -> int | None:
    """Return where the last record of this segment ends, from the next segment's header; None if it is not known."""
    later = [header for other, header in headers.items() if other > number]
    if not later:
        return None
    following = min(later)
    if following.previous == number:
        return following.previous_end
    # A segment that could not be made durable has no records. A segment of a repair names no previous segment.
    return HEADER.size if 0 < following.previous < number else None


def payloads_left(segments: Segments, lost: Lost) -> Iterator[bytes]:
    """Find intact payloads of unreadable commits. Raise OSError."""
    for file, begin, end in lost.regions:
        number = int(file.name.rpartition("-")[2])
        data = file.read_bytes()
        try:
            salt = segments.header(number).salt
        except StoreError:
            salt = int.from_bytes(data[_SALT], "little")
        yield from sound_payloads(data, max(begin, HEADER.size), min(end, len(data)), salt, payload_seed(number))
