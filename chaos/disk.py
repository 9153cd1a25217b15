"""A disk that fills up, fails or takes its time, as SQLite sees it: its writes go through a function of ours.

SQLite lets its system calls be replaced. A full disk refuses whatever would make a file longer. A sync that fails is
made of the last write of a commit: the bytes are in the file, and SQLite is told that they may not be, which is all
that it learns from a sync that fails. A slow one waits there.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
import os
import time
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

_FRAME_HEADER: Final = 24
_POINTER: Final = ctypes.c_void_p
_WRITE: Final = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, _POINTER, ctypes.c_size_t, ctypes.c_int64, use_errno=True
)
_SET: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_char_p, _POINTER)
_GET: Final = ctypes.CFUNCTYPE(_POINTER, _POINTER, ctypes.c_char_p)
_CALLS: Final = (b"pwrite64", b"pwrite")


class Mode(StrEnum):
    FINE = "fine"
    FULL = "full"
    FAILING = "failing"
    SLOW = "slow"


class DiskError(Exception):
    """The disk cannot be had."""


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs`, version 3."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("max_path", ctypes.c_int),
        *((name, _POINTER) for name in ("next", "name", "data")),
        *((f"method_{number}", _POINTER) for number in range(13)),
        *((name, _POINTER) for name in ("set_system_call", "get_system_call", "next_system_call")),
    )


class Disk:
    """The disk under all SQLite databases of this process whose files are in a folder."""

    def __init__(self, folder: Path) -> None:
        self.mode = Mode.FINE
        self.every = 1
        """Of the commits, how many fail or are slow: every one, every second, …"""
        self.seconds = 0.0
        """How long a slow one takes."""
        self._folder = f"{folder.resolve()}{os.sep}"
        self._commits = 0
        self._commit_follows: dict[int, bool] = {}
        """By descriptor of a log: whether the page that is written next ends a commit."""
        self._original: Callable[..., int] | None = None
        self._kept: list[Any] = []

    def install(self) -> None:
        """Take the place of the system call, before the first database is opened."""
        try:
            find = ctypes.CDLL(_sqlite3.__file__).sqlite3_vfs_find
        except (AttributeError, OSError) as error:
            raise DiskError(f"the SQLite of this Python cannot be reached: {error}") from None
        find.restype = ctypes.POINTER(_Vfs)
        find.argtypes = [ctypes.c_char_p]
        vfs = find(None)
        if not vfs or vfs.contents.version < 3:
            raise DiskError("the SQLite of this Python does not let its system calls be replaced")
        place = ctypes.cast(vfs, _POINTER)
        for name in _CALLS:
            address = _GET(vfs.contents.get_system_call)(place, name)
            if address:
                self._original = _WRITE(address)
                ours = _WRITE(self._write)
                self._kept.append(ours)
                _SET(vfs.contents.set_system_call)(place, name, ctypes.cast(ours, _POINTER))
                return
        raise DiskError("the SQLite of this Python writes in a way that is not known here")

    def _write(self, descriptor: int, data: int, size: int, offset: int) -> int:
        assert self._original is not None
        if self.mode is Mode.FINE and not self._commit_follows:
            return self._original(descriptor, data, size, offset)
        try:
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if not name.startswith(self._folder):
                return self._original(descriptor, data, size, offset)
            if self.mode is Mode.FULL and offset + size > os.fstat(descriptor).st_size:
                return self._refuse(descriptor, data, size, offset)
            ends_commit = False
            if name.endswith("-wal"):
                if size == _FRAME_HEADER:
                    # Its second field is the size of the database after the commit; of other frames it is 0.
                    self._commit_follows[descriptor] = any(ctypes.string_at(data, 8)[4:])
                else:
                    ends_commit = self._commit_follows.pop(descriptor, False)
            written = self._original(descriptor, data, size, offset)
            return self._after_commit(written) if ends_commit else written
        except Exception:
            # It does not find its way through SQLite; but what is ours to mend is found in the broker's log at the end.
            traceback.print_exc()
            ctypes.set_errno(errno.EIO)
            return -1

    def _after_commit(self, written: int) -> int:
        self._commits += 1
        if self._commits % self.every:
            return written
        if self.mode is Mode.SLOW:
            time.sleep(self.seconds)
        elif self.mode is Mode.FAILING:
            ctypes.set_errno(errno.EIO)
            return -1
        return written

    def _refuse(self, descriptor: int, data: int, size: int, offset: int) -> int:
        """As the last block of a disk is used up: a part of it still fits."""
        assert self._original is not None
        if size > _FRAME_HEADER:
            self._original(descriptor, data, size // 2, offset)
        ctypes.set_errno(errno.ENOSPC)
        return -1
