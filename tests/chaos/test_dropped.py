"""A disk whose failed sync drops the written bytes: what a file shows, and what is left after a power cut."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tools.chaos.disk import Disk, Mode
from tools.chaos.dropped import Dropped, read, restore, show
from tools.chaos.log_tail import lose

ROOT = Path(__file__).parents[2]


class File:
    """A file on a simulated disk whose syncs fail on request."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = folder.parent / "dropped"
        self.path = folder / "file"
        self.path.write_bytes(b"." * 10)
        self.dropped = Dropped(self.notes)

    def write(self, start: int, data: bytes) -> None:
        content = self.path.read_bytes().ljust(start + len(data), b"\0")
        self.dropped.write("file", start, content[start : start + len(data)])
        self.path.write_bytes(content[:start] + data + content[start + len(data) :])

    def sync(self) -> None:
        self.dropped.synced("file")

    def fail(self, *, shows_it: bool) -> None:
        show(self.path, self.dropped.fail("file", shows_it=shows_it))

    @property
    def content(self) -> bytes:
        return self.path.read_bytes()

    def after_power_cut(self) -> bytes:
        restore(self.folder, self.notes)
        return self.content


@pytest.fixture
def file(tmp_path: Path) -> File:
    (tmp_path / "data").mkdir()
    return File(tmp_path / "data")


def test_synced_bytes_survive(file: File) -> None:
    file.write(2, b"abc")
    file.sync()
    assert file.after_power_cut() == b"..abc....."


def test_dropped_bytes_may_be_shown_until_a_power_cut(file: File) -> None:
    file.write(2, b"abc")
    file.fail(shows_it=True)
    assert file.content == b"..abc....."
    file.sync()
    assert file.content == b"..abc....."
    assert file.after_power_cut() == b"." * 10


def test_after_a_failed_sync_the_earlier_bytes_may_be_shown_at_once(file: File) -> None:
    file.write(2, b"abc")
    file.write(3, b"xyz")
    file.fail(shows_it=False)
    assert file.content == b"." * 10
    file.sync()
    assert file.after_power_cut() == b"." * 10


def test_bytes_written_and_synced_again_are_on_the_disk(file: File) -> None:
    file.write(2, b"abcd")
    file.fail(shows_it=True)
    file.write(3, b"bc")
    file.sync()
    assert file.after_power_cut() == b"...bc....."


def test_bytes_dropped_twice_were_never_on_the_disk(file: File) -> None:
    file.write(2, b"abcd")
    file.fail(shows_it=True)
    file.write(3, b"xyz")
    file.fail(shows_it=False)
    assert file.content == b"..a......."
    assert file.after_power_cut() == b"." * 10


def test_a_file_that_became_longer_shows_zeros(file: File) -> None:
    file.write(8, b"abcd")
    file.fail(shows_it=True)
    assert file.after_power_cut() == b"." * 10 + bytes(2)


def test_the_next_process_knows_what_was_dropped(file: File) -> None:
    file.write(2, b"abcd")
    file.fail(shows_it=True)
    file.dropped = Dropped(file.notes)
    file.write(4, b"c")
    file.sync()
    assert read(file.notes) == {"file": [(2, b".."), (5, b".")]}
    with file.notes.open("a") as notes:
        notes.write('["file", [[0, "')  # the process was killed while it wrote the line
    assert file.after_power_cut() == b"....c....."
    assert read(file.notes) == {}


def test_truncated_bytes_do_not_return(file: File) -> None:
    file.write(2, b"abcd")
    file.fail(shows_it=True)
    file.write(7, b"x")
    file.dropped.cut("file", 4)
    file.fail(shows_it=True)
    assert read(file.notes) == {"file": [(2, b"..")]}


@pytest.mark.parametrize("seed", range(20))
def test_a_disk_has_what_was_synced_last_whatever_happens(file: File, seed: int) -> None:
    chance = Random(seed)
    on_disk = bytearray(file.content)
    written: set[int] = set()
    for _ in range(200):
        match chance.choice(("write", "write", "write", "sync", "fail", "restart")):
            case "write":
                start = chance.randrange(8)
                data = chance.randbytes(chance.randint(1, 10 - start))
                file.write(start, data)
                written.update(range(start, start + len(data)))
            case "sync":
                file.sync()
                for at in written:
                    on_disk[at] = file.content[at]
                written.clear()
            case "fail":
                shows_it = chance.random() < 0.5
                file.fail(shows_it=shows_it)
                if not shows_it:
                    assert all(file.content[at] == on_disk[at] for at in written)
                written.clear()
            case "restart" if not written:
                file.dropped = Dropped(file.notes)
    file.sync()
    for at in written:
        on_disk[at] = file.content[at]
    assert file.after_power_cut() == on_disk


