"""The check of a data folder that no broker uses: every record, every payload, and the index. Changes nothing.

Of applied records only the payloads are needed. The records are read all the same, because damage in them shows that
the disk is failing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from ...base import StoreError
from ..failures import store_error
from ..index import pages
from ..index.connections import connect_inspector
from ..index.inspection import Inspected, inspect
from ..log.records import find_records, read_head
from ..log.replay import Replay
from ..log.segments import HEADER, Segment, Segments
from ..log.synced import Synced
from . import messages
from .findings import INDEX, Finding, Kind, Progress, no_progress
from .salvage import Salvaged, end_of, salvage


@dataclass(slots=True)
class Checked:
    """The result of a check."""

    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    records: int = 0
    messages: int = 0
    """The number of messages in the index, without the commits that are not applied yet."""
    log_bytes: int = 0
    torn_bytes: int = 0
    """The length of incomplete records at the end of the log, that no file records as synced. Not damage."""

    @property
    def is_sound(self) -> bool:
        return not self.findings


def check(folder: Path, progress: Progress = no_progress) -> Checked:
    """Check a data folder, which the caller has locked. Raise StoreError if it is not a data folder or not readable."""
    file = folder / INDEX
    segments = Segments(folder)
    if not file.exists() and not segments.files(folder):
        raise StoreError(f"{folder} is not a data folder: it has neither {INDEX} nor a log.")
    checked = Checked()
    try:
        _check(folder, file, segments, checked, progress)
    except OSError as error:
        raise store_error(error, file) from error
    finally:
        segments.close()
    return checked


def _check(folder: Path, file: Path, segments: Segments, checked: Checked, progress: Progress) -> None:
    checked.findings += _damaged_pages(file)
    inspected: Inspected | None = None
    if checked.is_sound:
        try:
            inspected = inspect(file)
        except StoreError as error:
            checked.findings.append(Finding(kind=Kind.INDEX, file=file, text=str(error)))
    _check_log(folder, segments, inspected, checked, progress)
    if inspected is None:
        return
    salvaged = salvage(segments, folder, inspected.applied, Synced(folder).read())
    _check_end(folder, segments, inspected, salvaged, checked)
    checked.records += len(salvaged.records)
    paths: dict[int, str] = {}
    if inspected.applied.commit:
        try:
            with closing(connect_inspector(file)) as connection:
                paths = dict(connection.execute("SELECT id, path FROM entity").fetchall())
                checked.messages = messages.count(connection).messages
                checked.findings += messages.contradictions(connection, file)
                checked.findings += messages.damaged_messages(connection, segments, progress)
        except (sqlite3.Error, StoreError) as error:
            checked.findings.append(Finding(kind=Kind.INDEX, file=file, text=str(store_error(error, file))))
    checked.findings += messages.damaged_unapplied(salvaged.records, segments, paths)


def _damaged_pages(file: Path) -> Iterator[Finding]:
    try:
        for page in pages.damaged_pages(file):
            text = f"Page {page.number} of the index does not match its checksum."
            yield Finding(kind=Kind.PAGE, file=file, offset=page.offset, text=text)
    except StoreError as error:
        yield Finding(kind=Kind.PAGE, file=file, text=str(error))


def _check_log(
    folder: Path, segments: Segments, inspected: Inspected | None, checked: Checked, progress: Progress
) -> None:
    """Check the applied records; all records, if it is not known how far the log is applied."""
    files = segments.files(folder)
    ends = {} if inspected is None else {end.segment: end.end for end in inspected.ends}
    headers: dict[int, Segment] = {}
    for number, file in files:
        try:
            headers[number] = segments.header(number)
        except StoreError as error:
            checked.findings.append(Finding(kind=Kind.SEGMENT, file=file, offset=0, text=str(error)))
    for number, file in files:
        progress("Reading the log", 1, len(files))
        checked.segments += 1
        checked.log_bytes += file.stat().st_size
        if number not in headers:
            continue
        if inspected is None or number < inspected.applied.segment:
            end = end_of(number, headers) or ends.get(number, 0)
        else:
            end = inspected.applied.offset if number == inspected.applied.segment else 0
        checked.findings += _damaged_records(file, headers[number], end, checked)


def _damaged_records(file: Path, header: Segment, end: int, checked: Checked) -> Iterator[Finding]:
    """Yield the unreadable records before this offset, at which the last record ends."""
    with file.open("rb") as opened:
        data = opened.read(end)
    at, commit = HEADER.size, header.first_commit
    while at < end:
        head = read_head(data, at, header.salt)
        if head is None or head.commit != commit:
            following = next(iter(find_records(data, at + 1, header.salt)), None)
            stop = end if following is None else following[0]
            text = f"The record of commit {commit} cannot be read: {stop - at} bytes at offset {at}. It was applied."
            yield Finding(kind=Kind.RECORD, file=file, offset=at, commit=commit, text=text)
            if following is None:
                return
            at, head = following
            commit = head.commit
        checked.records += 1
        at += head.length
        commit += 1


def _check_end(folder: Path, segments: Segments, inspected: Inspected, salvaged: Salvaged, checked: Checked) -> None:
    """Add the findings for which a start would be refused."""
    for lost in salvaged.lost:
        file, offset = segments.path(inspected.applied.segment), None
        if lost.regions:
            file, offset, _ = lost.regions[0]
        text = lost.describe()
        checked.findings.append(
            Finding(kind=Kind.RECORD, file=file, offset=offset, commit=lost.first_commit, text=text)
        )
    try:
        replay = Replay(segments, inspected.applied, Synced(folder).read())
        checked.torn_bytes = replay.examine().torn
    except StoreError as error:
        if not any(each.kind in (Kind.RECORD, Kind.SEGMENT) for each in checked.findings):
            file = segments.path(inspected.applied.segment)
            checked.findings.append(Finding(kind=Kind.SEGMENT, file=file, text=str(error)))
    for end in inspected.ends:
        try:
            segments.check_record(*end)
        except StoreError as error:
            file = segments.path(end.segment)
            if not any(each.kind in (Kind.RECORD, Kind.SEGMENT) and each.file == file for each in checked.findings):
                checked.findings.append(Finding(kind=Kind.SEGMENT, file=file, commit=end.commit, text=str(error)))
