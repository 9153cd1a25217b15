"""The lock file `pin`: while another process holds the lock, the broker frees no segment of the log.

Otherwise the broker could reuse segments while a backup copies them. The lock is a flock, which the kernel releases
when the process ends.
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
    """A lock that a backup holds while it copies segments, and the broker while it frees segments."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Wait for the lock and hold it until the end of the block. Raise OSError."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def try_hold(self) -> Iterator[bool]:
        """Hold the lock until the end of the block, without waiting.

        Yield False if another process holds it, or if that cannot be determined.
        """
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
