"""Tables that a pipeline makes: small DataFrames by name, kept as Parquet and taken as plain rows.

What a table says is the pipeline's business; how it is shown is the command line's, or that of `plots`. Each table of
small data is one job of Spark: its rows come to the driver as Arrow, and the driver writes the file. Tables of other
data may be large themselves: Spark writes them, and their first rows are read again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from peeklock.spark.pipelines.files import LocalFiles, files_of

Tables = Mapping[str, DataFrame]
Rows = list[dict[str, Any]]
Told = Callable[[str], None]
"""Called with the name of each table when it is there."""

MOST_ROWS: Final = 10_000
"""Of a table that are brought to the driver; its Parquet has all."""


@contextmanager
def kept(frame: DataFrame, *, small: bool = False, now: bool = False) -> Iterator[DataFrame]:
    """What many tables are made of, read once: the same messages for all of them.

    What is small is in one part: then nothing has to be exchanged between tasks. `now` reads it at once, for a first
    table that uses it in several places, each of which would read it.
    """
    persisted = (frame.coalesce(1) if small else frame).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        if now:
            persisted.count()
        yield persisted
    finally:
        persisted.unpersist()


def make_tables(
    tables: Tables, folder: str | None = None, told: Told = lambda _: None, *, small: bool = False
) -> dict[str, Rows]:
    """Make the tables and return their first rows.

    With a folder also keep them there: one folder with one Parquet file for each, in place of those of the last time.
    `small` says that the tables are made of so little that all their rows fit into the driver.
    """
    made: dict[str, Rows] = {}
    for name, frame in tables.items():
        place = None if folder is None else table_place(folder, name)
        local = _local_folder(frame.sparkSession, place) if small and place is not None else None
        if place is None:
            made[name] = rows_of(frame)
        elif local is not None:
            table = frame.toArrow()
            _write_here(table, local)
            made[name] = _rows(table.slice(0, MOST_ROWS))
        else:
            _write(frame, place)
            # Read again rather than made again; one file, so in the order that it was written in.
            made[name] = rows_of(frame.sparkSession.read.schema(frame.schema).parquet(place))
        told(name)
    return made


def table_place(folder: str, name: str) -> str:
    """Where a table is, which may be on any storage that Spark knows."""
    return f"{folder.rstrip('/')}/tables/{name}"


def rows_of(frame: DataFrame, most: int = MOST_ROWS) -> Rows:
    """The first rows as plain values, with moments in UTC."""
    return _rows(frame.limit(most).toArrow())


def _write(frame: DataFrame, place: str) -> None:
    frame.coalesce(1).write.mode("overwrite").parquet(place)


def _write_here(table: pa.Table, folder: Path) -> None:
    """As Spark writes a table: a file in a folder, with the same types in it, and a mark that it is whole."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    file = folder / f"part-00000-{uuid4()}-c000.snappy.parquet"
    pq.write_table(table, file, compression="snappy", use_deprecated_int96_timestamps=True, store_schema=False)
    (folder / "_SUCCESS").touch()


def _local_folder(spark: SparkSession, place: str) -> Path | None:
    """None when it is not on this machine."""
    files = files_of(spark, place)
    return files.folder if isinstance(files, LocalFiles) else None


def _rows(table: pa.Table) -> Rows:
    columns = {
        field.name: [_plain(value, field.type) for value in column.to_pylist()]
        for field, column in zip(table.schema, table.columns, strict=True)
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _plain(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, datetime):  # in the time zone of the session
        return value.astimezone(UTC)
    return dict(value) if value is not None and pa.types.is_map(kind) else value


def as_json(value: Any) -> Any:
    """A value of a row, or rows, as JSON has them."""
    match value:
        case dict():
            return {key: as_json(each) for key, each in value.items()}
        case list():
            return [as_json(each) for each in value]
        case datetime() | date():
            return value.isoformat()
        case bytes() | bytearray():
            return bytes(value).hex()
    return value
