"""The sink of a capture into Parquet: it writes each micro-batch once to a folder with a commit log.

Spark Connect sends the sink to a process of the server, so it has only names, and objects that it can make from them.
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
    # The messages of a batch are from few hours. Without this, Spark sorts all rows of a task by their folder.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    # Spark's default, INT96, costs more, and has no minimum and maximum by which readers can skip rows.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Settings for the query's own session; the user's session is not changed."""


@dataclass(frozen=True, slots=True)
class Written:
    """The amount of a committed batch."""

    rows: int
    files: int
    bytes: int


@dataclass
class ParquetSink:
    """Called with each batch, and again with a batch whose result Spark did not record."""

    folder: str
    checkpoint: str
    """The folder of the query's checkpoint."""
    _lake: Lake | None = field(default=None, init=False)
    _query: str = field(default="", init=False)

    def __call__(self, messages: DataFrame, number: int) -> None:
        self.write(messages, number)

    def write(self, messages: DataFrame, number: int) -> Written | None:
        """Write and commit a batch. None if it was committed before."""
        spark = messages.sparkSession
        if is_connect(spark):
            added = self._opened(spark).add_batch(captured(messages), PARTITIONS, self._query, number)
            return None if added is None else Written(0, len(added), sum(each.size for each in added))
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)
        count = Observation()
        rows = captured(messages).observe(count, F.count(F.lit(1)).alias("rows"))
        added = self._opened(spark).add_batch(rows, PARTITIONS, self._query, number)
        if added is None:
            return None
        return Written(count.get["rows"], len(added), sum(each.size for each in added))

    def _opened(self, spark: SparkSession) -> Lake:
        if self._lake is None:
            # The commit log names the query by Spark's id for it, which stays the same for a checkpoint.
            self._query = json.loads(files_of(spark, self.checkpoint).read("metadata"))["id"]
            self._lake = Lake(spark, self.folder, SCHEMA_VERSION)
        return self._lake
