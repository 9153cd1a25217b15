"""The free space of a data folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peeklock.store.disk.log.segments import LARGEST, Segment, Segments
from peeklock.store.disk.space import disk_space


def test_it_is_that_of_the_file_system(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    space = disk_space(tmp_path)
    assert space.total == found.f_blocks * found.f_frsize
    assert 0 < space.free <= space.total


def test_segments_that_wait_to_be_used_again_are_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs_result((4096, 4096, 1000, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda folder: full)
    segments = Segments(tmp_path)
    descriptor, _ = segments.make(Segment(1, 1, 0, 0), LARGEST)
    os.close(descriptor)
    assert disk_space(tmp_path) == (0, 1000 * 4096)
    segments.free(1)
    assert disk_space(tmp_path) == (LARGEST, 1000 * 4096)
    segments.close()


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"):
        disk_space(tmp_path / "gone")
