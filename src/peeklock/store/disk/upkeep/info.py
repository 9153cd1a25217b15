"""The sizes and entities of a data folder, also while a broker uses it. Changes nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base import StoreError
from ..failures import store_error
from ..index import schema
from ..index.connections import connect_reader
from ..index.writer import read_applied
from ..log.segments import Segments
from ..log.synced import Synced
from .findings import INDEX

_COLUMNS = (
    "path",
    "kind",
    "active",
    "deferred",
    "scheduled",
    "claimed",
    "damaged",
    "size_in_bytes",
    "last_sequence_number",
)


@dataclass(frozen=True, slots=True)
class Info:
    """The sizes and entities of a data folder."""

    version: int
    synced_commit: int
    applied_commit: int
    log_files: int
    log_bytes: int
    index_bytes: int
    reserve_bytes: int
    entities: list[dict[str, Any]]
    """Paths and counters of the entities, as of the commit `applied_commit`."""


def describe(folder: Path) -> Info:
    """Read the info of a data folder. Raise StoreError."""
    file = folder / INDEX
    if not file.exists():
        raise StoreError(f"{folder} is not a data folder: it has no {INDEX}.")
    try:
        with closing(connect_reader(file)) as connection:
            schema.check(connection, file)
            applied = read_applied(connection)
            rows = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM entity WHERE path <> '' ORDER BY path")
            entities = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
        sizes = [file.stat().st_size for _, file in Segments.files(folder)]
        return Info(
            version=schema.VERSION,
            synced_commit=Synced(folder).read(),
            applied_commit=applied.commit,
            log_files=len(sizes),
            log_bytes=sum(sizes),
            index_bytes=sum(each.stat().st_size for each in folder.glob("peeklock.*")),
            reserve_bytes=_size(folder / "reserve"),
            entities=entities,
        )
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, file) from error


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
