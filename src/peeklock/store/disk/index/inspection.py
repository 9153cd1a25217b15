"""Reading how far the log is applied, by a read-only connection, before the start changes anything."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from ..failures import store_error
from ..log.segments import LogPosition
from .connections import connect_inspector
from .schema import VERSION, check
from .writer import SegmentEnd, read_applied, read_segment_ends


class Inspected(NamedTuple):
    """The state of the index."""

    applied: LogPosition
    """The position up to which the log is applied."""
    ends: list[SegmentEnd]
    """The ends of the segments that must exist."""


def inspect(file: Path) -> Inspected:
    """Read the state of the index; a missing or empty file is a new index. Raise StoreError for any other file."""
    if not file.exists() or not file.stat().st_size:
        return Inspected(LogPosition(0, 0, 0), [])
    try:
        with closing(connect_inspector(file)) as connection:
            check(connection, file)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != VERSION:  # its creation was interrupted
                return Inspected(LogPosition(0, 0, 0), [])
            return Inspected(read_applied(connection), read_segment_ends(connection))
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, file) from error
