"""Replay: send captured messages to an entity, all or a selection, at once or spread over time.

`chosen` and `outgoing` convert captured rows to the rows to write, `summary` describes them, and `replay` writes them.
The data source converts rows to messages. Messages of a session are sent in their original order.

A replay is at least once: if a task fails, the messages it has sent are sent again. If message ids are kept, an entity
with duplicate detection then stores each message once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F

from peeklock.spark.pipelines.stopping import cancelled_by

Ids = Literal["keep", "new"]
Timing = Literal["at-once", "original"]

SENT: Final = (
    "body",
    "message_id",
    "session_id",
    "partition_key",
    "subject",
    "content_type",
    "correlation_id",
    "reply_to",
    "reply_to_session_id",
    "to",
    "application_properties",
)
"""The columns that are sent. The service sets the others, or they no longer apply, such as the time to live."""
SLICE_S: Final = 1.0
"""Seconds of a slice: messages that are spread over time are sent slice by slice."""
SAMPLES: Final = 5
_SAMPLE_LENGTH: Final = 80
"""The most characters of a body in a sample."""
_ORDER: Final = ("entity", "sequence_number")
_WHEN, _ID, _SLICE = "_when", "_id", "_slice"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INDEX_BITS: Final = 33
"""The low bits of `monotonically_increasing_id`; the number of the partition is above them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A selection of captured messages."""

    where: str | None = None
    """An SQL condition on the captured columns."""
    entity: str | None = None
    """The entity that the messages were captured from."""
    since: datetime | None = None
    """The lowest enqueued time."""
    until: datetime | None = None
    """The first enqueued time that is not selected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The timing of a replay."""

    timing: Timing = "at-once"
    speed: float = 1.0
    """The factor for the original timing: 2 is twice as fast."""
    rate: float | None = None
    """The most messages per second; not with the original timing."""

    @property
    def is_spread(self) -> bool:
        """Whether messages are spread over time."""
        return self.timing == "original" or self.rate is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The amount and period of selected messages."""

    messages: int
    bytes: int
    sessions: int
    first: datetime | None
    last: datetime | None
    entities: Mapping[str, int]
    """The number of messages by entity."""

    def seconds(self, pace: Pace) -> float:
        """The minimum duration of the replay."""
        if pace.rate is not None:
            return self.messages / pace.rate
        if pace.timing == "original" and self.first is not None and self.last is not None:
            return (self.last - self.first).total_seconds() / pace.speed
        return 0.0


OnSent = Callable[[int], None]
"""Called with the number of messages of each part that was sent."""


def chosen(captured: DataFrame, choice: Choice) -> DataFrame:
    """Select captured messages."""
    rows = captured
    if choice.entity is not None:
        rows = rows.where(F.lower("entity") == choice.entity.lower())
    if choice.since is not None:
        rows = rows.where(F.col("enqueued_time") >= F.lit(choice.since))
    if choice.until is not None:
        rows = rows.where(F.col("enqueued_time") < F.lit(choice.until))
    return rows if choice.where is None else rows.where(choice.where)


def outgoing(rows: DataFrame, ids: Ids = "keep") -> DataFrame:
    """Convert captured rows to the columns that the data source writes, and the columns they are ordered by."""
    made = rows.withColumn("application_properties", _typed_properties())
    if ids == "new":  # without an id the data source makes one, the same at every attempt of a task
        made = made.withColumn("message_id", F.lit(None).cast("string"))
    return made.select(*SENT, "enqueued_time", *_ORDER)


def summary(rows: DataFrame) -> Summary:
    """Count messages, bytes and sessions, and find the period of the enqueued times."""
    found = (
        rows.groupBy("entity")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum(F.coalesce(F.octet_length("body"), F.lit(0))).alias("bytes"),
            F.count_distinct("session_id").alias("sessions"),
            F.min(F.unix_micros("enqueued_time")).alias("first"),
            F.max(F.unix_micros("enqueued_time")).alias("last"),
        )
        .orderBy("entity")
        .collect()
    )
    return Summary(
        messages=sum(each.messages for each in found),
        bytes=sum(each.bytes for each in found),
        sessions=sum(each.sessions for each in found),
        first=_moment(min((each["first"] for each in found if each["first"] is not None), default=None)),
        last=_moment(max((each["last"] for each in found if each["last"] is not None), default=None)),
        entities={each.entity: each.messages for each in found},
    )


def samples(rows: DataFrame, most: int = SAMPLES) -> list[dict[str, Any]]:
    """The first messages, with the beginning of their bodies."""
    columns = ("message_id", "session_id", "subject", F.substring("body", 1, 4 * _SAMPLE_LENGTH).alias("body"))
    first = rows.orderBy("enqueued_time", *_ORDER).limit(most)
    found = first.select(*_ORDER, F.unix_micros("enqueued_time").alias("enqueued_time"), *columns).collect()
    return [
        {
            **each.asDict(),
            "enqueued_time": _moment(each.enqueued_time),
            "body": bytes(each.body or b"").decode(errors="replace")[:_SAMPLE_LENGTH],
        }
        for each in found
    ]


