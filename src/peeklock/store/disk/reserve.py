"""Room that is kept for a full disk: a file that is emptied when receiving and settling need what it takes.

Both write to the index, which grows while it is written. As long as the file is not whole again, nothing is added to
the store.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from threading import Lock
from typing import Final

from .failures import NO_ROOM

log = logging.getLogger(__name__)

NAME: Final = "reserve"
_SIZE: Final = 16 * 1024 * 1024


class Reserve:
    """Any thread uses it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME
        self._lock = Lock()
        self._is_held = False

    def hold(self) -> bool:
        """Whether the room is kept, now or already."""
        with self._lock:
            if not self._is_held:
                self._is_held = self._allocate()
            return self._is_held

    def release(self) -> bool:
        """Give the room to whoever needs it; False if there was none to give."""
        with self._lock:
            self._is_held = False
            try:
                if self._file.stat().st_size == 0:
                    return False
                os.truncate(self._file, 0)
            except OSError:
                return False
        log.warning("the disk is full: %s was emptied, so that messages can still be received and settled", self._file)
        return True

    def _allocate(self) -> bool:
        try:
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            if os.fstat(descriptor).st_size < _SIZE:
                os.posix_fallocate(descriptor, 0, _SIZE)
            return True
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                os.ftruncate(descriptor, 0)
                return False
            return True  # a file system that cannot promise room: there is none to keep
        finally:
            os.close(descriptor)
