from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from store_harness import Driver

from peeklock.store.disk.store import DiskStore
from peeklock.store.memory import MemoryStore

if TYPE_CHECKING:
    from postgres_server import Server

    from peeklock.store.postgres.engine import Engine


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(lambda call: DiskStore(tmp_path / "data", call))
    yield driver
    driver.store.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A PostgreSQL server for all tests of this process. Each test has a schema of its own in it."""
    # Here: tests of other stores need none of its packages.
    from postgres_server import make_server

    with make_server() as server:
        yield server


@pytest.fixture
def engine(postgres_server: Server) -> Iterator[Engine]:
    """A namespace without entities."""
    from postgres_harness import new_engine

    engine = new_engine(postgres_server)
    yield engine
    postgres_server.query(f"DROP SCHEMA {engine.schema} CASCADE")


@pytest.fixture
def postgres(engine: Engine) -> Iterator[Driver]:
    from postgres_harness import make_store

    driver = Driver(lambda call: make_store(engine, call))
    yield driver
    driver.store.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """An open and empty store; the test runs once for each store."""
    if request.param == "memory":
        store = MemoryStore()
        yield Driver(lambda call: store)
    else:
        yield request.getfixturevalue(request.param)
