"""Finding messages by their numbers: gaps, partitions, times. The entity is a list that answers as a peek does."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp.types import Symbol, Timestamp
from peeklock.client import Message
from peeklock.spark import pages as module
from peeklock.spark import ranges
from peeklock.spark.option_values import MAX_NUMBER
from peeklock.spark.options import Options
from peeklock.spark.pages import PARTITION_BITS, Pages
from peeklock.spark.rows import number_of

OPTIONS = Options.parse({"connectionString": "amqp://localhost", "queue": "q"}, use="read")
SECOND = 1000


class Listed(Pages):
    """Pages over numbers and times that a test gives; counts the peeks."""

    def __init__(self, numbers: Iterable[int], *, ms_each: int = SECOND) -> None:
        super().__init__(OPTIONS)
        self.messages = {
            number: Message(
                message_annotations={
                    Symbol("x-opt-sequence-number"): number,
                    Symbol("x-opt-enqueued-time"): Timestamp(place * ms_each),
                }
            ).encode()
            for place, number in enumerate(sorted(numbers))
        }
        self.peeks = 0

    def peek(self, first: int, most: int = module.PAGE, *, bodies: bool = True) -> list[bytes]:
        assert 0 <= first <= MAX_NUMBER
        self.peeks += 1
        return [payload for number, payload in self.messages.items() if number >= first][:most]


sparse = st.sets(st.integers(0, 3000), max_size=30)


@given(sparse, st.integers(0, 3000))
def test_the_last_number_is_found_with_any_gaps(numbers: set[int], first: int) -> None:
    assert Listed(numbers).last(first) == max((number for number in numbers if number >= first), default=None)


@given(sparse, st.integers(0, 3000), st.integers(0, 3000))
def test_the_last_number_before_another_is_found(numbers: set[int], first: int, most: int) -> None:
    found = Listed(numbers).last(first, most)
    assert found == max((number for number in numbers if first <= number <= most), default=None)


def test_the_very_last_number_can_be_found() -> None:
    assert Listed([1, MAX_NUMBER]).last() == MAX_NUMBER


def test_a_million_messages_take_few_looks() -> None:
    pages = Listed([1, 999_999, 1_000_000])
    assert pages.last() == 1_000_000
    assert pages.peeks < 100


@given(sparse, st.integers(0, 3000), st.integers(0, 3000), st.integers(1, 7))
def test_a_range_is_read_whole_and_nothing_beside_it(numbers: set[int], first: int, last: int, page: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAGE", page)
        pages = list(Listed(numbers).between(first, last))
    assert all(pages)
    assert all(len(each) <= page for each in pages)
    assert [number_of(message) for each in pages for message in each] == sorted(
        number for number in numbers if first <= number <= last
    )


def partitioned(*counts: int) -> list[int]:
    return [(partition << PARTITION_BITS) + number for partition, count in enumerate(counts) for number in range(count)]


def test_each_partition_of_an_entity_is_an_extent_of_its_own() -> None:
    numbers = partitioned(5, 0, 7)
    third = 2 << PARTITION_BITS
    assert Listed(numbers).extents(0, MAX_NUMBER) == [[0, 4], [third, third + 6]]
    assert Listed(numbers).extents(3, third + 1) == [[3, 4], [third, third + 1]]
    assert Listed([]).extents(0, MAX_NUMBER) == []
    assert Listed([MAX_NUMBER]).extents(0, MAX_NUMBER) == [[MAX_NUMBER, MAX_NUMBER]]


@given(st.sets(st.integers(0, 60), min_size=1), st.integers(0, 60))
def test_a_moment_becomes_a_number_with_a_minute_to_spare(numbers: set[int], place_then: int) -> None:
    pages = Listed(numbers, ms_each=20 * SECOND)
    moment_ms = place_then * 20 * SECOND
    ordered = sorted(numbers)
    extent = [ordered[0], ordered[-1]]
    since = [number for place, number in enumerate(ordered) if place >= place_then - 3]
    until = [number for place, number in enumerate(ordered) if place <= place_then + 3]
    first, last = pages.enqueued_from(extent, moment_ms), pages.enqueued_until(extent, moment_ms)
    assert [number for number in ordered if number >= first] == since
    assert [number for number in ordered if number <= last] == until


@given(sparse, st.integers(1, 20))
def test_gaps_are_left_out_and_no_message_with_them(numbers: set[int], slices: int) -> None:
    pages = Listed(numbers)
    kept = pages.without_gaps(pages.extents(0, MAX_NUMBER), slices)
    assert all(ranges.contains(kept, number) for number in numbers)
    assert kept == ranges.check(kept)


def test_a_gap_does_not_leave_tasks_without_work() -> None:
    pages = Listed([1, *range(1_000_000, 1_001_000)])
    kept = pages.without_gaps(pages.extents(0, MAX_NUMBER), 32)
    shares = ranges.split(kept, 4)
    busy = [sum(ranges.contains(share, number) for number in range(1_000_000, 1_001_000)) for share in shares]
    assert sum(busy) == 1000
    assert ranges.count(kept) < 100_000
