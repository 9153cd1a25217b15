"""A commit whose sync fails is told as failed, and is not there after a crash either.

Its bytes may all be in the log by then: what a start would find there must not be what nobody was promised.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from chaos.disk import Disk, Mode
from store_harness import Driver, message

from peeklock.store.base import Changes, StoreError, StoreFull
from peeklock.store.sqlite import SqliteStore

ROOT = Path(__file__).parents[2]


def fail_and_die(folder: str, mode: str) -> None:
    """In a process of its own: commit, have commits fail, and be gone as if killed."""
    disk = Disk(Path(folder))
    disk.install()
    driver = Driver(lambda call: SqliteStore(Path(folder), call))
    driver.create(1)
    driver.append(1, message(1), message(2))
    disk.mode = Mode(mode)
    for number in (3, 4):
        error = driver.try_commit(Changes(appends=[(1, message(number))], removals=[(1, message(number - 2))]))
        assert isinstance(error, StoreError), "the commit should have failed"
        assert isinstance(error, StoreFull) is (mode == Mode.FULL)
    assert driver.numbers(1) == [1, 2]
    print("failed", flush=True)
    os._exit(9)


@pytest.mark.parametrize("mode", [Mode.FAILING, Mode.FULL])
def test_a_commit_that_failed_is_not_there_after_a_crash(tmp_path: Path, mode: Mode) -> None:
    paths = [str(ROOT), str(ROOT / "src"), str(Path(__file__).parent)]
    child = subprocess.run(
        [sys.executable, "-c", f"import test_failed_sync as t; t.fail_and_die({str(tmp_path)!r}, {mode.value!r})"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.stdout == "failed\n", child.stderr
    driver = Driver(lambda call: SqliteStore(tmp_path, call))
    assert driver.numbers(1) == [1, 2]
    driver.append(1, message(5))
    assert driver.numbers(1) == [1, 2, 5]
    driver.store.close()
