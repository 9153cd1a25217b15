"""Checkpoints of the index, and the verification of its pages at the start.

SQLite does not checksum the pages of a database, accepts a repeated sync after a failed one, and checkpoints the WAL at
times of its own choice. This module does these things safely. The database changes only in a checkpoint made here
(`wal_autocheckpoint` is 0, and closing a connection makes no checkpoint), and a segment of the log of commits is freed
only after a checkpoint. Below, D is the database file, W is the WAL, and S is the file of checksums (`sums`).

**A checkpoint**

1. Sync W.
2. Write to S the sums of the last version of each page in W, the number of frames of W, and its salt; sync S.
3. Run SQLite's checkpoint: it syncs W, writes the pages to D, syncs D, and only then truncates W if it is long, or else
   lets the next transaction begin at the start of W.
4. Sync W.

**Crashes.** After a power failure, any part of what was written to a file since its last sync may be lost.

- Before 1: D matches S, and W is intact up to some transaction, because its checksums are chained and SQLite ignores
  everything after a gap. The index is then older, but not older than D; the missing commits are in segments that were
  not freed.
- During 2: W is on disk, D has not changed, and S has old or new sums of pages that are all in W. Pages that are in W
  are not verified.
- During 3: D has old, new and torn pages, but all of these pages are in W, which is intact.
- At the end of 3 and during 4: D is synced and matches S, and W is either intact or empty; the index is the same in
  both cases.
- After 4: W begins with another salt. SQLite syncs its header before it writes frames after it, so older frames never
  count again. Until then, a W that was not truncated is intact and has the same contents as D.

After a kill everything that the process has written is in the files, which is one of these cases.

**Failed syncs.** A failed sync may leave written pages in memory only, marked as clean: the next sync succeeds without
writing them, and the disk has a gap. So a sync is never just repeated:

- W: after any failure, all connections are closed. Before SQLite opens W again, its bytes are written once more and
  synced (`wal.rewrite`), as at every start. SQLite then reads W from its beginning and verifies it. If W ends before
  the last applied commit (the memory was reused, and the disk has the gap), every operation of the index fails until
  the next start, which applies the rest of the log of commits: its segments were not freed.
- S: blocks whose sync failed are written again with the next change, to the same copy; the other copy is durable.
- D: SQLite counts frames as copied to D only after D was synced. If that fails, the next checkpoint writes all of them
  to D again; until then they are in W, which is on disk since step 1.
- The header of W: SQLite writes it again as long as no frame follows it.

**Files from different times.** Every transaction writes into the index how many checkpoints were made before it (the
generation), and S contains the number of checkpoints when it was written. W belongs to D if its generation is that of S
or the next one.

**Flipped bits.** A page of D that is not in W must match its sum. A flipped bit in W ends W there: the index is older,
as after a crash. That would be wrong if pages of D were newer than the rest of W, which is possible between 2 and 4. So
if W has the salt that S names, it must also have the number of frames that S names.
"""

from __future__ import annotations

import os
import sqlite3
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from ...base import StoreError
from ..failures import DAMAGE_ADVICE, store_error
from . import wal
from .schema import APPLICATION_ID
from .sums import State, Sums, create, page_sum
from .sums import path as sums_path

_READ_BYTES: Final = 1024 * 1024
_BUSY_MS: Final = 500
"""How long a checkpoint waits for another program that reads."""
_MAGIC: Final = b"SQLite format 3\0"
_APPLICATION_ID: Final = slice(68, 72)
_PAGE_SIZE: Final = slice(16, 18)
"""Positions in the first page of an SQLite database."""


class DamagedPage(NamedTuple):
    """A page of the database that does not match its checksum."""

    number: int
    """The first page has number 1, as in SQLite."""
    offset: int


class Checkpoints:
    """Makes checkpoints and keeps the checksums of the pages. Used by the index thread."""

    def __init__(self, file: Path) -> None:
        """Open the sums. Raise OSError or StoreError."""
        self._wal = wal.Wal(file)
        self._sums = Sums(file)
        self._sums.start_writing()
        self._summed = self._sums.state.generation
        """The generation of the sums that are durable."""

    def opened(self) -> None:
        """Open the WAL; call this after SQLite has opened the database. Raise OSError."""
        self._wal.open()

    def next_generation(self) -> int:
        """Return the generation that a new transaction must write."""
        return self._summed + 1

    @property
    def waiting_bytes(self) -> int:
        """How many bytes of the WAL are not in the database. Raise StoreError or OSError."""
        frames = self._wal.frames()
        return (frames.valid - frames.backfilled) * frames.page_size

    def make(self, connection: sqlite3.Connection, *, keep_space: bool = False) -> bool:
        """Copy all committed transactions to the database and sync it. Must not be called in a transaction.

        Return False if another program is reading. `keep_space` does not truncate the WAL: the next transaction
        overwrites it. Raise StoreError, OSError or sqlite3.Error; the connection must be closed then.
        """
        frames = self._wal.frames()
        if frames.backfilled < frames.valid:
            self._wal.sync()
            written = read_generation(connection)  # the generation of a transaction that was rolled back does not count
            state = State(frames.page_size, frames.pages, frames.valid, frames.salt, written)
            self._sums.change(self._wal.pages(frames), state)
            self._summed = written
        mode = "RESTART" if keep_space else "TRUNCATE"
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        (busy, *_) = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        if busy:
            return False
        self._wal.sync()
        return True

    def close(self) -> None:
        """Close the files; call this after SQLite has closed the database."""
        self._wal.close()
        self._sums.close()


