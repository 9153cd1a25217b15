"""A commit whose sync fails is reported as failed, and does not exist after a crash either.

Its bytes may all be in the log, but a start must not apply them. And the records that a start does apply must be
durable, whatever happens next.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_harness import Driver, message

from peeklock.store.base import Changes, StoredMessage, StoreError, StoreFull
from peeklock.store.disk.store import DiskStore
from tools.chaos.disk import Disk, Mode
from tools.chaos.log_tail import lose, read

ROOT = Path(__file__).parents[3]
LARGE = bytes(300_000)
"""A message, of which a few fill a part of the log."""


def in_child(call: str) -> None:
    """Run a function in a child process, which exits like a kill."""
    paths = [str(ROOT), str(ROOT / "src"), str(Path(__file__).parent), str(Path(__file__).parents[1])]
    child = subprocess.run(
        [sys.executable, "-c", f"import test_failed_sync as t; t.{call}"],
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


def opened(folder: Path) -> Driver:
    return Driver(lambda call: DiskStore(folder / "data", call))


def opened_on_disk(folder: str) -> tuple[Driver, Disk]:
    (Path(folder) / "data").mkdir(exist_ok=True)
    disk = Disk(Path(folder) / "data", Path(folder) / "unsynced")
    disk.install()
    return opened(Path(folder)), disk


def check_refused(error: StoreError | None, *, full: bool = False) -> None:
    assert isinstance(error, StoreError), "the commit should have failed"
    assert isinstance(error, StoreFull) is full, repr(error)


def replacing(number: int) -> Changes:
    return Changes(appends=[(1, message(number))], removals=[(1, message(number - 2))])


def have_syncs_fail(folder: str) -> None:
    driver, disk = opened_on_disk(folder)
    driver.create(1)
    driver.append(1, message(1), message(2))
    disk.mode = Mode.FAILING
    for number in (3, 4):
        check_refused(driver.try_commit(replacing(number)))
    assert driver.numbers(1) == [1, 2]
    die()


def have_no_room(folder: str) -> None:
    driver, disk = opened_on_disk(folder)
    driver.create(1)
    driver.append(1, message(1), message(2), message(3, LARGE), message(4, LARGE))
    disk.mode = Mode.FULL
    check_refused(driver.try_commit(Changes(appends=[(1, message(5, LARGE))], removals=[(1, message(1))])), full=True)
    for number in (3, 4):
        driver.commit(Changes(removals=[(1, message(number, LARGE))]))
    die()


@pytest.mark.parametrize("suffer", ["have_syncs_fail", "have_no_room"])
def test_a_failed_commit_is_absent_after_a_crash(tmp_path: Path, suffer: str) -> None:
    in_child(f"{suffer}({str(tmp_path)!r})")
    driver = opened(tmp_path)
    assert driver.numbers(1) == [1, 2]
    driver.append(1, message(6))
    assert driver.numbers(1) == [1, 2, 6]
    driver.store.close()


def be_killed_while_it_syncs(folder: str) -> None:
    driver, disk = opened_on_disk(folder)
    driver.create(1)
    driver.append(1, message(1))
    disk.mode, disk.seconds = Mode.SLOW, 600.0
    driver.store.commit(Changes(appends=[(1, message(2))]), lambda error: None)
    while not any(start < end for name, (start, end) in read(Path(folder) / "unsynced").items() if name[:3] == "log"):
        time.sleep(0.001)
    die()


def resume(folder: str) -> None:
    driver, _ = opened_on_disk(folder)
    driver.append(1, message(3))
    assert driver.numbers(1) == [1, 2, 3]
    die()


def test_records_found_at_the_start_survive_a_power_cut(tmp_path: Path) -> None:
    in_child(f"be_killed_while_it_syncs({str(tmp_path)!r})")
    in_child(f"resume({str(tmp_path)!r})")
    lose(tmp_path / "data", tmp_path / "unsynced")
    driver = opened(tmp_path)
    assert driver.numbers(1) == [1, 2, 3]
    driver.store.close()


def refuse_folder_syncs(folder: str) -> None:
    """The next segment of the log already has its name, and is not used."""
    driver, _ = opened_on_disk(folder)
    driver.create(1)
    driver.append(1, message(1), message(2, LARGE), message(3, LARGE))
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    os.fsync = fsync
    check_refused(driver.try_commit(Changes(appends=[(1, message(4, LARGE))])))
    removal = Changes(removals=[(1, message(2, LARGE))])
    if driver.try_commit(removal) is not None:
        os.fsync = sync
        driver.commit(removal)
    os.fsync = sync
    driver.append(1, message(5, LARGE))
    die()


def test_a_part_of_the_log_that_could_not_be_made_leaves_nothing_out(tmp_path: Path) -> None:
    in_child(f"refuse_folder_syncs({str(tmp_path)!r})")
    lose(tmp_path / "data", tmp_path / "unsynced")
    driver = opened(tmp_path)
    assert driver.numbers(1) == [1, 3, 5]
    driver.store.close()


def have_some_syncs_fail(folder: str) -> None:
    """Let the syncs of a group of two commits and of the first commit alone fail, but not the syncs that undo them."""
    driver, _ = opened_on_disk(folder)
    driver.create(1)
    driver.append(1, message(1))
    sync, fails = os.fdatasync, [True, False, True, False]
    answers: list[StoreError | None] = []

    def first(descriptor: int) -> None:
        for number in (3, 4):  # they wait together while this one is synced
            driver.store.commit(Changes(appends=[(1, same_length(number))]), answers.append)
        os.fdatasync = following
        sync(descriptor)

    def following(descriptor: int) -> None:
        if fails and fails.pop(0):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    os.fdatasync = first
    driver.append(1, message(2))
    driver.wait(answers, 2)
    check_refused(answers[0])
    assert answers[1] is None
    assert not fails
    die()


def same_length(number: int) -> StoredMessage:
    return message(number, b"message %d" % number)


def test_an_undone_commit_is_absent_after_the_commit_in_its_place(tmp_path: Path) -> None:
    in_child(f"have_some_syncs_fail({str(tmp_path)!r})")
    lose(tmp_path / "data", tmp_path / "unsynced")
    driver = opened(tmp_path)
    assert driver.numbers(1) == [1, 2, 4]
    driver.store.close()


def free_what_the_index_never_had(folder: str) -> None:
    """Messages that are removed at once are never in the index, but the index has the position that is applied."""
    driver, _ = opened_on_disk(folder)
    driver.create(1)
    first = Path(folder) / "data" / "log-0000000001"
    number = 0
    while number == 0 or first.exists():
        number += 1
        driver.store.commit(Changes(appends=[(1, message(number, LARGE))]), lambda error: None)
        driver.commit(Changes(removals=[(1, message(number, LARGE))]))
    die()


def test_a_part_of_the_log_is_freed_when_the_index_can_do_without(tmp_path: Path) -> None:
    in_child(f"free_what_the_index_never_had({str(tmp_path)!r})")
    lose(tmp_path / "data", tmp_path / "unsynced")
    driver = opened(tmp_path)
    assert len(driver.entities) == 1
    assert driver.numbers(1) == []
    driver.store.close()
