"""Damage to unsynced bytes after a kill: synced bytes are unchanged, and the store can be opened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from peeklock.store.base import Range, StoredMessage, StoreError
from peeklock.store.disk.store import DiskStore
from tools.chaos.log_tail import Unsynced, lose, read, tear

ROOT = Path(__file__).parents[2]
WRITE = """
import os, sys
from itertools import count
from pathlib import Path
from queue import Queue
from tools.chaos.disk import Disk
from peeklock.store.base import Changes, Counters, StoredEntity, StoredMessage
from peeklock.store.disk.store import DiskStore

folder, end_at = Path(sys.argv[1]), int(sys.argv[2])
pwrite = os.pwrite

def write_and_end(descriptor, data, offset):
    written = pwrite(descriptor, data, offset)
    if b"message %d." % end_at in data and "/data/log-" in os.readlink(f"/proc/self/fd/{descriptor}"):
        os.kill(os.getpid(), 9)
    return written

os.pwrite = write_and_end
disk = Disk(folder / "data", folder / "unsynced")
disk.install()
calls = Queue()
store = DiskStore(folder / "data", calls.put)
store.open()

def done(error):
    assert error is None
    os.write(1, b".")

def commit(changes):
    store.commit(changes, done)
    calls.get()()

commit(Changes(entities={1: StoredEntity(1, "q", "queue", {}, Counters())}))
for number in count(1):
    commit(Changes(appends=[(1, StoredMessage(number, b"message %d." % number + bytes(700), 0))]))
"""


def write_until_killed(folder: Path, commits: int, end_at: int = 0) -> int:
    """Return how many messages were acknowledged; the process ends when the last one is written to the log."""
    paths = [str(ROOT), str(ROOT / "src")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", WRITE, str(folder), str(end_at)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        acknowledged = child.stdout.read(1 + commits)
        child.kill()
        acknowledged += child.stdout.read()
    return len(acknowledged) - 1


def found(folder: Path) -> list[int]:
    answers: list[list[StoredMessage] | StoreError] = []
    store = DiskStore(folder / "data", lambda call: call())
    store.open()
    store.read(Range(entity=1, through=1_000_000, limit=1_000_000, max_bytes=1 << 30), answers.append)
    store.close()
    (messages,) = answers
    assert isinstance(messages, list)
    return [message.sequence_number for message in messages]


def check_found(folder: Path, acknowledged: int) -> None:
    numbers = found(folder)
    assert numbers[:acknowledged] == list(range(1, acknowledged + 1))
    assert len(numbers) <= acknowledged + 1, "one more may be in flight"


@pytest.mark.parametrize("seed", range(12))
def test_acknowledged_messages_survive_any_damage_to_unsynced_bytes(tmp_path: Path, seed: int) -> None:
    acknowledged = write_until_killed(tmp_path, 50 + 100 * seed)
    notes = tmp_path / "unsynced"
    ranges, before = read(notes), contents(tmp_path / "data")
    assert [name for name in ranges if name.startswith("log-")]
    assert tear(tmp_path / "data", notes, Random(seed)) != ""
    for name, content in contents(tmp_path / "data").items():
        synced, _ = ranges.get(name, (len(before[name]), 0))
        assert content[:synced] == before[name][:synced]
    check_found(tmp_path, acknowledged)


def test_bytes_written_before_a_kill_are_recorded_as_unsynced(tmp_path: Path) -> None:
    assert write_until_killed(tmp_path, 1000, end_at=30) == 29
    ((start, end),) = (place for name, place in read(tmp_path / "unsynced").items() if name.startswith("log-"))
    (log,) = (tmp_path / "data").glob("log-*")
    written = log.read_bytes()
    assert start < written.index(b"message 30.") < end
    assert not any(written[end:])


def test_the_index_is_rebuilt_from_the_log(tmp_path: Path) -> None:
    acknowledged = write_until_killed(tmp_path, 500)
    start, end = read(tmp_path / "unsynced")["peeklock.db-wal"]
    assert start < end, "SQLite syncs its log seldom"
    assert f"peeklock.db-wal ends at {start}" in lose(tmp_path / "data", tmp_path / "unsynced")
    check_found(tmp_path, acknowledged)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_only_unsynced_bytes_are_damaged(tmp_path: Path) -> None:
    notes = tmp_path / "unsynced"
    unsynced = Unsynced(notes)
    unsynced.wrote("log", 0, 500)
    unsynced.synced("log")
    unsynced.wrote("log", 500, 600)
    unsynced.wrote("log", 600, 1000)
    unsynced.wrote("gone", 0, 10)
    file = tmp_path / "log"
    whole = Random(0).randbytes(1500)
    changed = 0
    for seed in range(50):
        file.write_bytes(whole)
        tear(tmp_path, notes, Random(seed))
        assert file.read_bytes()[:500] == whole[:500]
        changed += file.read_bytes()[:1000] != whole[:1000]
    assert changed > 10


def test_unsynced_bytes_of_one_process_are_known_to_the_next(tmp_path: Path) -> None:
    notes = tmp_path / "unsynced"
    Unsynced(notes).wrote("log", 100, 200)
    later = Unsynced(notes)
    later.wrote("log", 200, 300)
    assert read(notes) == {"log": (100, 300)}
    later.synced("log")
    assert read(notes) == {"log": (300, 300)}
    later.wrote("log", 150, 170)
    assert read(notes) == {"log": (150, 170)}