def verify(file: Path) -> None:
    """Verify the checksums of all pages at the start. Changes nothing. Raise StoreError for a damaged page.

    No connection may be open, and the folder must be locked. A missing or empty database counts as new.
    """
    for number, offset in damaged_pages(file):
        raise StoreError(
            f"{file} is damaged: page {number} (offset {offset}) does not match its checksum. {DAMAGE_ADVICE}"
        )


def damaged_pages(file: Path) -> Iterator[DamagedPage]:
    """Yield the pages that do not match their checksums. Raise StoreError if they cannot be verified."""
    try:
        if not _is_there(file):
            return
        # Opened before SQLite opens the file and closed after SQLite closes it: closing it drops SQLite's locks.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield from _damaged_pages(file, descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise store_error(error, file) from error


def write_sums(file: Path, of: Path | None = None) -> None:
    """Write the sums of all pages as they are now. No connection may be open. Raise OSError.

    `of` is the later name of the file, if it is going to be renamed.
    """
    with file.open("rb") as database:
        page_size = _page_size(database.read(100))
        database.seek(0)
        sums = array("I")
        while page := database.read(page_size):
            sums.append(page_sum(len(sums) + 1, page.ljust(page_size, b"\0")))
    create(of or file, page_size, sums, _generation(file))


def _is_there(file: Path) -> bool:
    """Return whether the database exists. Raise StoreError if it existed and is missing or empty now."""
    if _size(file):
        return True
    if _size(wal.path(file)):
        raise StoreError(f"{file} is missing or empty, but {wal.path(file)} is not. {DAMAGE_ADVICE}")
    try:
        with closing(Sums(file)) as sums:
            pages = sums.state.pages
    except (FileNotFoundError, StoreError):  # its creation was interrupted by a power failure
        pages = 0
    if pages > 1:
        raise StoreError(f"{file} is missing or empty, but {sums_path(file)} has checksums of it. {DAMAGE_ADVICE}")
    return False


def _damaged_pages(file: Path, descriptor: int) -> Iterator[DamagedPage]:
    try:
        sums = Sums(file)
    except FileNotFoundError:
        raise _without_sums(file, os.pread(descriptor, 100, 0)) from None
    with closing(sums):
        failure: sqlite3.Error | None = None
        try:
            in_log = _pages_in_log(file, sums)
        except sqlite3.Error as error:
            # Probably a page is damaged that SQLite needs to open the database; the comparison below finds it.
            failure = error
            in_log = wal.numbers(file, sums.state.page_size)
        is_damaged = False
        for damaged in _compare(descriptor, sums, in_log):
            is_damaged = True
            yield damaged
        if failure is not None and not is_damaged:
            raise StoreError(f"{store_error(failure, file)} {DAMAGE_ADVICE}") from failure


def _pages_in_log(file: Path, sums: Sums) -> set[int]:
    """Return the numbers of the pages that SQLite reads from the intact part of the WAL.

    Raise StoreError or sqlite3.Error.
    """
    if _size(wal.path(file)) <= wal.HEADER_BYTES:
        return set()
    log = wal.Wal(file)
    # Closing a read-only connection makes no checkpoint, and the connection writes nothing except the shared memory.
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        connection.execute("BEGIN")
        connection.execute("PRAGMA user_version").fetchone()  # SQLite opens and verifies the WAL at the first read
        frames = log.frames()
        state = sums.state
        if frames.valid < state.frames and wal.salt(file) == state.salt:
            raise StoreError(
                f"{wal.path(file)} is damaged: {frames.valid} of its {state.frames} frames are intact. {DAMAGE_ADVICE}"
            )
        if frames.valid and read_generation(connection) not in (state.generation, state.generation + 1):
            raise StoreError(f"{wal.path(file)} was copied at another time than {file}. {DAMAGE_ADVICE}")
        return {number for number, _ in log.pages(frames)}
    finally:
        connection.close()
        log.close()


def read_generation(connection: sqlite3.Connection) -> int:
    """Read the generation; 0 if there are no tables yet. Raise sqlite3.Error."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'log'").fetchone():
        return 0
    return int(connection.execute("SELECT generation FROM log").fetchone()[0])


def _generation(file: Path) -> int:
    """Read the generation of a database without a WAL."""
    uri = f"{file.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        return read_generation(connection)


def _compare(descriptor: int, sums: Sums, in_log: set[int]) -> Iterator[DamagedPage]:
    size, count = sums.state.page_size, sums.state.pages
    at_once = _READ_BYTES // size
    for first in range(1, count + 1, at_once):
        wanted = min(at_once, count + 1 - first)
        # SQLite reads zeros for pages after the end of the file.
        chunk = memoryview(os.pread(descriptor, wanted * size, (first - 1) * size).ljust(wanted * size, b"\0"))
        for at in range(wanted):
            number = first + at
            if number not in in_log and page_sum(number, chunk[at * size : at * size + size]) != sums.sums[number - 1]:
                yield DamagedPage(number, (number - 1) * size)
    if os.fstat(descriptor).st_size > count * size:
        yield DamagedPage(count + 1, count * size)


def _without_sums(file: Path, header: bytes) -> StoreError:
    if not header.startswith(_MAGIC):
        return StoreError(f"{file} is not a database, or is damaged.")
    if int.from_bytes(header[_APPLICATION_ID], "big") != APPLICATION_ID and _size(file) > _page_size(header):
        return StoreError(f"{file} is a database of another application.")
    return StoreError(f"{sums_path(file)} is missing, and {file} cannot be checked without it. {DAMAGE_ADVICE}")


def _page_size(header: bytes) -> int:
    size = int.from_bytes(header[_PAGE_SIZE], "big")
    return size if size > 1 else 65536


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
