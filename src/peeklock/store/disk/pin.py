"""The file `pin`: while another process holds it, no segment of the log is freed.

A backup of a running broker copies segments that would otherwise be reused meanwhile. The lock is a flock, which ends
with the process that holds it, however that ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

NAME: Final = "pin"


class Pin:
    """The backup holds it while it copies, the broker while it frees segments."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Once the broker is not freeing anything, until the end of the block. OSError."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def try_hold(self) -> Iterator[bool]:
        """False if another process holds it, or if that cannot be told."""
        try:
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield False
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = True
        except OSError:
            is_held = False
        try:
            yield is_held
        finally:
            os.close(descriptor)
