"""What failures of the disk and of SQLite mean to the broker."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Final

from ..base import StoreError, StoreFull

WHAT_TO_DO: Final = "Nothing was changed. Restore a backup, or see what `peeklock store repair` can save."
"""What follows from damage that a start finds."""

NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_PROBE_BYTES: Final = 16384


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
        if error.errno in NO_ROOM:
            return StoreFull(f"There is no room left for {file}.")
        return StoreError(f"{file} could not be used: {error.strerror}.")
    return StoreError(f"{file} could not be used: {type(error).__name__}: {error}.")


def _is_full(file: Path) -> bool:
    """SQLite says "I/O error" for a quota and for a limit on file sizes: ask again what it was."""
    try:
        length = max(part.stat().st_size for part in (file, Path(f"{file}-wal")) if part.exists())
        with tempfile.TemporaryFile(dir=file.parent) as probe:
            return os.pwrite(probe.fileno(), bytes(_PROBE_BYTES), length) < _PROBE_BYTES
    except OSError as error:
        return error.errno in NO_ROOM
