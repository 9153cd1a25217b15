"""A simulated disk under the log of a store and under SQLite: full, failing, dropping unsynced pages, or slow.

It replaces the functions of `os` that write the log, and the methods of the files that SQLite opens. A full disk
refuses writes that make a file longer, except for bytes that were freed meanwhile. A failing sync leaves the bytes in
the file and returns an error. A page-dropping sync fails once; the next sync succeeds without writing the dropped bytes
(`dropped`). A slow sync waits. Bytes that are written and not synced are recorded, so that a simulated power cut can
remove them.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
import os
import re
import sqlite3
import time
import traceback
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from tools.chaos.dropped import Dropped, show
from tools.chaos.log_tail import Unsynced, dropped_notes, read

_POINTER: Final = ctypes.c_void_p
_OPEN: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, _POINTER, ctypes.c_int, _POINTER)
_READ: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, ctypes.c_int, ctypes.c_int64)
_WRITE: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, ctypes.c_int, ctypes.c_int64)
_TRUNCATE: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_int64)
_SYNC: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_int)
_NOTED: Final = re.compile(r"log-\d+|.*-wal|synced")
"""Files of which a power cut may lose unsynced bytes."""


class Mode(StrEnum):
    FINE = "fine"
    FULL = "full"
    FAILING = "failing"
    DROPPING = "dropping"
    SLOW = "slow"


class DiskError(Exception):
    """The simulated disk cannot be installed."""


class _Vfs(ctypes.Structure):
    """The first fields of the C structure `sqlite3_vfs`."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("max_path", ctypes.c_int),
        *((name, _POINTER) for name in ("next", "name", "data", "open")),
    )


class _Methods(ctypes.Structure):
    """The C structure `sqlite3_io_methods`, version 3."""

    _fields_ = (
        ("version", ctypes.c_int),
        *((name, _POINTER) for name in ("close", "read", "write", "truncate", "sync")),
        *((f"method_{number}", _POINTER) for number in range(13)),
    )


