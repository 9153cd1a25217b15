"""Dead-letter triage: count dead-lettered messages by reason, error, subject and hour, and find likely causes.

The functions take DataFrames with the connector's columns, so that notebooks and other jobs can use them.
`read_dead_letters` reads dead-letter queues without locking or moving messages, and `dead_letter_queues` finds the
entities that have dead letters. `chosen` returns the sequence numbers of messages to resubmit; the command line
resubmits them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Entity, Kind
from peeklock.spark.options import Options
from peeklock.spark.peeking import batch_reader
from peeklock.spark.pipelines.amounts import is_small
from peeklock.spark.pipelines.causes import likely_causes, owner, successful, text_of
from peeklock.spark.pipelines.entities import entity_options
from peeklock.spark.pipelines.tables import Tables
from peeklock.spark.rows import ARROW_SCHEMA, SCHEMA

DEAD_LETTER, TRANSFER_DEAD_LETTER = "deadLetter", "transferDeadLetter"
_COUNTS: Final = {DEAD_LETTER: "DeadLetterMessageCount", TRANSFER_DEAD_LETTER: "TransferDeadLetterMessageCount"}
SAMPLES: Final = 3
TOP: Final = 5
LONGEST_SAMPLE: Final = 300

# A message that cannot be decoded may have been dead-lettered for that: it is shown and does not end the read.
_COMMON: Final = {"onBadMessage": "raw"}

_IDENTIFIERS: Final = (
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    r"\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{12,}\b",
    r"\d+",
)
"""Numbers and identifiers in error descriptions, which differ from message to message."""


# --- reading


def dead_letter_queues(administration: AdministrationClient, sub_queue: str = DEAD_LETTER) -> list[str]:
    """The queues, and subscriptions as `topic/Subscriptions/name`, that have dead-lettered messages."""
    found: list[Entity] = list(administration.entities(Kind.QUEUE))
    for topic in administration.entities(Kind.TOPIC):
        found += administration.entities(Kind.SUBSCRIPTION, topic=topic.name)
    return [entity.path for entity in found if int(entity.runtime.get(_COUNTS[sub_queue], 0))]


def read_dead_letters(
    spark: SparkSession, options: Mapping[str, str], entities: Iterable[str], sub_queue: str = DEAD_LETTER
) -> DataFrame:
    """Read the dead-letter queues of entities. The options are the connector's, without the entity."""
    return _read(spark, {**options, "subQueue": sub_queue}, entities)


def read_waiting(spark: SparkSession, options: Mapping[str, str], entities: Iterable[str]) -> DataFrame:
    """Read the messages in the entities themselves."""
    return _read(spark, options, entities)


@dataclass(frozen=True, slots=True)
class SmallRead:
    """The messages of entities, read by this process, as they are few."""

    _failed: pa.Table
    _waiting: pa.Table | None

    def failed(self, spark: SparkSession) -> DataFrame:
        """The dead-lettered messages, as `read_dead_letters` returns them."""
        return _frame(spark, self._failed)

    def waiting(self, spark: SparkSession) -> DataFrame:
        """The messages in the entities, as `read_waiting` returns them."""
        assert self._waiting is not None
        return _frame(spark, self._waiting)


def read_small(
    options: Mapping[str, str], entities: Sequence[str], sub_queue: str = DEAD_LETTER, *, waiting: bool = True
) -> SmallRead | None:
    """Read what `read_dead_letters` and `read_waiting` read, without Spark. None if it is not a small amount.

    For some thousand messages Spark spends most of the time on starting Python processes.
    """
    failed = _table({**options, "subQueue": sub_queue}, entities)
    others = _table(options, entities) if waiting and failed is not None else None
    return None if failed is None or (waiting and others is None) else SmallRead(failed, others)


def _table(options: Mapping[str, str], entities: Sequence[str]) -> pa.Table | None:
    batches: list[pa.RecordBatch] = []
    messages = octets = 0
    for entity in entities:
        chosen = Options.parse({**_COMMON, **options, **entity_options(entity)}, use="read")
        reader = batch_reader(chosen, SCHEMA)
        for share in reader.partitions():
            for batch in cast("Iterator[pa.RecordBatch]", reader.read(share)):
                batches.append(batch)
                messages, octets = messages + batch.num_rows, octets + batch.nbytes
                if not is_small(messages, octets):
                    return None
    return pa.Table.from_batches(batches, schema=ARROW_SCHEMA)


