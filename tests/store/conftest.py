from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_harness import Driver

from peeklock.store.disk.store import DiskStore
from peeklock.store.memory import MemoryStore


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(lambda call: DiskStore(tmp_path / "data", call))
    yield driver
    driver.store.close()


@pytest.fixture(params=["memory", "sqlite"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """An open and empty store; the test runs once for each store."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite")
    else:
        store = MemoryStore()
        yield Driver(lambda call: store)
