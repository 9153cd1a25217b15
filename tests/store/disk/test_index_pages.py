"""The index after crashes, failed syncs and flipped bits: never wrong, and refused only if it is damaged."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from power_cuts import Run, commit_of, connect, dump
from store_harness import Driver, message

from peeklock.store.base import Changes, StoreError
from peeklock.store.disk.failures import DAMAGE_ADVICE
from peeklock.store.disk.index import database as database_module
from peeklock.store.disk.index import sums as sums_module
from peeklock.store.disk.index.connections import WriterConnection, connect_reader
from peeklock.store.disk.index.database import Database
from peeklock.store.disk.index.pages import damaged_pages, verify, write_sums
from peeklock.store.disk.index.sums import Sums
from peeklock.store.disk.store import DiskStore

ROOT = Path(__file__).parents[3]
PAGE = 8192
FLIPS = int(os.environ.get("PEEKLOCK_FLIPS", "60"))
NAMES = ("peeklock.db", "peeklock.db-wal", "peeklock.sums")


def in_child(call: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "src"), str(Path(__file__).parent), str(Path(__file__).parents[1])]
    module, _ = call.split(".", 1)
    child = subprocess.run(
        [sys.executable, "-c", f"import {module}; {call}"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert child.returncode == status, child.stderr
    return child


# --- power cuts, and syncs that fail ---


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_any_moment_leaves_a_correct_index(tmp_path: Path, seed: int) -> None:
    assert "power cuts" in in_child(f"power_cuts.run({str(tmp_path)!r}, {seed})").stdout


@pytest.mark.parametrize("failing", [1, 2, 3, 4, 5, 6, 13, 22])
def test_a_sync_that_succeeds_after_a_failed_one_is_not_trusted(tmp_path: Path, failing: int) -> None:
    in_child(f"power_cuts.run({str(tmp_path)!r}, 7, {failing})")


@pytest.mark.parametrize("failing", [1, 2, 3, 4, 5, 6, 13, 22])
def test_pages_dropped_by_a_failed_sync_are_not_returned(tmp_path: Path, failing: int) -> None:
    in_child(f"power_cuts.run({str(tmp_path)!r}, 8, {failing}, evicts=True)")


def lose_what_was_applied(folder: str) -> None:
    run = Run(folder, 1)
    run.commit()
    run.checkpoint()
    run.commit()
    run.disk.evicts, run.disk.fails = True, lambda name: name.endswith("-wal")
    with pytest.raises(StoreError, match="Input/output error"):
        run.database.checkpoint()
    run.disk.fails = lambda name: False
    for _ in range(2):
        with pytest.raises(
            StoreError, match=r"commit 2 had been applied, and the last commit that is left is 1\. Restart"
        ):
            run.database.connected()
    run.database.close()
    with closing(connect(run.file)) as connection:
        assert dump(connection) == run.states[1]


def test_an_index_that_lost_changes_refuses_everything_until_it_is_reopened(tmp_path: Path) -> None:
    in_child(f"test_index_pages.lose_what_was_applied({str(tmp_path)!r})")


@pytest.mark.interpreted
def test_a_store_whose_index_lost_changes_refuses_reads_and_growth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases: list[Database] = []

    class Noted(Database):
        def connected(self) -> WriterConnection:
            databases.append(self)
            return super().connected()

    monkeypatch.setattr("peeklock.store.disk.index.writer.Database", Noted)
    driver = Driver(lambda call: DiskStore(tmp_path, call))
    driver.create(1)
    driver.append(1, message(1), message(2))
    assert driver.numbers(1) == [1, 2]
    databases[0].fatal = StoreError("The index lost something.")
    for _ in range(2):
        with pytest.raises(StoreError, match="lost something"):
            driver.numbers(1)
        assert isinstance(driver.try_commit(Changes(appends=[(1, message(3))])), StoreError)
    driver.commit(Changes(removals=[(1, message(1))]))
    assert isinstance(driver.try_commit(Changes(appends=[(1, message(3))])), StoreError)
    driver.reopen()
    assert driver.numbers(1) == [2]
    driver.append(1, message(3))
    driver.store.close()


# --- kills ---


def write_and_die(folder: str, step: str) -> None:
    """Write the state after each commit to a file beside the folder."""
    database_module._MAX_WAL_BYTES = 150_000
    data = Path(folder) / "data"
    driver = Driver(lambda call: DiskStore(data, call))
    driver.create(1)
    states: dict[int, str] = {}
    chance = Random(1)
    for first in range(1, 4001, 100):
        if first > 3000:
            database_module._MAX_WAL_BYTES = 1 << 30  # so that SQLite's log has many transactions at the end
        driver.append(1, *(message(number, b"%d" % number, session_id="s") for number in range(first, first + 100)))
        gone = range(first, first + 50)
        driver.commit(Changes(removals=[(1, message(number, b"%d" % number, session_id="s")) for number in gone]))
        # A page that was not written for long: with a later one in its place the index would be wrong.
        old = 100 * chance.randrange(first // 100 + 1) + 60
        driver.commit(Changes(updates=[(1, message(old, b"%d" % old, session_id="s", delivery_count=first), 0)]))
        driver.numbers(1, limit=1)
        with closing(connect_reader(data / "peeklock.db")) as connection:
            states[commit_of(connection)] = dump(connection)
    (Path(folder) / "states").write_text(json.dumps(states))
    if step != "nothing":
        die_at(step)
        driver.store.close()
    os._exit(9)


def die_at(step: str) -> None:
    """Exit at this step of the next checkpoint."""
    change, sync = Sums.change, database_module.Checkpoints.make
    if step == "sums":
        Sums.change = lambda *arguments: (change(*arguments), os._exit(9))  # type: ignore[assignment]
    elif step == "half the sums":
        written = sums_module._write_block
        sums_module._write_block = lambda *arguments: (written(*arguments), os._exit(9))  # type: ignore[assignment]
    elif step == "checkpoint":
        database_module.Checkpoints.make = lambda *arguments, **options: (  # type: ignore[assignment]
            sync(*arguments, **options),
            os._exit(9),
        )


def check(folder: Path, states: dict[int, str]) -> None:
    verify(folder / "peeklock.db")
    with closing(connect(folder / "peeklock.db")) as connection:
        assert dump(connection) == states[commit_of(connection)]


def killed(folder: Path, step: str) -> dict[int, str]:
    in_child(f"test_index_pages.write_and_die({str(folder)!r}, {step!r})", status=9)
    return {int(commit): state for commit, state in json.loads((folder / "states").read_text()).items()}


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in NAMES if (folder / name).exists()}


@pytest.mark.parametrize("step", ["nothing", "half the sums", "sums", "checkpoint"])
def test_a_process_that_is_killed_leaves_an_index_that_is_opened_and_right(tmp_path: Path, step: str) -> None:
    states = killed(tmp_path, step)
    check(tmp_path / "data", states)
    with closing(connect(tmp_path / "data" / "peeklock.db")) as connection:
        assert commit_of(connection) == max(states)


@pytest.mark.parametrize("step", ["nothing", "sums"])
def test_to_verify_changes_nothing(tmp_path: Path, step: str) -> None:
    killed(tmp_path, step)
    data = tmp_path / "data"
    (data / "peeklock.db-shm").unlink()

    def files() -> dict[str, str]:
        return {each.name: sha256(each.read_bytes()).hexdigest() for each in data.iterdir() if each.suffix != ".db-shm"}

    before = files()
    assert (data / "peeklock.db-wal").stat().st_size > 0
    for _ in range(2):
        verify(data / "peeklock.db")
        assert files() == before


# --- bits that flip ---


@pytest.fixture(scope="module", params=["nothing", "sums", "half the sums", "before the log is cut"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    """An index after a kill, and the states that it had before."""
    folder = tmp_path_factory.mktemp("written")
    if request.param != "before the log is cut":
        return folder, killed(folder, request.param)
    states = killed(folder, "sums")
    data = folder / "data"
    log = (data / "peeklock.db-wal").read_bytes()
    with closing(sqlite3.connect(data / "peeklock.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    (data / "peeklock.db-wal").write_bytes(log)
    return folder, states


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_detected_or_leaves_a_committed_state(
    written: tuple[Path, dict[int, str]], tmp_path: Path, name: str
) -> None:
    folder, states = written
    whole = contents(folder / "data")
    chance = Random(name)
    refused = 0
    for _ in range(FLIPS // len(NAMES)):
        content = bytearray(whole[name])
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        for each, kept in whole.items():
            (tmp_path / each).write_bytes(content if each == name else kept)
        try:
            check(tmp_path, states)
        except StoreError:
            refused += 1
    print(f"{refused} refused")


def closed_store(folder: Path) -> Path:
    driver = Driver(lambda call: DiskStore(folder, call))
    driver.create(1)
    driver.append(1, *(message(number, session_id=f"session {number}" * 20) for number in range(1, 2001)))
    assert driver.numbers(1, limit=1) == [1]
    driver.store.close()
    return folder / "peeklock.db"


def flip(file: Path, offset: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        (byte,) = opened.read(1)
        opened.seek(offset)
        opened.write(bytes([byte ^ 4]))


def test_a_damaged_page_is_named(tmp_path: Path) -> None:
    file = closed_store(tmp_path)
    verify(file)
    flip(file, 16 * PAGE + 100)
    flip(file, 20 * PAGE)
    with pytest.raises(StoreError) as refused:
        verify(file)
    assert str(refused.value) == (
        f"{file} is damaged: page 17 (offset 131072) does not match its checksum. {DAMAGE_ADVICE}"
    )
    assert list(damaged_pages(file)) == [(17, 131072), (21, 163840)]


@pytest.mark.parametrize("offset", [0, 16, 18, 28, 60, 100])
def test_a_damaged_first_page_is_named(tmp_path: Path, offset: int) -> None:
    file = closed_store(tmp_path)
    flip(file, offset)
    with pytest.raises(StoreError, match=r"page 1 \(offset 0\)"):
        verify(file)


def test_pages_that_changed_places_are_found(tmp_path: Path) -> None:
    file = closed_store(tmp_path)
    content = file.read_bytes()
    pages = [content[at : at + PAGE] for at in range(0, len(content), PAGE)]
    other = next(at for at in range(11, len(pages)) if pages[at] != pages[10])
    pages[10], pages[other] = pages[other], pages[10]
    file.write_bytes(b"".join(pages))
    assert [page.number for page in damaged_pages(file)] == [11, other + 1]


@pytest.mark.parametrize("change", [-PAGE, -100, 1, PAGE])
def test_a_file_that_is_shorter_or_longer_is_refused(tmp_path: Path, change: int) -> None:
    file = closed_store(tmp_path)
    size = file.stat().st_size
    os.truncate(file, size + change)
    with pytest.raises(StoreError, match="is damaged: page"):
        verify(file)


def test_sums_that_are_missing_are_not_made_again(tmp_path: Path) -> None:
    file = closed_store(tmp_path)
    (tmp_path / "peeklock.sums").unlink()
    with pytest.raises(StoreError, match=r"peeklock\.sums is missing, and .*peeklock\.db cannot be checked"):
        verify(file)


def test_a_database_that_is_missing_is_not_made_again(tmp_path: Path) -> None:
    file = closed_store(tmp_path)
    file.unlink()
    with pytest.raises(StoreError, match=r"is missing or empty, but .*peeklock\.sums has checksums"):
        verify(file)


def test_a_start_that_is_refused_leaves_a_folder_without_log_as_it_was(tmp_path: Path) -> None:
    file = closed_store(tmp_path)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.name != "lock"}
    for segment in tmp_path.glob("log-*"):
        segment.rename(tmp_path.parent / "away")
        with pytest.raises(StoreError, match="missing"):
            DiskStore(tmp_path, lambda call: call()).open()
        (tmp_path.parent / "away").rename(segment)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.name != "lock"} == before
    verify(file)


def test_a_folder_with_nothing_in_it_is_new(tmp_path: Path) -> None:
    verify(tmp_path / "peeklock.db")
    (tmp_path / "peeklock.db").touch()
    verify(tmp_path / "peeklock.db")


# --- how it is made and closed ---


def test_a_database_that_was_being_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The creation may be interrupted at any of its calls."""
    file = tmp_path / "peeklock.db"
    for last in range(1, 20):
        calls = 0
        with monkeypatch.context() as patched:
            for name in ("fsync", "rename", "unlink", "pwrite", "open"):
                original = getattr(os, name)

                def call(
                    *arguments: object, original: object = original, most: int = last, **options: object
                ) -> object:
                    nonlocal calls
                    calls += 1
                    if calls > most:
                        raise OSError(5, "Input/output error")
                    return original(*arguments, **options)  # type: ignore[operator]

                patched.setattr(os, name, call)
            try:
                connect(file).close()
            except OSError:
                pass
            else:
                break
        verify(file)
        if last % 2:
            connect(file).close()
            verify(file)
            for each in tmp_path.iterdir():
                each.unlink()
    else:
        raise AssertionError("it never was made")
    verify(file)


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with closing(connect(tmp_path / "peeklock.db")):
            modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["peeklock.db", "peeklock.db-wal", "peeklock.db-shm", "peeklock.sums"], 0o600)


