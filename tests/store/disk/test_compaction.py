"""Compaction of the log: disk space is freed, no needed message is lost, and few messages do not keep many segments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from store_children import start
from store_harness import Driver, as_dict, body, damage, message

from peeklock.store.base import Body, Changes, StoredMessage
from peeklock.store.disk.index import compaction as index_compaction
from peeklock.store.disk.index.writer import Writer
from peeklock.store.disk.log import segments
from peeklock.store.disk.store import DiskStore

pytestmark = pytest.mark.interpreted

SMALL = {
    (segments, "SMALLEST"): 16 * 1024,
    (segments, "LARGEST"): 64 * 1024,
    (index_compaction, "_MOVED_ROWS"): 4,
    (index_compaction, "_MOVED_BYTES"): 8 * 1024,
}
ROOM = 8 * SMALL[segments, "LARGEST"]
"""The most that a log with few messages may occupy: compaction allows some waste, and is still at work in some
segments."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for (module, name), value in SMALL.items():
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Driver]:
    driver = opened(tmp_path)
    driver.create(1, 2)
    yield driver
    driver.store.close()


def opened(folder: Path) -> Driver:
    return Driver(lambda call: DiskStore(folder, call))


def logs(folder: Path) -> dict[str, int]:
    """Return the sizes of the segments by name."""
    found = {}
    for file in folder.glob("log-*"):
        with suppress(FileNotFoundError):  # freed just now
            found[file.name] = file.stat().st_size
    return found


def until(driver: Driver, condition: Callable[[], bool]) -> None:
    """Commit and remove messages until the condition is true: compaction continues with each commit."""
    first = 100_001
    for _ in range(400):
        if condition():
            return
        pass_through(driver, range(first, first + 100))
        first += 100
    raise AssertionError("no segment was freed")


def filled(number: int, shared: Body | None = None) -> StoredMessage:
    return message(number, b"%d " % number * 200, body=shared)


def pass_through(driver: Driver, numbers: range, *, leave: int = 0) -> list[StoredMessage]:
    """Commit and remove these messages, but leave one out of every `leave`. Return the remaining messages."""
    left = []
    for first in range(numbers.start, numbers.stop, 20):
        messages = [filled(number) for number in range(first, min(first + 20, numbers.stop))]
        driver.append(1, *messages)
        stays = [each for each in messages if leave and each.sequence_number % leave == 0]
        left += stays
        driver.numbers(1, limit=1)  # the index has them, before they go
        driver.commit(Changes(removals=[(1, each) for each in messages if each not in stays]))
    return left


def assert_has(driver: Driver, id: int, wanted: list[StoredMessage]) -> None:
    found = driver.read(id, limit=100_000, state=None)
    assert [as_dict(each) for each in found] == [as_dict(each) for each in wanted]


def test_segments_without_messages_are_freed(store: Driver, tmp_path: Path) -> None:
    messages = [filled(number) for number in range(1, 1001)]
    for at in range(0, 1000, 20):
        store.append(1, *messages[at : at + 20])
    before = logs(tmp_path)
    assert sum(before.values()) > 700_000
    store.commit(Changes(removals=[(1, each) for each in messages]))
    until(store, lambda: before.keys().isdisjoint(logs(tmp_path)))
    assert sum(logs(tmp_path).values()) <= ROOM


def test_a_store_that_is_closed_empty_leaves_one_segment_to_go_on_with(store: Driver, tmp_path: Path) -> None:
    pass_through(store, range(1, 401))
    store.store.close()
    assert len(logs(tmp_path)) == 1
    assert sum(logs(tmp_path).values()) < 30_000
    assert store.reopen()[0].counters.last_sequence_number == 400
    store.append(1, filled(401))
    assert_has(store, 1, [filled(401)])


def test_segments_that_dropped_entities_leave_behind_are_freed(store: Driver, tmp_path: Path) -> None:
    store.append(2, *(filled(number, body(number, bytes(100))) for number in range(1, 501)))
    before = logs(tmp_path)
    store.commit(Changes(dropped_entities=[2]))
    until(store, lambda: before.keys().isdisjoint(logs(tmp_path)))
    assert store.numbers(2) == []


def test_a_few_remaining_messages_are_moved_so_that_their_segments_are_freed(store: Driver, tmp_path: Path) -> None:
    left = pass_through(store, range(1, 3001), leave=100)
    assert len(left) == 30
    until(store, lambda: sum(logs(tmp_path).values()) <= ROOM)
    for _ in range(2):
        assert_has(store, 1, left)
        store.reopen()


