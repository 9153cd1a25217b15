"""Functions that tests run in child processes: `python -c "import store_children; store_children.name(...)"`."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from store_harness import Driver, body, entity, message

from peeklock.store.base import Changes, Counters, StoredMessage, StoreError, StoreFull
from peeklock.store.disk.index.writer import Writer
from peeklock.store.disk.log.segments import Segments
from peeklock.store.disk.store import DiskStore
from peeklock.store.disk.upkeep import repair

GROUP = 7
"""The number of messages for entity 1 in each commit of `commit_until_killed`, which has one more for entity 2."""

KEPT = {1: 2, 2: 5, 3: 9}
"""For `share_until_killed`: how many messages entities 1 and 2 keep, and how many seen keys entity 3 keeps."""


def start(call: str, module: str = "store_children") -> subprocess.Popen[str]:
    here = Path(__file__).parent
    paths = [str(here), str(here / "disk"), str(here.parents[1] / "src")]
    return subprocess.Popen(
        [sys.executable, "-c", f"import {module}; {module}.{call}"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def repair_and_die_after(folder: str, moment: str) -> None:
    """Repair a folder, and exit like a kill when the function with this name has returned."""
    owner: object = {"forget_segments": Writer, "free": Segments}.get(moment, repair)
    original = getattr(owner, moment)

    def last(*arguments: object, **named: object) -> None:
        original(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, moment, last)
    repair.repair(Path(folder))


def hold(folder: str) -> None:
    """Open the store, print a line, and keep the store open until standard input ends."""
    driver = Driver(lambda call: DiskStore(Path(folder), call))
    print("open", flush=True)
    sys.stdin.read()
    driver.store.close()


def commit_until_killed(folder: str) -> None:
    """Commit messages with consecutive numbers after the store's last one, several commits at a time.

    The number of each acknowledged commit is written to standard output.
    """
    driver = Driver(lambda call: DiskStore(Path(folder), call))
    if not driver.entities:
        driver.create(1, 2)
    group = driver.entities[1].counters.last_sequence_number if driver.entities else 0
    answers: list[int] = []

    def committed(group: int, error: StoreError | None) -> None:
        assert error is None
        answers.append(group)
        os.write(1, b"%d\n" % group)

    for sent in range(1_000_000):
        group += 1
        first = (group - 1) * GROUP + 1
        changes = Changes(appends=[(1, message(first + at, bytes(500))) for at in range(GROUP)])
        changes.appends.append((2, message(group)))
        changes.removals.append((1, message(first, bytes(500))))
        driver.store.commit(changes, partial(committed, group))
        driver.wait(answers, sent - 5)


def shared(number: int) -> StoredMessage:
    return message(number, body=body(number, b"body %d " % number * 50))


def share_until_killed(folder: str) -> None:
    """Commit messages with a shared body, numbered after the last one of entity 3.

    Each commit adds one message to each of two entities, and removes an old message from each.
    """
    driver = Driver(lambda call: DiskStore(Path(folder), call))
    if not driver.entities:
        driver.create(1, 2, 3)
    number = driver.entities[2].counters.last_sequence_number if driver.entities else 0
    answers: list[int] = []

    def committed(number: int, error: StoreError | None) -> None:
        assert error is None
        answers.append(number)
        os.write(1, b"%d\n" % number)

    for sent in range(1_000_000):
        number += 1
        changes = Changes(advances={3: number}, seen=[(3, bytes(16), number)])
        changes.forgotten.append((3, number + 1 - KEPT[3]))
        for id in 1, 2:
            changes.appends.append((id, shared(number)))
            if number > KEPT[id]:
                changes.removals.append((id, shared(number - KEPT[id])))
        driver.store.commit(changes, partial(committed, number))
        driver.wait(answers, sent - 5)


def run_out_of_room(folder: str) -> None:
    """Fill a small disk, remove messages, and continue on a larger disk."""
    driver = Driver(lambda call: DiskStore(Path(folder), call))
    driver.commit(Changes(entities={1: entity(1)}))
    allocate, room = os.posix_fallocate, [4_000_000]

    def limited(descriptor: int, offset: int, length: int) -> None:
        if sum(file.stat().st_size for file in Path(folder).glob("*log-*")) + length > room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(descriptor, offset, length)

    os.posix_fallocate = limited
    kept: list[int] = []
    failures = 0
    for number in range(1, 200):
        changes = Changes(appends=[(1, message(number * 10 + at, bytes(10_000))) for at in range(10)])
        error = driver.try_commit(changes)
        if error is None:
            kept += [number * 10 + at for at in range(10)]
        else:
            assert isinstance(error, StoreFull), repr(error)
            assert "free space" in str(error), error
            failures += 1
            assert driver.numbers(1) == kept
        if failures == 3:
            break
    assert failures == 3, "the limit was never reached"
    assert kept, "nothing fitted"
    removed, kept = kept[:50], kept[50:]
    for number in removed:
        gone = driver.try_commit(Changes(removals=[(1, message(number, bytes(10_000)))]))
        assert gone is None, f"there was no room to remove what takes room: {gone}"
    assert driver.numbers(1) == kept
    room[0] = 1 << 40
    driver.append(1, *(message(5000 + at, bytes(10_000)) for at in range(100)))
    kept += range(5000, 5100)
    assert driver.numbers(1) == kept
    (reopened,) = driver.reopen()
    assert driver.numbers(1) == kept
    assert reopened.counters == Counters(5099, len(kept), 0, 0, len(kept) * 10_000), reopened
    driver.store.close()
