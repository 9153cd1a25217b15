"""How the index's SQLite file is opened."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ...base import StoreError
from .schema import PAGE_SIZE, check

_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_BUSY_SECONDS = 5  # someone looks into the file with another tool
_WRITER_CACHE_KIB = 16 * 1024
_READER_CACHE_KIB = 4 * 1024
_CHECKPOINT_PAGES = 16 * 1024 * 1024 // PAGE_SIZE
_WAL_KEPT_BYTES = 64 * 1024 * 1024  # after a burst the log shrinks to this


def connect_writer(file: Path) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(f"SQLite 3.37 or newer is needed; this Python has {sqlite3.sqlite_version}.")
    connection = _connect(file, "rwc")
    try:
        check(connection, file)
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"The file system of {file} does not allow SQLite's write-ahead log.")
        # What SQLite has not synced is in the log; it syncs before it drops its own.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")
        connection.execute("PRAGMA temp_store = MEMORY")
        # Some builds overwrite with zeros what they delete, which costs settling a third.
        connection.execute("PRAGMA secure_delete = OFF")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(file: Path) -> sqlite3.Connection:
    """Only while a writer is connected, who has set up the file."""
    connection = _connect(file, "ro")
    connection.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB}")
    connection.execute("PRAGMA user_version").fetchone()  # only now SQLite opens the file and its log
    return connection


def _connect(file: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{file.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,  # opened by the thread that opens the store, then used by one other
    )
