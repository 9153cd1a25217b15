"""The pages of the index on the disk: when they may change, and how a start knows that they are as they were written.

SQLite has no checksums of its pages, trusts a sync that is tried again, and moves its log into the database whenever it
likes. So all of that is done here. The database changes only in a checkpoint of ours (`wal_autocheckpoint` is 0, and a
connection that is closed moves nothing), and a segment of the log of commits is freed only after one. What follows
calls the database file D, SQLite's log W, and the file of checksums S (`sums`).

**A checkpoint**

1. sync W;
2. write the sums of the last version of each page in W to S, with the number of frames of W and its salt, and sync it;
3. have SQLite do it: it syncs W, writes the pages to D, syncs D, and only then truncates W if that is long, or else
   lets the next transaction begin at its start;
4. sync W.

**Crashes.** When the power fails, any part of what was written since the last sync of a file may be lost.

- Before 1: D is as S says, and W is whole up to some transaction, since its checksums are chained and SQLite ignores
  what comes after a gap. The index is older then, but not older than D; what is missing is in segments that were not
  freed.
- During 2: W is on the disk, D has not changed, and S has old or new sums of pages that are all in W, which are not
  checked.
- During 3: D has old, new and torn pages, all of them in W, which is whole.
- At the end of 3 and during 4: D is synced and as S says, and W is either whole or empty: the index is the same.
- After 4: W begins with another salt. SQLite syncs its header before it writes frames behind it, so that frames from
  before never count again. Until then a W that was not truncated is whole, and says the same as D.

A process that is killed leaves all that it has written, which is one of these cases.

**Syncs that fail.** A sync that failed may have left written pages in memory only, marked as clean: the next sync
succeeds without them, and the disk has a gap. So nothing is believed that was only tried again:

- W: whatever fails, all connections are closed, and before SQLite opens W again, its bytes are written to it once more
  and synced (`wal.write_again`), as at every start. SQLite then reads W from its beginning and checks it. If it ends
  earlier than what was applied (the memory was used for something else, and the disk has a gap), the index refuses
  everything until the next start, which applies the rest of the log of commits: its segments were not freed.
- S: blocks whose sync failed are written again with the next change, over the same copy; the other copy is durable.
- D: SQLite counts frames as moved to D only when D was synced. If that fails, the next checkpoint writes all of them
  to D again, and W, which is on the disk since 1, has them until then.
- The header of W: SQLite writes it again as long as there is no frame behind it.

**Files of different times.** Every transaction writes into the index how many checkpoints there were before it, and S
says how many there were when it was written. So W belongs to D if its number is that of S, or the next one.

**Bits that flip.** A page of D that is not in W must match its sum. A flip in W ends it there: the index is older, as
after a crash. That would be wrong where pages of D are newer than the rest of W, which is possible between 2 and 4: so
if W has the salt that S names, it must also have as many frames.
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
"""Another program that reads is waited for."""
_MAGIC: Final = b"SQLite format 3\0"
_APPLICATION_ID: Final = slice(68, 72)
_PAGE_SIZE: Final = slice(16, 18)
"""Of the first page of a SQLite database."""


class DamagedPage(NamedTuple):
    number: int
    """Of the first page it is 1, as for SQLite."""
    offset: int


class Checkpoints:
    """Moves SQLite's log into the database. The thread of the index uses it."""

    def __init__(self, file: Path) -> None:
        """OSError, StoreError."""
        self._wal = wal.Wal(file)
        self._sums = Sums(file)
        self._sums.start_writing()
        self._summed = self._sums.state.generation
        """The generation of the sums that are durable."""

    def opened(self) -> None:
        """SQLite has opened the database. OSError."""
        self._wal.open()

    def begun(self) -> int:
        """A transaction was begun; its generation."""
        return self._summed + 1

    @property
    def waiting_bytes(self) -> int:
        """How much of SQLite's log is not in the database. StoreError, OSError."""
        frames = self._wal.frames()
        return (frames.valid - frames.backfilled) * frames.page_size

    def make(self, connection: sqlite3.Connection, *, keep_room: bool = False) -> bool:
        """Have all that was committed in the database, and durable; not in a transaction.

        False if another program reads meanwhile. `keep_room` leaves SQLite's log its room on the disk: the next
        transaction is written over it. StoreError, OSError, sqlite3.Error: then the connection is to be closed.
        """
        frames = self._wal.frames()
        if frames.backfilled < frames.valid:
            self._wal.sync()
            written = read_generation(connection)  # that of a transaction that was rolled back does not count
            state = State(frames.page_size, frames.pages, frames.valid, frames.salt, written)
            self._sums.change(self._wal.pages(frames), state)
            self._summed = written
        mode = "RESTART" if keep_room else "TRUNCATE"
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        (busy, *_) = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        if busy:
            return False
        self._wal.sync()
        return True

    def close(self) -> None:
        """After SQLite has closed the database."""
        self._wal.close()
        self._sums.close()