def in_child(function: Callable[[str], None], folder: Path) -> None:
    """Run the function in a child process, in which the calls of `os` are replaced."""
    paths = [str(ROOT), str(ROOT / "src"), str(Path(__file__).parent)]
    name = function.__name__
    done = subprocess.run(
        [sys.executable, "-c", f"import test_dropped as t; t.{name}({str(folder)!r})"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def installed(folder: str) -> Disk:
    (Path(folder) / "data").mkdir()
    disk = Disk(Path(folder) / "data", Path(folder) / "unsynced")
    disk.install()
    return disk


def drop_a_record(folder: str) -> None:
    disk = installed(folder)
    file = os.open(Path(folder) / "data" / "log-0000000001", os.O_RDWR | os.O_CREAT)
    os.pwrite(file, b"first.", 0)
    os.fdatasync(file)
    disk.mode = Mode.DROPPING
    os.pwrite(file, b"second.", 6)
    with pytest.raises(OSError) as error:
        os.fdatasync(file)
    assert error.value.errno == errno.EIO
    os.fdatasync(file)
    disk.mode = Mode.FINE
    os.pwrite(file, b"third.", 13)
    os.fdatasync(file)


def test_a_record_whose_sync_failed_is_not_on_the_disk_though_the_next_sync_succeeds(tmp_path: Path) -> None:
    in_child(drop_a_record, tmp_path)
    lose(tmp_path / "data", tmp_path / "unsynced")
    assert (tmp_path / "data" / "log-0000000001").read_bytes() == b"first." + bytes(7) + b"third."


def write_the_same_again(folder: str) -> None:
    disk = installed(folder)
    file = os.open(Path(folder) / "data" / "log-0000000001", os.O_RDWR | os.O_CREAT)
    os.pwrite(file, b"first.", 0)
    os.fdatasync(file)
    disk.mode = Mode.DROPPING
    os.pwrite(file, b"first.second.", 0)
    with pytest.raises(OSError):
        os.fdatasync(file)
    os.pwrite(file, b"first.second.", 0)


def test_a_power_cut_keeps_synced_bytes_that_were_overwritten_with_the_same_bytes(tmp_path: Path) -> None:
    in_child(write_the_same_again, tmp_path)
    lose(tmp_path / "data", tmp_path / "unsynced")
    assert (tmp_path / "data" / "log-0000000001").read_bytes().rstrip(b"\0") == b"first."


def drop_pages(folder: str) -> None:
    disk = installed(folder)
    file = Path(folder) / "data" / "peeklock.db"
    connection = sqlite3.connect(file, isolation_level=None)
    for statement in (
        "PRAGMA journal_mode = WAL",
        "PRAGMA synchronous = FULL",
        "CREATE TABLE t (x)",
        "INSERT INTO t VALUES (1)",
    ):
        connection.execute(statement)
    disk.mode = Mode.DROPPING
    with pytest.raises(sqlite3.OperationalError):
        connection.execute("INSERT INTO t VALUES (2)")
    os._exit(0)


def test_pages_dropped_by_a_failed_sync_of_sqlite_are_not_on_the_disk(tmp_path: Path) -> None:
    in_child(drop_pages, tmp_path)
    lose(tmp_path / "data", tmp_path / "unsynced")
    with closing(sqlite3.connect(tmp_path / "data" / "peeklock.db")) as connection:
        assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]


def fill_up(folder: str) -> None:
    disk = installed(folder)
    data = Path(folder) / "data"
    reserve, file = (os.open(data / name, os.O_RDWR | os.O_CREAT) for name in ("reserve", "file"))
    os.posix_fallocate(reserve, 0, 10)
    disk.mode = Mode.FULL
    with pytest.raises(OSError):
        os.pwrite(file, b"abc", 0)
    with pytest.raises(OSError):
        os.write(file, b"abc")
    os.truncate(data / "reserve", 0)
    assert os.pwrite(file, b"abcdefgh", 0) == 8
    assert os.pwrite(file, b"ABCDEFGHIJKL", 0) == 10, "as much of it as there is room for"
    with pytest.raises(OSError):
        os.posix_fallocate(reserve, 0, 1)
    os.unlink(data / "file")
    os.posix_fallocate(reserve, 0, 10)


def test_a_full_disk_has_the_space_that_was_freed(tmp_path: Path) -> None:
    in_child(fill_up, tmp_path)
