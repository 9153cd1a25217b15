"""Conversion of OS and SQLite errors to StoreError."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Final

from ..base import StoreError, StoreFull

DAMAGE_ADVICE: Final = (
    "Nothing was changed. Restore a backup, or run `peeklock store repair --dry-run` to list the damage."
)
"""The end of each message about damage that is found at the start."""

NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_PROBE_BYTES: Final = 16384


def store_error(error: Exception, file: Path) -> StoreError:
    """Convert an error that occurred with this file: StoreFull if the disk is full, else StoreError."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)  # errors raised by Python's sqlite3 module have none
        primary = code & 0xFF if code is not None else None
        if primary == sqlite3.SQLITE_FULL or (primary == sqlite3.SQLITE_IOERR and _is_full(file)):
            return StoreFull(f"The disk has no free space for {file}.")
        if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return StoreError(f"{file} is not a database, or is damaged: {error}.")
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        return StoreError(f"{file} could not be used: {error} ({name}).")
    if isinstance(error, OSError):
        if error.errno in NO_SPACE:
            return StoreFull(f"The disk has no free space for {file}.")
        return StoreError(f"{file} could not be used: {error.strerror}.")
    return StoreError(f"{file} could not be used: {type(error).__name__}: {error}.")


def _is_full(file: Path) -> bool:
    """Test by a write whether an I/O error means a full disk.

    SQLite reports an exceeded quota and an exceeded limit on file sizes as SQLITE_IOERR.
    """
    try:
        length = max(part.stat().st_size for part in (file, Path(f"{file}-wal")) if part.exists())
        with tempfile.TemporaryFile(dir=file.parent) as probe:
            return os.pwrite(probe.fileno(), bytes(_PROBE_BYTES), length) < _PROBE_BYTES
    except OSError as error:
        return error.errno in NO_SPACE
