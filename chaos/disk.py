"""A disk that fills up, fails or takes its time, under the log of a store and under SQLite.

The functions of `os` by which the log is written are replaced, and the methods of the files that SQLite opens. A full
disk refuses whatever would make a file longer. A sync that fails leaves the bytes in the file: who wrote them is told
that they may not be. A slow one waits. What is written and not synced is noted, for a power cut to take.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
import os
import sqlite3
import time
import traceback
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.log_tail import Unsynced

_POINTER: Final = ctypes.c_void_p
_OPEN: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, _POINTER, ctypes.c_int, _POINTER)
_WRITE: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, ctypes.c_int, ctypes.c_int64)
_SYNC: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_int)


class Mode(StrEnum):
    FINE = "fine"
    FULL = "full"
    FAILING = "failing"
    SLOW = "slow"


class DiskError(Exception):
    """The disk cannot be had."""


class _Vfs(ctypes.Structure):
    """The beginning of `sqlite3_vfs`."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("max_path", ctypes.c_int),
        *((name, _POINTER) for name in ("next", "name", "data", "open")),
    )


class _Methods(ctypes.Structure):
    """`sqlite3_io_methods`, version 3."""

    _fields_ = (
        ("version", ctypes.c_int),
        *((name, _POINTER) for name in ("close", "read", "write", "truncate", "sync")),
        *((f"method_{number}", _POINTER) for number in range(13)),
    )


