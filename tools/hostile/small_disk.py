"""The broker's process on a simulated small disk: the ordinary `peeklock serve` with a replaced `os.statvfs`.

Only the reported free space is simulated: the disk contains nothing but the data folder. So other programs that write
to the machine's disk have no effect.
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
"""The watermark. An empty log uses 128 MiB and its last segment, which leaves a quarter more than this free."""
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
