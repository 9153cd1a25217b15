"""Copies of a data folder: of a running broker, while it serves, and back.

A backup is the index at one moment, the segments that it needs, and what the log has behind it, as far as that follows
without a gap. `Pin` keeps the broker from freeing segments meanwhile. All that was acknowledged before the backup began
is in it; of what came later, some may be.

A copy is made beside its target, checked there, synced, and renamed when it is complete.
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
"""Files that are not restored: each broker makes its own."""


@dataclass(frozen=True, slots=True)
class Copied:
    commit: int
    """The last one in the copy."""
    bytes: int
    checked: Checked | None
    """None if the copy was not checked."""
    moved_to: Path | None = None
    """Where the folder is that was there before."""


def back_up(folder: Path, target: Path, *, verify: bool = True, progress: Progress = no_progress) -> Copied:
    """Damage that the folder has is in the backup, too. StoreError; then there is no target."""
    if not (folder / INDEX).exists():
        raise StoreError(f"{folder} is not a data folder: it has no {INDEX}.")
    with _made_beside(target) as partial:
        _check_target(target)
        with Pin(folder).hold():
            synced = Synced(folder).read()
            applied, numbers = _copy_index(folder, partial, progress)
            _copy_segments(folder, partial, applied, numbers, progress)
        pages.sum_up(partial / INDEX)
        commit = _cut_after_last(partial, applied, synced)
        if commit < synced:
            raise StoreError(
                f"The log of {folder} can be read through commit {commit}, but commit {synced} was acknowledged before "
                "the backup began: the log is damaged. See `peeklock store check`."
            )
        _write_synced(partial, commit)
        checked = check(partial, progress) if verify else None
        size = _finish(partial)
        _put_in_place(partial, target)
        return Copied(commit, size, checked)


def restore(backup: Path, folder: Path, *, replace: bool = False, progress: Progress = no_progress) -> Copied:
    """Copy a backup to where a broker is to use it, if it is sound; a folder that is to be replaced is moved aside.

    StoreError; then the folder is as it was.
    """
    if not (backup / INDEX).exists():
        raise StoreError(f"{backup} is not a backup: it has no {INDEX}.")
    with _made_beside(folder) as partial, ExitStack() as held:
        if not replace:
            _check_target(folder)
        if (backup / "lock").exists():  # it is a data folder: no broker may use it meanwhile
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
    """A folder on the same file system, which is removed unless it was renamed."""
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
    """As it is at one moment: how far the log is applied then, and the segments that it needs."""
    file, copy = folder / INDEX, partial / INDEX
    copy.touch(0o600)
    # Closed after SQLite has closed the file: to close it drops SQLite's locks.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        before = _Seals(file)
        with closing(connect_reader(file)) as source:
            source.execute("BEGIN")
            applied = read_applied(source)  # from here on what is read does not change
            numbers = {end.segment for end in read_segment_ends(source)}
            numbers |= {number for (number,) in source.execute("SELECT DISTINCT segment FROM extent")}
            copied = 0

            def step(_: int, remaining: int, total: int) -> None:
                nonlocal copied
                progress("Copying the index", total - remaining - copied, total)
                copied = total - remaining

            with closing(sqlite3.connect(copy)) as target:
                source.backup(target, pages=_COPIED_PAGES, progress=step)
            _verify_pages(copy, descriptor, [before, _Seals(file)], file)
    finally:
        os.close(descriptor)
    return applied, numbers


class _Seals:
    """Checksums of pages, at one moment: as the sums have them, and of all versions in SQLite's log."""

    def __init__(self, file: Path) -> None:
        """StoreError, OSError."""
        with closing(Sums(file)) as sums:
            self.page_size = sums.state.page_size
            self._sums = sums.sums
        self._versions = {
            (number, page_sum(number, _comparable(number, page))) for number, page in wal.versions(file, self.page_size)
        }

    def have(self, number: int, page: bytes, original: bytes) -> bool:
        """One of them is this page's; `original` is as the database has it."""
        if number <= len(self._sums) and page_sum(number, original) == self._sums[number - 1]:
            return True
        return (number, page_sum(number, _comparable(number, page))) in self._versions


def _comparable(number: int, page: bytes) -> bytes:
    """Without the count of changes, which SQLite writes into the first page of the copy."""
    return page[:24] + page[28:92] + page[100:] if number == 1 else page


def _verify_pages(copy: Path, database: int, seals: list[_Seals], file: Path) -> None:
    """The copy gets checksums of its own: no damaged page may get one that fits. StoreError.

    A page of the copy was in SQLite's log, which then still has it, or in the database, with the sum that it had before
    the copy was begun or has now.
    """
    size = seals[0].page_size
    with copy.open("rb") as copied:
        number = 0
        while page := copied.read(size):
            number += 1
            original = os.pread(database, size, 0) if number == 1 else page
            if not any(each.have(number, page, original) for each in seals):
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
    """So many bytes of it, however long it gets."""
    target.touch(0o600)
    with file.open("rb") as source, target.open("r+b") as copy:
        while size > 0 and (data := source.read(min(size, _COPIED_BYTES))):
            copy.write(data)
            size -= len(data)
            progress(doing, len(data), total)


def _cut_after_last(folder: Path, applied: LogPosition, synced: int) -> int:
    """End the log after the last record that follows without a gap; the commit it ends with.

    A file that was copied while it was written may have later records and lack earlier ones.
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
    """Make it durable; how many bytes it has."""
    _forget_reading(folder / INDEX)
    size = 0
    for file in folder.iterdir():
        with file.open("r+b") as opened:
            sync_file(opened.fileno())
        size += file.stat().st_size
    sync_folder(folder)
    return size


def _forget_reading(file: Path) -> None:
    """The check has left SQLite's log empty, if there was none, and its shared memory."""
    Path(f"{file}-shm").unlink(missing_ok=True)
    log = wal.path(file)
    if log.exists() and not log.stat().st_size:
        log.unlink()


def _move_aside(folder: Path) -> Path | None:
    """StoreLocked while a broker uses it."""
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
            raise StoreError(f"{moved} exists.")
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
