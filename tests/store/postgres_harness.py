"""What tests of the store on PostgreSQL share: namespaces, their leases and stores."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from postgres_server import Server, wait_until
from store_harness import Call

from peeklock.store.base import Store, StoreError
from peeklock.store.postgres import lease
from peeklock.store.postgres.engine import Engine, connect
from peeklock.store.postgres.schema import create
from peeklock.store.postgres.store import PostgresStore

_numbers = count(1)


def new_engine(server: Server, **options: Any) -> Engine:
    """Return a namespace with a new schema."""
    engine = Engine(**({"url": server.url, "schema": f"test_{next(_numbers)}", "replication": "none"} | options))
    with connect(engine, "test") as connection:
        create(connection, engine)
    return engine


def take_over(engine: Engine, owner: str = "node") -> int:
    """Take over the lease from its owner, and return the new epoch."""
    with connect(engine, "test") as connection:
        epoch = lease.take_over(connection, engine, lease.read(connection, engine), owner, "127.0.0.1:5671")
        assert epoch is not None
        return epoch


def make_store(
    engine: Engine, call: Call, on_fatal: Callable[[StoreError], None] | None = None, **options: Any
) -> PostgresStore:
    return PostgresStore(engine, take_over(engine), call, on_fatal, **options)


def query(engine: Engine, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    with connect(engine, "test") as connection:
        cursor = connection.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def wait_until_purged(engine: Engine) -> None:
    wait_until(lambda: query(engine, "SELECT count(*) FROM dropped_entity") == [(0,)], "dropped entities are purged")


def count_bodies(store: Store) -> int:
    assert isinstance(store, PostgresStore)
    wait_until_purged(store._engine)
    ((bodies,),) = query(store._engine, "SELECT count(*) FROM body")
    return int(bodies)
