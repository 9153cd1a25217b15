"""What is done to the end of a log after a kill leaves all that is committed, and stays readable."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from chaos.log_tail import committed_bytes, tear

COMMITS = 5
WRITE = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("CREATE TABLE t (n, data)")
for number in range(int(sys.argv[2])):
    connection.execute("INSERT INTO t VALUES (?, ?)", (number, bytes(3000)))
os._exit(9)
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """As a process left it that was killed after some commits."""
    file = tmp_path / "t.db"
    subprocess.run([sys.executable, "-c", WRITE, str(file), str(COMMITS)], check=False)
    return file


def numbers(database: Path) -> list[int]:
    with closing(sqlite3.connect(database)) as connection:
        return [number for (number,) in connection.execute("SELECT n FROM t ORDER BY n")]


def test_the_whole_log_is_committed_when_nothing_was_under_way(database: Path) -> None:
    assert committed_bytes(database) == os.path.getsize(f"{database}-wal")


@pytest.mark.parametrize("seed", range(12))
def test_what_is_committed_is_there_whatever_is_done_to_the_rest(database: Path, seed: int) -> None:
    log = Path(f"{database}-wal")
    committed = log.stat().st_size
    # As if the last commits had been on their way: what the process wrote of them is behind what is committed.
    log.write_bytes(log.read_bytes() + Random(seed).randbytes(20_000))
    assert committed_bytes(database) == committed
    before = log.read_bytes()
    assert tear(database, Random(seed)) != ""
    assert log.read_bytes()[:committed] == before[:committed]
    assert log.read_bytes() != before
    assert numbers(database) == list(range(COMMITS))


def test_a_log_that_is_about_to_start_again_is_left_alone(database: Path) -> None:
    log = Path(f"{database}-wal")
    data = bytearray(log.read_bytes())
    data[16] ^= 0xFF  # the salts of the log before
    log.write_bytes(data)
    assert committed_bytes(database) is None
    assert tear(database, Random(1)).startswith("nothing")
    assert log.read_bytes() == data
