"""The stream writer for Spark 4.1 and later, where record batches come as they are. Older ones cannot load this."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from peeklock.spark.writing import StreamWriter


class ArrowStreamWriter(StreamWriter, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.job.run(iterator)
