"""Write a DataFrame to queues and topics, as a batch or a stream.

This module has the writers that Spark calls. `packing` encodes rows, `stamping` makes ids, `sending` sends messages,
and `badrows` handles rows that cannot be written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row, datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from peeklock.spark.badrows import BadRows
from peeklock.spark.options import OptionError, Options
from peeklock.spark.outgoing import WRITABLE, check_columns
from peeklock.spark.packing import Packing, Piece
from peeklock.spark.parcels import Parcel
from peeklock.spark.sending import Outbox, Patience
from peeklock.spark.stamping import Stamps, Write

log = logging.getLogger(__name__)

ROWS_AT_A_TIME: Final = 1000
"""Rows in a record batch, where Spark passes rows one by one."""


def batch_writer(options: Options, schema: StructType) -> DataSourceWriter:
    """Make the writer for `df.write`."""
    return BatchWriter(Job(options, schema, streaming=False))


def stream_writer(options: Options, schema: StructType) -> DataSourceStreamWriter:
    """Make the writer for `df.writeStream`, which gets Arrow batches from Spark 4.1 on."""
    job = Job(options, schema, streaming=True)
    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        from peeklock.spark.arrow_streams import ArrowStreamWriter

        return ArrowStreamWriter(job)
    return RowStreamWriter(job)


@dataclass
class Written(WriterCommitMessage):
    """The result of one task."""

    partition: int
    rows: int = 0
    messages: int = 0
    """Accepted by the service."""
    payload_bytes: int = 0
    bad_rows: int = 0
    retries: int = 0
    """How many attempts were repeated after the service failed."""


class Job:
    """One write. It is made in the driver and sent to the tasks."""

    def __init__(self, options: Options, schema: StructType, *, streaming: bool) -> None:
        check_columns(schema, typed_json=options.typed_json)
        # As in connectors for other brokers, an option for the target takes precedence over a column. Otherwise rows
        # that were read from one entity could not be written to another one unchanged.
        self.routed = options.queue is None and options.topic is None and "entity" in schema.fieldNames()
        if not self.routed and options.entity is None:
            raise OptionError("option 'queue' or 'topic' is required, or a column 'entity' with the target of each row")
        self.options = options
        self.schema = schema
        self.streaming = streaming
        self.write = Write.begin(options.write_name)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Written:
        """Write the rows of one task."""
        task = TaskContext.get()
        assert task is not None
        return TaskWriter(self, task.partitionId(), self.write.stamps(task, streaming=self.streaming)).run(batches)


class TaskWriter:
    """Writes the rows of one task."""

    def __init__(self, job: Job, partition: int, stamps: Stamps) -> None:
        self._job = job
        self._stamps = stamps
        self._written = Written(partition)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Written:
        job, written = self._job, self._written
        patience = Patience(retries=job.options.send_retries)
        self._bad = BadRows(job.options.on_bad_message, self._stamps.prefix, written.partition)
        packing = Packing(
            job.schema,
            self._stamps,
            self._refuse,
            entity=None if job.routed else job.options.entity,
            typed_json=job.options.typed_json,
        )
        with (
            self._bad,
            Outbox(job.options.connect, self._refused, entity=job.options.entity, patience=patience) as outbox,
        ):
            for batch in batches:
                for runs in packing.runs(Piece(batch, written.rows)):
                    outbox.post(runs)
                written.rows += batch.num_rows
            outbox.finish()
            written.messages, written.retries = outbox.accepted, outbox.retries
            written.payload_bytes += packing.payload_bytes
        written.bad_rows = self._bad.count
        return written

    def _refused(self, parcel: Parcel, reason: str) -> None:
        self._written.payload_bytes -= len(parcel.payload)
        self._refuse(parcel.source, parcel.row - parcel.source.rows_before, reason)

    def _refuse(self, piece: Piece, row: int, reason: str) -> None:
        """Handle a row that cannot be written."""
        values = piece.batch.slice(row, 1).to_pylist(maps_as_pydicts="lossy")[0]
        self._bad.add(piece.rows_before + row + 1, reason, values)


# --- the writers that Spark calls ---


class BatchWriter(DataSourceArrowWriter):
    """Writes the record batches of `df.write`."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.job.run(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        report("the write", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        report_failure("the write", messages)


class StreamWriter(DataSourceStreamWriter):
    """The common part of the writers for streams."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        report(f"batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        report_failure(f"batch {batchId}", messages)


class RowStreamWriter(StreamWriter):
    """Writes the rows of a stream in Spark 4.0."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self.job.run(batches_of(iterator, self.job.schema))


def batches_of(rows: Iterable[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Convert rows to record batches of the columns that a writer uses."""
    arrow = pa.schema([(field.name, _arrow_type(field.dataType)) for field in schema.fields if field.name in WRITABLE])
    some: list[dict[str, Any]] = []
    for row in rows:
        some.append({name: _arrow_value(row[name]) for name in arrow.names})
        if len(some) == ROWS_AT_A_TIME:
            yield pa.RecordBatch.from_pylist(some, schema=arrow)
            some = []
    if some:
        yield pa.RecordBatch.from_pylist(some, schema=arrow)


_ARROW: Final[Mapping[type[DataType], pa.DataType]] = {
    BinaryType: pa.binary(),
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    DoubleType: pa.float64(),
    FloatType: pa.float32(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    ShortType: pa.int16(),
    StringType: pa.string(),
    TimestampType: pa.timestamp("us", tz="UTC"),
}


def _arrow_type(kind: DataType) -> pa.DataType:
    if isinstance(kind, MapType):
        return pa.map_(_arrow_type(kind.keyType), _arrow_type(kind.valueType))
    return _ARROW[type(kind)]


def _arrow_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC)  # a time in a row has no zone, and is in the zone of the machine
    if isinstance(value, dict):
        return [(name, _arrow_value(each)) for name, each in value.items()]
    return bytes(value) if isinstance(value, bytearray) else value


def report(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Log in the driver how much was written, and warn about rows that were not."""
    written = [message for message in messages if isinstance(message, Written)]
    log.info(
        "%s: %d messages, %d bytes, from %d tasks, with %d retries",
        what,
        sum(each.messages for each in written),
        sum(each.payload_bytes for each in written),
        len(written),
        sum(each.retries for each in written),
    )
    if bad := sum(each.bad_rows for each in written):
        log.warning("%s: %d of %d rows could not be written", what, bad, sum(each.rows for each in written))


def report_failure(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Log in the driver that a write failed, and how much was sent."""
    written = [message for message in messages if isinstance(message, Written)]
    log.warning(
        "%s failed: %d messages of %d finished tasks were sent, and maybe some messages of failed tasks",
        what,
        sum(each.messages for each in written),
        len(written),
    )
