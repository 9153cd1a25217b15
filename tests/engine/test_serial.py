from __future__ import annotations

import pytest

from peeklock.engine.serial import serial_sub


@pytest.mark.parametrize(
    ("left", "right", "distance"),
    [
        (5, 3, 2),
        (3, 5, -2),
        (7, 7, 0),
        (1, 0xFFFFFFFF, 2),
        (0xFFFFFFFF, 1, -2),
        (0x7FFFFFFF, 0, 0x7FFFFFFF),
        (0x80000000, 0, -0x80000000),
    ],
)
def test_the_distance_of_two_serial_numbers_takes_the_short_way_round(left: int, right: int, distance: int) -> None:
    assert serial_sub(left, right) == distance
