"""Backup of a data folder, also while a broker uses it, and restore.

A backup consists of a snapshot of the index, the segments that it needs, and the later records of the log up to the
first gap. `Pin` prevents the broker from freeing segments meanwhile. The backup contains everything that was
acknowledged before it began; it may contain some later commits.

The copy is made in a temporary folder beside its target, checked, synced, and renamed when it is complete.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ...base import StoreError
from ..failures import store_error
from ..folder import FolderLock, sync_file, sync_folder
from ..index import pages, wal
from ..index.connections import connect_reader
from ..index.sums import Sums, page_sum
from ..index.writer import read_applied, read_segment_ends
from ..log.records import are_payloads_sound, payload_seed, read_head
from ..log.segments import HEADER, LogPosition, Segments
from ..log.synced import Synced
from ..pin import Pin
from .check import Checked, check
from .findings import INDEX, Progress, no_progress
from .salvage import end_of

_COPIED_PAGES: Final = 2048
_COPIED_BYTES: Final = 8 * 1024 * 1024
_OWN: Final = ("lock", "pin", "reserve")
"""Files that are not restored: each broker creates its own."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a backup or a restore."""

    commit: int
    """The last commit in the copy."""
    bytes: int
    checked: Checked | None
    """The result of the check; None if the copy was not checked."""
    moved_to: Path | None = None
    """The new name of the folder that was replaced."""


def back_up(folder: Path, target: Path, *, verify: bool = True, progress: Progress = no_progress) -> Copied:
    """Copy a data folder to a new folder. Damage in the folder is copied too, and reported by the check.

    Raise StoreError if the backup failed; then the target does not exist.
    """
    if not (folder / INDEX).exists():
        raise StoreError(f"{folder} is not a data folder: it has no {INDEX}.")
    with _made_beside(target) as partial:
        _check_target(target)
        with Pin(folder).hold():
            synced = Synced(folder).read()
            applied, numbers = _copy_index(folder, partial, progress)
            _copy_segments(folder, partial, applied, numbers, progress)
        pages.write_sums(partial / INDEX)
        commit = _cut_after_last(partial, applied, synced)
        if commit < synced:
            raise StoreError(
                f"The log of {folder} is damaged: commit {synced} was acknowledged before the backup began, but "
                f"the log can only be read up to commit {commit}. See `peeklock store check`."
            )
        _write_synced(partial, commit)
        checked = check(partial, progress) if verify else None
        size = _finish(partial)
        _put_in_place(partial, target)
        return Copied(commit, size, checked)


def restore(backup: Path, folder: Path, *, replace: bool = False, progress: Progress = no_progress) -> Copied:
    """Copy a backup to a data folder, if the check of the copy finds no damage. A replaced folder is renamed.

    Raise StoreError if the restore failed; then the folder is unchanged.
    """
    if not (backup / INDEX).exists():
        raise StoreError(f"{backup} is not a backup: it has no {INDEX}.")
    with _made_beside(folder) as partial, ExitStack() as held:
        if not replace:
            _check_target(folder)
        if (backup / "lock").exists():  # it is a data folder: lock it, so that no broker uses it meanwhile
            held.callback(FolderLock(backup).release)
        files = [file for file in sorted(backup.iterdir()) if file.is_file() and _is_restored(file.name)]
        total = sum(file.stat().st_size for file in files)
        for file in files:
            _copy(file, partial / file.name, file.stat().st_size, "Copying", total, progress)
        checked = check(partial, progress)
        size = _finish(partial)
        commit = Synced(partial).read()
        moved = None
        if checked.is_sound:
            moved = _move_aside(folder) if replace else None
            _put_in_place(partial, folder)
        return Copied(commit, size, checked, moved)


def _is_restored(name: str) -> bool:
    return name not in _OWN and not name.endswith("-shm") and not name.startswith(("spare-log", "new-log", "damaged-"))


