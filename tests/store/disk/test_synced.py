"""The file `synced`, with the number of the last durable commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from peeklock.store.disk.log.synced import NAME, Synced


@pytest.fixture
def synced(tmp_path: Path) -> Synced:
    synced = Synced(tmp_path)
    synced.open()
    synced.write(1 << 40)
    synced.write(7)
    synced.close()
    return synced


def test_the_last_commit_is_read(synced: Synced) -> None:
    assert synced.read() == 7


def test_without_the_file_nothing_is_known(tmp_path: Path) -> None:
    assert Synced(tmp_path).read() == 0


def test_a_file_with_any_flipped_bit_is_ignored(synced: Synced, tmp_path: Path) -> None:
    file = tmp_path / NAME
    whole = file.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        assert synced.read() == 0
    file.write_bytes(whole[:-1])
    assert synced.read() == 0


def test_bytes_after_the_record_from_a_power_cut_are_ignored(synced: Synced, tmp_path: Path) -> None:
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"noise")
    assert synced.read() == 7
