"""The room that a store in a data folder has: what is free on the disk, and files of its own that it will use again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ..base import DiskSpace

_SPARES: Final = "spare-log-*"


def disk_space(folder: Path) -> DiskSpace:
    """OSError when the folder cannot be asked."""
    found = os.statvfs(folder)
    spare = sum(_size(file) for file in folder.glob(_SPARES))
    return DiskSpace(found.f_bavail * found.f_frsize + spare, found.f_blocks * found.f_frsize)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # used again, or deleted, in between
        return 0
