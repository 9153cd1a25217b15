"""The repair of a damaged data folder that no broker uses.

Damaged messages are removed from the index, and their remaining bytes and properties are written to a file (`aside`).
Unreadable commits of the log are skipped: their bytes are written to the same file, and the intact commits after them
are applied. Intact messages are moved out of segments with unreadable records, these segments are removed, and the log
continues in a new segment. Pages of the index are not repaired: if they are damaged, only a backup helps.

All changes to the index are one SQLite transaction, which is committed when the file of removed messages and the new
segment are durable. A repair that is killed before that has had no effect; a repair that is killed later may leave
segments that are not needed. In both cases it can be run again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from secrets import randbits
from typing import Final

from ...base import Changes, StoreError
from ..commits.batch import Batch
from ..commits.entry import Entry
from ..commits.record import parameters_of, to_bytes
from ..failures import store_error
from ..index import pages
from ..index.connections import connect_inspector, connect_writer
from ..index.inspection import inspect
from ..index.schema import create
from ..index.sums import Sums
from ..index.writer import SegmentEnd, Writer, apply_entry, read_applied
from ..keys import LENGTH_MASK, NUMBER_BITS
from ..log.records import PAYLOAD_HEAD
from ..log.segments import HEADER, LogPosition, Segment, Segments
from ..log.synced import Synced
from ..log.writer import Log
from ..reserve import Reserve
from .aside import set_aside
from .check import Checked, check
from .findings import INDEX, Finding, Kind, Progress, no_progress
from .messages import damaged_messages
from .salvage import Lost, Readable, salvage

_SKIPPED_NUMBERS: Final = 1_000_000
"""How many sequence numbers are skipped after a lost commit, which may have assigned numbers that the index does not
know: none may be assigned twice."""

_MOVED_BYTES: Final = 8 * 1024 * 1024
_MOVED_ROWS: Final = 1024
_ALL_NUMBERS: Final = 1 << 62

_DROPPED: Final = f"DELETE FROM message WHERE key >> {NUMBER_BITS} IN (SELECT id FROM dropped_entity)"
_DELETE: Final = "DELETE FROM message WHERE key = ?"
_ORPHANED_BODIES: Final = "DELETE FROM body WHERE NOT EXISTS (SELECT 1 FROM message WHERE message.body = body.key)"
_RECOUNT: Final = f"""
    WITH counted AS (
        SELECT message.key >> {NUMBER_BITS} AS id, count(*) FILTER (WHERE state = 0) AS active,
            count(*) FILTER (WHERE state = 1) AS deferred, count(*) FILTER (WHERE state = 2) AS scheduled,
            count(*) FILTER (WHERE state = 3) AS damaged, count(*) FILTER (WHERE state = 4) AS claimed,
            sum((message.place & {LENGTH_MASK}) + coalesce(body.place & {LENGTH_MASK}, 0)) AS size
        FROM message LEFT JOIN body ON body.key = message.body GROUP BY 1
    )
    UPDATE entity SET (active, deferred, scheduled, damaged, claimed, size_in_bytes) = (
        SELECT coalesce(sum(active), 0), coalesce(sum(deferred), 0), coalesce(sum(scheduled), 0),
            coalesce(sum(damaged), 0), coalesce(sum(claimed), 0), coalesce(sum(size), 0)
        FROM counted WHERE counted.id = entity.id
    )
"""
_EXTENTS: Final = f"""
    INSERT INTO extent (segment, entity, first_key, last_key)
    SELECT segment, key >> {NUMBER_BITS}, min(key), max(key) FROM message GROUP BY 1, 2
