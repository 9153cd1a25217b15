"""A failed sync drops written pages, and the next sync succeeds without them: acknowledged commits are not lost.

Commits are made while syncs fail so, by one process after the other; between them the power fails, or only the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from store_harness import Driver, message

from peeklock.store.base import Changes, StoreError
from peeklock.store.disk.store import DiskStore
from tools.chaos.disk import Disk, Mode
from tools.chaos.log_tail import lose

ROOT = Path(__file__).parents[3]
LIVES = 4
COMMITS = 60


def opened(folder: Path) -> Driver:
    return Driver(lambda call: DiskStore(folder / "data", call))


def live(folder: str, life: int, seed: int) -> None:
    """Commit on such a disk, print the number of each acknowledged message, and exit while a commit is in doubt."""
    chance = Random(f"{seed}:{life}")
    (Path(folder) / "data").mkdir(exist_ok=True)
    disk = Disk(Path(folder) / "data", Path(folder) / "unsynced")
    disk._chance = chance
    disk.install()
    driver = opened(Path(folder))
    if not driver.entities:
        driver.create(1)
    for number in range(life * COMMITS + 1, (life + 1) * COMMITS):
        disk.mode = chance.choice((Mode.FINE, Mode.FINE, Mode.DROPPING))
        disk.every = chance.choice((1, 1, 2))
        error = driver.try_commit(Changes(appends=[(1, message(number, chance.randbytes(chance.choice((10, 3000)))))]))
        if error is None:
            os.write(1, b"%d\n" % number)
        if chance.random() < 0.2:
            try:
                driver.numbers(1)  # the index is written
            except StoreError as failure:
                if "Restart the broker" in str(failure):
                    break
    disk.mode, disk.every = Mode.DROPPING, 1
    sync = os.fdatasync

    def fail_and_end(descriptor: int) -> None:
        """Exit before the commit is undone: the next process may find it, and must not assume that it is durable."""
        try:
            sync(descriptor)
        finally:
            os._exit(9)

    os.fdatasync = fail_and_end
    driver.try_commit(Changes(appends=[(1, message((life + 1) * COMMITS))]))


class ShowsWhatWasThere(Random):
    """Chooses a file system that shows the previous contents after a sync dropped writes."""

    def random(self) -> float:
        return 0.9


def read_while_syncs_of_the_index_fail(folder: str, sound: int) -> None:
    """A read must return the committed messages or fail. Syncs of the index fail from message number `sound` on."""
    (Path(folder) / "data").mkdir()
    disk = Disk(Path(folder) / "data", Path(folder) / "unsynced")
    disk._chance = ShowsWhatWasThere()
    fails = disk._fails_to_sync
    disk._fails_to_sync = lambda name: name.endswith("-wal") and fails(name)  # type: ignore[method-assign]
    disk.install()
    driver = opened(Path(folder))
    driver.create(1)
    for number in range(1, sound + 20):
        if number == sound:
            disk.mode = Mode.DROPPING
        # The log grows, so that parts of it are freed, before which the index is synced.
        of_session = b"%d" % number
        changes = [
            Changes(appends=[(1, message(number, bytes(300_000)))]),
            Changes(removals=[(1, message(number, bytes(300_000)))]),
            Changes(session_states=[(1, f"s{each}", of_session, number) for each in range(100)]),
        ]
        if any(driver.try_commit(each) is not None for each in changes):
            break
        try:
            found = {driver.state(1, f"s{each}") for each in range(100)}
        except StoreError as failure:
            os.write(1, b"0\n")
            if "Restart the broker" in str(failure):
                break
        else:
            assert found == {of_session}
    os._exit(9)


@pytest.mark.parametrize("sound", [1, 2, 5, 9, 14])
def test_reads_after_a_failed_sync_of_the_index_are_not_outdated(tmp_path: Path, sound: int) -> None:
    call = f"read_while_syncs_of_the_index_fail({{folder!r}}, {sound})"
    assert in_child(tmp_path, call=call), "some syncs have failed"


def in_child(folder: Path, life: int = 0, seed: int = 0, call: str = "live({folder!r}, {life}, {seed})") -> list[int]:
    paths = [str(ROOT), str(ROOT / "src"), str(Path(__file__).parent), str(Path(__file__).parents[1])]
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            "import test_dropped_pages as t; t." + call.format(folder=str(folder), life=life, seed=seed),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert child.returncode == 9, child.stderr
    return [int(line) for line in child.stdout.split()]


@pytest.mark.parametrize("seed", range(8))
def test_acknowledged_commits_survive_syncs_that_dropped_pages(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    acknowledged: list[int] = []
    for life in range(LIVES):
        acknowledged += in_child(tmp_path, life, seed)
        if life == LIVES - 1 or chance.random() < 0.5:
            lose(tmp_path / "data", tmp_path / "unsynced")
    driver = opened(tmp_path)
    assert [number for number in driver.numbers(1) if number % COMMITS] == acknowledged
    assert 0 < len(acknowledged) < LIVES * (COMMITS - 1), "some syncs have failed"
    driver.store.close()