class Disk:
    """The disk of this process, as far as a folder is on it."""

    def __init__(self, folder: Path, notes: Path | None = None) -> None:
        self.mode = Mode.FINE
        self.every = 1
        """Of the syncs, how many fail or are slow: every one, one of two, … Which is left to chance, so that what is
        done about a failed one fails or does not."""
        self.seconds = 0.0
        """How long a slow one takes."""
        self._folder = f"{folder.resolve()}{os.sep}"
        self._chance = Random(0)
        self._unsynced = None if notes is None else Unsynced(notes)
        self._methods: dict[int, _Methods] = {}
        """Ours, by the address of SQLite's."""
        self._names: dict[int, str] = {}
        """Of SQLite's files in the folder, by address."""
        self._kept: list[Any] = []

    def install(self) -> None:
        """Take the place of what writes, before the first store is opened."""
        self._install_in_sqlite()
        for name, ours in (
            ("posix_fallocate", partial(self._allocate, os.posix_fallocate)),
            ("pwritev", partial(self._pwritev, os.pwrite)),
            ("pwrite", partial(self._pwrite, os.pwrite)),
            ("fdatasync", partial(self._sync, os.fdatasync)),
            ("fsync", partial(self._sync, os.fsync)),
        ):
            setattr(os, name, ours)

    # --- the log ---

    def _pwrite(self, original: Callable[..., int], descriptor: int, data: Any, offset: int) -> int:
        name = self._name(descriptor)
        if name is None:
            return original(descriptor, data, offset)
        size = len(data)
        if self.mode is Mode.FULL:
            # What lies within the file has its place on the disk already.
            size = min(size, os.fstat(descriptor).st_size - offset)
            if size <= 0:
                raise _os_error(errno.ENOSPC)
        self._note(name, offset, offset + size)
        return original(descriptor, data[:size], offset)

    def _pwritev(self, original: Callable[..., int], descriptor: int, parts: list[bytes], offset: int) -> int:
        return self._pwrite(original, descriptor, b"".join(parts), offset)

    def _allocate(self, original: Callable[..., None], descriptor: int, offset: int, size: int) -> None:
        is_ours = self._name(descriptor) is not None
        if is_ours and self.mode is Mode.FULL and offset + size > os.fstat(descriptor).st_size:
            raise _os_error(errno.ENOSPC)
        original(descriptor, offset, size)

    def _sync(self, original: Callable[[int], None], descriptor: int) -> None:
        name = self._name(descriptor)
        if name is not None and self._fails_to_sync():
            raise _os_error(errno.EIO)
        original(descriptor)
        self._note_sync(name)

    def _name(self, descriptor: int) -> str | None:
        """In the folder, empty for the folder itself; None for what is elsewhere."""
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        return f"{name}{os.sep}"[len(self._folder) : -1] if f"{name}{os.sep}".startswith(self._folder) else None

    # --- both ---

    def _fails_to_sync(self) -> bool:
        if self.mode in (Mode.FINE, Mode.FULL) or self._chance.random() * self.every >= 1:
            return False
        if self.mode is Mode.SLOW:
            time.sleep(self.seconds)
            return False
        return True

    def _note(self, name: str, start: int, end: int) -> None:
        """Before it is written: what a kill leaves in a file unnoted would be taken for synced by the next process."""
        if self._unsynced is not None and (name.startswith("log-") or name.endswith("-wal")):
            self._unsynced.wrote(name, start, end)

    def _note_sync(self, name: str | None) -> None:
        if self._unsynced is not None and name is not None:
            self._unsynced.synced(name)

    # --- SQLite ---

    def _install_in_sqlite(self) -> None:
        try:
            find = ctypes.CDLL(_sqlite3.__file__).sqlite3_vfs_find
        except (AttributeError, OSError) as error:
            raise DiskError(f"the SQLite of this Python cannot be reached: {error}") from None
        find.restype = ctypes.POINTER(_Vfs)
        find.argtypes = [ctypes.c_char_p]
        vfs = find(None)
        if not vfs:
            raise DiskError("the SQLite of this Python has no files")
        ours = _OPEN(partial(self._open_file, _OPEN(vfs.contents.open)))
        self._kept.append(ours)
        vfs.contents.open = ctypes.cast(ours, _POINTER)

    def _open_file(
        self, original: Callable[..., int], vfs: int, path: int | None, file: int, flags: int, out: int | None
    ) -> int:
        result = original(vfs, path, file, flags, out)
        try:
            name = "" if path is None else os.fsdecode(ctypes.string_at(path))
            if result == sqlite3.SQLITE_OK and name.startswith(self._folder):
                self._names[file] = name.removeprefix(self._folder)
                # A file begins with the address of its methods.
                methods = _POINTER.from_address(file)
                assert methods.value is not None
                if methods.value not in self._methods:
                    self._methods[methods.value] = self._our_methods(methods.value)
                methods.value = ctypes.addressof(self._methods[methods.value])
        except Exception:
            # It does not find its way through SQLite; but what is ours to mend is found in the broker's log at the end.
            traceback.print_exc()
        return result

    def _our_methods(self, address: int) -> _Methods:
        methods = _Methods.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(_Methods)))
        write = _WRITE(partial(self._write_file, _WRITE(methods.write)))
        sync = _SYNC(partial(self._sync_file, _SYNC(methods.sync)))
        self._kept += (write, sync)
        methods.write, methods.sync = ctypes.cast(write, _POINTER), ctypes.cast(sync, _POINTER)
        return methods

    def _write_file(self, original: Callable[..., int], file: int, data: int, size: int, offset: int) -> int:
        try:
            name = self._names[file]
            if self.mode is Mode.FULL and offset + size > os.stat(self._folder + name).st_size:
                # As the last block of a disk is used up: a part of it still fits.
                self._note(name, offset, offset + size // 2)
                original(file, data, size // 2, offset)
                return sqlite3.SQLITE_FULL
            self._note(name, offset, offset + size)
            return original(file, data, size, offset)
        except Exception:
            traceback.print_exc()
            return sqlite3.SQLITE_IOERR_WRITE

    def _sync_file(self, original: Callable[..., int], file: int, flags: int) -> int:
        try:
            if self._fails_to_sync():
                return sqlite3.SQLITE_IOERR_FSYNC
            result = original(file, flags)
            if result == sqlite3.SQLITE_OK:
                self._note_sync(self._names[file])
            return result
        except Exception:
            traceback.print_exc()
            return sqlite3.SQLITE_IOERR_FSYNC


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
