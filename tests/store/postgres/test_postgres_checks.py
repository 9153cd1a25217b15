"""The checks before a node uses a server, and the creation of the tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from postgres_harness import make_store, new_engine, query
from postgres_server import Server, make_server
from psycopg import Connection
from psycopg.conninfo import make_conninfo
from store_harness import Driver

from peeklock.store.base import StoreError
from peeklock.store.postgres import checks
from peeklock.store.postgres.engine import Engine, connect
from peeklock.store.postgres.schema import TABLES, VERSION, create
from peeklock.store.postgres.store import PostgresStore


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection[Any]]:
    with connect(engine, "test") as connection:
        yield connection


def test_a_server_that_fits_is_accepted_with_a_warning_about_fsync(engine: Engine) -> None:
    (warning,) = checks.check_engine(engine)
    assert "fsync" in warning


def test_an_old_server_is_refused_by_its_version() -> None:
    old: Any = SimpleNamespace(info=SimpleNamespace(server_version=130_014))
    with pytest.raises(StoreError, match=r"PostgreSQL 13.* requires 14"):
        checks.check_version(old)


def test_a_server_without_a_synchronous_standby_is_refused_unless_that_is_chosen(engine: Engine) -> None:
    with pytest.raises(StoreError, match="synchronous_standby_names"):
        checks.check_engine(replace(engine, replication="require"))
    for replication in "external", "none":
        checks.check_engine(replace(engine, replication=replication))


def test_a_read_only_server_is_refused(connection: Connection[Any], engine: Engine) -> None:
    connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(StoreError, match="read-only"):
        checks.check_writable(connection)
    read_only = make_conninfo(engine.url, options="-c default_transaction_read_only=on")
    with pytest.raises(StoreError, match="cannot be reached"):
        checks.check_engine(replace(engine, url=read_only))


def test_a_server_that_cannot_be_reached_is_refused_without_its_password(engine: Engine) -> None:
    url = make_conninfo(engine.url, host="127.0.0.1", port=1, password="secret")
    with pytest.raises(StoreError, match="cannot be reached") as raised:
        checks.check_engine(replace(engine, url=url))
    assert "secret" not in str(raised.value)


def test_a_pooler_that_shares_sessions_is_refused(connection: Connection[Any], engine: Engine) -> None:
    with pytest.raises(StoreError, match="session pooling"):
        checks.check_pooling(connection, connection)
    with connect(engine, "test") as second:
        checks.check_pooling(connection, second)


def test_clocks_that_differ_are_warned_about(connection: Connection[Any]) -> None:
    assert checks.check_clock(connection) is None
    for difference in -3600, 3600:
        warning = checks.check_clock(connection, lambda difference=difference: time.time() + difference)
        assert "differ by 3" in str(warning)


@pytest.mark.parametrize("schema", ["", "1st", "Upper", 'quo"te', "a" * 41, "a-b"])
def test_a_schema_with_another_name_is_refused(schema: str) -> None:
    with pytest.raises(ValueError, match="schema"):
        Engine(url="", schema=schema)


def test_tables_are_created_once(engine: Engine, connection: Connection[Any]) -> None:
    assert create(connection, engine) is False
    connection.execute("SET search_path = ''")
    assert create(connection, engine) is False
    found = {
        name
        for (name,) in query(engine, "SELECT relname FROM pg_stat_user_tables WHERE schemaname = %s", engine.schema)
    }
    assert found == {*TABLES, "version"}


def test_nodes_that_create_the_tables_at_the_same_time_do_not_disturb_each_other(postgres_server: Server) -> None:
    for turn in range(3):
        engine = Engine(url=postgres_server.url, schema=f"raced_{turn}", replication="none")
        created: list[bool] = []
        barrier = Barrier(4)

        def race(engine: Engine = engine, created: list[bool] = created, barrier: Barrier = barrier) -> None:
            with connect(engine, "test") as connection:
                barrier.wait()
                created.append(create(connection, engine))

        threads = [Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(created) == [False, False, False, True]


def test_tables_of_another_version_are_refused(engine: Engine) -> None:
    query(engine, "UPDATE version SET version = %s, least = %s", VERSION + 2, VERSION + 1)
    with pytest.raises(StoreError, match=f"version {VERSION + 2}"):
        Driver(lambda call: make_store(engine, call))
    query(engine, "UPDATE version SET version = %s, least = %s", VERSION + 2, VERSION)
    Driver(lambda call: make_store(engine, call)).store.close()
    query(engine, "UPDATE version SET version = %s, least = %s", VERSION - 1, VERSION - 1)
    with pytest.raises(StoreError, match=f"requires version {VERSION}"):
        Driver(lambda call: make_store(engine, call))


def test_a_schema_without_tables_is_refused(postgres_server: Server) -> None:
    engine = Engine(url=postgres_server.url, schema="nothing", replication="none")
    with pytest.raises(StoreError, match="store init"):
        PostgresStore(engine, 1, lambda call: None).open()


def test_commits_are_synchronous_although_the_role_has_them_off() -> None:
    with make_server({"synchronous_commit": "off"}) as server:
        engine = new_engine(server)
        assert query(engine, "SHOW synchronous_commit") == [("on",)]
