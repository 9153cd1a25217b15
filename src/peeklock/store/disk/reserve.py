"""The file `reserve`: disk space that is released when the disk is full, so that receiving and settling still work.

Both write to the index, which grows while it is written. Until the file has its full size again, commits that add
messages fail.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from threading import Lock
from typing import Final

from .failures import NO_SPACE

log = logging.getLogger(__name__)

NAME: Final = "reserve"
_SIZE: Final = 16 * 1024 * 1024


class Reserve:
    """The reserve file of a data folder. May be used by any thread."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME
        self._lock = Lock()
        self._is_held = False

    def hold(self) -> bool:
        """Allocate the reserve if it is not allocated. Return False if the disk has no space for it."""
        with self._lock:
            if not self._is_held:
                self._is_held = self._allocate()
            return self._is_held

    def release(self) -> bool:
        """Free the space of the reserve. Return False if there was nothing to free."""
        with self._lock:
            self._is_held = False
            try:
                if self._file.stat().st_size == 0:
                    return False
                os.truncate(self._file, 0)
            except OSError:
                return False
        log.warning("the disk is full: emptied %s so that messages can still be received and settled", self._file)
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
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                os.ftruncate(descriptor, 0)
                return False
            return True  # the file system cannot reserve space: the broker works without a reserve
        finally:
            os.close(descriptor)
