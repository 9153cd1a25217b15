"""Only the present epoch commits, and a commit whose outcome is in doubt is made exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from postgres_harness import make_store, new_engine, query, take_over
from postgres_proxy import proxy_to
from postgres_server import SECONDS, Server, make_server, wait_until
from psycopg.conninfo import make_conninfo
from store_harness import Driver, entity, message

from peeklock.store.base import Changes, StoreError
from peeklock.store.postgres.engine import Engine, connect
from peeklock.store.postgres.failures import CommitsLost, Fenced, OutcomeUnknown
from peeklock.store.postgres.store import PostgresStore


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server that tests stop and kill."""
    with make_server() as server:
        yield server


def store_of(driver: Driver) -> PostgresStore:
    assert isinstance(driver.store, PostgresStore)
    return driver.store


def outcomes(driver: Driver) -> tuple[int, int]:
    """Return how many commits in doubt were found done, and how many were repeated."""
    found = store_of(driver).figures().outcomes
    return found.done, found.repeated


def submit(driver: Driver, *changes: Changes) -> list[StoreError | None]:
    answers: list[StoreError | None] = []
    for each in changes:
        driver.store.commit(each, answers.append)
    return answers


@contextmanager
def held_fence(engine: Engine) -> Iterator[Any]:
    """Hold the row of the fence locked, so that a commit waits."""
    with connect(engine, "test") as connection, connection.transaction():
        connection.execute("SELECT * FROM fence FOR UPDATE")
        yield connection


def writer_pids(engine: Engine, *, waiting: bool = False) -> list[int]:
    condition = "AND wait_event_type = 'Lock'" if waiting else ""
    rows = query(
        engine,
        f"SELECT pid FROM pg_stat_activity WHERE application_name ~ %s {condition}",
        f"^{engine.prefix}[0-9]+/write",
    )
    return [pid for (pid,) in rows]


def test_a_store_with_an_old_epoch_commits_nothing(engine: Engine) -> None:
    reported: list[StoreError] = []
    driver = Driver(lambda call: make_store(engine, call, reported.append))
    driver.create(1)
    query(engine, "UPDATE fence SET epoch = epoch + 1")
    error = driver.try_commit(Changes(appends=[(1, message(1))]))
    assert isinstance(error, Fenced)
    assert "epoch 1" in str(error)
    assert isinstance(driver.try_commit(Changes(appends=[(1, message(2))])), Fenced)
    driver.store.close()
    assert len(reported) == 1
    assert query(engine, "SELECT count(*) FROM message") == [(0,)]


def test_a_store_with_an_old_epoch_reads_nothing(engine: Engine) -> None:
    reported: list[StoreError] = []
    driver = Driver(lambda call: make_store(engine, call, reported.append))
    driver.create(1)
    query(engine, "UPDATE fence SET epoch = epoch + 1")
    with pytest.raises(Fenced):
        driver.read(1)
    driver.store.close()
    assert len(reported) == 1


def test_a_store_is_not_opened_with_an_epoch_that_is_over(engine: Engine) -> None:
    old = take_over(engine)
    take_over(engine)
    store = PostgresStore(engine, old, lambda call: None)
    with pytest.raises(Fenced):
        store.open()
    assert store._threads == []
    wait_until(lambda: writer_pids(engine) == [], "the session ends")


def test_a_store_that_is_taken_over_cannot_undo_the_work_of_its_successor(engine: Engine) -> None:
    reported: list[StoreError] = []
    first = Driver(lambda call: make_store(engine, call, reported.append))
    first.create(1)
    first.append(1, message(1))
    second = Driver(lambda call: make_store(engine, call))
    second.append(1, message(2))
    answers = submit(first, Changes(removals=[(1, message(2))]))
    first.wait(reported)
    assert isinstance(reported[0], Fenced)
    assert None not in answers
    assert second.numbers(1) == [1, 2]
    for each in first, second:
        each.store.close()


