"""SQLite's write-ahead log (WAL), read as a file: the number of valid frames, and the pages in them.

Only SQLite writes it. The number of valid frames is read from SQLite's shared memory, the file `-shm`, so that no
checksum has to be computed here. https://sqlite.org/walformat.html describes both formats.

Both files stay open here as long as SQLite has them open, for two reasons. Closing any descriptor of a file drops all
POSIX locks that the process has on it, and SQLite's locks are on `-shm`. And the kernel reports a write-back error only
to descriptors that were open when it occurred.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from ...base import StoreError
from ..folder import sync_file

HEADER_BYTES: Final = 32
_SALT: Final = slice(16, 24)
"""The position of the salt in the header. The salt changes whenever the WAL is restarted."""
_FRAME: Final = Struct(">II8s8x")
"""Page number, size of the database in pages if the frame ends a transaction, salt, checksums. The page follows."""
_SHARED: Final = Struct("=12xBxHIII4x8s8x")
"""Whether initialized, page size, frames, size of the database in pages, checksum of the last frame, salt. It occurs
twice; then follows the number of frames that are already in the database."""
_BACKFILLED: Final = Struct("=I")
_READ_BYTES: Final = 512 * 1024
_COPIED_BYTES: Final = 1024 * 1024


class Frames(NamedTuple):
    """The valid frames: all up to the last complete transaction."""

    valid: int
    backfilled: int
    """How many of them are in the database and synced."""
    page_size: int
    pages: int
    """The length of the database in pages after these frames."""
    salt: bytes


NO_FRAMES: Final = Frames(0, 0, 0, 0, b"")


def path(file: Path) -> Path:
    return Path(f"{file}-wal")


def salt(file: Path) -> bytes:
    """Read the salt from the header of the WAL, whether the header is valid or not."""
    with path(file).open("rb") as log:
        return log.read(HEADER_BYTES)[_SALT]


class Wal:
    """The WAL of a database that SQLite has open. Used by one thread."""

    def __init__(self, file: Path) -> None:
        self._log = _OpenFile(path(file))
        self._shared = _OpenFile(Path(f"{file}-shm"))

    def open(self) -> None:
        """Open the files; call this whenever SQLite has opened the database. Raise OSError."""
        self._log.open()
        self._shared.open()

    def close(self) -> None:
        """Close the files; call this after SQLite has closed the database."""
        self._log.close()
        self._shared.close()

    def frames(self) -> Frames:
        """Read the valid frames, as of the last transaction that began or committed. Raise StoreError or OSError."""
        self.open()
        shared = os.pread(self._shared.descriptor, 2 * _SHARED.size + _BACKFILLED.size, 0)
        first, second = shared[: _SHARED.size], shared[_SHARED.size : 2 * _SHARED.size]
        if first != second or len(shared) < 2 * _SHARED.size + _BACKFILLED.size:
            raise StoreError(f"{self._shared.file} does not have the format of SQLite's shared memory.")
        is_initialized, page_size, count, pages, _, salt = _SHARED.unpack(first)
        if not is_initialized:
            raise StoreError(f"{self._shared.file} does not have the format of SQLite's shared memory.")
        if count == 0:
            return NO_FRAMES
        (backfilled,) = _BACKFILLED.unpack_from(shared, 2 * _SHARED.size)
        frames = Frames(count, backfilled, page_size, pages, salt)
        last = os.pread(self._log.descriptor, _FRAME.size, _offset(frames, count))
        if len(last) < _FRAME.size or _FRAME.unpack(last)[1:] != (pages, salt):
            raise StoreError(f"{self._log.file} lost data on the disk.")
        return frames

    def pages(self, frames: Frames) -> Iterator[tuple[int, memoryview]]:
        """Yield numbers and contents of the pages in these frames, the last version of a page first.

        Raise StoreError or OSError.
        """
        size = _FRAME.size + frames.page_size
        at_once = max(1, _READ_BYTES // size)
        for end in range(frames.valid, 0, -at_once):
            begin = max(0, end - at_once)
            chunk = memoryview(os.pread(self._log.descriptor, (end - begin) * size, _offset(frames, begin + 1)))
            if len(chunk) < (end - begin) * size:
                raise StoreError(f"{self._log.file} lost data on the disk.")
            for at in range(len(chunk) - size, -1, -size):
                number, _, salt = _FRAME.unpack_from(chunk, at)
                if salt != frames.salt:
                    raise StoreError(f"{self._log.file} lost data on the disk.")
                yield number, chunk[at + _FRAME.size : at + size]

    def sync(self) -> None:
        """Sync the WAL. Raise OSError."""
        self.open()
        sync_file(self._log.descriptor)


def numbers(file: Path, page_size: int) -> set[int]:
    """Return the numbers of all pages in the WAL, whether their frames are valid or not."""
    return {number for number, _ in versions(file, page_size)}


def versions(file: Path, page_size: int) -> Iterator[tuple[int, bytes]]:
    """Yield numbers and contents of all pages in the WAL, whether their frames are valid or not. Raise OSError."""
    try:
        with path(file).open("rb") as log:
            salt = log.read(HEADER_BYTES)[_SALT]
            while len(frame := log.read(_FRAME.size + page_size)) > _FRAME.size:
                number, _, of = _FRAME.unpack_from(frame)
                if of == salt:
                    yield number, frame[_FRAME.size :]
    except FileNotFoundError:
        pass


def rewrite(file: Path) -> None:
    """Write the bytes of the WAL again and sync them. SQLite must not have it open. Raise OSError.

    A failed sync may leave pages in memory only, marked as written, so that the next sync succeeds without writing
    them. Only another write makes sure that they reach the disk.
    """
    try:
        descriptor = os.open(path(file), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        offset = 0
        while chunk := os.pread(descriptor, _COPIED_BYTES, offset):
            offset += os.pwrite(descriptor, chunk, offset)
        if offset:
            sync_file(descriptor)
    finally:
        os.close(descriptor)


def _offset(frames: Frames, number: int) -> int:
    """Return the offset of a frame; the first frame has number 1."""
    return HEADER_BYTES + (number - 1) * (_FRAME.size + frames.page_size)


class _OpenFile:
    """A file that is kept open, and reopened when another file has replaced it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.descriptor = -1

    def open(self) -> None:
        if self.descriptor >= 0:
            with_name, ours = os.stat(self.file), os.fstat(self.descriptor)
            if (with_name.st_dev, with_name.st_ino) == (ours.st_dev, ours.st_ino):
                return
            self.close()  # safe: SQLite has closed the old file, since it deletes files only when they are closed
        self.descriptor = os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
