"""Replay: captured messages to an entity again, all or some, at once or spread over time.

`chosen` and `outgoing` make of captured rows those to be written, `summary` says what they are, `replay` writes them.
How rows become messages is the data source's business. Messages of one session are sent in the order they had.

A replay is at least once: what a task had sent when it failed is sent again, with the same id when ids are kept, so an
entity with duplicate detection takes each once.
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
"""What a message takes along. The rest was the service's to fill, or is over: the time to live begins anew."""
SLICE_S: Final = 1.0
"""Messages are sent in slices of that much time, where they are spread over time."""
SAMPLES: Final = 5
_SHORT: Final = 80
"""Characters of a body in a sample."""
_ORDER: Final = ("entity", "sequence_number")
_WHEN, _ID, _SLICE = "_when", "_id", "_slice"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INDEX_BITS: Final = 33
"""`monotonically_increasing_id` has the number of the partition above these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which of the captured messages."""

    where: str | None = None
    """A condition in SQL on the captured columns."""
    entity: str | None = None
    since: datetime | None = None
    """Enqueued then or later."""
    until: datetime | None = None
    """Enqueued before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When they are sent."""

    timing: Timing = "at-once"
    speed: float = 1.0
    """Of the original timing: 2 is twice as fast."""
    rate: float | None = None
    """Messages a second, at most; not together with the original timing."""

    @property
    def is_spread(self) -> bool:
        return self.timing == "original" or self.rate is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What there is to send."""

    messages: int
    bytes: int
    sessions: int
    first: datetime | None
    last: datetime | None
    entities: Mapping[str, int]
    """How many of each."""

    def seconds(self, pace: Pace) -> float:
        """How long sending takes at least."""
        if pace.rate is not None:
            return self.messages / pace.rate
        if pace.timing == "original" and self.first is not None and self.last is not None:
            return (self.last - self.first).total_seconds() / pace.speed
        return 0.0


Told = Callable[[int], None]
"""Called with how many messages were sent, again and again."""


def chosen(captured: DataFrame, choice: Choice) -> DataFrame:
    """The captured messages that are meant."""
    rows = captured
    if choice.entity is not None:
        rows = rows.where(F.lower("entity") == choice.entity.lower())
    if choice.since is not None:
        rows = rows.where(F.col("enqueued_time") >= F.lit(choice.since))
    if choice.until is not None:
        rows = rows.where(F.col("enqueued_time") < F.lit(choice.until))
    return rows if choice.where is None else rows.where(choice.where)


def outgoing(rows: DataFrame, ids: Ids = "keep") -> DataFrame:
    """Captured rows with what the data source writes, and the columns they are ordered by."""
    made = rows.withColumn("application_properties", _typed_properties())
    if ids == "new":  # without one the data source stamps each message, the same at every attempt
        made = made.withColumn("message_id", F.lit(None).cast("string"))
    return made.select(*SENT, "enqueued_time", *_ORDER)


def summary(rows: DataFrame) -> Summary:
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
    """The first ones, with the beginning of their bodies."""
    columns = ("message_id", "session_id", "subject", F.substring("body", 1, 4 * _SHORT).alias("body"))
    first = rows.orderBy("enqueued_time", *_ORDER).limit(most)
    found = first.select(*_ORDER, F.unix_micros("enqueued_time").alias("enqueued_time"), *columns).collect()
    return [
        {
            **each.asDict(),
            "enqueued_time": _moment(each.enqueued_time),
            "body": bytes(each.body or b"").decode(errors="replace")[:_SHORT],
        }
        for each in found
    ]


def replay(
    messages: DataFrame,
    options: Mapping[str, str],
    pace: Pace,
    *,
    tasks: int,
    told: Told | None = None,
    stopping: threading.Event | None = None,
) -> int:
    """Send what `outgoing` made, to the entity in the options of the data source; how many are known to be sent.

    Spread over time one task sends all of a slice, so that the whole order is kept and not only that of sessions.
    """
    if pace.timing == "original" and pace.rate is not None:
        raise ValueError("a rate is for sending at once; the original timing has its own")
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
            if told is not None:
                told(count)
    return sent


def due(
    slices: Iterable[int], is_rate: bool, wait: Callable[[float], bool], clock: Callable[[], float]
) -> Iterator[int]:
    """Each slice when its time has come; ends early when waiting says so.

    With a rate a slice that is late moves all after it, so that there are never more in a second than allowed. The
    original timing catches up instead.
    """
    begin = clock()
    for number in slices:
        if wait(max(0.0, begin + number * SLICE_S - clock())):
            return
        if is_rate:
            begin = max(begin, clock() - number * SLICE_S)
        yield number


def _by_session(messages: DataFrame, tasks: int) -> DataFrame:
    """Each session in one task, in order."""
    if tasks == 1:
        return messages.coalesce(1).sortWithinPartitions(*_ORDER)
    return messages.repartition(tasks, _key()).sortWithinPartitions(*_ORDER)


def _in_time(messages: DataFrame, pace: Pace, stop: threading.Event) -> Iterator[DataFrame]:
    """The messages of one slice after the other, each when it is time."""
    with _sliced(messages, pace) as rows:
        numbers = rows.groupBy(_SLICE).agg(F.count(F.lit(1))).select(_SLICE).orderBy(_SLICE).toLocalIterator()
        for number in due((each[0] for each in numbers), pace.rate is not None, stop.wait, time.monotonic):
            yield rows.where(F.col(_SLICE) == number).coalesce(1).sortWithinPartitions(_WHEN, *_ORDER)


@contextmanager
def _sliced(messages: DataFrame, pace: Pace) -> Iterator[DataFrame]:
    """The messages in order with the number of their slice, kept at hand: each slice is looked up in them."""
    # A clock that was set back must not change the order of a session.
    so_far = Window.partitionBy("entity", _key()).orderBy("sequence_number").rowsBetween(Window.unboundedPreceding, 0)
    timed = messages.withColumn(_WHEN, F.max("enqueued_time").over(so_far))
    ordered = timed.orderBy(_WHEN, *_ORDER).withColumn(_ID, F.monotonically_increasing_id())
    kept = ordered.persist(StorageLevel.MEMORY_AND_DISK)
    sliced: DataFrame | None = None
    try:
        if pace.rate is not None:
            at = _position(kept) / F.lit(pace.rate)
        else:
            first = kept.agg(F.min(F.unix_micros(_WHEN))).collect()[0][0]
            at = (F.unix_micros(_WHEN) - F.lit(first)) / F.lit(1_000_000 * pace.speed)
        sliced = kept.withColumn(_SLICE, F.floor(at / F.lit(SLICE_S))).persist(StorageLevel.MEMORY_AND_DISK)
        yield sliced
    finally:
        kept.unpersist()
        if sliced is not None:
            sliced.unpersist()


def _position(ordered: DataFrame) -> Column:
    """How many come before each: a sum over the parts before its own, and its place in that."""
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
    """What must stay in order; messages of no session have each their own."""
    return F.coalesce("session_id", "partition_key", F.concat_ws("/", "entity", "sequence_number"))


def _moment(micros: int | None) -> datetime | None:
    """Aware of its zone, as Spark's own are not."""
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


def _typed_properties() -> Column:
    """The application properties as the data source takes them with their types."""
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
