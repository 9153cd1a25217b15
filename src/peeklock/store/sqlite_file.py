"""The folder and the file of a SQLite store: who holds it, how it is opened, what its failures mean."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Literal

from .base import StoreError, StoreFull, StoreHeld
from .sqlite_schema import PAGE_SIZE, check

Synchronous = Literal["full", "normal", "off"]
"""When a commit is told: after its sync; after its write, with a sync before the index has it; or with none at all."""

_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_BUSY_SECONDS = 5  # someone looks into the file with another tool
_WRITER_CACHE_KIB = 16 * 1024
_READER_CACHE_KIB = 4 * 1024
_CHECKPOINT_PAGES = 16 * 1024 * 1024 // PAGE_SIZE
_WAL_KEPT_BYTES = 64 * 1024 * 1024  # after a burst the log shrinks to this
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class FolderLock:
    """One broker a folder: an exclusive flock, which ends with the process however that ends."""

    def __init__(self, folder: Path) -> None:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).strip()
            os.close(descriptor)
            who = f"process {holder.decode()}" if holder.isdigit() else "another process"
            raise StoreHeld(f"The data folder {folder} is in use by {who}.") from None
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        # The file stays: to delete it would let two brokers hold a lock on two files of one name.
        os.close(self._descriptor)


def make_folder(folder: Path) -> None:
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for made in missing:
            sync_folder(made.parent)
    except FileExistsError:
        raise StoreError(f"The data folder {folder} is not a folder.") from None
    except OSError as error:
        raise StoreError(f"The data folder {folder} cannot be made: {error.strerror}.") from error


def sync_folder(folder: Path) -> None:
    """What was made in the folder is found there after a power cut: syncing a file does not promise its name."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def connect_writer(file: Path, synchronous: Synchronous) -> sqlite3.Connection:
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
        connection.execute(f"PRAGMA synchronous = {'OFF' if synchronous == 'off' else 'NORMAL'}")
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


def store_error(error: Exception, file: Path) -> StoreError:
    """What a failure means to the broker."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)  # absent on errors of Python's own
        primary = code & 0xFF if code is not None else None
        if primary == sqlite3.SQLITE_FULL or (primary == sqlite3.SQLITE_IOERR and _is_full(file)):
            return StoreFull(f"There is no room left for {file}.")
        if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return StoreError(f"{file} is not a database, or is damaged: {error}.")
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        return StoreError(f"{file} could not be used: {error} ({name}).")
    if isinstance(error, OSError):
        if error.errno in _NO_ROOM:
            return StoreFull(f"There is no room left for {file}.")
        return StoreError(f"{file} could not be used: {error.strerror}.")
    return StoreError(f"{file} could not be used: {type(error).__name__}: {error}.")


def _connect(file: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{file.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,  # opened by the thread that opens the store, then used by one other
    )


def _is_full(file: Path) -> bool:
    """SQLite says "I/O error" for a quota and for a limit on file sizes: ask again what it was."""
    try:
        length = max(part.stat().st_size for part in (file, Path(f"{file}-wal")) if part.exists())
        with tempfile.TemporaryFile(dir=file.parent) as probe:
            return os.pwrite(probe.fileno(), bytes(2 * PAGE_SIZE), length) < 2 * PAGE_SIZE
    except OSError as error:
        return error.errno in _NO_ROOM
