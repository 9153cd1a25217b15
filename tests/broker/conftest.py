"""Fixtures of the broker's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.world import AwaitedStore, FlakyStore

FAILS_ON_PURPOSE = {"test_agenda.py", "test_journal.py", "test_timetable.py", "test_troubled_messages.py"}


@pytest.fixture(autouse=True)
def _nothing_fails_in_silence(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail the test if an exception was logged: the broker logs exceptions of appointments and commit callbacks."""
    yield
    if request.path.name not in FAILS_ON_PURPOSE:
        assert not [record for record in caplog.get_records("call") if record.exc_info]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[AwaitedStore]:
    """Make stores on disk, and close the last one of each at the end of the test."""
    store: AwaitedStore | None = AwaitedStore(tmp_path / "data")
    first = store
    assert first is not None
    yield first
    while store is not None:
        store.close()
        store = store.successor


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest) -> FlakyStore | AwaitedStore:
    """Return a store of each kind in turn."""
    return FlakyStore() if request.param == "memory" else request.getfixturevalue("disk")
