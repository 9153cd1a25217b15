"""The flow report: rates, sizes, latency, deliveries, sessions, duplicates and properties of captured messages.

`measured` reduces a DataFrame with the connector's columns and `captured_at` to the columns of the tables, without the
bodies. Each function over its result makes one table, and `tables` makes all. `page` makes the HTML page.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from peeklock.spark.pipelines.page import Report, render
from peeklock.spark.pipelines.plots import step_for
from peeklock.spark.pipelines.tables import OnStep, Tables, make_tables, persisted, rows_of

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
TOP: Final = 50
"""The most rows for each entity in the tables of sessions, duplicates and properties."""
POINTS: Final = 120
"""The most points of a plot."""
_KEY: Final = ("entity", "sequence_number", "enqueued_time")
"""The identity of a message. Sequence numbers alone start over when an entity is created again."""
_TAKEN: Final = (
    "message_id",
    "session_id",
    "captured_at",
    "delivery_count",
    "application_properties",
)
_ACCURACY: Final = 10_000
"""The accuracy of percentiles: the relative error of a rank is 1 divided by this."""


def tables(captured: DataFrame, top: int = TOP) -> Tables:
    """Make all tables, by name, from the result of `measured`."""
    return {
        "entities": entities(captured),
        "rates": rates(captured),
        "latency": latency(captured),
        "latency_by_minute": latency(captured, F.date_trunc("minute", "captured_at").alias("minute")),
        "sizes": sizes(captured),
        "deliveries": deliveries(captured),
        "sessions": sessions(captured, top),
        "session_skew": session_skew(captured),
        "duplicates": duplicates(captured, top),
        "properties": properties(captured, top),
    }


STEPS: Final = 11
"""How often `publish` calls `on_step`."""


def publish(
    captured: DataFrame,
    folder: str,
    page: Path,
    source: str,
    on_step: OnStep = lambda _: None,
    *,
    small: bool = False,
) -> Report:
    """Write the tables to a folder on any storage that Spark supports, and the page to a local file.

    `small` means that there are few captured messages: see `amounts`.
    """
    with persisted(measured(captured), small=small) as frame:
        rows = make_tables(tables(frame), folder, on_step, small=small)
        every = _step(frame)
        report = Report(
            source=source,
            made_at=datetime.now(UTC),
            tables=rows,
            every=every,
            rates=rows_of(rates(frame, _interval(every))),
            latency=rows_of(latency_of_all(frame, _interval(every))),
        )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render(report), encoding="utf-8")
    on_step("page")
    return report


def measured(captured: DataFrame) -> DataFrame:
    """Make a row for each message: its columns, the size and a hash of its body, and its number of captured `rows`.

    Each message is captured once. If there is a second row of a message, it counts once, and `entities` reports it.
    """
    taken = captured.select(
        *_KEY,
        *_TAKEN,
        F.coalesce(F.octet_length("body"), F.lit(0)).alias("size"),
        F.xxhash64("body").alias("body_hash"),
    )
    firsts = [F.first(name).alias(name) for name in taken.columns if name not in _KEY]
    return taken.groupBy(*_KEY).agg(F.count("*").alias("rows"), *firsts)


def between(
    captured: DataFrame,
    first: datetime | None = None,
    last: datetime | None = None,
    entities: tuple[str, ...] = (),
) -> DataFrame:
    """Select messages enqueued from `first` on and before `last`, and of the entities, if any are given."""
    if first is not None:
        captured = captured.where(F.col("enqueued_time") >= F.lit(first))
    if last is not None:
        captured = captured.where(F.col("enqueued_time") < F.lit(last))
    if entities:
        captured = captured.where(F.lower("entity").isin(*(each.lower() for each in entities)))
    return captured


def entities(captured: DataFrame) -> DataFrame:
    """A row for each entity: amounts and period.

    `repeated_ids` counts messages with the id of an earlier message, `captured_again` rows of messages that have an
    earlier row.
    """
    by_entity = captured.groupBy("entity").agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.min("enqueued_time").alias("first"),
        F.max("enqueued_time").alias("last"),
        F.count_distinct("session_id").alias("sessions"),
        F.max("delivery_count").alias("most_deliveries"),
        (F.count("message_id") - F.count_distinct("message_id")).alias("repeated_ids"),
        (F.sum("rows") - F.count("*")).alias("captured_again"),
    )
    return by_entity.orderBy(F.desc("messages"), "entity")


def rates(captured: DataFrame, every: str = "1 minute") -> DataFrame:
    """Messages and bytes enqueued in each minute, or another span."""
    window = F.window("enqueued_time", every).getField("start").alias("minute")
    by_minute = captured.groupBy("entity", window).agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.avg("size").alias("mean_size"),
        F.max("size").alias("largest"),
    )
    return by_minute.orderBy("entity", "minute")


def latency(captured: DataFrame, *by: Column) -> DataFrame:
    """Seconds from enqueued to captured. They can be negative if a clock is behind; this is not corrected."""
    waited = F.unix_micros("captured_at") - F.unix_micros("enqueued_time")
    known = captured.where(waited.isNotNull())
    grouped = known.groupBy("entity", *by).agg(F.count("*").alias("messages"), *_spread(waited / 1e6, "seconds"))
    return grouped.orderBy(*grouped.columns[: 1 + len(by)])


def latency_of_all(captured: DataFrame, every: str) -> DataFrame:
    """The latency over all entities, for each span of captured time."""
    window = F.window("captured_at", every).getField("start").alias("minute")
    return latency(captured.withColumn("entity", F.lit("")), window)


def sizes(captured: DataFrame) -> DataFrame:
    """Sizes of the bodies in bytes."""
    return (
        captured.groupBy("entity")
        .agg(F.count("*").alias("messages"), *_spread(F.col("size"), "bytes"))
        .orderBy("entity")
    )


def deliveries(captured: DataFrame) -> DataFrame:
    """The number and share of messages by their number of earlier deliveries."""
    counted = captured.groupBy("entity", "delivery_count").agg(F.count("*").alias("messages"))
    return _with_share(counted).orderBy("entity", "delivery_count")


def sessions(captured: DataFrame, top: int = TOP) -> DataFrame:
    """The largest sessions, their share of the entity's messages, and the period of each."""
    counted = (
        captured.where("session_id IS NOT NULL")
        .groupBy("entity", "session_id")
        .agg(
            F.count("*").alias("messages"),
            F.sum("size").alias("bytes"),
            F.min("enqueued_time").alias("first"),
            F.max("enqueued_time").alias("last"),
        )
    )
    return _first(_with_share(counted), top, "messages", "session_id")


