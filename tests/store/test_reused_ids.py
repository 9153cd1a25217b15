"""A new entity with the id of a dropped one has nothing of its predecessor; tested with every store.

On disk, rows of a dropped entity are deleted later, and after a crash the log is applied again.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from store_harness import Driver, body, entity, finish_purging, message, query

from peeklock.store.base import DEFERRED, SCHEDULED, Changes, Counters, StoredEntity, StoredMessage
from peeklock.store.disk.index import index as index_module
from peeklock.store.disk.index.compaction import Compaction
from peeklock.store.disk.index.connections import connect_writer
from peeklock.store.disk.index.pages import write_sums
from peeklock.store.disk.index.writer import Writer
from peeklock.store.disk.store import DiskStore

MANY = 2500
"""More than are deleted at a time."""


def fill(driver: Driver, id: int, count: int = MANY, first: int = 1) -> None:
    """Messages in all states, session states and history, with the same keys whenever it is called."""
    states = {
        0: {"state": DEFERRED},
        1: {"state": SCHEDULED, "due_at": 5},
        2: {"expires_at": 5},
        3: {"session_id": "s"},
    }
    appends = [
        (id, message(n, b"old %d" % n, **states.get(n % 5, {"body": body(n)}))) for n in range(first, first + count)
    ]
    driver.commit(
        Changes(
            appends=appends,
            session_states=[(id, f"s{n}", b"old", 5) for n in range(count)],
            seen=[(id, bytes(16), n) for n in range(count)],
        )
    )


def is_empty(driver: Driver, id: int) -> bool:
    return not (
        driver.read(id, state=None)
        or driver.sessions(id)
        or driver.session_counts(id)
        or driver.state(id, "s1")
        or driver.seen(id)
        or driver.expired(id, 10) != ([], None)
        or driver.due(id, 10) != ([], None)
    )


def counters(entities: list[StoredEntity], id: int) -> Counters:
    return next(each.counters for each in entities if each.id == id)


def unpurged(folder: Path) -> list[tuple[int]]:
    return query(folder / "data" / "peeklock.db", "SELECT id FROM dropped_entity")


@pytest.fixture
def never_purged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index does not come to deleting what dropped entities leave behind."""
    monkeypatch.setattr(Writer, "needs_purge", property(lambda self: False))


def test_an_entity_with_the_id_of_a_dropped_one_is_empty(driver: Driver) -> None:
    driver.create(1, 2)
    for _ in range(3):
        fill(driver, 1)
        driver.commit(Changes(dropped_entities=[1]))
        driver.commit(Changes(entities={1: entity(1, path="successor")}))
        assert is_empty(driver, 1)
        driver.append(1, message(1, b"new"))
        assert [each.payload for each in driver.read(1, state=None)] == [b"new"]
        found = driver.reopen()
        assert counters(found, 1) == Counters(1, 1, 0, 0, 3)
        assert [each.path for each in found if each.id == 1] == ["successor"]
        assert [each.payload for each in driver.read(1, state=None)] == [b"new"]
        driver.commit(Changes(removals=[(1, message(1, b"new"))]))
        driver.commit(Changes(dropped_entities=[1]))
        driver.create(1)
    assert driver.bodies == 0


@pytest.mark.interpreted
@pytest.mark.usefixtures("never_purged")
def test_data_of_a_dropped_entity_is_deleted_before_a_new_entity_has_its_id(sqlite: Driver, tmp_path: Path) -> None:
    sqlite.create(1, 2)
    fill(sqlite, 1)
    sqlite.append(2, message(1, b"other", body=body(4)))
    sqlite.commit(Changes(dropped_entities=[1]))
    sqlite.reopen()
    assert unpurged(tmp_path) == [(1,)]
    sqlite.create(1)
    assert is_empty(sqlite, 1)
    assert unpurged(tmp_path) == []
    assert query(tmp_path / "data" / "peeklock.db", "SELECT key FROM body") == [(4,)], "another message has it"
    assert sqlite.read(2)[0].content == b"other and body 4"


def test_a_new_entity_may_come_with_messages_whose_numbers_its_predecessor_had(driver: Driver) -> None:
    driver.create(1)
    fill(driver, 1)
    driver.commit(Changes(dropped_entities=[1]))
    appends: list[tuple[int, StoredMessage]] = [(1, message(n, b"new")) for n in range(1, 20)]
    driver.commit(Changes(entities={1: entity(1)}, appends=[*appends, (1, message(20, b"new", body=body(1 << 50)))]))
    assert driver.numbers(1, state=None) == list(range(1, 21))
    assert {each.payload for each in driver.read(1, state=None)} == {b"new"}
    driver.reopen()
    assert driver.numbers(1, state=None) == list(range(1, 21))


