"""The contract of `store.base` for the history of duplicate detection, tested with every store."""

from __future__ import annotations

import random

import pytest
from store_harness import Driver, entity, message

from peeklock.store.base import Changes, Counters, StoreError


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


@pytest.fixture
def driver(driver: Driver) -> Driver:
    driver.create(1, 2)
    return driver


def see(driver: Driver, id: int, *times: int) -> None:
    """At each of the times one key, named after it."""
    driver.commit(Changes(seen=[(id, key(at), at) for at in times]))


def times(driver: Driver, id: int, since: int = 0) -> list[int]:
    found = driver.seen(id, since)
    assert all(name == key(at) for name, at in found)
    return sorted(at for _, at in found)


def test_ids_seen_since_a_time_are_known_after_a_restart_too(driver: Driver) -> None:
    see(driver, 1, 10, 30, 20)
    see(driver, 2, 15)
    see(driver, 1, 5, 2**44 - 1)
    for _ in range(2):
        assert times(driver, 1) == [5, 10, 20, 30, 2**44 - 1]
        assert times(driver, 1, since=20) == [20, 30, 2**44 - 1]
        assert times(driver, 1, since=21) == [30, 2**44 - 1]
        assert times(driver, 1, since=-(2**70)) == [5, 10, 20, 30, 2**44 - 1]
        assert times(driver, 1, since=2**44) == times(driver, 1, since=2**70) == []
        assert times(driver, 2) == [15]
        assert times(driver, 3) == []
        driver.reopen()


def test_many_are_seen_at_one_time_and_in_many_commits(driver: Driver) -> None:
    bytes_of = random.Random(8).randbytes
    seen = [(bytes_of(16), at) for at in range(100, 2100) for _ in range(5)]
    random.Random(9).shuffle(seen)
    answers: list[StoreError | None] = []
    for at in range(0, 10_000, 500):
        driver.store.commit(Changes(seen=[(1, *each) for each in seen[at : at + 500]]), answers.append)
    driver.wait(answers, 20)
    assert driver.seen(1) == sorted(seen)
    assert driver.seen(1, 2000) == sorted(each for each in seen if each[1] >= 2000)


def test_keys_are_any_bytes(driver: Driver) -> None:
    keys = [bytes(16), b"\xff" * 16, b"," * 16, b"\0" * 15 + b"a", "ü".encode() * 8]
    driver.commit(Changes(seen=[(1, each, 5) for each in keys]))
    assert driver.seen(1) == sorted((each, 5) for each in keys)


def test_ids_seen_before_a_time_are_forgotten(driver: Driver) -> None:
    for id in 1, 2:
        see(driver, id, *range(10, 1010))
    driver.commit(Changes(forgotten=[(1, 15)]))
    assert times(driver, 1) == list(range(15, 1010))
    driver.commit(Changes(forgotten=[(1, 700), (1, 600), (2, 20)]))
    assert times(driver, 1) == list(range(700, 1010))
    assert times(driver, 2) == list(range(20, 1010))
    see(driver, 1, 2**44 - 1)
    driver.commit(Changes(forgotten=[(1, 2**70), (2, -5), (3, 5)]))
    assert times(driver, 1) == []
    driver.reopen()
    assert times(driver, 2) == list(range(20, 1010))


def test_ids_seen_and_forgotten_in_one_commit_are_forgotten(driver: Driver) -> None:
    driver.commit(Changes(seen=[(1, key(5), 5), (1, key(10), 10)], forgotten=[(1, 10)]))
    assert times(driver, 1) == [10]


def test_commits_that_wait_together_see_and_forget(driver: Driver) -> None:
    answers: list[StoreError | None] = []
    for at in range(1, 101):
        changes = Changes(seen=[(1, key(at), at), (2, key(at), at)], forgotten=[(1, at - 10)])
        driver.store.commit(changes, answers.append)
    driver.wait(answers, 100)
    assert times(driver, 1) == list(range(90, 101))
    assert times(driver, 2) == list(range(1, 101))


def test_dropping_an_entity_removes_its_seen_ids(driver: Driver) -> None:
    see(driver, 1, *range(1, 3000))
    see(driver, 2, 1)
    driver.commit(Changes(dropped_entities=[1], seen=[(1, key(1), 1)]))
    assert times(driver, 1) == []
    driver.reopen()
    assert times(driver, 1) == []
    assert times(driver, 2) == [1]


def test_seen_ids_of_an_unknown_entity_are_not_stored(driver: Driver) -> None:
    see(driver, 9, 5)
    driver.create(9)
    assert times(driver, 9) == []
    driver.commit(Changes(entities={10: entity(10)}, seen=[(10, key(5), 5)]))
    assert times(driver, 10) == [5]


def test_a_refused_commit_does_not_change_seen_ids(driver: Driver) -> None:
    see(driver, 1, 5)
    refused = Changes(appends=[(9, message(1))], seen=[(1, key(6), 6)], forgotten=[(1, 6)])
    assert driver.try_commit(refused) is not None
    assert times(driver, 1) == [5]


@pytest.mark.parametrize("name", [b"", bytes(15), bytes(17)])
def test_a_key_of_another_length_is_refused(driver: Driver, name: bytes) -> None:
    error = driver.try_commit(Changes(appends=[(1, message(1))], seen=[(1, bytes(16), 5), (1, name, 5)]))
    assert f"has {len(name)} bytes" in str(error)
    assert driver.seen(1) == []
    assert driver.numbers(1) == []


@pytest.mark.parametrize("at", [-1, 2**44])
def test_an_invalid_time_is_refused_by_name(driver: Driver, at: int) -> None:
    assert str(at) in str(driver.try_commit(Changes(seen=[(1, bytes(16), at)])))
    assert driver.seen(1) == driver.seen(2) == []


def test_seen_ids_are_not_counted_as_messages(driver: Driver) -> None:
    see(driver, 1, 5)
    assert driver.reopen()[0].counters == Counters()
    assert Changes(seen=[(1, bytes(16), 5)])
    assert Changes(forgotten=[(1, 5)])