def session_skew(captured: DataFrame) -> DataFrame:
    """The skew of session sizes: `skew` is the largest divided by the mean, 1 if all have the same size."""
    counted = captured.where("session_id IS NOT NULL").groupBy("entity", "session_id").agg(F.count("*").alias("each"))
    total, largest = F.sum("each"), F.max("each")
    return (
        counted.groupBy("entity")
        .agg(
            F.count("*").alias("sessions"),
            total.alias("messages"),
            F.avg("each").alias("mean"),
            F.median("each").alias("median"),
            largest.alias("largest"),
            (largest / F.avg("each")).alias("skew"),
            (largest / total).alias("largest_share"),
        )
        .orderBy("entity")
    )


def duplicates(captured: DataFrame, top: int = TOP) -> DataFrame:
    """Message ids that an entity received more than once; `alike` if all had the same body."""
    counted = (
        captured.where("message_id IS NOT NULL")
        .groupBy("entity", "message_id")
        .agg(
            F.count("*").alias("times"),
            (F.count_distinct("body_hash") <= 1).alias("alike"),
            F.min("enqueued_time").alias("first"),
            F.max("enqueued_time").alias("last"),
        )
        .where("times > 1")
    )
    return _first(counted, top, "times", "message_id")


def properties(captured: DataFrame, top: int = TOP) -> DataFrame:
    """The application properties that are on most messages, with their number of values and most frequent value."""
    named = captured.select("entity", F.explode("application_properties").alias("name", "value"))
    by_value = named.groupBy("entity", "name", "value").agg(F.count("*").alias("with_it"))
    known = F.when(F.col("value").isNotNull(), F.struct("with_it", "value"))
    counted = by_value.groupBy("entity", "name").agg(
        F.sum("with_it").alias("messages"), F.count("value").alias("values"), F.max(known).alias("most")
    )
    of_entity = captured.groupBy("entity").agg(F.count("*").alias("of"))
    shared = counted.join(F.broadcast(of_entity), "entity").select(
        "entity",
        "name",
        "messages",
        (F.col("messages") / F.col("of")).alias("share"),
        "values",
        F.col("most.value").alias("most_frequent"),
        (F.col("most.with_it") / F.col("messages")).alias("most_frequent_share"),
    )
    return _first(shared, top, "messages", "name")


def _step(captured: DataFrame) -> timedelta:
    """The span of one point of a plot, chosen so that there are at most `POINTS`."""
    ends = captured.agg(
        F.min("enqueued_time").alias("first"), F.max(F.greatest("enqueued_time", "captured_at")).alias("last")
    )
    ((first, last),) = (row.values() for row in rows_of(ends))
    return step_for(last - first if first and last else timedelta(), POINTS)


def _interval(every: timedelta) -> str:
    return f"{int(every.total_seconds())} seconds"


def _spread(value: Column, unit: str) -> list[Column]:
    quantiles = [
        F.percentile_approx(value, share, _ACCURACY).alias(f"{name}_{unit}") for name, share in PERCENTILES.items()
    ]
    return [F.min(value).alias(f"least_{unit}"), *quantiles, F.max(value).alias(f"most_{unit}")]


def _with_share(counted: DataFrame) -> DataFrame:
    of_entity = counted.groupBy("entity").agg(F.sum("messages").alias("of"))
    return (
        counted.join(F.broadcast(of_entity), "entity").withColumn("share", F.col("messages") / F.col("of")).drop("of")
    )


def _first(counted: DataFrame, top: int, by: str, name: str) -> DataFrame:
    """The rows of each entity with the highest values."""
    ranked = counted.withColumn("rank", F.row_number().over(Window.partitionBy("entity").orderBy(F.desc(by), name)))
    return ranked.where(F.col("rank") <= top).drop("rank").orderBy("entity", F.desc(by), name)
