"""A store that is opened on a full disk: messages can be read and removed, but not added."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from store_harness import Driver, message

from peeklock.store.base import Changes, StoreFull
from peeklock.store.disk.store import DiskStore
from tools.chaos.disk import Disk, Mode

LARGE = 2 * 1024 * 1024
"""More than the free space in the last segment of the log."""
ROOT = Path(__file__).parents[3]


def in_child(call: str) -> None:
    """Run a function in a child process, which exits like a kill."""
    paths = [str(ROOT), str(ROOT / "src"), str(Path(__file__).parent), str(Path(__file__).parents[1])]
    child = subprocess.run(
        [sys.executable, "-c", f"import test_full_at_start as t; t.{call}"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (child.returncode, child.stdout) == (9, "done\n"), child.stderr


def die() -> None:
    print("done", flush=True)
    os._exit(9)


def opened(folder: str) -> Driver:
    return Driver(lambda call: DiskStore(Path(folder), call))


def be_killed(folder: str, applied: int, logged: int) -> None:
    """Leave `applied` messages in the index, and `logged` more only in the log."""
    driver = opened(folder)
    driver.create(1)
    for number in range(1, applied + 1):
        driver.append(1, message(number))
    assert len(driver.numbers(1)) == applied
    for number in range(applied + 1, applied + logged + 1):
        driver.append(1, message(number))
    die()


def be_killed_with_a_long_log_of_sqlite(folder: str) -> None:
    """Leave a long WAL, with many versions of pages that are already in the database."""
    driver = opened(folder)
    driver.create(1)
    driver.append(1, *(message(number) for number in range(1, 501)))
    driver.reopen()
    for number in range(1, 401):
        driver.commit(Changes(removals=[(1, message(number))]))
        assert driver.numbers(1, limit=1) == [number + 1]
    for number in range(401, 481):
        driver.commit(Changes(removals=[(1, message(number))]))
    die()


def open_on_full_disk_and_need_no_room(folder: str) -> None:
    disk = Disk(Path(folder))
    disk.mode = Mode.FULL
    disk.install()
    driver = opened(folder)
    assert driver.entities[0].counters.active == 20
    assert driver.numbers(1) == list(range(481, 501))
    assert (Path(folder) / "reserve").stat().st_size, "it was not needed"
    die()


def test_records_missing_in_the_index_are_applied_to_it_with_its_wal(tmp_path: Path) -> None:
    in_child(f"be_killed_with_a_long_log_of_sqlite({str(tmp_path)!r})")
    in_child(f"open_on_full_disk_and_need_no_room({str(tmp_path)!r})")


def open_on_full_disk(folder: str, count: int) -> None:
    disk = Disk(Path(folder))
    disk.mode = Mode.FULL
    disk.install()
    driver = opened(folder)
    assert driver.numbers(1) == list(range(1, count + 1))
    is_used = not (Path(folder) / "reserve").stat().st_size
    refused = driver.try_commit(Changes(appends=[(1, message(count + 1, bytes(100 if is_used else LARGE)))]))
    assert isinstance(refused, StoreFull)
    driver.commit(Changes(removals=[(1, message(number)) for number in range(1, count)]))
    assert driver.numbers(1) == [count]
    die()


@pytest.mark.parametrize(("applied", "logged"), [(0, 50), (20, 0), (20, 200), (300, 300)])
def test_a_store_is_opened_on_a_full_disk(tmp_path: Path, applied: int, logged: int) -> None:
    in_child(f"be_killed({str(tmp_path)!r}, {applied}, {logged})")
    in_child(f"open_on_full_disk({str(tmp_path)!r}, {applied + logged})")
    driver = opened(str(tmp_path))
    assert driver.numbers(1) == [applied + logged]
    driver.append(1, message(1000))
    driver.store.close()
