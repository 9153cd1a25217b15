"""Deletion of dropped entities in pieces, and the store's own VACUUM."""

from __future__ import annotations

import pytest
from postgres_harness import make_store, query, wait_until_purged
from postgres_server import wait_until
from store_harness import Driver, body, message

from peeklock.store.base import DEFERRED, Changes, StoreError
from peeklock.store.postgres import vacuum, writer
from peeklock.store.postgres.engine import Engine, connect
from peeklock.store.postgres.measures import measure
from peeklock.store.postgres.store import PostgresStore
from peeklock.store.postgres.writer import Writer

TABLES = ("message", "body", "session", "claim", "history", "dropped_entity")


def fill(driver: Driver, id: int, count: int) -> None:
    driver.commit(
        Changes(
            appends=[(id, message(n, b"old", body=body(n) if n % 3 == 0 else None)) for n in range(1, count + 1)],
            session_states=[(id, f"s{n}", b"old", 5) for n in range(count)],
            seen=[(id, bytes(16), n) for n in range(count)],
            claims={(id, b"claim number one"): b"content"},
        )
    )


def counts(engine: Engine) -> list[int]:
    return [query(engine, f"SELECT count(*) FROM {table}")[0][0] for table in TABLES]


def store_of(driver: Driver) -> PostgresStore:
    assert isinstance(driver.store, PostgresStore)
    return driver.store


def test_a_dropped_entity_is_deleted_in_pieces(
    postgres: Driver, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_PURGE_ROWS", 100)
    postgres.create(1, 2)
    fill(postgres, 1, 1050)
    postgres.append(2, message(1, body=body(3)))
    commits = store_of(postgres).figures().last_commit
    postgres.commit(Changes(dropped_entities=[1]))
    wait_until_purged(engine)
    assert counts(engine) == [1, 1, 0, 0, 0, 0]
    assert store_of(postgres).figures().last_commit > commits + 10
    assert postgres.read(2)[0].content == b"payload 1 and body 3"


def test_commits_go_on_while_a_dropped_entity_is_deleted(
    postgres: Driver, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_PURGE_ROWS", 20)
    postgres.create(1, 2)
    fill(postgres, 1, 2000)
    postgres.commit(Changes(dropped_entities=[1]))
    answers: list[StoreError | None] = []
    for number in range(1, 301):
        postgres.store.commit(Changes(appends=[(2, message(number))]), answers.append)
    postgres.wait(answers, 300)
    assert set(answers) == {None}
    assert postgres.numbers(2) == list(range(1, 301))
    wait_until_purged(engine)
    assert counts(engine) == [300, 0, 0, 0, 0, 0]


def test_a_new_store_deletes_what_another_one_left(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(lambda call: make_store(engine, call))
    driver.create(1, 2)
    fill(driver, 1, 50)
    with monkeypatch.context() as patched:
        patched.setattr(Writer, "purge_timeout", lambda self, is_busy: None)
        driver.commit(Changes(dropped_entities=[1]))
        driver.reopen()
        assert counts(engine) == [50, 16, 50, 1, 50, 1]
        driver.create(1)  # with the rows of its predecessor still there
        assert counts(engine) == [0, 0, 0, 0, 0, 0]
        fill(driver, 1, 50)
        driver.commit(Changes(dropped_entities=[1]))
    driver.reopen()
    wait_until_purged(engine)
    assert counts(engine) == [0, 0, 0, 0, 0, 0]
    driver.store.close()


def test_the_store_vacuums_after_many_removals(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "_LEAST_REMOVED", 1000)
    driver = Driver(lambda call: make_store(engine, call))
    driver.create(1)
    sizes: list[int] = []
    for turn in range(1, 7):
        messages = [message(turn * 2000 + n, bytes(200)) for n in range(2000)]
        driver.append(1, *messages)
        driver.commit(Changes(removals=[(1, each) for each in messages]))
        wait_until(lambda turn=turn: store_of(driver).figures().vacuums >= turn, "the tables are vacuumed")
        sizes.append(query(engine, "SELECT pg_relation_size('message')")[0][0])
    assert sizes[-1] == sizes[1]
    assert store_of(driver).figures().removed_rows < 1000
    driver.store.close()


def test_changed_messages_count_as_removed(postgres: Driver) -> None:
    postgres.create(1)
    postgres.append(1, *(message(n) for n in range(1, 11)))
    postgres.commit(Changes(updates=[(1, message(n, state=DEFERRED), 0) for n in range(1, 6)]))
    postgres.commit(Changes(removals=[(1, message(n)) for n in range(6, 11)]))
    wait_until(lambda: store_of(postgres).figures().removed_rows == 10, "the rows are counted")


def test_a_failed_vacuum_is_repeated(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "_LEAST_REMOVED", 10)
    driver = Driver(lambda call: make_store(engine, call))
    driver.create(1)
    driver.append(1, *(message(n) for n in range(1, 11)))
    with connect(engine, "test") as connection, connection.transaction():
        connection.execute("LOCK TABLE message IN SHARE UPDATE EXCLUSIVE MODE")  # VACUUM waits for it
        driver.commit(Changes(removals=[(1, message(n)) for n in range(1, 11)]))
        waiting = "SELECT pid FROM pg_stat_activity WHERE query ~ '^VACUUM' AND wait_event_type = 'Lock'"
        wait_until(lambda: query(engine, waiting), "VACUUM waits")
        query(engine, f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS found")
    wait_until(lambda: store_of(driver).figures().vacuums, "VACUUM is repeated")
    driver.store.close()


def test_close_cancels_a_vacuum(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "_LEAST_REMOVED", 10)
    driver = Driver(lambda call: make_store(engine, call))
    driver.create(1)
    driver.append(1, *(message(n) for n in range(1, 11)))
    with connect(engine, "test") as connection, connection.transaction():
        connection.execute("LOCK TABLE message IN SHARE UPDATE EXCLUSIVE MODE")
        driver.commit(Changes(removals=[(1, message(n)) for n in range(1, 11)]))
        waiting = "SELECT pid FROM pg_stat_activity WHERE query ~ '^VACUUM' AND wait_event_type = 'Lock'"
        wait_until(lambda: query(engine, waiting), "VACUUM waits")
        driver.store.close()
        assert query(engine, waiting) == []


def test_the_measures_show_dead_rows_and_open_transactions(postgres: Driver, engine: Engine) -> None:
    postgres.create(1)
    with connect(engine, "test") as connection:
        before = measure(connection, engine)
        assert before.synchronous_standbys == 0
        assert before.bytes > 0
        with connect(engine, "test") as other, other.transaction():
            other.execute("SELECT txid_current()")
            for number in range(1, 11):
                postgres.append(1, message(number))
            assert measure(connection, engine).oldest_xmin_age >= 10