def _check_target(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{target} exists and is not an empty folder.")


@contextmanager
def _made_beside(target: Path) -> Iterator[Path]:
    """Create a temporary folder beside the target, and remove it at the end unless it was renamed."""
    resolved = target.resolve()
    partial = resolved.with_name(f".{resolved.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(mode=0o700, parents=True)
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, target) from error


def _copy_index(folder: Path, partial: Path, progress: Progress) -> tuple[LogPosition, set[int]]:
    """Copy a snapshot of the index. Return the position up to which the log is applied, and the needed segments."""
    file, copy = folder / INDEX, partial / INDEX
    copy.touch(0o600)
    # Closed after SQLite has closed the file, because closing it drops SQLite's locks.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        before = _Checksums(file)
        with closing(connect_reader(file)) as source:
            source.execute("BEGIN")
            applied = read_applied(source)  # the first read starts the snapshot
            numbers = {end.segment for end in read_segment_ends(source)}
            numbers |= {number for (number,) in source.execute("SELECT DISTINCT segment FROM extent")}
            copied = 0

            def step(_: int, remaining: int, total: int) -> None:
                nonlocal copied
                progress("Copying the index", total - remaining - copied, total)
                copied = total - remaining

            with closing(sqlite3.connect(copy)) as target:
                source.backup(target, pages=_COPIED_PAGES, progress=step)
            _verify_pages(copy, descriptor, [before, _Checksums(file)], file)
    finally:
        os.close(descriptor)
    return applied, numbers


class _Checksums:
    """The checksums of pages at one moment: from the file of sums, and of all versions of pages in the WAL."""

    def __init__(self, file: Path) -> None:
        """Read the checksums. Raise StoreError or OSError."""
        with closing(Sums(file)) as sums:
            self.page_size = sums.state.page_size
            self._sums = sums.sums
        self._versions = {
            (number, page_sum(number, _comparable(number, page))) for number, page in wal.versions(file, self.page_size)
        }

    def match(self, number: int, page: bytes, original: bytes) -> bool:
        """Return whether one of the checksums is that of this page; `original` is the page in the database file."""
        if number <= len(self._sums) and page_sum(number, original) == self._sums[number - 1]:
            return True
        return (number, page_sum(number, _comparable(number, page))) in self._versions


def _comparable(number: int, page: bytes) -> bytes:
    """Return the page without the change counters, which SQLite writes into the first page of the copy."""
    return page[:24] + page[28:92] + page[100:] if number == 1 else page


def _verify_pages(copy: Path, database: int, checksums: list[_Checksums], file: Path) -> None:
    """Raise StoreError for a damaged page in the copy: the copy gets new checksums, which would hide the damage.

    Each page of the copy was read from the WAL, which then still has it, or from the database, whose checksum of the
    page is the one from before the copy or the current one.
    """
    size = checksums[0].page_size
    with copy.open("rb") as copied:
        number = 0
        while page := copied.read(size):
            number += 1
            original = os.pread(database, size, 0) if number == 1 else page
            if not any(each.match(number, page, original) for each in checksums):
                raise StoreError(
                    f"{file} is damaged: page {number} (offset {(number - 1) * size}) does not match its checksum. "
                    "See `peeklock store check`."
                )


def _copy_segments(folder: Path, partial: Path, applied: LogPosition, numbers: set[int], progress: Progress) -> None:
    files = [
        (file, file.stat().st_size)
        for number, file in Segments.files(folder)
        if number in numbers or number >= applied.segment
    ]
    total = sum(size for _, size in files)
    for file, size in files:
        _copy(file, partial / file.name, size, "Copying the log", total, progress)


def _copy(file: Path, target: Path, size: int, doing: str, total: int, progress: Progress) -> None:
    """Copy the first `size` bytes of a file, which may grow meanwhile."""
    target.touch(0o600)
    with file.open("rb") as source, target.open("r+b") as copy:
        while size > 0 and (data := source.read(min(size, _COPIED_BYTES))):
            copy.write(data)
            size -= len(data)
            progress(doing, len(data), total)


def _cut_after_last(folder: Path, applied: LogPosition, synced: int) -> int:
    """Truncate the log after the last record before a gap. Return the number of its last commit.

    A segment that was copied while it was being written may have later records and lack earlier ones.
    """
    segments = Segments(folder)
    found = segments.find(applied.segment)
    position = applied
    for number in sorted(found):
        segment = found[number]
        if number != position.segment:
            if segment.first_commit != position.commit + 1:
                break
            position = LogPosition(number, HEADER.size, position.commit)
        data = segments.path(number).read_bytes()[: end_of(number, found)]
        at, commit = position.offset, position.commit
        while (head := read_head(data, at, segment.salt)) is not None and head.commit == commit + 1:
            if head.commit > synced and not are_payloads_sound(data, at, head, payload_seed(number), 0):
                break
            at, commit = at + head.length, head.commit
        position = LogPosition(number, at, commit)
    for number in found:
        if number > position.segment:
            segments.path(number).unlink()
    if position.segment in found:
        segments.cut(position.segment, position.offset)
    return position.commit


def _write_synced(folder: Path, commit: int) -> None:
    synced = Synced(folder)
    synced.open()
    synced.write(commit)
    synced.close()


def _finish(folder: Path) -> int:
    """Sync all files of the folder. Return their size."""
    _remove_empty_wal(folder / INDEX)
    size = 0
    for file in folder.iterdir():
        with file.open("r+b") as opened:
            sync_file(opened.fileno())
        size += file.stat().st_size
    sync_folder(folder)
    return size


def _remove_empty_wal(file: Path) -> None:
    """Remove the shared memory and the empty WAL that the check has created."""
    Path(f"{file}-shm").unlink(missing_ok=True)
    log = wal.path(file)
    if log.exists() and not log.stat().st_size:
        log.unlink()


def _move_aside(folder: Path) -> Path | None:
    """Rename an existing folder, and return its new name. Raise StoreLocked if a broker uses it."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise StoreError(f"{folder} exists and is not a folder.")
    if not any(folder.iterdir()):
        return None
    moved = folder.resolve().with_name(f"{folder.resolve().name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    lock = FolderLock(folder)
    try:
        if moved.exists():
            raise StoreError(f"{folder} cannot be renamed to {moved}, which exists. Try again.")
        folder.resolve().rename(moved)
    finally:
        lock.release()
    return moved


def _put_in_place(partial: Path, target: Path) -> None:
    resolved = target.resolve()
    if resolved.exists():
        resolved.rmdir()
    partial.rename(resolved)
    sync_folder(resolved.parent)
