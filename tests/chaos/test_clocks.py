"""The bounds of the broker's clock include everything possible, and are not wider than necessary."""

from __future__ import annotations

import pytest

from tools.chaos.clocks import BrokerClock
from tools.chaos.history import ClockSet

AHEAD = ClockSet(start=100, end=110, offset=1000)
BACK = ClockSet(start=200, end=210, offset=-1000)


@pytest.mark.parametrize(
    ("start", "end", "earliest", "latest"),
    [
        (10, 20, 10, 20),
        (120, 130, 1120, 1130),
        (220, 230, -780, -770),
        (90, 105, 90, 1105),  # while it is set, both offsets are possible
        (105, 120, 105, 1120),
        (10, 220, -800, 1210),
        (205, 206, -795, 1206),
    ],
)
def test_the_clock_is_known_between_two_moments(start: float, end: float, earliest: float, latest: float) -> None:
    clock = BrokerClock([BACK, AHEAD])
    assert clock.earliest(start, end) == earliest
    assert clock.latest(start, end) == latest


@pytest.mark.parametrize(("end", "highest"), [(50, 50), (150, 1150), (300, 1210), (5000, 4000)])
def test_the_latest_time_shown_so_far_is_kept(end: float, highest: float) -> None:
    assert BrokerClock([AHEAD, BACK]).highest_until(end) == highest


def test_a_clock_that_was_never_set_equals_the_runs_clock() -> None:
    assert BrokerClock().earliest(1, 2) == 1
    assert BrokerClock().latest(1, 2) == 2
