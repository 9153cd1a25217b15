"""A transaction of the index that was rolled back leaves no trace in the checksums of its pages."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from store_harness import Driver, message

from peeklock.store.disk.index.connections import connect_writer
from peeklock.store.disk.index.pages import Checkpoints, verify
from peeklock.store.disk.store import DiskStore


def test_a_retried_checkpoint_has_the_committed_state(tmp_path: Path) -> None:
    data = tmp_path / "data"
    driver = Driver(lambda call: DiskStore(data, call))
    driver.create(1)
    driver.append(1, message(1))
    driver.store.close()
    file = data / "peeklock.db"
    with closing(connect_writer(file)) as connection, closing(sqlite3.connect(file, isolation_level=None)) as reader:
        checkpoints = Checkpoints(file)
        checkpoints.opened()
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM log").fetchall()
        connection.execute("UPDATE log SET generation = ?", (checkpoints.next_generation(),))
        assert not checkpoints.make(connection, keep_space=True), "somebody reads what was there before"
        reader.execute("ROLLBACK")
        connection.execute("BEGIN")
        connection.execute("UPDATE log SET generation = ?", (checkpoints.next_generation(),))
        connection.execute("ROLLBACK")
        assert checkpoints.make(connection, keep_space=True)
        shutil.copytree(data, tmp_path / "copy")
        checkpoints.close()
    verify(tmp_path / "copy" / "peeklock.db")
