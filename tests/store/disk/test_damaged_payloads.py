"""Messages whose bytes are damaged on disk are never delivered and are reported once; all others are not affected."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from store_harness import Driver, body, damage, message

from peeklock.store.base import ACTIVE, DEFERRED, SCHEDULED, Changes, Counters, Range, StoreError
from peeklock.store.disk.store import DiskStore


def open_store(folder: Path) -> Driver:
    return Driver(lambda call: DiskStore(folder, call))


@pytest.fixture
def store(tmp_path: Path) -> Driver:
    """With messages 1 to 5, of which the third is damaged."""
    driver = open_store(tmp_path)
    driver.create(1, 2)
    driver.append(1, *(message(number, b"payload number %d" % number) for number in range(1, 6)))
    driver.store.close()
    damage(tmp_path, b"payload number 3")
    return open_store(tmp_path)


def test_a_damaged_message_is_left_out_and_those_around_it_are_read(store: Driver) -> None:
    assert store.numbers(1) == [1, 2, 4, 5]
    (found,) = store.damages
    assert (found.entity, found.sequence_number, found.state, found.session_id) == (1, 3, ACTIVE, None)
    assert "log-0000000001, offset " in found.where
    assert store.numbers(1, state=None) == [1, 2, 4, 5]
    assert store.numbered(1, 2, 3, 4) == [2, 4]


def test_a_damaged_message_is_reported_once_and_known_after_a_restart(store: Driver) -> None:
    for _ in range(3):
        store.numbers(1)
    assert len(store.damages) == 1
    counters = Counters(last_sequence_number=5, active=4, size_in_bytes=5 * 16, damaged=1)
    assert store.reopen()[0].counters == counters
    assert store.numbers(1) == [1, 2, 4, 5]
    assert len(store.damages) == 1


def test_a_page_is_filled_with_the_messages_after_a_damaged_one(store: Driver) -> None:
    """A page that is not full says that there are no more messages."""
    page = store.ask(partial(store.store.read, Range(entity=1, through=9, limit=3, max_bytes=1000)))
    assert [each.sequence_number for each in page] == [1, 2, 4]
    page = store.ask(partial(store.store.read, Range(entity=1, after=2, through=9, limit=10, max_bytes=1)))
    assert [each.sequence_number for each in page] == [4]


@pytest.mark.parametrize("state", [ACTIVE, DEFERRED, SCHEDULED])
def test_damage_is_counted_off_the_state_that_the_message_was_in(tmp_path: Path, state: int) -> None:
    store = open_store(tmp_path)
    store.create(1)
    store.append(1, message(1, b"damaged", state=state, expires_at=50, due_at=60, session_id="s", delivery_count=3))
    store.store.close()
    damage(tmp_path, b"damaged")
    store = open_store(tmp_path)
    assert store.numbered(1, 1) == []
    assert [each.state for each in store.damages] == [state]
    assert store.reopen()[0].counters == Counters(last_sequence_number=1, size_in_bytes=7, damaged=1)
    assert store.expired(1, 100) == ([], None)
    assert store.due(1, 100) == ([], None)
    assert store.session_counts(1) == []


def test_all_messages_that_share_a_damaged_body_are_damaged(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.create(1, 2)
    shared = body(7, b"shared bytes" * 50)
    store.commit(
        Changes(appends=[(1, message(1, body=shared)), (2, message(1, body=shared)), (2, message(2, body=body(8)))])
    )
    store.store.close()
    damage(tmp_path, b"shared bytes" * 50)
    store = open_store(tmp_path)
    assert store.numbers(1) == []
    assert store.numbers(2) == [2]
    assert [(each.entity, each.sequence_number) for each in store.damages] == [(1, 1), (2, 1)]


def test_a_damaged_message_goes_with_its_entity(store: Driver, tmp_path: Path) -> None:
    store.numbers(1)
    store.commit(Changes(dropped_entities=[1]))
    assert [each.id for each in store.reopen()] == [2]


def test_an_acknowledged_record_that_is_not_in_the_index_is_damage_and_not_a_torn_tail(tmp_path: Path) -> None:
    """The index is what it was before the message: only the log has it."""
    store = open_store(tmp_path)
    store.create(1)
    store.store.close()
    index = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if name.startswith("peeklock")}
    store = open_store(tmp_path)
    store.append(1, message(1, b"acknowledged"))
    store.append(1, message(2, b"another"))
    store.store.close()
    for name, content in index.items():
        (tmp_path / name).write_bytes(content)
    log = tmp_path / "log-0000000001"
    whole = log.read_bytes()
    start = whole.rindex(b"another") - 8 - 20  # in the head of its record
    log.write_bytes(whole[:start] + bytes([whole[start] ^ 1]) + whole[start + 1 :])
    before = {file: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")}
    with pytest.raises(StoreError, match=r"log-0000000001 is damaged: at offset \d+ .* commit 3, which was ack"):
        open_store(tmp_path)
    after = {file: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")}
    del before[tmp_path / "lock"], after[tmp_path / "lock"]
    assert {file: data for file, data in after.items() if data} == {file: data for file, data in before.items() if data}
    log.write_bytes(whole)
    assert open_store(tmp_path).numbers(1) == [1, 2]


@pytest.mark.parametrize("how", ["missing", "cut short", "zeros", "an earlier copy"])
def test_a_segment_that_the_index_needs_is_checked_at_the_start(tmp_path: Path, how: str) -> None:
    store = open_store(tmp_path)
    store.create(1)
    store.append(1, *(message(number, bytes(10_000)) for number in range(1, 21)))
    store.store.close()
    log = tmp_path / "log-0000000001"
    earlier = log.read_bytes()
    store = open_store(tmp_path)
    store.append(1, *(message(number, bytes(300_000)) for number in range(21, 41)))
    store.append(1, *(message(number, bytes(300_000)) for number in range(41, 61)))
    store.store.close()
    last = max(tmp_path.glob("log-*"))
    assert last != log
    damaged = last if how == "an earlier copy" else log
    if how == "missing":
        damaged.unlink()
    elif how == "cut short":
        os.truncate(damaged, 150_000)
    elif how == "zeros":
        damaged.write_bytes(earlier[:64] + bytes(len(earlier) - 64))
    else:
        damaged.write_bytes(damaged.read_bytes()[:64] + bytes(damaged.stat().st_size - 64))
    with pytest.raises(StoreError, match=rf"{damaged.name} (is missing|is damaged, or was copied at another time)"):
        open_store(tmp_path)


@pytest.mark.parametrize(
    "later", [("peeklock.db-wal",), ("peeklock.db",), ("peeklock.sums",), ("peeklock.db-wal", "peeklock.sums")]
)
def test_files_of_the_index_that_were_copied_at_different_times_are_refused(
    tmp_path: Path, later: tuple[str, ...]
) -> None:
    """As a backup by a program that copies one file after the other, while the broker works, may have them."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    driver = open_store(data)
    driver.create(1)
    driver.append(1, *(message(number) for number in range(1, 200)))
    driver.numbers(1)  # has the index know it
    shutil.copytree(data, copy)
    for times in range(1, 4):
        driver.store.close()  # makes a checkpoint
        driver = open_store(data)
        driver.append(1, *(message(number) for number in range(200 * times, 200 * times + 150)))
        driver.numbers(1)
    for name in later:
        shutil.copy(data / name, copy / name)
    for segment in data.glob("log-*"):
        shutil.copy(segment, copy / segment.name)
    with pytest.raises(StoreError, match=r"peeklock\.(db|sums|db-wal) "):
        open_store(copy)
    driver.store.close()