def test_a_commit_whose_session_is_terminated_before_it_is_made_is_repeated(postgres: Driver, engine: Engine) -> None:
    postgres.create(1)
    with held_fence(engine):
        answers = submit(postgres, Changes(appends=[(1, message(1))]))
        wait_until(lambda: writer_pids(engine, waiting=True), "the commit waits")
        (pid,) = writer_pids(engine)
        query(engine, "SELECT pg_terminate_backend(%s::integer)", pid)
        wait_until(lambda: writer_pids(engine, waiting=True) not in ([], [pid]), "the store resolves the outcome")
        assert answers == []
    postgres.wait(answers)
    assert answers == [None]
    assert outcomes(postgres) == (0, 1)
    assert postgres.numbers(1) == [1]
    assert postgres.reopen()[0].counters.active == 1


def test_a_commit_whose_answer_is_lost_is_not_made_again(engine: Engine, postgres_server: Server) -> None:
    with proxy_to(postgres_server.port) as proxy:
        through = replace(engine, url=make_conninfo(engine.url, port=proxy.port))
        driver = Driver(lambda call: make_store(through, call))
        driver.create(1)
        for number in range(1, 4):
            proxy.mute()
            answers = submit(driver, Changes(appends=[(1, message(number))]))
            wait_until(lambda number=number: query(engine, "SELECT count(*) FROM message") == [(number,)], "it is made")
            assert answers == []
            proxy.cut()
            driver.wait(answers)
            assert answers == [None]
        assert outcomes(driver) == (3, 0)
        assert driver.numbers(1) == [1, 2, 3]
        assert driver.reopen()[0].counters.active == 3
        driver.store.close()


def test_commits_go_on_when_their_sessions_are_terminated_again_and_again(postgres: Driver, engine: Engine) -> None:
    postgres.create(1)
    answers: list[StoreError | None] = []
    number = 0
    for _ in range(12):
        for _ in range(50):
            number += 1
            postgres.store.commit(Changes(appends=[(1, message(number, b"1"))]), answers.append)
        query(
            engine,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ %s",
            f"^{engine.prefix}[0-9]+/(write|read)",
        )
    postgres.wait(answers, number)
    assert set(answers) == {None}
    assert postgres.numbers(1) == list(range(1, number + 1))
    (counters,) = [each.counters for each in postgres.reopen()]
    assert (counters.active, counters.size_in_bytes) == (number, number)


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_restart_of_the_server_loses_no_commit_and_makes_none_twice(own_server: Server, how: str) -> None:
    engine = new_engine(own_server)
    driver = Driver(lambda call: make_store(engine, call))
    driver.create(1)
    answers: list[StoreError | None] = []
    number = 0
    for _ in range(3):
        for _ in range(200):
            number += 1
            appends = [(1, message(number, b"1"))]
            removals = [(1, message(number - 5, b"1"))] if number > 5 else []
            driver.store.commit(Changes(appends=appends, removals=removals), answers.append)
        driver.wait(answers, number - 150)
        if how == "kill":
            own_server.kill()
        else:
            own_server.stop()
        own_server.start()
    driver.wait(answers, number)
    assert set(answers) == {None}
    assert driver.numbers(1) == list(range(number - 4, number + 1))
    (counters,) = [each.counters for each in driver.reopen()]
    assert (counters.last_sequence_number, counters.active, counters.size_in_bytes) == (number, 5, 5)
    driver.store.close()


def test_reads_and_commits_wait_while_the_server_is_down(own_server: Server) -> None:
    engine = new_engine(own_server)
    driver = Driver(lambda call: make_store(engine, call))
    driver.create(1)
    driver.append(1, message(1))
    own_server.stop()
    answers = submit(driver, Changes(appends=[(1, message(2))]))
    found: list[Any] = []
    driver.store.read_numbers(1, [1], 1000, found.append)
    own_server.start()
    driver.wait(answers)
    driver.wait(found)
    assert answers == [None]
    assert [each.sequence_number for each in found[0]] == [1]
    driver.store.close()