def test_a_backlog_that_is_mostly_removed_later_is_compacted_then(store: Driver, tmp_path: Path) -> None:
    backlog = [filled(number) for number in range(1, 1201)]
    for at in range(0, 1200, 20):
        store.append(1, *backlog[at : at + 20])
    before = logs(tmp_path)
    pass_through(store, range(1201, 2001))
    assert len(before.keys() & logs(tmp_path).keys()) > 10
    left, gone = backlog[::40], [each for each in backlog if each.sequence_number % 40 != 1]
    store.commit(Changes(removals=[(1, each) for each in gone]))
    until(store, lambda: sum(logs(tmp_path).values()) <= ROOM)
    assert_has(store, 1, left)
    store.reopen()
    assert_has(store, 1, left)


def test_bodies_that_stay_are_moved_too(store: Driver, tmp_path: Path) -> None:
    left = []
    for number in range(1, 801):
        shared = body(number, b"body %d " % number * 100)
        here, there = filled(number, shared), message(number, b"there", body=shared)
        store.commit(Changes(appends=[(1, here), (2, there)]))
        gone = [(1, here)]
        if number % 50:
            gone.append((2, there))
        else:
            left.append(there)
        store.commit(Changes(removals=gone))
    until(store, lambda: sum(logs(tmp_path).values()) <= ROOM)
    for _ in range(2):
        assert_has(store, 1, [])
        assert_has(store, 2, left)
        store.reopen()


@pytest.fixture
def every_segment_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact every segment, however much of it is needed."""
    monkeypatch.setattr(index_compaction, "_SPARSE", 2.0)


@pytest.mark.usefixtures("every_segment_is_emptied")
def test_a_damaged_message_is_reported_and_stays_where_it_is(store: Driver, tmp_path: Path) -> None:
    left = pass_through(store, range(1, 1001), leave=50)
    store.store.close()
    damage(tmp_path, filled(500).payload)
    store.reopen()
    until(store, lambda: bool(store.damages))
    (found,) = store.damages
    assert (found.entity, found.sequence_number) == (1, 500)
    pass_through(store, range(200_000, 200_400))
    assert Path(found.where.split(",")[0]).name in logs(tmp_path)
    assert store.reopen()[0].counters.damaged == 1
    assert_has(store, 1, [each for each in left if each.sequence_number != 500])


@pytest.mark.usefixtures("every_segment_is_emptied")
def test_messages_with_a_damaged_body_are_reported(store: Driver, tmp_path: Path) -> None:
    shared = body(7, b"a body of two messages" * 20)
    store.append(2, *(message(number, body=shared) for number in (5, 6)))
    left = pass_through(store, range(6, 1001), leave=50)
    store.store.close()
    damage(tmp_path, shared.data)
    store.reopen()
    until(store, lambda: len(store.damages) == 2)
    assert sorted((each.entity, each.sequence_number) for each in store.damages) == [(2, 5), (2, 6)]
    assert_has(store, 1, left)
    assert store.numbers(2) == []


def test_a_segment_that_most_messages_still_need_stays(store: Driver, tmp_path: Path) -> None:
    messages = [filled(number) for number in range(1, 301)]
    for first in range(0, 300, 20):  # a commit that is longer than a segment would have one to itself, and half empty
        store.append(1, *messages[first : first + 20])
    some = [each for each in messages if each.sequence_number % 8 == 0]
    store.commit(Changes(removals=[(1, each) for each in some]))
    full = max(logs(tmp_path), key=logs(tmp_path).__getitem__)
    before = (tmp_path / full).stat().st_ino
    pass_through(store, range(301, 1301))
    assert (tmp_path / full).stat().st_ino == before
    assert_has(store, 1, [each for each in messages if each not in some])


def test_the_log_does_not_grow_with_removed_messages(store: Driver, tmp_path: Path) -> None:
    left: list[StoredMessage] = []
    most = 0
    for first in range(1, 12_001, 1000):
        left += pass_through(store, range(first, first + 1000), leave=200)
        while len(left) > 15:  # the oldest go in the end
            store.commit(Changes(removals=[(1, left.pop(0))]))
        most = max(most, sum(logs(tmp_path).values()))
    # 9 MB went through it; what stays is 12 kB.
    until(store, lambda: sum(logs(tmp_path).values()) <= ROOM)
    assert most <= 2 * ROOM
    assert_has(store, 1, left)
    store.reopen()
    assert_has(store, 1, left)


def test_rewritten_messages_free_the_segment_they_were_in(store: Driver, tmp_path: Path) -> None:
    messages = [filled(number) for number in range(1, 101)]
    store.append(1, *messages)
    first = min(logs(tmp_path))
    for each in messages:
        size = each.size
        each.payload, each.state = b"deferred", 1
        store.commit(Changes(rewrites=[(1, each, 0, size)]))
    until(store, lambda: first not in logs(tmp_path))
    assert_has(store, 1, messages)


class Looks:
    """Counts the checks of segments, with a clock that stands still until it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.now = 1000.0
        is_needed = Writer.is_needed

        def counting(writer: Writer, segment: int) -> bool:
            self.count += 1
            return is_needed(writer, segment)

        monkeypatch.setattr(Writer, "is_needed", counting)
        monkeypatch.setattr(index_compaction, "monotonic", lambda: self.now)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def rewrite(driver: Driver, messages: list[StoredMessage]) -> None:
    """Rewrite messages one by one, with a read of the index after each, as a receiver makes."""
    for each in messages:
        size, before = each.size, each.state
        each.payload, each.state = b"deferred", 1
        driver.commit(Changes(rewrites=[(1, each, before, size)]))
        driver.numbered(1, each.sequence_number)


