"""Dead-letter triage: what was set aside, since when, why, and what it has in common. Nothing is locked or moved.

Functions over DataFrames with the connector's columns, for a notebook or a job of one's own; `read_dead_letters` makes
such a frame of dead-letter queues, and `dead_letter_queues` finds those that hold something. Which messages are sent
again is told by `chosen`; sending them is left to the command line, because it is done message by message.
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

# A message that cannot be read may well be why it is here: it is shown, and does not end the look.
_COMMON: Final = {"onBadMessage": "raw"}

_IDENTIFIERS: Final = (
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    r"\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{12,}\b",
    r"\d+",
)
"""Parts of a sentence that name one message: numbers and identifiers."""


# --- where the messages are


def dead_letter_queues(administration: AdministrationClient, sub_queue: str = DEAD_LETTER) -> list[str]:
    """The queues and subscriptions, as `topic/Subscriptions/name`, with messages that were set aside."""
    found: list[Entity] = list(administration.entities(Kind.QUEUE))
    for topic in administration.entities(Kind.TOPIC):
        found += administration.entities(Kind.SUBSCRIPTION, topic=topic.name)
    return [entity.path for entity in found if int(entity.runtime.get(_COUNTS[sub_queue], 0))]


def read_dead_letters(
    spark: SparkSession, options: Mapping[str, str], entities: Iterable[str], sub_queue: str = DEAD_LETTER
) -> DataFrame:
    """What the dead-letter queues of the entities hold now. The options are the connector's, without the entity."""
    return _read(spark, {**options, "subQueue": sub_queue}, entities)


def read_waiting(spark: SparkSession, options: Mapping[str, str], entities: Iterable[str]) -> DataFrame:
    """What the entities themselves hold now."""
    return _read(spark, options, entities)


@dataclass(frozen=True, slots=True)
class Few:
    """What entities hold now, read by this process, since it is little."""

    _failed: pa.Table
    _waiting: pa.Table | None

    def failed(self, spark: SparkSession) -> DataFrame:
        """As `read_dead_letters`."""
        return _frame(spark, self._failed)

    def waiting(self, spark: SparkSession) -> DataFrame:
        """As `read_waiting`."""
        assert self._waiting is not None
        return _frame(spark, self._waiting)


def few(
    options: Mapping[str, str], entities: Sequence[str], sub_queue: str = DEAD_LETTER, *, waiting: bool = True
) -> Few | None:
    """What `read_dead_letters` and `read_waiting` would read; None when it is more than a little.

    Needs no Spark. A Spark that reads some thousand messages waits most of the time for the Python programs that it
    starts for that.
    """
    failed = _table({**options, "subQueue": sub_queue}, entities)
    others = _table(options, entities) if waiting and failed is not None else None
    return None if failed is None or (waiting and others is None) else Few(failed, others)


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
    # A table without a row has no part of which Spark could make one.
    rows = spark.createDataFrame(table, SCHEMA) if table.num_rows else spark.createDataFrame([], SCHEMA)
    return rows.coalesce(1)


def _read(spark: SparkSession, options: Mapping[str, str], entities: Iterable[str]) -> DataFrame:
    frames = [
        spark.read.format("servicebus").options(**{**_COMMON, **options, **entity_options(entity)}).load()
        for entity in entities
    ]
    return reduce(DataFrame.unionByName, frames) if frames else spark.createDataFrame([], SCHEMA)


# --- what they say


def triage(
    failed: DataFrame,
    others: DataFrame | None = None,
    *,
    but: DataFrame | None = None,
    samples: int = SAMPLES,
    top: int = TOP,
) -> Tables:
    """All tables by their names.

    `others` are messages that did not fail, or may not have; without them there are no causes. `but` are all that
    failed, where `failed` is only some of them: none of those is among the others.
    """
    tables = {
        "by_entity": counts(failed),
        "by_reason": counts(failed, "dead_letter_reason"),
        "by_error": errors(failed),
        "by_subject": counts(failed, "dead_letter_reason", "subject"),
        "by_hour": counts(failed.withColumn("hour", F.date_trunc("hour", "enqueued_time")), "hour"),
        "samples": some_of_each(failed, samples),
    }
    if others is not None:
        tables["causes"] = likely_causes(failed, successful(others, failed if but is None else but), top)
    return tables


def counts(failed: DataFrame, *columns: str) -> DataFrame:
    """How many there are of each, and when the oldest and the newest was enqueued; most first."""
    grouped = _of_owners(failed).groupBy("entity", *columns).agg(*_measures())
    by_time = "hour" in columns
    return grouped.orderBy("entity", *columns) if by_time else grouped.orderBy(F.desc("messages"), "entity", *columns)


def errors(failed: DataFrame) -> DataFrame:
    """By the description of the error, where numbers and identifiers count as the same; with one as an example."""
    error = F.col("dead_letter_error_description")
    grouped = (
        _of_owners(failed)
        .groupBy("entity", "dead_letter_reason", shape(error).alias("error"))
        .agg(*_measures(), F.min(error).alias("example"))
    )
    return grouped.orderBy(F.desc("messages"), "entity", "dead_letter_reason", "error")


def shape(text: Column) -> Column:
    """A sentence without what is different in each: `order 17 of 3 lines` is `order # of # lines`."""
    for pattern in _IDENTIFIERS:
        text = F.regexp_replace(text, pattern, "#")
    return text


def some_of_each(failed: DataFrame, most: int) -> DataFrame:
    """The newest of each entity and reason, with the beginning of the body if that is text."""
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
    """The messages for which the SQL condition holds; `entity` in it is the queue or subscription itself."""
    owned = _of_owners(failed)
    return owned if where is None else owned.where(where)


def chosen(failed: DataFrame) -> dict[str, set[int]]:
    """The sequence numbers of messages by the entity that they belong to."""
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