def replay(
    messages: DataFrame,
    options: Mapping[str, str],
    pace: Pace,
    *,
    tasks: int,
    on_sent: OnSent | None = None,
    stopping: threading.Event | None = None,
) -> int:
    """Send the rows of `outgoing` to the entity in the options, and return the number known to be sent.

    If the messages are spread over time, one task sends each slice, so that the order of all messages is kept, and not
    only the order within sessions.
    """
    if pace.timing == "original" and pace.rate is not None:
        raise ValueError("a rate cannot be combined with the original timing")
    stop = stopping or threading.Event()
    sent = 0
    with cancelled_by(stop, messages.sparkSession):
        if not pace.is_spread:
            parts: Iterable[DataFrame] = [_by_session(messages, tasks)]
        else:
            parts = _in_time(messages, pace, stop)
        for part in parts:
            if stop.is_set():
                break
            count = _write(part, options)
            sent += count
            if on_sent is not None:
                on_sent(count)
    return sent


def due(
    slices: Iterable[int], is_rate: bool, wait: Callable[[float], bool], clock: Callable[[], float]
) -> Iterator[int]:
    """Yield each slice at its time. Ends early if `wait` returns True.

    With a rate, a late slice delays all later ones, so that the rate is never exceeded. With the original timing, later
    slices catch up.
    """
    begin = clock()
    for number in slices:
        if wait(max(0.0, begin + number * SLICE_S - clock())):
            return
        if is_rate:
            begin = max(begin, clock() - number * SLICE_S)
        yield number


def _by_session(messages: DataFrame, tasks: int) -> DataFrame:
    """Assign each session to one task, in order."""
    if tasks == 1:
        return messages.coalesce(1).sortWithinPartitions(*_ORDER)
    return messages.repartition(tasks, _key()).sortWithinPartitions(*_ORDER)


def _in_time(messages: DataFrame, pace: Pace, stop: threading.Event) -> Iterator[DataFrame]:
    """Yield the messages of each slice at its time."""
    with _sliced(messages, pace) as rows:
        numbers = rows.groupBy(_SLICE).agg(F.count(F.lit(1))).select(_SLICE).orderBy(_SLICE).toLocalIterator()
        for number in due((each[0] for each in numbers), pace.rate is not None, stop.wait, time.monotonic):
            yield rows.where(F.col(_SLICE) == number).coalesce(1).sortWithinPartitions(_WHEN, *_ORDER)


@contextmanager
def _sliced(messages: DataFrame, pace: Pace) -> Iterator[DataFrame]:
    """The messages in order with the number of their slice, persisted, as each slice is selected from them."""
    # The running maximum keeps the order of a session if the service's clock was set back.
    so_far = Window.partitionBy("entity", _key()).orderBy("sequence_number").rowsBetween(Window.unboundedPreceding, 0)
    timed = messages.withColumn(_WHEN, F.max("enqueued_time").over(so_far))
    ordered = timed.orderBy(_WHEN, *_ORDER).withColumn(_ID, F.monotonically_increasing_id())
    persisted = ordered.persist(StorageLevel.MEMORY_AND_DISK)
    sliced: DataFrame | None = None
    try:
        if pace.rate is not None:
            at = _position(persisted) / F.lit(pace.rate)
        else:
            first = persisted.agg(F.min(F.unix_micros(_WHEN))).collect()[0][0]
            at = (F.unix_micros(_WHEN) - F.lit(first)) / F.lit(1_000_000 * pace.speed)
        sliced = persisted.withColumn(_SLICE, F.floor(at / F.lit(SLICE_S))).persist(StorageLevel.MEMORY_AND_DISK)
        yield sliced
    finally:
        persisted.unpersist()
        if sliced is not None:
            sliced.unpersist()


def _position(ordered: DataFrame) -> Column:
    """The number of messages before each: the size of all earlier partitions, and its index in its own."""
    part = F.shiftright(_ID, _INDEX_BITS)
    before, offsets = 0, []
    for each in ordered.groupBy(part.alias("part")).agg(F.count(F.lit(1)).alias("rows")).orderBy("part").collect():
        offsets += [F.lit(each.part), F.lit(before)]
        before += each.rows
    if not offsets:
        return F.lit(0)
    place = F.col(_ID).bitwiseAND(F.lit((1 << _INDEX_BITS) - 1))
    return F.element_at(F.create_map(*offsets), part) + place


def _key() -> Column:
    """The key of messages that stay in order: session, partition key, or else each message alone."""
    return F.coalesce("session_id", "partition_key", F.concat_ws("/", "entity", "sequence_number"))


def _moment(micros: int | None) -> datetime | None:
    """Convert microseconds to an aware datetime; Spark's own are naive."""
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


def _typed_properties() -> Column:
    """The application properties in the form that the data source writes with their types."""
    typed = F.coalesce("typed_properties", F.create_map().cast("map<string,string>"))
    texts = F.coalesce("application_properties", F.create_map().cast("map<string,string>"))
    others = F.map_filter(texts, lambda name, _: ~F.map_contains_key(typed, name))
    as_json = F.transform_values(
        others,
        lambda _, text: F.when(text.isNull(), F.lit('{"null":null}')).otherwise(
            F.to_json(F.struct(text.alias("string")))
        ),
    )
    return F.map_concat(as_json, typed)


def _write(rows: DataFrame, options: Mapping[str, str]) -> int:
    count = Observation()
    (
        rows.observe(count, F.count(F.lit(1)).alias("rows"))
        .select(*SENT)
        .write.format("servicebus")
        .mode("append")
        .options(**{**options, "applicationProperties": "json"})
        .save()
    )
    return int(count.get["rows"])
