"""Rows of messages, as input for tests of the pipelines."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from peeklock.spark.pipelines.capture import SCHEMA as CAPTURED
from peeklock.spark.pipelines.tables import rows_of
from peeklock.spark.rows import SCHEMA

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
_numbers = count(1)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def message(**columns: Any) -> dict[str, Any]:
    """Make a row of a message with its own sequence number and id, enqueued at noon."""
    number = columns.get("sequence_number", next(_numbers))
    return {
        "sequence_number": number,
        "message_id": f"id-{number}",
        "entity": "orders",
        "body": b"{}",
        "enqueued_time": NOON,
        "captured_at": NOON,
        "date": NOON.date(),
        "hour": NOON.hour,
        "schema_version": 1,
        "delivery_count": 0,
        "state": "active",
        "application_properties": {},
        **columns,
    }


def failed(**columns: Any) -> dict[str, Any]:
    """Make a row of a dead-lettered message."""
    columns = {"entity": "orders", "dead_letter_reason": "Bad", **columns}
    return message(**{**columns, "entity": f"{columns['entity']}/$DeadLetterQueue"})


def messages(spark: SparkSession, rows: Iterable[dict[str, Any]]) -> DataFrame:
    """Make a frame with the columns that the connector reads."""
    names = SCHEMA.fieldNames()
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], SCHEMA)


def captured(spark: SparkSession, rows: Iterable[dict[str, Any]]) -> DataFrame:
    """Make a frame with the columns of captured rows."""
    names = CAPTURED.fieldNames()
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], CAPTURED)


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return rows_of(frame)


def columns(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows_of(frame.select(*names))]
