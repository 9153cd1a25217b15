"""Creating, opening and closing the SQLite database of the index.

SQLite's automatic checkpoints are disabled, both the one for a long WAL and the one at the close of the last
connection: the database file changes only in the checkpoints of `pages`.
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
from .pages import write_sums
from .schema import PAGE_SIZE, check
from .sums import path as sums_path

_Connection = TypeVar("_Connection", bound=sqlite3.Connection)
_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_BUSY_SECONDS = 5  # wait for another program that reads the database
_WRITER_CACHE_KIB = 16 * 1024
_READER_CACHE_KIB = 4 * 1024
_MODE = 0o600  # SQLite gives the WAL and its shared memory the mode of the database file


class WriterConnection(sqlite3.Connection):
    """A connection whose close does not checkpoint the WAL.

    SQLite checkpoints and deletes the WAL when the last connection is closed, if that connection can write. So a
    read-only connection is kept open and closed after this one.
    """

    _last: sqlite3.Connection | None = None

    def hold(self, file: Path) -> None:
        """Open the read-only connection that is closed after this one."""
        self._last = connect_reader(file)

    def close(self) -> None:
        super().close()
        self._close_last()

    def close_and_delete_wal(self) -> None:
        """Close the connection and delete the WAL, whose frames must all be in the database."""
        self._close_last()
        super().close()

    def _close_last(self) -> None:
        if self._last is not None:
            self._last.close()
            self._last = None


def connect_writer(file: Path) -> WriterConnection:
    """Open the database for writing, creating it if it does not exist. No other connection may be open.

    The first connection makes SQLite verify the WAL. Raise StoreError, OSError or sqlite3.Error.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(f"SQLite 3.37 or newer is required; this Python has {sqlite3.sqlite_version}.")
    if not file.exists() or not file.stat().st_size:
        _create(file)
    wal.rewrite(file)
    connection = _connect(file, "rw", WriterConnection)
    try:
        check(connection, file)
        for each in (file, wal.path(file), Path(f"{file}-shm"), sums_path(file)):
            with suppress(FileNotFoundError):
                each.chmod(_MODE)
        # Transactions that SQLite has not synced are in the log of commits; a checkpoint syncs the WAL.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA temp_store = MEMORY")
        # Some builds overwrite deleted rows with zeros, which makes settling a third slower.
        connection.execute("PRAGMA secure_delete = OFF")
        connection.hold(file)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_inspector(file: Path) -> sqlite3.Connection:
    """Open the database read-only before a writer is connected.

    Creates no file except SQLite's shared memory, and that only if there is a WAL.
    """
    has_log = wal.path(file).exists() and wal.path(file).stat().st_size > 0
    connection = _connect(file, "ro" if has_log else "ro&immutable=1", sqlite3.Connection)
    connection.execute("PRAGMA user_version").fetchone()
    return connection


def connect_reader(file: Path) -> sqlite3.Connection:
    """Open the database read-only while a writer is connected."""
    connection = _connect(file, "ro", sqlite3.Connection)
    connection.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB}")
    connection.execute("PRAGMA user_version").fetchone()  # SQLite opens the database and the WAL at the first read
    return connection


def _create(file: Path) -> None:
    """Create an empty database with its checksums: under a temporary name, which is changed when it is complete."""
    made = Path(f"{file}.new")
    for leftover in (made, Path(f"{made}-journal"), wal.path(made), Path(f"{made}-shm")):
        leftover.unlink(missing_ok=True)
    os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))
    with closing(_connect(made, "rw", sqlite3.Connection)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"The file system of {file} does not support SQLite's write-ahead log.")
    descriptor = os.open(made, os.O_RDWR | os.O_CLOEXEC)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)
    write_sums(made, of=file)
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
