"""The result tables of a pipeline: small DataFrames by name, written as Parquet and returned as rows.

The pipelines define the tables; the command line and `plots` show them. For small data each table is one Spark job: its
rows come to the driver as Arrow, and the driver writes the file. For other data Spark writes the tables, as they may be
large, and their first rows are read back.
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
OnStep = Callable[[str], None]
"""Called with the name of each finished table."""

MOST_ROWS: Final = 10_000
"""The most rows of a table that are returned; its Parquet file has all."""


@contextmanager
def persisted(frame: DataFrame, *, small: bool = False, now: bool = False) -> Iterator[DataFrame]:
    """Persist a frame that many tables are made of, so that it is read once and all tables have the same messages.

    A small frame becomes one partition, so that tasks exchange no data. `now` reads the frame at once, for a first
    table that uses it several times and would otherwise read it several times.
    """
    stored = (frame.coalesce(1) if small else frame).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        if now:
            stored.count()
        yield stored
    finally:
        stored.unpersist()


def make_tables(
    tables: Tables, folder: str | None = None, on_step: OnStep = lambda _: None, *, small: bool = False
) -> dict[str, Rows]:
    """Make the tables and return their first rows.

    With a folder, also write each table there as a folder with one Parquet file, and replace earlier tables. `small`
    means that all rows of the tables fit into the driver's memory.
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
            # Reading is cheaper than computing the table again. One file keeps the order of the rows.
            made[name] = rows_of(frame.sparkSession.read.schema(frame.schema).parquet(place))
        on_step(name)
    return made


def table_place(folder: str, name: str) -> str:
    """The folder of a table, on any storage that Spark supports."""
    return f"{folder.rstrip('/')}/tables/{name}"


def rows_of(frame: DataFrame, most: int = MOST_ROWS) -> Rows:
    """The first rows as Python values, with times in UTC."""
    return _rows(frame.limit(most).toArrow())


def _write(frame: DataFrame, place: str) -> None:
    frame.coalesce(1).write.mode("overwrite").parquet(place)


def _write_here(table: pa.Table, folder: Path) -> None:
    """Write a table as Spark does: a folder with one file, Spark's types, and the marker of a complete write."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    file = folder / f"part-00000-{uuid4()}-c000.snappy.parquet"
    pq.write_table(table, file, compression="snappy", use_deprecated_int96_timestamps=True, store_schema=False)
    (folder / "_SUCCESS").touch()


def _local_folder(spark: SparkSession, place: str) -> Path | None:
    """The local path of a folder; None for other storage."""
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
    """Convert the values of rows to JSON values."""
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
