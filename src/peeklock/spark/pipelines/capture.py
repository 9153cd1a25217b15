"""Capture: move messages of queues and subscriptions into Parquet, Delta or Iceberg, each exactly once.

`start` starts the stream of one entity, `capture` runs the streams of several entities until they end or are stopped,
and `read` reads the captured rows. `columns` defines the rows, and `lake` keeps the list of files of a Parquet folder.
The data source selects the messages of a batch, and removes them from the entity after the batch was written.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from peeklock.spark.checkpoints import batches_done, settle_checkpoint
from peeklock.spark.pipelines.columns import PARTITIONS, SCHEMA, SCHEMA_VERSION, SOURCE, captured
from peeklock.spark.pipelines.compaction import compact
from peeklock.spark.pipelines.entities import entity_options
from peeklock.spark.pipelines.failures import SPARK_ERRORS
from peeklock.spark.pipelines.files import files_of
from peeklock.spark.pipelines.lake import OWN, Lake
from peeklock.spark.pipelines.parquet_sink import ParquetSink
from peeklock.spark.pipelines.table_formats import WRITER_OPTIONS, Format, build_of, iceberg_table
from peeklock.spark.session import is_connect
from peeklock.spark.triggers import HAS_AVAILABLE_NOW

PARQUET: Final = "parquet"
_POLL_S: Final = 0.2
_COMMIT_WAIT_S: Final = 10.0
"""The longest wait for Spark to commit the last batch of a query."""
_MISSING_FORMAT: Final = (
    "DATA_SOURCE_NOT_FOUND",
    "ClassNotFoundException",
    "Failed to find the data source",
    "Cannot find catalog plugin class",
)
"""Texts in the errors of a Spark session without the packages of a table format."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that was written."""

    entity: str
    number: int
    rows: int
    files: int = 0
    """0 for a table format, as is `bytes`."""
    bytes: int = 0