def verify(file: Path) -> None:
    """Refuse a database that is not as it was written; changes nothing. StoreError.

    At the start, while no connection is open and the folder is held. A database that is missing or empty is a new one.
    """
    for number, offset in damaged_pages(file):
        raise StoreError(
            f"{file} is damaged: page {number} (offset {offset}) does not match its checksum. {DAMAGE_ADVICE}"
        )


def damaged_pages(file: Path) -> Iterator[DamagedPage]:
    """Pages of the database that are not as they were written. StoreError where that cannot be told."""
    try:
        if not _is_there(file):
            return
        # Before SQLite opens the file, and closed after it does: to close it drops SQLite's locks.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield from _damaged_pages(file, descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise store_error(error, file) from error


def sum_up(file: Path, of: Path | None = None) -> None:
    """Take all pages as they are, for a file that may have another name later. While no connection is open. OSError."""
    with file.open("rb") as database:
        page_size = _page_size(database.read(100))
        database.seek(0)
        sums = array("I")
        while page := database.read(page_size):
            sums.append(page_sum(len(sums) + 1, page.ljust(page_size, b"\0")))
    create(of or file, page_size, sums, _generation(file))


def _is_there(file: Path) -> bool:
    """There is a database. StoreError if there was one."""
    if _size(file):
        return True
    if _size(wal.path(file)):
        raise StoreError(f"{file} is missing or empty, but {wal.path(file)} is not. {DAMAGE_ADVICE}")
    try:
        with closing(Sums(file)) as sums:
            pages = sums.state.pages
    except (FileNotFoundError, StoreError):  # it was being made when the power failed
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
            # A page that SQLite needs to open the database is damaged, very likely: it is found below.
            failure = error
            in_log = wal.numbers(file, sums.state.page_size)
        is_damaged = False
        for damaged in _compare(descriptor, sums, in_log):
            is_damaged = True
            yield damaged
        if failure is not None and not is_damaged:
            raise StoreError(f"{store_error(failure, file)} {DAMAGE_ADVICE}") from failure


def _pages_in_log(file: Path, sums: Sums) -> set[int]:
    """The pages that SQLite reads from its log, as far as that is whole. StoreError, sqlite3.Error."""
    if _size(wal.path(file)) <= wal.HEADER_BYTES:
        return set()
    log = wal.Wal(file)
    # A connection that only reads moves nothing when it is closed, and writes nothing but the shared memory.
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        connection.execute("BEGIN")
        connection.execute("PRAGMA user_version").fetchone()  # only now SQLite opens the log, and checks it
        frames = log.frames()
        state = sums.state
        if frames.valid < state.frames and wal.salt(file) == state.salt:
            raise StoreError(
                f"{wal.path(file)} is damaged: {frames.valid} of its pages are whole, and there were {state.frames}. "
                f"{DAMAGE_ADVICE}"
            )
        if frames.valid and read_generation(connection) not in (state.generation, state.generation + 1):
            raise StoreError(f"{wal.path(file)} was copied at another time than {file}. {DAMAGE_ADVICE}")
        return {number for number, _ in log.pages(frames)}
    finally:
        connection.close()
        log.close()


def read_generation(connection: sqlite3.Connection) -> int:
    """0 while there are no tables. sqlite3.Error."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'log'").fetchone():
        return 0
    return int(connection.execute("SELECT generation FROM log").fetchone()[0])


def _generation(file: Path) -> int:
    """Of a database without a log of SQLite's."""
    uri = f"{file.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        return read_generation(connection)


def _compare(descriptor: int, sums: Sums, in_log: set[int]) -> Iterator[DamagedPage]:
    size, count = sums.state.page_size, sums.state.pages
    many = _READ_BYTES // size
    for first in range(1, count + 1, many):
        wanted = min(many, count + 1 - first)
        # What the file does not have yet SQLite takes for zeros.
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
    return StoreError(f"{sums_path(file)} is missing, without which {file} cannot be checked. {DAMAGE_ADVICE}")


def _page_size(header: bytes) -> int:
    size = int.from_bytes(header[_PAGE_SIZE], "big")
    return size if size > 1 else 65536


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
