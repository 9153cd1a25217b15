"""Filters that Spark hands down make a read smaller, and never fail it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

try:
    from pyspark.sql.datasource import (
        EqualNullSafe,
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
        Not,
    )
except ImportError:
    pytest.skip("left out: Spark hands filters down from 4.1 on", allow_module_level=True)

from peeklock.spark.narrowing import Bounds, narrow, pushes_filters
from peeklock.spark.option_values import MAX_NUMBER
from peeklock.spark.options import Options

NUMBER, TIME = ("sequence_number",), ("enqueued_time",)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_893_499_200_000


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([EqualTo(NUMBER, 5)], Bounds(5, 5)),
        ([GreaterThan(NUMBER, 5), LessThan(NUMBER, 9)], Bounds(6, 8)),
        ([GreaterThanOrEqual(NUMBER, 5), LessThanOrEqual(NUMBER, 9)], Bounds(5, 9)),
        ([In(NUMBER, (9, 5, 7))], Bounds(5, 9)),
        ([GreaterThan(NUMBER, 5), GreaterThan(NUMBER, 3)], Bounds(6)),
        ([EqualTo(NUMBER, 5), EqualTo(NUMBER, 6)], Bounds(6, 5)),
        ([GreaterThan(TIME, NOON)], Bounds(earliest_ms=NOON_MS)),
        ([EqualTo(TIME, NOON)], Bounds(earliest_ms=NOON_MS, latest_ms=NOON_MS)),
        ([LessThan(TIME, NOON), LessThanOrEqual(TIME, NOON + timedelta(1))], Bounds(latest_ms=NOON_MS)),
        ([GreaterThanOrEqual(TIME, NOON.astimezone(timezone(timedelta(hours=5))))], Bounds(earliest_ms=NOON_MS)),
        ([In(TIME, (NOON, NOON + timedelta(milliseconds=1)))], Bounds(earliest_ms=NOON_MS, latest_ms=NOON_MS + 1)),
    ],
)
def test_filters_on_number_and_time_narrow(filters: list[Any], bounds: Bounds) -> None:
    assert narrow(Bounds(), filters) == bounds


@pytest.mark.parametrize(
    "other",
    [
        Not(EqualTo(NUMBER, 5)),
        IsNotNull(NUMBER),
        EqualNullSafe(NUMBER, None),
        EqualTo(NUMBER, None),
        EqualTo(("delivery_count",), 5),
        EqualTo(("application_properties", "sequence_number"), 5),
        In(NUMBER, ()),
        In(NUMBER, (1, None)),
        GreaterThan(TIME, "text"),
    ],
)
def test_other_filters_are_left_to_spark(other: Any) -> None:
    assert narrow(Bounds(), [other]) == Bounds()


def test_filters_do_not_widen_the_range_of_the_options() -> None:
    given = {"connectionString": "amqp://h", "queue": "q", "startingSequenceNumber": "5", "endingSequenceNumber": "9"}
    bounds = Bounds.of(Options.parse(given, use="read"))
    assert bounds == Bounds(5, 9)
    assert narrow(bounds, [GreaterThan(NUMBER, 1), LessThan(NUMBER, 100)]) == bounds
    assert narrow(bounds, [GreaterThan(NUMBER, 20)]).is_empty
    assert Bounds().last == MAX_NUMBER


def test_no_filters_are_expected_where_spark_did_not_come_to_push_them() -> None:
    assert not pushes_filters()
