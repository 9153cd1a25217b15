"""The data source `servicebus`, as Spark sees it: which reader or writer serves which use and mode.

Knows the names only. Each reader and writer is loaded when it is asked for, so that who reads does not need what
writing needs, and a failure in one cannot keep Spark from finding the source.
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

# What is called with the options and the schema.
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

        check(self.options)  # the earliest moment to tell a user of a mistake
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
        raise OptionError("messages can only be added: write with mode('append'), stream with outputMode('append')")


def _load(place: tuple[str, str]) -> Any:
    module, name = place
    return getattr(import_module(f"peeklock.spark.{module}"), name)
