"""How far the index is applied, asked before anything is changed: by a connection that cannot write."""

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
    applied: LogPosition
    ends: list[SegmentEnd]


def inspect(file: Path) -> Inspected:
    """StoreError if the file is not an index of this version."""
    if not file.exists() or not file.stat().st_size:
        return Inspected(LogPosition(0, 0, 0), [])
    try:
        with closing(connect_inspector(file)) as connection:
            check(connection, file)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != VERSION:  # it was being made
                return Inspected(LogPosition(0, 0, 0), [])
            return Inspected(read_applied(connection), read_segment_ends(connection))
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, file) from error
