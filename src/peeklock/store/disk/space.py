"""The free space of a data folder: the free space of its file system, and the spare segments, which are reused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ..base import DiskSpace

_SPARES: Final = "spare-log-*"


def disk_space(folder: Path) -> DiskSpace:
    """Return the free and total space for the store in this folder. Raise OSError."""
    found = os.statvfs(folder)
    spare = sum(_size(file) for file in folder.glob(_SPARES))
    return DiskSpace(found.f_bavail * found.f_frsize + spare, found.f_blocks * found.f_frsize)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # reused or deleted meanwhile
        return 0
