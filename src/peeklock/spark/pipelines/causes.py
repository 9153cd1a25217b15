"""Likely causes of dead-lettering: properties that differ between dead-lettered messages and other messages.

A fact is a property of a message: the value of a field, of an application property or of a top-level member of a JSON
body, or the rough size of the body. For each group of failed messages every fact is counted among them and among the
others. The score is the difference of the two shares: 1 if all failed messages have it and none of the others, 0 if
both have it equally often. No model or weight is involved, so each line of the result can be checked by hand. A high
score is a hint, not a proof.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from peeklock.amqp.service_bus import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from peeklock.entities.names import SUBSCRIPTIONS
from peeklock.spark.options import SUB_QUEUES
from peeklock.spark.property_maps import CLAIM_PROPERTY

FIELDS: Final = (
    "subject",
    "content_type",
    "session_id",
    "partition_key",
    "correlation_id",
    "reply_to",
    "reply_to_session_id",
    "to",
)
FIELD, PROPERTY, BODY, SIZE = "field", "property", "body", "size"
VALUE, PRESENT, MISSING, ANY = "value", "present", "missing", "any"
"""Kinds of statement on a name: it has this value, any value, no value; and the fact that every message has."""
_HAS_FAILED: Final = "has_failed"
GROUP: Final = ("sent_to", "entity", "dead_letter_reason")
_ARROW_SCHEMA: Final = pa.schema(
    {
        "entity": pa.string(),
        "dead_letter_reason": pa.string(),
        "rank": pa.int32(),
        "kind": pa.string(),
        "name": pa.string(),
        "says": pa.string(),
        "value": pa.string(),
        "score": pa.float64(),
        "failed_with": pa.int64(),
        "failed": pa.int64(),
        "others_with": pa.int64(),
        "others": pa.int64(),
        "failed_share": pa.float64(),
        "others_share": pa.float64(),
        "lift": pa.float64(),
    }
)
"""The likely causes. `lift` is the ratio of the two shares; null if no other message has the fact."""

FEWEST: Final = 3
"""The fewest messages in a group, and in the others: fewer show no pattern."""
LEAST_SCORE: Final = 0.1
LONGEST_VALUE: Final = 200
LARGEST_BODY: Final = 64 * 1024
"""Larger bodies are not parsed."""
_NOT_A_CAUSE: Final = (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION, CLAIM_PROPERTY)
"""Properties that were added when the message was dead-lettered or claimed."""
_SIZES: Final = (("1 KiB", 1 << 10), ("16 KiB", 1 << 14), ("64 KiB", 1 << 16), ("256 KiB", 1 << 18), ("1 MiB", 1 << 20))
_SUBSCRIPTION: Final = f"(?i)/{SUBSCRIPTIONS}/.*$"
_SUB_QUEUE: Final = f"(?i)({'|'.join(map(re.escape, SUB_QUEUES.values()))})$"


def owner(entity: Column) -> Column:
    """The queue or subscription of a dead-letter queue; for any other entity the entity itself."""
    return F.regexp_replace(entity, _SUB_QUEUE, "")


def sent_to(entity: Column) -> Column:
    """The queue or topic that the messages of an entity were sent to, in lower case, as names are case-insensitive."""
    return F.lower(F.regexp_replace(owner(entity), _SUBSCRIPTION, ""))


def text_of(body: Column, largest: int = LARGEST_BODY) -> Column:
    """The body as text; null if it is not UTF-8, or larger than `largest`."""
    text = body.cast("string")
    return F.when((F.octet_length(body) <= largest) & F.is_valid_utf8(text), text)


def facts(frame: DataFrame, *keep: str) -> DataFrame:
    """Make a row for each fact of each message: `kind`, `name`, `says`, `value`, and the columns to keep."""
    fields = F.array(*(_fact(F.lit(FIELD), F.lit(name), F.col(name)) for name in FIELDS))
    properties = F.filter(F.map_entries("application_properties"), lambda each: ~each["key"].isin(*_NOT_A_CAUSE))
    members = F.map_entries(F.from_json(text_of(F.col("body")), "map<string,string>"))
    found = F.concat(
        fields,
        _facts_of(PROPERTY, properties),
        _facts_of(BODY, members),
        F.array(_fact(F.lit(SIZE), F.lit("body"), _size(F.octet_length("body")))),
    )
    values = F.filter(F.array_distinct(found), lambda each: each["value"].isNotNull())
    nothing = F.lit(None).cast("string")
    names = F.array_distinct(F.transform(values, lambda each: _statement(each["kind"], each["name"], PRESENT, nothing)))
    every = F.array(_statement(F.lit(""), F.lit(""), ANY, nothing))
    exact = F.transform(values, lambda each: _statement(each["kind"], each["name"], VALUE, each["value"]))
    statements = F.concat(exact, names, every)
    return frame.select(*keep, F.explode(statements).alias("fact")).select(*keep, "fact.*")


def successful(others: DataFrame, failed: DataFrame) -> DataFrame:
    """Select other messages that were sent to the same queues and topics as failed messages, and did not fail.

    Another subscription of a topic can hold messages that failed in this one; they are left out by message id.
    """
    places = failed.select(sent_to(F.col("entity")).alias("sent_to")).distinct()
    ids = failed.select(sent_to(F.col("entity")).alias("sent_to"), "message_id").distinct()
    placed = others.withColumn("sent_to", sent_to(F.col("entity")))
    kept = placed.join(F.broadcast(places), "sent_to", "left_semi").join(ids, ["sent_to", "message_id"], "left_anti")
    return kept.select(*others.columns)


def likely_causes(failed: DataFrame, others: DataFrame, top: int = 5) -> DataFrame:
    """Find the facts that best separate the failed messages of each entity and reason from other messages.

    The Spark job runs during the call. Failed messages are compared with others of the same queue or topic: see
    `successful`. Spark counts the facts and returns only frequent ones, which are few: at most ten values of a name.
    """
    counted = _counted(_union(failed, others), (_HAS_FAILED, *GROUP))
    rows = _frequent(counted).collect()
    tally = _tallies((row for row in rows if row[_HAS_FAILED]), GROUP)
    others_tally = _tallies((row for row in rows if not row[_HAS_FAILED]), ("sent_to",))
    found = _compared(tally, others_tally, top)
    if not found:
        return failed.sparkSession.createDataFrame([], from_arrow_schema(_ARROW_SCHEMA))
    table = pa.table([list(column) for column in zip(*found, strict=True)], schema=_ARROW_SCHEMA)
    return failed.sparkSession.createDataFrame(table)


def statement(kind: str, name: str, says: str, value: str | None) -> str:
    """Format a fact as text."""
    if kind == SIZE:
        return f"body of {value}"
    what = f"body.{name}" if kind == BODY else name
    return {VALUE: f"{what} = {value}", PRESENT: f"{what} is present", MISSING: f"{what} is missing"}[says]


def _fact(kind: Column, name: Column, value: Column) -> Column:
    text = F.substring(value.cast("string"), 1, LONGEST_VALUE)
    return F.struct(kind.alias("kind"), name.alias("name"), text.alias("value"))


def _facts_of(kind: str, entries: Column) -> Column:
    none = F.array().cast("array<struct<kind:string,name:string,value:string>>")
    return F.coalesce(F.transform(entries, lambda each: _fact(F.lit(kind), each["key"], each["value"])), none)


def _size(octets: Column) -> Column:
    bucket = F.when(octets <= _SIZES[0][1], F.lit(f"up to {_SIZES[0][0]}"))
    for (smaller, _), (larger, most) in pairwise(_SIZES):
        bucket = bucket.when(octets <= most, F.lit(f"{smaller} to {larger}"))
    return bucket.when(octets.isNotNull(), F.lit(f"more than {_SIZES[-1][0]}"))


# --- counting, on Spark


def _statement(kind: Column, name: Column, says: str, value: Column) -> Column:
    return F.struct(kind.alias("kind"), name.alias("name"), F.lit(says).alias("says"), value.alias("value"))


def _counted(frame: DataFrame, group: Sequence[str]) -> DataFrame:
    """Count the messages of each group (`of`), and those that have each fact (`with`)."""
    found = facts(frame, *group).groupBy(*group, "kind", "name", "says", "value").agg(F.count("*").alias("with"))
    total = F.max(F.when(F.col("says") == ANY, F.col("with"))).over(Window.partitionBy(*group))
    return found.withColumn("of", total).where(F.col("of") >= FEWEST)


def _union(failed: DataFrame, others: DataFrame) -> DataFrame:
    """Combine both frames, with a column for which is which, so that one job counts them. Others have no entity."""
    place, nothing = sent_to(F.col("entity")), F.lit(None).cast("string")
    taken = (*FIELDS, "application_properties", "body")
    reason = F.col("dead_letter_reason")
    return failed.select(
        F.lit(True).alias(_HAS_FAILED), place.alias("sent_to"), owner(F.col("entity")).alias("entity"), reason, *taken
    ).unionByName(
        others.select(
            F.lit(False).alias(_HAS_FAILED),
            place.alias("sent_to"),
            nothing.alias("entity"),
            nothing.alias("dead_letter_reason"),
            *taken,
        )
    )


def _frequent(counted: DataFrame) -> DataFrame:
    """Keep frequent facts, and facts of the others that are frequent among the failed messages."""
    # The score is a difference of shares: a fact with a smaller share than the least score cannot reach it.
    frequent, has_failed, is_value = (
        F.col("with") >= F.col("of") * LEAST_SCORE,
        F.col(_HAS_FAILED),
        F.col("says") == VALUE,
    )
    same = Window.partitionBy("sent_to", "kind", "name", "says", "value")
    is_compared = F.max(has_failed & frequent).over(same)
    matters = F.when(has_failed | ~is_value, frequent).otherwise(is_compared)
    # The window sorts its rows, so rows that it cannot change are dropped first.
    known = counted.where(frequent | (~has_failed & is_value))
    return known.withColumn("matters", matters).where("matters").drop("matters")


# --- comparison, in the driver


Fact = tuple[str, str, str, str | None]
"""Kind, name, statement, value."""
Tally = dict[Fact, int]
_ALL: Final[Fact] = ("", "", ANY, None)


def _tallies(rows: Iterable[Row], group: Sequence[str]) -> dict[tuple[str | None, ...], Tally]:
    """The number of messages with each fact, by group."""
    found: dict[tuple[str | None, ...], Tally] = {}
    for row in rows:
        tally = found.setdefault(tuple(row[name] for name in group), {})
        tally[row["kind"], row["name"], row["says"], row["value"]] = row["with"]
    return found


def _compared(
    failed: Mapping[tuple[str | None, ...], Tally], others: Mapping[tuple[str | None, ...], Tally], top: int
) -> list[tuple[Any, ...]]:
    rows = []
    for (place, entity, reason), tally in sorted(failed.items(), key=lambda item: [each or "" for each in item[0][1:]]):
        if (place,) in others:
            best = sorted(_scored(tally, others[place,]), key=lambda cause: cause.order)[:top]
            rows += [(entity, reason, rank, *cause.columns) for rank, cause in enumerate(best, 1)]
    return rows


@dataclass(frozen=True, slots=True)
class _Cause:
    fact: Fact
    failed_with: int
    failed: int
    others_with: int
    others: int

    @property
    def score(self) -> float:
        return self.failed_with / self.failed - self.others_with / self.others

    @property
    def order(self) -> tuple[Any, ...]:
        return (-self.score, -self.failed_with, *(each or "" for each in self.fact))

    @property
    def columns(self) -> tuple[Any, ...]:
        failed_share, others_share = self.failed_with / self.failed, self.others_with / self.others
        lift = failed_share / others_share if others_share else None
        counted = (self.failed_with, self.failed, self.others_with, self.others)
        return (*self.fact, self.score, *counted, failed_share, others_share, lift)


def _scored(failed: Tally, others: Tally) -> Iterator[_Cause]:
    """Score the facts, and leave out a name's presence if one of its values scores about as high."""
    of, of_others = failed[_ALL], others[_ALL]
    best: dict[tuple[str, str], float] = {}
    found: list[_Cause] = []
    for fact, count in failed.items():
        if fact != _ALL:
            found.append(_Cause(fact, count, of, others.get(fact, 0), of_others))
    for (kind, name, says, _), count in others.items():
        if says == PRESENT:
            lack = of - failed.get((kind, name, PRESENT, None), 0)
            found.append(_Cause((kind, name, MISSING, None), lack, of, of_others - count, of_others))
    for cause in found:
        kind, name, says, _ = cause.fact
        if says == VALUE:
            best[kind, name] = max(best.get((kind, name), 0.0), cause.score)
    for cause in found:
        kind, name, says, _ = cause.fact
        least = best.get((kind, name), 0.0) if says == PRESENT else 0.0
        if cause.score >= least + LEAST_SCORE:
            yield cause