def test_a_server_that_lost_acknowledged_commits_stops_the_store(engine: Engine) -> None:
    reported: list[StoreError] = []
    driver = Driver(lambda call: make_store(engine, call, reported.append))
    driver.create(1)
    driver.append(1, message(1))
    query(engine, "UPDATE fence SET last_commit = last_commit - 1")
    error = driver.try_commit(Changes(appends=[(1, message(2))]))
    assert isinstance(error, CommitsLost)
    assert "lost acknowledged commits" in str(error)
    assert query(engine, "SELECT count(*) FROM message") == [(1,)]
    driver.store.close()
    assert reported == [error]


def test_a_read_is_not_answered_by_a_server_without_the_acknowledged_commits(engine: Engine) -> None:
    """As after a failover, when the connection for reads is still to the old primary."""
    driver = Driver(lambda call: make_store(engine, call))
    driver.create(1)
    driver.append(1, message(1))
    query(engine, "UPDATE fence SET last_commit = last_commit - 1")
    found: list[Any] = []
    before = store_of(driver).figures().connections
    driver.store.read_numbers(1, [1], 1000, found.append)
    wait_until(lambda: store_of(driver).figures().connections >= before + 2, "the reader connects again")
    assert found == []
    query(engine, "UPDATE fence SET last_commit = last_commit + 1")
    driver.wait(found)
    assert [each.sequence_number for each in found[0]] == [1]
    driver.store.close()


def test_a_take_over_while_a_commit_is_in_doubt_gives_it_no_answer_until_the_store_is_closed(engine: Engine) -> None:
    reported: list[StoreError] = []
    driver = Driver(lambda call: make_store(engine, call, reported.append))
    driver.create(1)
    with held_fence(engine) as holder:
        answers = submit(driver, Changes(appends=[(1, message(1))]))
        wait_until(lambda: writer_pids(engine, waiting=True), "the commit waits")
        (pid,) = writer_pids(engine)
        query(engine, "SELECT pg_terminate_backend(%s::integer)", pid)
        wait_until(lambda: writer_pids(engine, waiting=True) not in ([], [pid]), "the store resolves the outcome")
        holder.execute("UPDATE fence SET epoch = epoch + 1")
    driver.wait(reported)
    assert isinstance(reported[0], Fenced)
    assert answers == []
    answers += submit(driver, Changes(appends=[(1, message(2))]))
    driver.store.close()
    assert isinstance(answers[0], OutcomeUnknown)


def test_a_store_is_closed_although_the_server_does_not_answer(engine: Engine, postgres_server: Server) -> None:
    with proxy_to(postgres_server.port) as proxy:
        through = replace(engine, url=make_conninfo(engine.url, port=proxy.port, connect_timeout=2))
        driver = Driver(lambda call: make_store(through, call, close_seconds=0.3))
        driver.create(1)
        proxy.block()
        answers = submit(driver, *(Changes(appends=[(1, message(number))]) for number in range(1, 4)))
        found: list[Any] = []
        driver.store.read_numbers(1, [1], 1000, found.append)
        threads = list(store_of(driver)._threads)
        driver.store.close()
        assert [isinstance(each, StoreError) for each in [*answers, *found]] == [True] * 4
        assert isinstance(answers[0], OutcomeUnknown)
        assert not any(each.is_alive() for each in threads)


def test_close_leaves_no_thread_and_no_session(postgres: Driver, engine: Engine) -> None:
    postgres.create(1)
    postgres.commit(Changes(entities={2: entity(2)}, appends=[(2, message(1))]))
    threads = list(store_of(postgres)._threads)
    assert [each.name for each in threads] == [f"peeklock-store-{name}" for name in ("writer", "reader", "vacuum")]
    postgres.store.close()
    assert not any(each.is_alive() for each in threads)
    named = "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ %s"
    pattern = f"^{engine.prefix}[0-9]+/(write|read|vacuum)"
    wait_until(lambda: query(engine, named, pattern) == [(0,)], "the sessions end", SECONDS)
