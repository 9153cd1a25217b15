"""Damage to files: it changes the file that its description names, and can be undone."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tools.chaos import damage
from tools.chaos.broker import Refusal
from tools.chaos.log_tail import Unsynced
from tools.chaos.plan import DAMAGES, Kind


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with every kind of file."""
    folder = tmp_path / "data"
    folder.mkdir()
    unsynced = Unsynced(tmp_path / "unsynced")
    for number in (1, 2, 3):
        name = f"log-{number:010}"
        (folder / name).write_bytes(Random(name).randbytes(8000))
        unsynced.wrote(name, 0, 6000)
        unsynced.synced(name)
    for name in (damage.INDEX, damage.WAL, *damage.CHECKS, *damage.CHANGED_ANYWAY):
        (folder / name).write_bytes(Random(name).randbytes(500))
    return folder


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("seed", range(5))
def test_damage_changes_one_file_and_is_undone(data: Path, kind: Kind, seed: int) -> None:
    whole = damage.contents(data)
    done = DAMAGES[kind](data, data.parent / "unsynced", Random(seed))
    assert done is not None
    damaged = damage.contents(data)
    assert {name for name, _ in whole.items() ^ damaged.items()} == {done.file.name}
    assert done.file.name in done.text
    done.undo()
    assert damage.contents(data) == whole
    damage.rewrite(data, damaged)
    assert damage.contents(data) == damaged


@pytest.mark.parametrize("kind", DAMAGES)
def test_missing_files_are_not_damaged(tmp_path: Path, kind: Kind) -> None:
    assert DAMAGES[kind](tmp_path, tmp_path / "unsynced", Random(0)) is None


@pytest.mark.parametrize("seed", range(20))
def test_the_tail_of_the_log_has_the_bytes_written_last(data: Path, seed: int) -> None:
    before = (data / "log-0000000003").read_bytes()
    damage.flip_tail(data, data.parent / "unsynced", Random(seed))
    (at,) = (at for at, byte in enumerate((data / "log-0000000003").read_bytes()) if byte != before[at])
    assert 4000 <= at < 6000


def test_a_refusal_has_its_exit_code_and_names_a_file() -> None:
    assert Refusal(2, "/data/log-0000000001 is damaged").is_documented
    assert not Refusal(1, "/data/log-0000000001 is damaged").is_documented
    assert not Refusal(2, "something is damaged").is_documented
    assert not Refusal(2, "Traceback … /data/log-0000000001").is_documented
