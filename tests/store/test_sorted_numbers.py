"""The sorted numbers of the memory store, compared with a sorted list."""

from __future__ import annotations

import random

import pytest

from peeklock.store.sorted_numbers import SortedNumbers


@pytest.mark.parametrize("ordered", [True, False])
def test_sorted_numbers_are_a_sorted_set(ordered: bool) -> None:
    randomness = random.Random(7)
    numbers = SortedNumbers()
    model = list(range(0, 30_000, 3))
    for number in model if ordered else randomness.sample(model, len(model)):
        numbers.add(number)
    for number in randomness.sample(model, 9_000):
        numbers.remove(number)
        model.remove(number)
    for number in randomness.sample(range(1, 30_000, 3), 500):
        numbers.add(number)
        model.append(number)
    model.sort()
    for _ in range(200):
        after, through = sorted(randomness.sample(range(-5, 30_005), 2))
        assert list(numbers.between(after, through)) == [n for n in model if after < n <= through]
    assert list(numbers.between(-1, None)) == model
    for number in model:
        numbers.remove(number)
    assert not numbers
    numbers.add(5)
    assert list(numbers.between(0, None)) == [5]
