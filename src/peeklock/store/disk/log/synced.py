"""The file `synced`: the number of the last commit that is durable in the log.

It is written after each sync of the log and before the commits are acknowledged. It is not synced itself: after a kill
it is exact, after a power cut it may have an earlier number. In both cases the commit that it names was synced, so an
unreadable record up to that commit is damaged, not incomplete. For all commits except those of the last group, later
records have the same information.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final

from .checksums import crc32

NAME: Final = "synced"
_FORMAT: Final = Struct("<QI")
"""The commit number and its checksum."""


class Synced:
    """Reads and writes the file `synced`. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME
        self._descriptor = -1

    def read(self) -> int:
        """Read the commit number. 0 if the file is missing or damaged: then only the records tell what was synced."""
        try:
            content = self._file.read_bytes()[: _FORMAT.size]  # a power cut may leave the file longer
        except FileNotFoundError:
            return 0
        if len(content) != _FORMAT.size:
            return 0
        commit, check = _FORMAT.unpack(content)
        return int(commit) if check == crc32(content[:8]) else 0

    def open(self) -> None:
        self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, commit: int) -> None:
        number = commit.to_bytes(8, "little")
        with suppress(OSError):  # the previous number in the file stays valid
            os.pwrite(self._descriptor, number + crc32(number).to_bytes(4, "little"), 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
