"""The reserve: it is freed when receiving and settling need disk space, and allocated again later."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from store_harness import Driver, message

from peeklock.store.base import Changes, StoreFull
from peeklock.store.disk.index.writer import Writer
from peeklock.store.disk.reserve import Reserve
from peeklock.store.disk.store import DiskStore


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def size(folder: Path) -> int:
    return (folder / "reserve").stat().st_size


def test_room_is_kept_until_it_is_given_up_and_then_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Reserve(tmp_path)
    assert reserve.hold()
    assert size(tmp_path) == 16 * 1024 * 1024
    assert reserve.release()
    assert size(tmp_path) == 0
    assert not reserve.release(), "there is no more"
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        assert not reserve.hold()
    assert reserve.hold()
    assert size(tmp_path) == 16 * 1024 * 1024


def test_a_reserve_of_an_earlier_process_is_held_without_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Reserve(tmp_path).hold()
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert Reserve(tmp_path).hold()


@pytest.mark.interpreted
def test_a_full_index_uses_the_reserve_and_messages_are_read_and_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(lambda call: DiskStore(tmp_path, call))
    driver.create(1)
    driver.append(1, message(1), message(2))
    apply = Writer.apply

    def apply_with_room(writer: Writer, *arguments: object) -> None:
        if size(tmp_path):
            raise StoreFull("The disk has no free space.")
        apply(writer, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "apply", apply_with_room)
        patched.setattr(os, "posix_fallocate", full)
        assert driver.numbers(1) == [1, 2]
        driver.commit(Changes(removals=[(1, message(1))]))
        assert driver.numbers(1) == [2]
        error = driver.try_commit(Changes(appends=[(1, message(3, bytes(2_000_000)))]))
        assert isinstance(error, StoreFull), "what was given up is not for messages"
    driver.append(1, message(3, bytes(2_000_000)))
    assert size(tmp_path), "there is room again, and it is kept"
    assert driver.numbers(1) == [2, 3]
    driver.store.close()
