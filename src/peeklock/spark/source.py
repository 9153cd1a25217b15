"""The data source `servicebus`: selects the reader or writer for each use and mode.

Each reader and writer is imported when it is used. A read therefore does not require the dependencies of a write, and a
failing import of one module does not keep Spark from finding the source.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from peeklock.spark.options import CLAIM, PEEK, RECEIVE_AND_DELETE, OptionError, Options, check

NAME: Final = "servicebus"

# Modules and names of the readers and writers, which are called with the options and the schema.
_READER: Final = ("peeking", "batch_reader")
_STREAM_READERS: Final = {
    CLAIM: ("claiming", "ClaimReader"),
    PEEK: ("peeking", "PeekStreamReader"),
    RECEIVE_AND_DELETE: ("deleting", "DeletingReader"),
}
_WRITER: Final = ("writing", "batch_writer")
_STREAM_WRITER: Final = ("writing", "stream_writer")


class ServiceBusDataSource(DataSource):
    """`spark.read.format("servicebus")`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        from peeklock.spark.rows import SCHEMA

        check(self.options)  # reports invalid options as early as possible
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.parse(self.options, use="read")
        made: DataSourceReader = _load(_READER)(options, schema)
        return made

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = Options.parse(self.options, use="readStream")
        made: DataSourceStreamReader = _load(_STREAM_READERS[options.mode])(options, schema)
        return made

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _check_appends(overwrite)
        made: DataSourceWriter = _load(_WRITER)(Options.parse(self.options, use="write"), schema)
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        _check_appends(overwrite)
        made: DataSourceStreamWriter = _load(_STREAM_WRITER)(Options.parse(self.options, use="write"), schema)
        return made


def _check_appends(overwrite: bool) -> None:
    if overwrite:
        raise OptionError("messages can only be appended: write with mode('append'), stream with outputMode('append')")


def _load(place: tuple[str, str]) -> Any:
    module, name = place
    return getattr(import_module(f"peeklock.spark.{module}"), name)
