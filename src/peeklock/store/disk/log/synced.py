"""The file `synced`: through which commit the log is durable.

It is written after each sync of the log and before anyone is told, and is not synced itself: a kill leaves it as it is,
a power cut may leave an earlier figure. Either way, what it says is so, and a record up to that commit that cannot be
read is damaged, not torn. For all commits but those of the last group the records say the same of each other.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final

from .checksums import crc32

NAME: Final = "synced"
_FORM: Final = Struct("<QI")
"""The commit, and the checksum of it."""


class Synced:
    """One thread writes it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME
        self._descriptor = -1

    def read(self) -> int:
        """0 if there is none, or none that can be read: then the records alone say what was synced."""
        try:
            content = self._file.read_bytes()[: _FORM.size]  # no more is ever written; a power cut may leave more
        except FileNotFoundError:
            return 0
        if len(content) != _FORM.size:
            return 0
        commit, check = _FORM.unpack(content)
        return int(commit) if check == crc32(content[:8]) else 0

    def open(self) -> None:
        self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, commit: int) -> None:
        number = commit.to_bytes(8, "little")
        with suppress(OSError):  # what it said before is still so
            os.pwrite(self._descriptor, number + crc32(number).to_bytes(4, "little"), 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
