"""Checkpoints on storage that only Spark can read: s3a://, abfss://, or through Spark Connect.

The files are listed and read by queries, so this requires no library for the storage and no access to Spark's Java.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkFolder:
    """A folder of a checkpoint for `drain` and `settle_checkpoint`, read by Spark."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._spark = spark
        self._url = url.rstrip("/")

    def names(self, path: str) -> list[str]:
        """Return the names of the files in a subfolder; none if it does not exist."""
        from pyspark.errors import AnalysisException

        files = self._spark.read.format("binaryFile")
        try:
            found = files.load(f"{self._url}/{path}").select("path").collect()
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return []
        return [str(row.path).rsplit("/", 1)[1] for row in found]

    def read(self, path: str) -> str:
        (row,) = self._spark.read.text(f"{self._url}/{path}", wholetext=True).collect()
        return str(row.value)