def _frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    # Spark cannot make a frame of an Arrow table without rows.
    rows = spark.createDataFrame(table, SCHEMA) if table.num_rows else spark.createDataFrame([], SCHEMA)
    return rows.coalesce(1)


def _read(spark: SparkSession, options: Mapping[str, str], entities: Iterable[str]) -> DataFrame:
    frames = [
        spark.read.format("servicebus").options(**{**_COMMON, **options, **entity_options(entity)}).load()
        for entity in entities
    ]
    return reduce(DataFrame.unionByName, frames) if frames else spark.createDataFrame([], SCHEMA)


# --- tables


def triage(
    failed: DataFrame,
    others: DataFrame | None = None,
    *,
    but: DataFrame | None = None,
    samples: int = SAMPLES,
    top: int = TOP,
) -> Tables:
    """Make all tables, by name.

    `others` are messages to compare with; without them there is no table of causes. `but` are all failed messages, if
    `failed` is only a selection: they do not count as others.
    """
    tables = {
        "by_entity": counts(failed),
        "by_reason": counts(failed, "dead_letter_reason"),
        "by_error": errors(failed),
        "by_subject": counts(failed, "dead_letter_reason", "subject"),
        "by_hour": counts(failed.withColumn("hour", F.date_trunc("hour", "enqueued_time")), "hour"),
        "samples": newest_of_each(failed, samples),
    }
    if others is not None:
        tables["causes"] = likely_causes(failed, successful(others, failed if but is None else but), top)
    return tables


def counts(failed: DataFrame, *columns: str) -> DataFrame:
    """Count messages by entity and columns, with the oldest and newest enqueued time; the highest count first."""
    grouped = _of_owners(failed).groupBy("entity", *columns).agg(*_measures())
    by_time = "hour" in columns
    return grouped.orderBy("entity", *columns) if by_time else grouped.orderBy(F.desc("messages"), "entity", *columns)


def errors(failed: DataFrame) -> DataFrame:
    """Count messages by error description without numbers and identifiers, with one description as an example."""
    error = F.col("dead_letter_error_description")
    grouped = (
        _of_owners(failed)
        .groupBy("entity", "dead_letter_reason", shape(error).alias("error"))
        .agg(*_measures(), F.min(error).alias("example"))
    )
    return grouped.orderBy(F.desc("messages"), "entity", "dead_letter_reason", "error")


def shape(text: Column) -> Column:
    """Replace numbers and identifiers: `order 17 of 3 lines` becomes `order # of # lines`."""
    for pattern in _IDENTIFIERS:
        text = F.regexp_replace(text, pattern, "#")
    return text


def newest_of_each(failed: DataFrame, most: int) -> DataFrame:
    """The newest messages of each entity and reason, with the beginning of the body if it is text."""
    newest = Window.partitionBy("entity", "dead_letter_reason").orderBy(F.desc("sequence_number"))
    numbered = _of_owners(failed).withColumn("sample", F.row_number().over(newest)).where(F.col("sample") <= most)
    text = F.coalesce(
        F.substring(text_of(F.col("body")), 1, LONGEST_SAMPLE),
        F.concat(F.octet_length("body").cast("string"), F.lit(" bytes")),
    )
    return numbered.select(
        "entity",
        "dead_letter_reason",
        "sequence_number",
        "enqueued_time",
        "message_id",
        "session_id",
        "subject",
        "delivery_count",
        "dead_letter_error_description",
        "application_properties",
        text.alias("body"),
    ).orderBy("entity", "dead_letter_reason", F.desc("sequence_number"))


def matching(failed: DataFrame, where: str | None) -> DataFrame:
    """Select the messages for which an SQL condition is true. In it, `entity` is the queue or subscription itself."""
    owned = _of_owners(failed)
    return owned if where is None else owned.where(where)


def chosen(failed: DataFrame) -> dict[str, set[int]]:
    """The sequence numbers of the messages, by entity."""
    numbers: dict[str, set[int]] = {}
    for entity, number in _of_owners(failed).select("entity", "sequence_number").toLocalIterator():
        numbers.setdefault(entity, set()).add(number)
    return numbers


def _of_owners(failed: DataFrame) -> DataFrame:
    return failed.withColumn("entity", owner(F.col("entity")))


def _measures() -> tuple[Column, ...]:
    return (
        F.count("*").alias("messages"),
        F.min("enqueued_time").alias("oldest"),
        F.max("enqueued_time").alias("newest"),
    )
