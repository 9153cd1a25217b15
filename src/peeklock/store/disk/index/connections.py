"""How the index's SQLite file is made, opened and closed.

It changes only when `pages` has SQLite do so: SQLite moves its log into the file neither when that is long nor when the
last connection is closed.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from ...base import StoreError
from ..folder import sync_file, sync_folder
from . import wal
from .pages import sum_up
from .schema import PAGE_SIZE, check
from .sums import path as sums_path

_Connection = TypeVar("_Connection", bound=sqlite3.Connection)
_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_BUSY_SECONDS = 5  # someone looks into the file with another tool
_WRITER_CACHE_KIB = 16 * 1024
_READER_CACHE_KIB = 4 * 1024
_MODE = 0o600  # SQLite gives its log and its shared memory the mode of the file


class WriterConnection(sqlite3.Connection):
    """Leaves SQLite's log as it is when it is closed.

    SQLite would move it into the file and delete it when it closes the last connection that may write: one that may
    only read is closed after it.
    """

    _last: sqlite3.Connection | None = None

    def hold(self, file: Path) -> None:
        self._last = connect_reader(file)

    def close(self) -> None:
        super().close()
        self._let_go()

    def close_and_delete_log(self) -> None:
        """When nothing is in it."""
        self._let_go()
        super().close()

    def _let_go(self) -> None:
        if self._last is not None:
            self._last.close()
            self._last = None


def connect_writer(file: Path) -> WriterConnection:
    """While no other connection is open, so that SQLite checks its log. StoreError, OSError, sqlite3.Error."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(f"SQLite 3.37 or newer is needed; this Python has {sqlite3.sqlite_version}.")
    if not file.exists() or not file.stat().st_size:
        _create(file)
    wal.write_again(file)
    connection = _connect(file, "rw", WriterConnection)
    try:
        check(connection, file)
        for each in (file, wal.path(file), Path(f"{file}-shm"), sums_path(file)):
            with suppress(FileNotFoundError):
                each.chmod(_MODE)
        # What SQLite has not synced is in the log; it syncs before it drops its own.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA temp_store = MEMORY")
        # Some builds overwrite with zeros what they delete, which costs settling a third.
        connection.execute("PRAGMA secure_delete = OFF")
        connection.hold(file)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_inspector(file: Path) -> sqlite3.Connection:
    """Before a writer is connected: makes no file but SQLite's shared memory, and that only if there is a log."""
    has_log = wal.path(file).exists() and wal.path(file).stat().st_size > 0
    connection = _connect(file, "ro" if has_log else "ro&immutable=1", sqlite3.Connection)
    connection.execute("PRAGMA user_version").fetchone()
    return connection


def connect_reader(file: Path) -> sqlite3.Connection:
    """Only while a writer is connected, who has set up the file."""
    connection = _connect(file, "ro", sqlite3.Connection)
    connection.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB}")
    connection.execute("PRAGMA user_version").fetchone()  # only now SQLite opens the file and its log
    return connection


def _create(file: Path) -> None:
    """With its checksums, and whole: under another name, until there is nothing more to do."""
    made = Path(f"{file}.new")
    for leftover in (made, Path(f"{made}-journal"), wal.path(made), Path(f"{made}-shm")):
        leftover.unlink(missing_ok=True)
    os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))
    with closing(_connect(made, "rw", sqlite3.Connection)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"The file system of {file} does not allow SQLite's write-ahead log.")
    descriptor = os.open(made, os.O_RDWR | os.O_CLOEXEC)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)
    sum_up(made, of=file)
    made.rename(file)
    sync_folder(file.parent)


def _connect(file: Path, mode: str, factory: type[_Connection]) -> _Connection:
    return sqlite3.connect(
        f"{file.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        factory=factory,
        check_same_thread=False,  # opened by the thread that opens the store, then used by one other
    )