def test_a_connection_that_is_closed_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "peeklock.db"
    with closing(connect(file)) as connection:
        connection.execute("INSERT INTO history VALUES (1, x'00')")
        before = contents(tmp_path)
    assert contents(tmp_path) == before
    verify(file)


def test_a_database_that_another_program_reads_is_written_later(tmp_path: Path) -> None:
    file = tmp_path / "peeklock.db"
    database = Database(connect(file), file, lambda connection: None)
    with closing(connect_reader(file)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM history").fetchall()
        database.connected().execute("INSERT INTO history VALUES (1, x'00')")
        for _ in range(2):
            with pytest.raises(StoreError, match="cannot be written while another program reads it"):
                database.checkpoint()
    verify_copy(tmp_path)
    database.close()
    assert {each.name for each in tmp_path.iterdir()} == {"peeklock.db", "peeklock.sums", "copy"}
    verify(file)


def verify_copy(folder: Path) -> None:
    """Verify a copy of the folder while the database is open in this process."""
    (folder / "copy").mkdir()
    for name, content in contents(folder).items():
        (folder / "copy" / name).write_bytes(content)
    verify(folder / "copy" / "peeklock.db")


def test_pages_that_sqlite_leaves_out_are_zeros(tmp_path: Path) -> None:
    """A page that one transaction allocates and frees is not written to the WAL."""
    file = tmp_path / "peeklock.db"
    database = Database(connect(file), file, lambda connection: None)
    connection = database.connected()
    connection.execute("BEGIN")
    connection.execute("INSERT INTO history VALUES (1, ?)", (bytes(1_000_000),))
    connection.execute("INSERT INTO history VALUES (2, x'00')")
    connection.execute("DELETE FROM history WHERE key = 1")
    connection.execute("COMMIT")
    database.close()
    assert file.stat().st_size > 1_000_000
    verify(file)


def test_sums_of_more_pages_than_a_block_has(tmp_path: Path) -> None:
    file = tmp_path / "peeklock.db"
    database = Database(connect(file), file, lambda connection: None)
    for key in range(1, 4):
        database.connected().execute("INSERT INTO history VALUES (?, ?)", (key, Random(key).randbytes(PAGE * 1000)))
        database.checkpoint()
        verify_copy(tmp_path)
        for each in (tmp_path / "copy").iterdir():
            each.unlink()
        (tmp_path / "copy").rmdir()
    database.close()
    flip(file, 2500 * PAGE)
    assert [page.number for page in damaged_pages(file)] == [2501]
    write_sums(file)
    verify(file)
