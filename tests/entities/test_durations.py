"""Spans of time as text: to the microsecond and back. Those of settings are tested with the definitions."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.entities.durations import format_time, parse_time

LONGEST = timedelta(days=10_000_000)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("PT0S", timedelta()),
        ("PT1M30S", timedelta(seconds=90)),
        ("P1DT0.000001S", timedelta(days=1, microseconds=1)),
        ("-PT1.5S", -timedelta(seconds=1.5)),
        ("-P1D", -timedelta(days=1)),
    ],
)
def test_a_span_is_written_and_read(text: str, time: timedelta) -> None:
    assert format_time(time) == text
    assert parse_time(text) == time


def test_digits_finer_than_a_microsecond_are_cut_off() -> None:
    assert parse_time("PT1.2345678S") == timedelta(seconds=1, microseconds=234567)


@given(st.timedeltas(min_value=-LONGEST, max_value=LONGEST))
def test_a_written_duration_is_read_unchanged(time: timedelta) -> None:
    assert parse_time(format_time(time)) == time


@pytest.mark.parametrize("text", ["", "-", "--PT1S", "PT", "1.5", "PT1.S", "P1.5D"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text)