@pytest.mark.interpreted
def test_messages_of_a_long_commit_do_not_come_before_the_entity_they_are_for(
    sqlite: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_PIECE_ROWS", 9)
    sqlite.create(1)
    fill(sqlite, 1)
    sqlite.commit(Changes(dropped_entities=[1]))
    appends = [(1, message(n, b"new")) for n in range(1, 100)]
    sqlite.commit(Changes(entities={1: entity(1)}, appends=appends))
    assert sqlite.numbers(1, state=None) == list(range(1, 100))


def test_drops_and_creations_that_wait_together_are_applied_in_their_order(driver: Driver) -> None:
    driver.create(1, 2)
    answers: list[object] = []
    for turn in range(5):
        for changes in (
            Changes(appends=[(1, message(n, b"turn %d" % turn, body=body(turn * 10 + n))) for n in range(1, 4)]),
            Changes(seen=[(1, bytes(16), turn)], session_states=[(1, "s", b"%d" % turn, 5)]),
            Changes(removals=[(1, message(1, b"turn %d" % turn, body=body(turn * 10 + 1)))]),
            Changes(appends=[(2, message(turn + 1))]),
            Changes(dropped_entities=[1]),
            Changes(entities={1: entity(1)}),
        ):
            driver.store.commit(changes, answers.append)
    driver.store.commit(Changes(appends=[(1, message(1, b"last"))]), answers.append)
    driver.wait(answers, 31)
    assert set(answers) == {None}
    for _ in range(2):
        assert [each.payload for each in driver.read(1, state=None)] == [b"last"]
        assert (driver.seen(1), driver.state(1, "s")) == ([], None)
        assert driver.numbers(2) == [1, 2, 3, 4, 5]
        assert counters(driver.reopen(), 1) == Counters(1, 1, 0, 0, 4)
    assert driver.bodies == 0


def test_the_log_applied_again_after_a_crash_gives_the_same(
    sqlite: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index goes back to what it was at some moment, before or after rows were deleted."""
    monkeypatch.setattr(Compaction, "_free", lambda self, candidates: None)  # the log stays whole
    folder = tmp_path / "data"
    copies: list[Path] = []

    def keep() -> None:
        """The index as it is now, as a crash may leave it; the log stays."""
        sqlite.store.close()
        copies.append(tmp_path / f"index-{len(copies)}")
        shutil.copy(folder / "peeklock.db", copies[-1])
        sqlite.reopen()

    keep()
    sqlite.create(1, 2, 3)
    for turn in range(3):
        keep()
        fill(sqlite, 1, 1200)
        keep()
        sqlite.commit(Changes(dropped_entities=[1]))
        keep()
        if turn == 1:
            sqlite.store.close()
            finish_purging(folder / "peeklock.db")
            sqlite.reopen()
            keep()
        sqlite.create(1)
        keep()
        sqlite.append(1, *(message(n, b"turn %d" % turn) for n in (1, 2, 3)))
        sqlite.commit(Changes(session_states=[(1, "s1", b"turn %d" % turn, 5)], seen=[(1, bytes(16), 7)]))
        keep()
        if turn < 2:
            sqlite.commit(Changes(dropped_entities=[1]))
            sqlite.create(1)
    sqlite.store.close()
    for copy in copies:
        again = tmp_path / f"again-{copy.name}"
        shutil.copytree(folder, again)
        for leftover in again.glob("peeklock.db*"):
            leftover.unlink()
        shutil.copy(copy, again / "peeklock.db")
        write_sums(again / "peeklock.db")
        driver = Driver(partial(_open, again))
        assert [each.payload for each in driver.read(1, state=None)] == [b"turn 2"] * 3
        assert (driver.sessions(1), driver.state(1, "s1")) == (["s1"], b"turn 2")
        assert driver.seen(1) == [(bytes(16), 7)]
        assert counters(driver.entities, 1) == Counters(3, 3, 0, 0, 18)
        assert driver.bodies == 0
        driver.store.close()


def _open(folder: Path, call: object) -> DiskStore:
    return DiskStore(folder, call)  # type: ignore[arg-type]


def test_deleting_in_the_background_never_touches_an_entity_that_is_there(tmp_path: Path) -> None:
    """Also when the writer does not know that a transaction was made, since its commit was said to have failed."""
    driver = Driver(partial(_open, tmp_path / "data"))
    driver.create(1)
    fill(driver, 1, 10)
    driver.commit(Changes(dropped_entities=[1]))
    driver.store.close()
    file = tmp_path / "data" / "peeklock.db"
    behind = Writer(connect_writer(file), file)  # has seen the drop, and not what follows
    other = connect_writer(file)
    other.execute("DELETE FROM dropped_entity")
    other.execute("DELETE FROM message")
    other.execute("INSERT INTO entity VALUES (1, 'successor', 'queue', 1, 1, 0, 0, 0, 0, 3, '{}')")
    other.execute("INSERT INTO message (key, segment, place, enqueued_at) VALUES (1 << 44 | 1, 1, 1, 5)")
    other.close()
    while behind.needs_purge:
        behind.purge()
    behind.close()
    assert query(file, "SELECT count(*) FROM message") == [(1,)]
