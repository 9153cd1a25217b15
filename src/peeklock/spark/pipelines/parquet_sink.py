"""Where the micro-batches of a capture into Parquet go: into a folder with a log of commits, each once.

Knows how Spark is to write the rows of a batch. It holds nothing but names and what can be made again from them, since
Spark Connect sends it to a process of the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from peeklock.spark.pipelines.columns import PARTITIONS, SCHEMA_VERSION, captured
from peeklock.spark.pipelines.files import files_of
from peeklock.spark.pipelines.lake import Lake
from peeklock.spark.session import is_connect

_SETTINGS: Final[Mapping[str, str]] = {
    # Messages of a batch are of few hours. Without this, Spark sorts all rows of a task by their folder.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    # Spark's default, INT96, costs more and has no least and greatest value by which readers could skip rows.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Of the query's own session; the user's is not changed."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A batch that counts."""

    rows: int
    files: int
    bytes: int


@dataclass
class ParquetSink:
    """Is called with each batch, and again with one whose outcome Spark does not know."""

    folder: str
    checkpoint: str
    """The folder where Spark keeps how far the query is."""
    _lake: Lake | None = field(default=None, init=False)
    _query: str = field(default="", init=False)

    def __call__(self, messages: DataFrame, number: int) -> None:
        self.keep(messages, number)

    def keep(self, messages: DataFrame, number: int) -> Kept | None:
        """None when the batch counts already."""
        spark = messages.sparkSession
        if is_connect(spark):
            added = self._opened(spark).add_batch(captured(messages), PARTITIONS, self._query, number)
            return None if added is None else Kept(0, len(added), sum(each.size for each in added))
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)
        count = Observation()
        rows = captured(messages).observe(count, F.count(F.lit(1)).alias("rows"))
        added = self._opened(spark).add_batch(rows, PARTITIONS, self._query, number)
        if added is None:
            return None
        return Kept(count.get["rows"], len(added), sum(each.size for each in added))

    def _opened(self, spark: SparkSession) -> Lake:
        if self._lake is None:
            # The query's name in the log of commits is Spark's own, which stays the same as long as the checkpoint.
            self._query = json.loads(files_of(spark, self.checkpoint).read("metadata"))["id"]
            self._lake = Lake(spark, self.folder, SCHEMA_VERSION)
        return self._lake