class Disk:
    """The simulated disk of this process, for the files of one folder."""

    def __init__(self, folder: Path, notes: Path | None = None) -> None:
        self.mode = Mode.FINE
        self.every = 1
        """One of so many syncs fails or is slow, chosen at random, so that the sync that undoes a failed commit can
        fail or succeed."""
        self.seconds = 0.0
        """Duration of a slow sync."""
        self._room = 0
        """Bytes that were freed since the disk became full."""
        self._folder = f"{folder.resolve()}{os.sep}"
        self._chance = Random(0)
        self._unsynced = self._dropped = None
        if notes is not None:
            self._dropped = Dropped(dropped_notes(notes))
            for name, (start, end) in read(notes).items():
                # The contents before an earlier process's unsynced write are unknown; zeros are one possibility.
                self._dropped.write(name, start, bytes(end - start))
            self._unsynced = Unsynced(notes)
        self._failed: set[str] = set()
        """Files whose last sync failed and dropped the written bytes: the next sync succeeds."""
        self._methods: dict[int, _Methods] = {}
        """The replaced methods, by the address of SQLite's."""
        self._names: dict[int, str] = {}
        """Names of SQLite's open files in the folder, by the address of their structure."""
        self._kept: list[Any] = []

    def install(self) -> None:
        """Replace the functions that write. Call it before the first store is opened."""
        self._install_in_sqlite()
        for name, ours in (
            ("posix_fallocate", partial(self._allocate, os.posix_fallocate)),
            ("pwritev", partial(self._pwritev, os.pwrite)),
            ("pwrite", partial(self._pwrite, os.pwrite)),
            ("write", partial(self._write, os.write)),
            ("unlink", partial(self._unlink, os.unlink)),
            ("truncate", partial(self._truncate, os.truncate)),
            ("ftruncate", partial(self._truncate, os.ftruncate)),
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
        length = os.fstat(descriptor).st_size
        size = self._fitting(length, offset, size)
        if size <= 0 and len(data):
            raise _os_error(errno.ENOSPC)
        before = _read(self._folder + name, offset, size)
        if self._dropped is not None:
            self._dropped.write(name, offset, before)
        # Bytes that do not change cannot be lost: the disk has them before and after the write.
        same = _same(before[: max(0, length - offset)], data[:size])
        if same < size:
            self._note(name, offset + same, offset + size)
        return original(descriptor, data[:size], offset)

    def _pwritev(self, original: Callable[..., int], descriptor: int, parts: list[bytes], offset: int) -> int:
        return self._pwrite(original, descriptor, b"".join(parts), offset)

    def _write(self, original: Callable[[int, Any], int], descriptor: int, data: Any) -> int:
        """Write to the end of a small file; the log is written with `pwrite`."""
        if self._name(descriptor) is not None:
            self._grow(os.fstat(descriptor).st_size, os.fstat(descriptor).st_size + len(data))
        return original(descriptor, data)

    def _unlink(self, original: Callable[..., None], path: Any, **options: Any) -> None:
        is_ours = not options and self._relative(os.path.realpath(path)) is not None
        size = os.stat(path).st_size if is_ours and os.path.exists(path) else 0
        original(path, **options)
        self._free(size)

    def _truncate(self, original: Callable[[Any, int], None], file: Any, size: int) -> None:
        name = self._name(file) if isinstance(file, int) else self._relative(os.path.realpath(file))
        if name is None:
            original(file, size)
            return
        before = os.stat(file).st_size
        self._grow(before, size)
        self._note_cut(name, size)
        original(file, size)
        self._free(before - size)

    def _allocate(self, original: Callable[..., None], descriptor: int, offset: int, size: int) -> None:
        if self._name(descriptor) is not None:
            self._grow(os.fstat(descriptor).st_size, offset + size)
        original(descriptor, offset, size)

    def _sync(self, original: Callable[[int], None], descriptor: int) -> None:
        name = self._name(descriptor)
        if name is not None and self._fails_to_sync(name):
            raise _os_error(errno.EIO)
        original(descriptor)
        self._note_sync(name)

    def _name(self, descriptor: int) -> str | None:
        """Return the file's name in the folder, empty for the folder itself; None for files elsewhere."""
        return self._relative(os.readlink(f"/proc/self/fd/{descriptor}"))

    def _relative(self, path: str) -> str | None:
        return f"{path}{os.sep}"[len(self._folder) : -1] if f"{path}{os.sep}".startswith(self._folder) else None

    # --- free space ---

    def _fitting(self, length: int, offset: int, size: int) -> int:
        """Return how many bytes can be written there. Bytes within the file's length need no free space."""
        if self.mode is not Mode.FULL or offset + size <= length:
            return size
        size = min(size, length + self._room - offset)
        self._room -= max(0, offset + size - length)
        return size

    def _grow(self, length: int, wanted: int) -> None:
        """Use free space to make a file longer; OSError if there is too little."""
        if self.mode is Mode.FULL and wanted > length:
            if wanted - length > self._room:
                raise _os_error(errno.ENOSPC)
            self._room -= wanted - length

    def _free(self, size: int) -> None:
        self._room = self._room + max(0, size) if self.mode is Mode.FULL else 0

    # --- syncs ---

    def _fails_to_sync(self, name: str) -> bool:
        if name in self._failed:
            self._failed.discard(name)
            return False
        if self.mode in (Mode.FINE, Mode.FULL) or self._chance.random() * self.every >= 1:
            return False
        if self.mode is Mode.SLOW:
            time.sleep(self.seconds)
            return False
        if self.mode is Mode.DROPPING:
            self._drop(name)
        return True

    def _drop(self, name: str) -> None:
        """Drop the unsynced bytes: the pages count as clean, so no later sync writes them."""
        self._failed.add(name)
        if self._dropped is not None and name:
            shown = self._dropped.fail(name, shows_it=self._chance.random() < 0.5)
            if shown:
                show(Path(self._folder, name), shown)
        if self._unsynced is not None:
            self._unsynced.synced(name)

    def _note(self, name: str, start: int, end: int) -> None:
        """Record unsynced bytes. Called before the write: a kill in between must not leave unrecorded bytes."""
        if self._unsynced is not None and _NOTED.fullmatch(name):
            self._unsynced.wrote(name, start, end)

    def _note_sync(self, name: str | None) -> None:
        if self._dropped is not None and name is not None:
            self._dropped.synced(name)
        if self._unsynced is not None and name is not None:
            self._unsynced.synced(name)

    def _note_cut(self, name: str, size: int) -> None:
        if self._dropped is not None:
            self._dropped.cut(name, size)

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
                if os.stat(name).st_size == 0:
                    self._note_cut(self._names[file], 0)
                # A file begins with the address of its methods.
                methods = _POINTER.from_address(file)
                assert methods.value is not None
                if methods.value not in self._methods:
                    self._methods[methods.value] = self._our_methods(methods.value)
                methods.value = ctypes.addressof(self._methods[methods.value])
        except Exception:
            # Exceptions cannot pass through SQLite. The run finds the traceback in the broker's log.
            traceback.print_exc()
        return result

    def _our_methods(self, address: int) -> _Methods:
        methods = _Methods.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(_Methods)))
        write = _WRITE(partial(self._write_file, _READ(methods.read), _WRITE(methods.write)))
        truncate = _TRUNCATE(partial(self._truncate_file, _TRUNCATE(methods.truncate)))
        sync = _SYNC(partial(self._sync_file, _SYNC(methods.sync)))
        self._kept += (write, truncate, sync)
        methods.write, methods.sync = ctypes.cast(write, _POINTER), ctypes.cast(sync, _POINTER)
        methods.truncate = ctypes.cast(truncate, _POINTER)
        return methods

    def _write_file(
        self, read: Callable[..., int], original: Callable[..., int], file: int, data: int, size: int, offset: int
    ) -> int:
        try:
            name = self._names[file]
            if self._dropped is not None:
                # With SQLite's own method: opening and closing the file here would release SQLite's locks on it.
                before = ctypes.create_string_buffer(size)
                read(file, ctypes.addressof(before), size, offset)  # zeros after the end of the file
                self._dropped.write(name, offset, before.raw)
            if self._fitting(os.stat(self._folder + name).st_size, offset, size) < size:
                # As with a real disk, a part of the write still fits.
                self._note(name, offset, offset + size // 2)
                original(file, data, size // 2, offset)
                return sqlite3.SQLITE_FULL
            self._note(name, offset, offset + size)
            return original(file, data, size, offset)
        except Exception:
            traceback.print_exc()
            return sqlite3.SQLITE_IOERR_WRITE

    def _truncate_file(self, original: Callable[..., int], file: int, size: int) -> int:
        try:
            self._note_cut(self._names[file], size)
            return original(file, size)
        except Exception:
            traceback.print_exc()
            return sqlite3.SQLITE_IOERR_TRUNCATE

    def _sync_file(self, original: Callable[..., int], file: int, flags: int) -> int:
        try:
            name = self._names[file]
            if self._fails_to_sync(name):
                return sqlite3.SQLITE_IOERR_FSYNC
            result = original(file, flags)
            if result == sqlite3.SQLITE_OK:
                self._note_sync(name)
            return result
        except Exception:
            traceback.print_exc()
            return sqlite3.SQLITE_IOERR_FSYNC


def _read(path: str, offset: int, size: int) -> bytes:
    """Read from a file; zeros after its end."""
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(size).ljust(size, b"\0")


def _same(before: bytes, data: Any) -> int:
    """Return how many bytes at the beginning are equal."""
    after = bytes(data[: len(before)])
    if before == after:
        return len(before)
    return next(at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new)


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
