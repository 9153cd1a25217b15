"""The stream writer for Spark 4.1 and later, which passes record batches. Older versions cannot import this module."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from peeklock.spark.writing import StreamWriter


class ArrowStreamWriter(StreamWriter, DataSourceStreamArrowWriter):
    """Writes the record batches of a stream."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.job.run(iterator)