"""


@dataclass(slots=True)
class Repaired:
    """The result of a repair."""

    findings: list[Finding]
    """The findings of the check before the repair."""
    messages: list[Finding] = field(default_factory=list)
    """The messages that were removed."""
    lost: list[Lost] = field(default_factory=list)
    """Acknowledged commits that cannot be read."""
    unfit: list[tuple[Readable, str]] = field(default_factory=list)
    """Commits that cannot be applied without lost ones, with the reason."""
    removed: list[Path] = field(default_factory=list)
    """The segments of the log that were removed."""
    sums_rewritten: bool = False
    file: Path | None = None
    """The file with the removed messages and commits; None if there are none."""

    @property
    def is_needed(self) -> bool:
        return bool(self.findings)


def repair(folder: Path, *, dry_run: bool = False, progress: Progress = no_progress) -> Repaired:
    """Repair a data folder, which the caller has locked. With `dry_run`, only check it.

    Raise StoreError if the folder cannot be repaired; then nothing was changed.
    """
    file = folder / INDEX
    try:
        checked = check(folder, progress)
        repaired = Repaired(list(checked.findings))
        if any(each.kind == Kind.PAGE for each in checked.findings):
            _check_only_sums_are_damaged(file, checked)
            repaired.sums_rewritten = True
            if dry_run:
                return repaired
            pages.write_sums(file)
            checked = check(folder, progress)
            repaired.findings += checked.findings
        if checked.is_sound or dry_run:
            return repaired
        with closing(Segments(folder)) as segments:
            segments.find(_ALL_NUMBERS)  # read the sizes of the segments, but no headers
            _mend(folder, file, segments, checked, repaired, progress)
        return repaired
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, file) from error


def _check_only_sums_are_damaged(file: Path, checked: Checked) -> None:
    """Raise StoreError unless only the checksums are damaged and the pages of the index are intact."""
    damaged = [each for each in checked.findings if each.kind == Kind.PAGE]
    if damaged[0].offset is None and not _are_sums_readable(file):
        inspect(file)
        if _is_index_sound(file):
            return
    text = f"{len(damaged)} of its pages are damaged" if damaged[0].offset is not None else damaged[0].text.rstrip(".")
    raise StoreError(
        f"{file} cannot be repaired: {text}. The log cannot be used without it. "
        "Restore a backup with `peeklock store restore`."
    )


def _are_sums_readable(file: Path) -> bool:
    try:
        Sums(file).close()
    except (FileNotFoundError, StoreError):
        return False
    return True


def _is_index_sound(file: Path) -> bool:
    try:
        with closing(connect_inspector(file)) as connection:
            return _passes_sqlite(connection)
    except sqlite3.Error:
        return False


def _passes_sqlite(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("PRAGMA integrity_check(1)").fetchall() == [("ok",)])


def _mend(
    folder: Path, file: Path, segments: Segments, checked: Checked, repaired: Repaired, progress: Progress
) -> None:
    writer = Writer(connect_writer(file), file)
    try:
        connection = writer.database.connected()
        create(connection)
        if not _passes_sqlite(connection):
            raise StoreError(f"{file} cannot be repaired: SQLite finds it damaged. Restore a backup.")
        unsound = _unsound_segments(checked, segments, folder)
        writer.database.begin()
        try:
            _change(connection, folder, segments, unsound, repaired, progress)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        writer.forget_segments(sorted(unsound))
        for number in sorted(unsound):
            if segments.path(number).exists():
                repaired.removed.append(segments.path(number))
                segments.free(number)
    finally:
        writer.close()


def _unsound_segments(checked: Checked, segments: Segments, folder: Path) -> set[int]:
    files = {file: number for number, file in segments.files(folder)}
    of_log = [each.file for each in checked.findings if each.kind in (Kind.RECORD, Kind.SEGMENT)]
    missing = {int(file.name.rpartition("-")[2]) for file in of_log if file not in files}
    return missing | {files[file] for file in of_log if file in files}


def _change(
    connection: sqlite3.Connection,
    folder: Path,
    segments: Segments,
    unsound: set[int],
    repaired: Repaired,
    progress: Progress,
) -> None:
    """Make all changes to the index, in a transaction of the caller, and write the new segment and the file."""
    applied = read_applied(connection)
    salvaged = salvage(segments, folder, applied, Synced(folder).read())
    repaired.lost = salvaged.lost
    repaired.unfit = list(_apply(connection, salvaged.records))
    connection.execute(_DROPPED)
    messages = {each.key: each for each in damaged_messages(connection, segments, progress)}
    repaired.messages = list(messages.values())
    repaired.file = set_aside(folder, connection, segments, repaired.messages, repaired.lost, repaired.unfit)
    connection.executemany(_DELETE, [(key,) for key in messages])
    connection.execute(_ORPHANED_BODIES)
    number = max(applied.segment, segments.last, *unsound, 0) + 1
    position, ends = _start_new_log(
        connection, folder, segments, unsound, LogPosition(number, HEADER.size, salvaged.last_commit)
    )
    connection.execute('UPDATE log SET segment = ?, "offset" = ?, "commit" = ?', position)
    connection.executemany("INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?)", ends)
    connection.execute("DELETE FROM extent")
    connection.execute(_EXTENTS)
    connection.execute(_RECOUNT)
    if repaired.lost or repaired.unfit:
        connection.execute(f"UPDATE entity SET last_sequence_number = last_sequence_number + {_SKIPPED_NUMBERS}")


def _apply(connection: sqlite3.Connection, records: list[Readable]) -> Iterator[tuple[Readable, str]]:
    """Apply the records. Yield the ones that cannot be applied, with the reason: they depend on a lost commit."""
    for record in records:
        connection.execute("SAVEPOINT record")
        try:
            apply_entry(connection, parameters_of(record.end))
        except sqlite3.IntegrityError as error:
            connection.execute("ROLLBACK TO record")
            yield record, f"Commit {record.commit} could not be applied: {error}."
        connection.execute("RELEASE record")


def _start_new_log(
    connection: sqlite3.Connection, folder: Path, segments: Segments, unsound: set[int], begin: LogPosition
) -> tuple[LogPosition, list[SegmentEnd]]:
    """Start a new segment, whose header names no previous one, and move the messages of unsound segments there."""
    segment = Segment(begin.segment, begin.commit + 1, 0, 0, randbits(31) << 1 | 1)
    descriptor, _ = segments.make(segment, HEADER.size)
    os.close(descriptor)
    synced = Synced(folder)
    synced.open()
    log = Log(segments, synced, Reserve(folder))
    ends: dict[int, SegmentEnd] = {}
    try:
        log.resume(begin, segment)
        synced.write(begin.commit)
        for number in sorted(unsound):
            for batch in _moves(connection, segments, number):
                log.begin(batch.size + PAYLOAD_HEAD * batch.rows, 1, grows=False)
                entry, payloads = Entry.of(batch, *log.payloads_at())
                start = log.position.offset
                log.add(payloads, to_bytes(entry))
                end = log.position
                log.commit()
                apply_entry(connection, entry.parameters())
                ends[end.segment] = SegmentEnd(end.segment, start, end.offset, end.commit)
        return log.position, list(ends.values())
    finally:
        log.close()
        synced.close()


def _moves(connection: sqlite3.Connection, segments: Segments, number: int) -> Iterator[Batch]:
    """Yield batches that move all messages and bodies out of a segment; the damaged ones were removed before."""
    of_messages = connection.execute("SELECT key, place FROM message WHERE segment = ?", (number,)).fetchall()
    of_bodies = connection.execute("SELECT key, place FROM body WHERE segment = ?", (number,)).fetchall()
    batch = Batch(Changes())
    for rows, move in ((of_messages, Batch.move), (of_bodies, Batch.move_body)):
        for key, place in rows:
            (content,) = segments.read(number, [place])
            if content is None:
                raise StoreError(f"{segments.describe(number, place)}: the payload became damaged during the repair.")
            move(batch, key, content, number)
            if batch.size >= _MOVED_BYTES or batch.rows >= _MOVED_ROWS:
                yield batch
                batch = Batch(Changes())
    if batch.rows:
        yield batch
