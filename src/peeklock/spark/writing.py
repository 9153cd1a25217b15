"""Writing a DataFrame to queues and topics, at once or as a stream.

Knows what Spark asks of a writer, and what a row needs on its way to being sent: an id that stays the same at every
attempt, an entity, the limits of the service. Leaves rows to `outgoing`, ids to `stamping`, sending to `sending` and
bad rows to `badrows`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
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

from peeklock.amqp.errors import EncodeError
from peeklock.amqp.message import Message, Properties
from peeklock.spark.badrows import BadRows
from peeklock.spark.options import OptionError, Options
from peeklock.spark.outgoing import WRITABLE, Outgoing, check_columns, messages_of
from peeklock.spark.sending import Outbox, Parcel, Patience
from peeklock.spark.stamping import Stamps, Write

log = logging.getLogger(__name__)

MAX_ID_LENGTH: Final = 128
"""Characters of a message id, a session id, a partition key."""
_TEXTS: Final = attrgetter(
    "to", "subject", "reply_to", "correlation_id", "content_type", "group_id", "reply_to_group_id"
)
"""What a row says in a message's properties, besides the id."""
ROWS_AT_A_TIME: Final = 1000
"""Where Spark hands over rows one by one."""


def batch_writer(options: Options, schema: StructType) -> DataSourceWriter:
    """For `df.write`."""
    return BatchWriter(Job(options, schema, streaming=False))


def stream_writer(options: Options, schema: StructType) -> DataSourceStreamWriter:
    """For `df.writeStream`; Spark has Arrow there from 4.1 on."""
    job = Job(options, schema, streaming=True)
    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        from peeklock.spark.arrow_streams import ArrowStreamWriter

        return ArrowStreamWriter(job)
    return RowStreamWriter(job)


@dataclass
class Written(WriterCommitMessage):
    """What one task did."""

    partition: int
    rows: int = 0
    messages: int = 0
    """Accepted by the service."""
    payload_bytes: int = 0
    bad_rows: int = 0
    retries: int = 0
    """How often the service failed and was tried again."""


class Job:
    """One write, made on the driver and carried to its tasks."""

    def __init__(self, options: Options, schema: StructType, *, streaming: bool) -> None:
        check_columns(schema, typed_json=options.typed_json)
        # As with the connectors for other buses, an option that names the target goes before a column that does. Else
        # rows that were read from one entity could not be written to another as they are.
        self.routed = options.queue is None and options.topic is None and "entity" in schema.fieldNames()
        if not self.routed and options.entity is None:
            raise OptionError("option 'queue' or 'topic' is needed, or a column 'entity' that names it for each row")
        self.options = options
        self.schema = schema
        self.streaming = streaming
        self.write = Write.begin(options.write_name)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Written:
        """One task."""
        task = TaskContext.get()
        assert task is not None
        return TaskWriter(self, task.partitionId(), self.write.stamps(task, streaming=self.streaming)).run(batches)


