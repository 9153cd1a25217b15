"""Capture: messages of queues and subscriptions into Parquet, each exactly once.

`start` makes a stream of one entity into a folder, `capture` runs several of them until they are done or interrupted,
and `read` gives the rows again. What the rows are is told in `columns`, and the folder's list of files is `lake`'s
business; which messages a batch has, and that they leave the entity only when the batch is kept, the data source's.
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
from peeklock.spark.triggers import AvailableNow

PARQUET: Final = "parquet"
_POLL_S: Final = 0.2
_PATIENCE_S: Final = 10.0
_TAKES_ALL: Final = AvailableNow.__module__.startswith("pyspark.")
"""Before Spark 4.2 a run that shall take what is there takes one batch."""
_NOT_THERE: Final = (
    "DATA_SOURCE_NOT_FOUND",
    "ClassNotFoundException",
    "Failed to find the data source",
    "Cannot find catalog plugin class",
)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that is kept."""

    entity: str
    number: int
    rows: int
    files: int = 0
    """0, and no bytes, where a table format keeps them."""
    bytes: int = 0


Told = Callable[[Batch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where captured rows go, and when."""

    folder: str
    """For `iceberg` the name of a table may be here instead."""
    format: Format = "parquet"
    checkpoint: str | None = None
    """A folder for what Spark remembers; beside the rows when not given. Without it a capture begins anew."""
    interval_s: float | None = None
    """Seconds between two batches; None: one after the other."""
    until_empty: bool = False
    """Stop when what was there at the start is captured."""
    compact_every_s: float | None = None
    """Merge small files of Parquet that often meanwhile."""


def read(spark: SparkSession, folder: str, format: Format = "parquet") -> DataFrame:
    """All captured rows as of now; capture and compaction meanwhile change nothing of it."""
    if format == PARQUET:
        return Lake(spark, folder, SCHEMA_VERSION).read(SCHEMA)
    if format == "iceberg":
        return spark.read.table(_table_of(spark, folder))
    return spark.read.format(format).load(folder)


class Stopped(Exception):
    """No batch is begun any more."""


class Gate:
    """Lets batches begin until it is closed, and knows which was the last that ended.

    A batch that is interrupted is run again at the next start, which does no harm. But Spark, when it interrupts one
    that is in the hands of Python, looks for the reason in a text of many pages, and overflows its stack.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_closed = False
        self._ended: dict[str, int] = {}

    @contextmanager
    def passing(self, entity: str, number: int) -> Iterator[None]:
        with self._changed:
            if self._is_closed:
                raise Stopped("the capture is being stopped")
            self._inside += 1
        try:
            yield
            self.ended(entity, number)
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Returns when those that had begun have ended."""
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: not self._inside)

    def ended(self, entity: str, number: int) -> None:
        self._ended[entity] = number

    def last(self, entity: str) -> int:
        """The last batch that ended well; -1 when none did."""
        return self._ended.get(entity, -1)


def capture(
    spark: SparkSession,
    entities: Sequence[str],
    options: Mapping[str, str],
    target: Target,
    told: Told | None = None,
    stopping: threading.Event | None = None,
) -> None:
    """Capture the entities side by side until they are empty, where that was asked for, or until told to stop.

    At the end what is kept is gone from the entities. What was claimed and is not kept yet waits for the next start,
    and so does the last batch when something fails. `told` hears of each batch that is kept, but not of those that a
    server of Spark Connect keeps as Parquet.
    """
    stop = stopping or threading.Event()
    tell = told or (lambda _: None)
    checkpoints = {entity: files_of(spark, checkpoint_of(spark, entity, target)) for entity in entities}
    while True:
        before = [batches_done(each) for each in checkpoints.values()]
        _run(spark, entities, options, target, tell, stop, Gate())
        for entity, checkpoint in checkpoints.items():
            settle_checkpoint(checkpoint, _source_options(entity, options))
        was_all = _TAKES_ALL or before == [batches_done(each) for each in checkpoints.values()]
        if was_all or not target.until_empty or stop.is_set():
            return


def _run(
    spark: SparkSession,
    entities: Sequence[str],
    options: Mapping[str, str],
    target: Target,
    told: Told,
    stop: threading.Event,
    gate: Gate,
) -> None:
    queries: dict[str, StreamingQuery] = {}
    hears_late = target.format != PARQUET or is_connect(spark)
    try:
        for entity in entities:
            queries[entity] = start(spark, entity, options, target, told, gate)
        compacted = time.monotonic()
        while any(query.isActive for query in queries.values()) and not stop.wait(_POLL_S):
            _raise_failure(queries.values())
            if hears_late:
                _tell_progress(queries, told, gate)
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
        if hears_late:
            _tell_progress(queries, told, gate)


def start(
    spark: SparkSession,
    entity: str,
    options: Mapping[str, str],
    target: Target,
    told: Told | None = None,
    gate: Gate | None = None,
) -> StreamingQuery:
    """Begin to capture one entity, a queue or `topic/Subscriptions/name`; `options` are those of the data source."""
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
        # Through Spark Connect the sink is called in a process of the server, which cannot tell us anything.
        keep = sink if is_connect(spark) else _passing(sink, entity, told or (lambda _: None), gate or Gate())
        return writer.foreachBatch(keep).start()
    return _start_table(spark, writer.partitionBy(*PARTITIONS), target)


def checkpoint_of(spark: SparkSession, entity: str, target: Target) -> str:
    """What Spark remembers of this entity's capture."""
    address = entity.lower()  # an entity's name has no case
    digest = blake2b(address.encode(), digest_size=4).hexdigest()
    name = f"{re.sub(r'[^a-z0-9._-]', '-', address)}-{digest}"
    if target.checkpoint is not None:
        return f"{target.checkpoint.rstrip('/')}/{name}"
    if _is_table(target.format, target.folder):
        raise ValueError("the capture into a table needs a folder for what Spark remembers: give a checkpoint")
    return f"{files_of(spark, target.folder).place}/{OWN}/checkpoints/{name}"


def _source_options(entity: str, options: Mapping[str, str]) -> dict[str, str]:
    return {**options, **entity_options(entity), "mode": "claim", "applicationProperties": "strings"}


def _passing(sink: ParquetSink, entity: str, told: Told, gate: Gate) -> Callable[[DataFrame, int], None]:
    """The sink, through the gate; what it kept is told."""

    def keep(messages: DataFrame, number: int) -> None:
        with gate.passing(entity, number):
            kept = sink.keep(messages, number)
            if kept is not None and kept.files:
                told(Batch(entity, number, kept.rows, kept.files, kept.bytes))

    return keep


def _await_commit(query: StreamingQuery, batch: int) -> None:
    """Let Spark note that the batch is done, which it does right after it; without that it would be run again."""
    until = time.monotonic() + _PATIENCE_S
    while query.isActive and time.monotonic() < until:
        if batch < 0 or any(each["numInputRows"] and each["batchId"] >= batch for each in query.recentProgress):
            return
        time.sleep(_POLL_S / 10)


def _tell_progress(queries: Mapping[str, StreamingQuery], told: Told, gate: Gate) -> None:
    """Of the batches that a table format or another process has kept, as far as Spark tells of them."""
    for entity, query in queries.items():
        for progress in query.recentProgress:
            number, rows = progress["batchId"], progress["numInputRows"]
            if rows and number > gate.last(entity):
                gate.ended(entity, number)
                told(Batch(entity, number, rows))


def _start_table(spark: SparkSession, writer: DataStreamWriter, target: Target) -> StreamingQuery:
    """Into a table format of others, which keeps each batch once by itself."""
    writer = writer.format(target.format).outputMode("append").options(**WRITER_OPTIONS.get(target.format, {}))
    try:
        if target.format == "iceberg":
            return writer.toTable(_table_of(spark, target.folder))
        return writer.start(target.folder)
    except SPARK_ERRORS as error:
        if any(sign in str(error) for sign in _NOT_THERE):
            build = build_of(target.format, spark.version)
            raise ValueError(
                f"this Spark has no '{target.format}': start it with --conf spark.jars.packages={build}"
            ) from None
        raise


def _table_of(spark: SparkSession, folder: str) -> str:
    return folder if _is_table("iceberg", folder) else iceberg_table(spark, files_of(spark, folder).place)


def _is_table(format: Format, name: str) -> bool:
    """A name such as `catalog.messages.orders`, and not a path."""
    return format == "iceberg" and "/" not in name and "." in name


def _raise_failure(queries: Iterable[StreamingQuery]) -> None:
    for query in queries:
        if not query.isActive and query.exception() is not None:
            query.awaitTermination()  # raises it