def test_segments_are_not_looked_at_again_and_again_while_nothing_was_filled(
    looks: Looks, store: Driver, tmp_path: Path
) -> None:
    messages = [filled(number) for number in range(1, 301)]
    for at in range(0, 300, 20):
        store.append(1, *messages[at : at + 20])
    rewrite(store, messages[:20])
    newest = max(logs(tmp_path))
    looks.count = 0
    rewrite(store, messages[20:120])
    begun = max(logs(tmp_path)) != newest
    # Each of them once, and again when another was filled. With each commit five would be looked at: five hundred.
    assert looks.count <= (1 + begun) * len(logs(tmp_path))
    before = looks.count
    looks.now += 10.0
    rewrite(store, messages[120:121])
    assert looks.count > before


def test_under_a_steady_load_the_log_is_tidied_without_a_pause(looks: Looks, store: Driver, tmp_path: Path) -> None:
    """The clock stands still, so everything is written within half a second."""
    most = 0
    for first in range(1, 4001, 100):
        pass_through(store, range(first, first + 100))
        most = max(most, sum(logs(tmp_path).values()))
    assert most <= ROOM


@pytest.mark.usefixtures("looks")
def test_segments_that_were_left_for_later_are_freed_when_the_store_is_closed(store: Driver, tmp_path: Path) -> None:
    messages = [filled(number) for number in range(1, 1001)]
    for at in range(0, 1000, 20):
        store.append(1, *messages[at : at + 20])
    assert len(logs(tmp_path)) > 10
    store.commit(Changes(removals=[(1, each) for each in messages]))
    store.numbers(1)
    store.store.close()
    assert len(logs(tmp_path)) == 1


def test_segments_that_were_left_for_later_are_freed_when_nothing_happens_any_more(
    looks: Looks, store: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [filled(number) for number in range(1, 1001)]
    for at in range(0, 1000, 20):
        store.append(1, *messages[at : at + 20])
    store.commit(Changes(removals=[(1, each) for each in messages]))
    store.numbers(1)
    assert len(logs(tmp_path)) > 5

    def passing() -> float:
        looks.now += 0.3
        return looks.now

    monkeypatch.setattr(index_compaction, "monotonic", passing)
    for _ in range(1000):
        if len(logs(tmp_path)) == 1:
            return
        store.numbers(1)  # applies nothing, and wakes the thread
    raise AssertionError("no segment was freed")


def test_a_store_that_dies_while_messages_are_moved_has_them_all(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for deaths in (3, 10, 30):
        child = start(f"move_and_die({str(folder)!r}, {deaths})", "test_compaction")
        child.communicate(timeout=60)
        assert child.returncode == 9
        driver = opened(folder)
        last = driver.entities[0].counters.last_sequence_number
        stay = [filled(number, shared(number)) for number in range(1, last + 1) if number % STAYS == 0]
        found = driver.read(1, limit=100_000)
        assert [as_dict(each) for each in found if each.sequence_number % STAYS == 0] == [
            as_dict(each) for each in stay
        ]
        assert len(found) - len(stay) < 20
        driver.commit(Changes(removals=[(1, each) for each in found if each.sequence_number % STAYS]))
        driver.store.close()


STAYS = 60


def shared(number: int) -> Body | None:
    return body(number, b"body %d " % number * 30) if number % (2 * STAYS) == 0 else None


def move_and_die(folder: str, deaths: int) -> None:
    """In a child process: exit like a kill when the segment with the count `deaths` would be freed."""
    for (module, name), value in SMALL.items():
        setattr(module, name, value)
    unlink, rename, left = os.unlink, os.rename, [deaths]

    def mortal(function: Callable[..., None], path: Path, *others: Path) -> None:
        if path.name.startswith("log-"):
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
        function(path, *others)

    os.unlink = lambda path: mortal(unlink, path)  # type: ignore[assignment]
    os.rename = lambda path, other: mortal(rename, path, other)  # type: ignore[assignment]
    driver = opened(Path(folder))
    if not driver.entities:
        driver.create(1)
    first = driver.entities[0].counters.last_sequence_number + 1 if driver.entities else 1
    while True:
        messages = [filled(number, shared(number)) for number in range(first, first + 19)]
        driver.append(1, *messages)
        driver.numbers(1, limit=1)
        driver.commit(Changes(removals=[(1, each) for each in messages if each.sequence_number % STAYS]))
        first += 19