class TaskWriter:
    """Writes the rows of one task."""

    def __init__(self, job: Job, partition: int, stamps: Stamps) -> None:
        self._job = job
        self._stamps = stamps
        self._written = Written(partition)
        self._batch: pa.RecordBatch | None = None
        """The one whose rows are being sent."""
        self._rows_before = 0
        """The rows of the batches before it."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Written:
        job, written = self._job, self._written
        patience = Patience(retries=job.options.send_retries)
        self._bad = BadRows(job.options.on_bad_message, self._stamps.prefix, written.partition)
        with (
            self._bad,
            Outbox(job.options.connect, self._refused, entity=job.options.entity, patience=patience) as outbox,
        ):
            for batch in batches:
                self._batch, self._rows_before = batch, written.rows
                outbox.send(self._parcels(batch))
                written.rows += batch.num_rows
            written.messages, written.retries = outbox.accepted, outbox.retries
        written.bad_rows = self._bad.count
        return written

    def _parcels(self, batch: pa.RecordBatch) -> Iterator[Parcel]:
        job = self._job
        for outgoing in messages_of(batch, job.schema, typed_json=job.options.typed_json):
            entity = (outgoing.entity if job.routed else None) or job.options.entity
            problem = outgoing.problem or _problem(outgoing, entity)
            if problem is None:
                assert outgoing.message is not None
                assert entity is not None
                try:
                    yield self._parcel(outgoing, outgoing.message, entity)
                    continue
                except EncodeError as error:
                    problem = error.description
            self._refuse(outgoing.row, problem)

    def _parcel(self, outgoing: Outgoing, message: Message, entity: str) -> Parcel:
        properties = message.properties or Properties()
        annotations = b""
        if message.message_annotations:
            annotations = Message(message_annotations=message.message_annotations).encode()
        content = Message(application_properties=message.application_properties, data=message.data).encode()
        if properties.message_id is None:
            said = repr(_TEXTS(properties)).encode()  # quicker than encoding them twice
            properties.message_id = self._stamps.stamp(entity.encode(), annotations, said, content)
        payload = annotations + properties.encode() + content
        self._written.payload_bytes += len(payload)
        return Parcel(
            outgoing.row, entity, str(properties.message_id), payload, outgoing.session_id, outgoing.partition_key
        )

    def _refused(self, parcel: Parcel, reason: str) -> None:
        self._written.payload_bytes -= len(parcel.payload)
        self._refuse(parcel.row, reason)

    def _refuse(self, row: int, reason: str) -> None:
        """A row of this batch cannot be written."""
        assert self._batch is not None
        values = self._batch.slice(row, 1).to_pylist(maps_as_pydicts="lossy")[0]
        self._bad.add(self._rows_before + row + 1, reason, values)


def _problem(outgoing: Outgoing, entity: str | None) -> str | None:
    """What the service would refuse, or take otherwise than it was meant."""
    if not entity:
        return "the column 'entity' names no entity, nor do the options"
    properties = outgoing.message.properties if outgoing.message is not None else None
    message_id = None if properties is None else properties.message_id
    texts = (
        ("message_id", message_id),
        ("session_id", outgoing.session_id),
        ("partition_key", outgoing.partition_key),
        ("reply_to_session_id", None if properties is None else properties.reply_to_group_id),
    )
    for name, text in texts:
        if isinstance(text, str) and len(text) > MAX_ID_LENGTH:
            return f"the {name} has {len(text)} characters; at most {MAX_ID_LENGTH} are allowed"
    session_id, partition_key = outgoing.session_id, outgoing.partition_key
    if session_id is not None and partition_key is not None and session_id != partition_key:
        return f"the partition_key '{partition_key}' must be the session_id '{session_id}' where there are both"
    return None


# --- what Spark calls ---


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, job: Job) -> None:
        self.job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.job.run(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        report("the write", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        report_failure("the write", messages)


class StreamWriter(DataSourceStreamWriter):
    """What the writers for streams share."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        report(f"batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        report_failure(f"batch {batchId}", messages)


class RowStreamWriter(StreamWriter):
    """For Spark 4.0."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self.job.run(batches_of(iterator, self.job.schema))


def batches_of(rows: Iterable[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows as record batches of what a writer takes from them."""
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
        return value.astimezone(UTC)  # in a row a moment has no zone, and is that of the machine
    if isinstance(value, dict):
        return [(name, _arrow_value(each)) for name, each in value.items()]
    return bytes(value) if isinstance(value, bytearray) else value


def report(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """To the log of the driver: what was written, and aloud what was not."""
    written = [message for message in messages if isinstance(message, Written)]
    log.info(
        "%s: %d messages, %d bytes, from %d tasks; the service was tried again %d times",
        what,
        sum(each.messages for each in written),
        sum(each.payload_bytes for each in written),
        len(written),
        sum(each.retries for each in written),
    )
    if bad := sum(each.bad_rows for each in written):
        log.warning("%s: %d of %d rows could not be written", what, bad, sum(each.rows for each in written))


def report_failure(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, Written)]
    log.warning(
        "%s failed; %d messages of %d finished tasks were sent, and some of those that failed",
        what,
        sum(each.messages for each in written),
        len(written),
    )
