"""A disk that fills up, fails, drops what it should sync or takes its time, under the log of a store and under SQLite.

The functions of `os` by which the log is written are replaced, and the methods of the files that SQLite opens. A full
disk refuses whatever would make a file longer by more than others became shorter meanwhile. A sync that fails leaves
the bytes in the file: who wrote them is told that they may not be. One that drops them fails once; the next one
succeeds, and does not bring them to the disk (`dropped`). A slow one waits. What is written and not synced is noted,
for a power cut to take.
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
"""Files that a power cut may tear."""


class Mode(StrEnum):
    FINE = "fine"
    FULL = "full"
    FAILING = "failing"
    DROPPING = "dropping"
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
        self._room = 0
        """Of a full disk: bytes that became free since it was."""
        self._folder = f"{folder.resolve()}{os.sep}"
        self._chance = Random(0)
        self._unsynced = self._dropped = None
        if notes is not None:
            self._dropped = Dropped(dropped_notes(notes))
            for name, (start, end) in read(notes).items():
                # Nobody knows what was there before a process wrote that did not sync; zeros are as good as anything.
                self._dropped.write(name, start, bytes(end - start))
            self._unsynced = Unsynced(notes)
        self._failed: set[str] = set()
        """Files whose last sync failed and dropped what was written: the next one succeeds."""
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
        # What is written over the same bytes cannot be torn: the disk has them, whichever of the two it has.
        same = _same(before[: max(0, length - offset)], data[:size])
        if same < size:
            self._note(name, offset + same, offset + size)
        return original(descriptor, data[:size], offset)

    def _pwritev(self, original: Callable[..., int], descriptor: int, parts: list[bytes], offset: int) -> int:
        return self._pwrite(original, descriptor, b"".join(parts), offset)

    def _write(self, original: Callable[[int, Any], int], descriptor: int, data: Any) -> int:
        """Not by what the log is written: small files, at their end."""
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
        """In the folder, empty for the folder itself; None for what is elsewhere."""
        return self._relative(os.readlink(f"/proc/self/fd/{descriptor}"))

    def _relative(self, path: str) -> str | None:
        return f"{path}{os.sep}"[len(self._folder) : -1] if f"{path}{os.sep}".startswith(self._folder) else None

    # --- room ---

    def _fitting(self, length: int, offset: int, size: int) -> int:
        """How much of what is to be written there fits: what lies within the file has its place on the disk already."""
        if self.mode is not Mode.FULL or offset + size <= length:
            return size
        size = min(size, length + self._room - offset)
        self._room -= max(0, offset + size - length)
        return size

    def _grow(self, length: int, wanted: int) -> None:
        """All of it, or OSError."""
        if self.mode is Mode.FULL and wanted > length:
            if wanted - length > self._room:
                raise _os_error(errno.ENOSPC)
            self._room -= wanted - length

    def _free(self, size: int) -> None:
        self._room = self._room + max(0, size) if self.mode is Mode.FULL else 0

    # --- both ---

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
        """The pages are clean from now on, and the disk does not have them."""
        self._failed.add(name)
        if self._dropped is not None and name:
            shown = self._dropped.fail(name, shows_it=self._chance.random() < 0.5)
            if shown:
                show(Path(self._folder, name), shown)
        if self._unsynced is not None:
            self._unsynced.synced(name)

    def _note(self, name: str, start: int, end: int) -> None:
        """Before it is written: what a kill leaves in a file unnoted would be taken for synced by the next process."""
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
            # It does not find its way through SQLite; but what is ours to mend is found in the broker's log at the end.
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
                # By SQLite's own method: to open and close the file here would end SQLite's locks on it.
                before = ctypes.create_string_buffer(size)
                read(file, ctypes.addressof(before), size, offset)  # behind its end there are zeros
                self._dropped.write(name, offset, before.raw)
            if self._fitting(os.stat(self._folder + name).st_size, offset, size) < size:
                # As the last block of a disk is used up: a part of it still fits.
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
    """With zeros for what is behind the end."""
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(size).ljust(size, b"\0")


def _same(before: bytes, data: Any) -> int:
    """How many bytes at the beginning do not change."""
    after = bytes(data[: len(before)])
    if before == after:
        return len(before)
    return next(at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new)


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
