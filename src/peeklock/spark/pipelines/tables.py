"""Tables that a pipeline makes: small DataFrames by name, kept as Parquet and taken as plain rows.

What a table says is the pipeline's business; how it is shown is the command line's, or that of `plots`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

Tables = Mapping[str, DataFrame]
Rows = list[dict[str, Any]]
Told = Callable[[str], None]
"""Called with the name of each table when it is there."""

MOST_ROWS: Final = 10_000
"""Of a table that are brought to the driver; its Parquet has all."""


@contextmanager
def kept(frame: DataFrame) -> Iterator[DataFrame]:
    """What many tables are made of, read once: the same messages for all of them."""
    persisted = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield persisted
    finally:
        persisted.unpersist()


def write_tables(tables: Tables, folder: str, told: Told = lambda _: None) -> list[str]:
    """One folder with one Parquet file for each, in place of those of the last time; the folders' names."""
    places = []
    for name, frame in tables.items():
        place = table_place(folder, name)
        frame.coalesce(1).write.mode("overwrite").parquet(place)
        places.append(place)
        told(name)
    return places


def written(spark: SparkSession, folder: str, name: str, table: DataFrame) -> DataFrame:
    """What `write_tables` made of a table."""
    return spark.read.schema(table.schema).parquet(table_place(folder, name))


def table_place(folder: str, name: str) -> str:
    """Where a table is, which may be on any storage that Spark knows."""
    return f"{folder.rstrip('/')}/tables/{name}"


def rows_of(frame: DataFrame, most: int = MOST_ROWS) -> Rows:
    """The first rows as plain values, with moments in UTC."""
    return [{name: _plain(value) for name, value in row.asDict().items()} for row in frame.limit(most).collect()]


def _plain(value: Any) -> Any:
    # Spark gives moments in the time of this machine, and does not say so.
    return value.astimezone(UTC) if isinstance(value, datetime) else value


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