OnBatch = Callable[[Batch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of a capture, and the times of its batches and compactions."""

    folder: str
    """For `iceberg` also the name of a table, such as `catalog.messages.orders`."""
    format: Format = "parquet"
    checkpoint: str | None = None
    """The folder for Spark's checkpoints; by default a folder in `folder`. If it is lost, a capture starts over."""
    interval_s: float | None = None
    """Seconds between the starts of two batches; None for no pause."""
    until_empty: bool = False
    """Stop when the messages that were in the entities at the start are captured."""
    compact_every_s: float | None = None
    """Seconds between two compactions of Parquet files; None for none."""


def read(spark: SparkSession, folder: str, format: Format = "parquet") -> DataFrame:
    """All rows captured until now. Captures and compactions that run meanwhile do not change the result."""
    if format == PARQUET:
        return Lake(spark, folder, SCHEMA_VERSION).read(SCHEMA)
    if format == "iceberg":
        return spark.read.table(_table_of(spark, folder))
    return spark.read.format(format).load(folder)


class Stopped(Exception):
    """The capture is stopping and starts no batch."""


class Gate:
    """Lets batches start until it is closed, and stores the last finished batch of each entity.

    An interrupted batch would be run again at the next start without harm. But when Spark interrupts a batch that runs
    in Python, it searches a text of many pages for the cause, and overflows its stack.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_closed = False
        self._ended: dict[str, int] = {}

    @contextmanager
    def passing(self, entity: str, number: int) -> Iterator[None]:
        """Run a batch in the block. Raises Stopped if the gate is closed."""
        with self._changed:
            if self._is_closed:
                raise Stopped("the capture is stopping")
            self._inside += 1
        try:
            yield
            self.ended(entity, number)
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Let no batch start any more, and wait until the running batches have ended."""
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: not self._inside)

    def ended(self, entity: str, number: int) -> None:
        """Store the number of a finished batch."""
        self._ended[entity] = number

    def last(self, entity: str) -> int:
        """The last finished batch of an entity; -1 without one."""
        return self._ended.get(entity, -1)


def capture(
    spark: SparkSession,
    entities: Sequence[str],
    options: Mapping[str, str],
    target: Target,
    on_batch: OnBatch | None = None,
    stopping: threading.Event | None = None,
) -> None:
    """Capture entities in parallel until they are empty, if the target says so, or until `stopping` is set.

    When it returns, all written messages were removed from the entities. Messages that were claimed and not written yet
    stay claimed for the next start, and so does the last batch after a failure. `on_batch` is called for each written
    batch, except for Parquet through Spark Connect, where a process of the server writes it.
    """
    stop = stopping or threading.Event()
    report = on_batch or (lambda _: None)
    checkpoints = {entity: files_of(spark, checkpoint_of(spark, entity, target)) for entity in entities}
    while True:
        before = [batches_done(each) for each in checkpoints.values()]
        _run(spark, entities, options, target, report, stop, Gate())
        for entity, checkpoint in checkpoints.items():
            settle_checkpoint(checkpoint, _source_options(entity, options))
        # Before Spark 4.2 a run until empty ends after one batch.
        is_empty = HAS_AVAILABLE_NOW or before == [batches_done(each) for each in checkpoints.values()]
        if is_empty or not target.until_empty or stop.is_set():
            return


def _run(
    spark: SparkSession,
    entities: Sequence[str],
    options: Mapping[str, str],
    target: Target,
    on_batch: OnBatch,
    stop: threading.Event,
    gate: Gate,
) -> None:
    queries: dict[str, StreamingQuery] = {}
    polls_progress = target.format != PARQUET or is_connect(spark)
    try:
        for entity in entities:
            queries[entity] = start(spark, entity, options, target, on_batch, gate)
        compacted = time.monotonic()
        while any(query.isActive for query in queries.values()) and not stop.wait(_POLL_S):
            _raise_failure(queries.values())
            if polls_progress:
                _report_progress(queries, on_batch, gate)
            if target.format != PARQUET or target.compact_every_s is None:
                continue
            if time.monotonic() - compacted >= target.compact_every_s:
                compact(spark, target.folder, stopping=stop)
                compacted = time.monotonic()
        _raise_failure(queries.values())
    finally:
        gate.close()
        for entity, query in queries.items():
            _await_commit(query, gate.last(entity))
            query.stop()
        if polls_progress:
            _report_progress(queries, on_batch, gate)


def start(
    spark: SparkSession,
    entity: str,
    options: Mapping[str, str],
    target: Target,
    on_batch: OnBatch | None = None,
    gate: Gate | None = None,
) -> StreamingQuery:
    """Start to capture one entity, a queue or `topic/Subscriptions/name`, with options of the data source."""
    checkpoint = checkpoint_of(spark, entity, target)
    messages = spark.readStream.format("servicebus").schema(SOURCE).options(**_source_options(entity, options)).load()
    frame = messages if target.format == PARQUET else captured(messages)
    writer = frame.writeStream.queryName(f"capture {entity}").option("checkpointLocation", checkpoint)
    if target.until_empty:
        writer = writer.trigger(availableNow=True)
    elif target.interval_s is not None:
        writer = writer.trigger(processingTime=f"{target.interval_s} seconds")
    if target.format == PARQUET:
        sink = ParquetSink(target.folder, checkpoint)
        # Through Spark Connect the sink runs in a process of the server, from which no callback reaches this process.
        write = sink if is_connect(spark) else _through_gate(sink, entity, on_batch or (lambda _: None), gate or Gate())
        return writer.foreachBatch(write).start()
    return _start_table(spark, writer.partitionBy(*PARTITIONS), target)


def checkpoint_of(spark: SparkSession, entity: str, target: Target) -> str:
    """The folder of the checkpoint for the capture of an entity."""
    address = entity.lower()  # names of entities are case-insensitive
    digest = blake2b(address.encode(), digest_size=4).hexdigest()
    name = f"{re.sub(r'[^a-z0-9._-]', '-', address)}-{digest}"
    if target.checkpoint is not None:
        return f"{target.checkpoint.rstrip('/')}/{name}"
    if _is_table(target.format, target.folder):
        raise ValueError("a capture into a table requires a folder for Spark's checkpoint: give one")
    return f"{files_of(spark, target.folder).place}/{OWN}/checkpoints/{name}"


def _source_options(entity: str, options: Mapping[str, str]) -> dict[str, str]:
    return {**options, **entity_options(entity), "mode": "claim", "applicationProperties": "strings"}


def _through_gate(sink: ParquetSink, entity: str, on_batch: OnBatch, gate: Gate) -> Callable[[DataFrame, int], None]:
    """Run the sink within the gate, and report each written batch."""

    def write(messages: DataFrame, number: int) -> None:
        with gate.passing(entity, number):
            written = sink.write(messages, number)
            if written is not None and written.files:
                on_batch(Batch(entity, number, written.rows, written.files, written.bytes))

    return write


def _await_commit(query: StreamingQuery, batch: int) -> None:
    """Wait until Spark has committed a batch, which it does right after it; else it would run the batch again."""
    until = time.monotonic() + _COMMIT_WAIT_S
    while query.isActive and time.monotonic() < until:
        if batch < 0 or any(each["numInputRows"] and each["batchId"] >= batch for each in query.recentProgress):
            return
        time.sleep(_POLL_S / 10)


def _report_progress(queries: Mapping[str, StreamingQuery], on_batch: OnBatch, gate: Gate) -> None:
    """Report batches that a table format or another process has written, from Spark's progress of the queries."""
    for entity, query in queries.items():
        for progress in query.recentProgress:
            number, rows = progress["batchId"], progress["numInputRows"]
            if rows and number > gate.last(entity):
                gate.ended(entity, number)
                on_batch(Batch(entity, number, rows))


def _start_table(spark: SparkSession, writer: DataStreamWriter, target: Target) -> StreamingQuery:
    """Start the stream into a Delta or Iceberg table; the format writes each batch once."""
    writer = writer.format(target.format).outputMode("append").options(**WRITER_OPTIONS.get(target.format, {}))
    try:
        if target.format == "iceberg":
            return writer.toTable(_table_of(spark, target.folder))
        return writer.start(target.folder)
    except SPARK_ERRORS as error:
        if any(sign in str(error) for sign in _MISSING_FORMAT):
            build = build_of(target.format, spark.version)
            raise ValueError(
                f"this Spark session has no '{target.format}': start it with --conf spark.jars.packages={build}"
            ) from None
        raise


def _table_of(spark: SparkSession, folder: str) -> str:
    return folder if _is_table("iceberg", folder) else iceberg_table(spark, files_of(spark, folder).place)


def _is_table(format: Format, name: str) -> bool:
    """Whether the name is a table's, such as `catalog.messages.orders`, and not a path."""
    return format == "iceberg" and "/" not in name and "." in name


def _raise_failure(queries: Iterable[StreamingQuery]) -> None:
    for query in queries:
        if not query.isActive and query.exception() is not None:
            query.awaitTermination()  # raises it
