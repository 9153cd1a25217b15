"""The broker's process on a small disk: the ordinary `peeklock serve`, which is told a size of the disk.

Only what the system says about free space is made up: the data folder is all that is on the disk. So what others write
to the disk of the machine meanwhile changes nothing.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from peeklock.cli import main

DISK_MIB: Final = 704
LOW_MIB: Final = 320
"""The watermark. An empty log keeps 128 MiB and its last segment; with them there is still a quarter more free."""
_BLOCK: Final = 4096


def statvfs(folder: os.PathLike[str]) -> os.statvfs_result:
    total = (DISK_MIB << 20) // _BLOCK
    free = max(0, total - _used(Path(folder)) // _BLOCK)
    return os.statvfs_result((_BLOCK, _BLOCK, total, free, free, 0, 0, 0, 0, 255))


def _used(folder: Path) -> int:
    used = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # deleted in between
            found = file.stat()
            if stat.S_ISREG(found.st_mode):
                used += found.st_blocks * 512
    return used


if __name__ == "__main__":
    vars(os)["statvfs"] = statvfs
    main.main()
