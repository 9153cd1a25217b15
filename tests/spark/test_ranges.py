"""Ranges of sequence numbers behave as the sets of numbers that they stand for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.spark import ranges

numbers = st.sets(st.integers(0, 60), max_size=40)


@given(numbers)
def test_ranges_hold_exactly_the_numbers_they_were_made_of(some: set[int]) -> None:
    made = ranges.of_numbers(some)
    assert list(ranges.numbers(made)) == sorted(some)
    assert ranges.count(made) == len(some)
    assert ranges.check(json.loads(json.dumps(made))) == made
    assert {number for number in range(62) if ranges.contains(made, number)} == some


@given(numbers, numbers)
def test_join_and_subtract_are_those_of_sets(some: set[int], others: set[int]) -> None:
    left, right = ranges.of_numbers(some), ranges.of_numbers(others)
    assert ranges.join(left, right) == ranges.of_numbers(some | others)
    assert ranges.subtract(left, right) == ranges.of_numbers(some - others)


def test_a_removed_range_may_span_several_ranges() -> None:
    assert ranges.subtract([[1, 2], [4, 5], [7, 9]], [[2, 4], [8, 20]]) == [[1, 1], [5, 5], [7, 7]]


@given(numbers, st.integers(0, 60), st.integers(0, 60))
def test_intersect_keeps_the_common_numbers(some: set[int], first: int, last: int) -> None:
    kept = ranges.intersect(ranges.of_numbers(some), first, last)
    assert kept == ranges.of_numbers(number for number in some if first <= number <= last)


@given(numbers, st.integers(1, 12))
def test_a_split_shares_all_numbers_out_evenly_and_in_order(some: set[int], parts: int) -> None:
    shares = ranges.split(ranges.of_numbers(some), parts)
    assert [number for share in shares for number in ranges.numbers(share)] == sorted(some)
    assert len(shares) == min(parts, len(some))
    sizes = [ranges.count(share) for share in shares]
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_split_leaves_the_ranges_as_they_were() -> None:
    given_ranges = [[1, 10]]
    ranges.split(given_ranges, 3)
    assert given_ranges == [[1, 10]]


def test_a_million_numbers_are_one_pair() -> None:
    assert ranges.of_numbers(range(1, 1_000_001)) == [[1, 1_000_000]]


@given(numbers, st.integers(1, 10))
def test_chunks_are_full_but_for_the_last(some: set[int], size: int) -> None:
    chunks = list(ranges.chunks(ranges.of_numbers(some), size))
    assert [number for chunk in chunks for number in chunk] == sorted(some)
    assert all(len(chunk) == size for chunk in chunks[:-1])


@pytest.mark.parametrize("wrong", [[[2, 1]], [[1, 2], [3, 4]], [[5, 6], [1, 2]], [[1]], ["ab"], 5, [[1, 3], [2, 4]]])
def test_invalid_ranges_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="ranges of sequence numbers"):
        ranges.check(wrong)
