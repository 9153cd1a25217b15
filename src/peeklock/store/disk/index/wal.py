"""SQLite's write-ahead log, read as a file: how much of it counts, and which pages it has.

SQLite alone writes it. How many of its frames count says SQLite's own shared memory, the file `-shm`, so that no
checksum has to be computed here; the formats of both are those of https://sqlite.org/walformat.html.

Both files stay open here for as long as SQLite has them open. To close any descriptor of a file drops all POSIX locks
that the process has on it, and SQLite's are on `-shm`; and an error of the disk that happened while the log was written
back is reported to those who had the file open.
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
"""Of the header: it changes whenever the log begins again."""
_FRAME: Final = Struct(">II8s8x")
"""Page, size of the database in pages if the frame ends a transaction, salt, checksums; the page follows."""
_SHARED: Final = Struct("=12xBxHIII4x8s8x")
"""Initialized, page size, frames, size of the database in pages, the checksum of the last frame, salt. It is there
twice, and how many frames are in the database already follows."""
_BACKFILLED: Final = Struct("=I")
_READ_BYTES: Final = 512 * 1024
_COPIED_BYTES: Final = 1024 * 1024


class Frames(NamedTuple):
    """The frames that count: those up to the last transaction that is whole."""

    valid: int
    backfilled: int
    """How many of them are in the database and synced."""
    page_size: int
    pages: int
    """How long the database is after them."""
    salt: bytes


NONE: Final = Frames(0, 0, 0, 0, b"")


def path(file: Path) -> Path:
    return Path(f"{file}-wal")


def salt(file: Path) -> bytes:
    """As the header of the log has it, whether it counts or not."""
    with path(file).open("rb") as log:
        return log.read(HEADER_BYTES)[_SALT]


class Wal:
    """The log of a database that SQLite has open. One thread uses it."""

    def __init__(self, file: Path) -> None:
        self._log = _Followed(path(file))
        self._shared = _Followed(Path(f"{file}-shm"))

    def open(self) -> None:
        """Whenever SQLite has opened the database. OSError."""
        self._log.open()
        self._shared.open()

    def close(self) -> None:
        """After SQLite has closed it."""
        self._log.close()
        self._shared.close()

    def frames(self) -> Frames:
        """Those of the last transaction that was committed or begun. StoreError, OSError."""
        self.open()
        shared = os.pread(self._shared.descriptor, 2 * _SHARED.size + _BACKFILLED.size, 0)
        first, second = shared[: _SHARED.size], shared[_SHARED.size : 2 * _SHARED.size]
        if first != second or len(shared) < 2 * _SHARED.size + _BACKFILLED.size:
            raise StoreError(f"{self._shared.file} is not as SQLite keeps it.")
        is_initialized, page_size, count, pages, _, salt = _SHARED.unpack(first)
        if not is_initialized:
            raise StoreError(f"{self._shared.file} is not as SQLite keeps it.")
        if count == 0:
            return NONE
        (backfilled,) = _BACKFILLED.unpack_from(shared, 2 * _SHARED.size)
        frames = Frames(count, backfilled, page_size, pages, salt)
        last = os.pread(self._log.descriptor, _FRAME.size, _offset(frames, count))
        if len(last) < _FRAME.size or _FRAME.unpack(last)[1:] != (pages, salt):
            raise StoreError(f"{self._log.file} lost what was written to it.")
        return frames

    def pages(self, frames: Frames) -> Iterator[tuple[int, memoryview]]:
        """Numbers and contents of the pages in these frames, the last version of a page first. StoreError, OSError."""
        size = _FRAME.size + frames.page_size
        many = max(1, _READ_BYTES // size)
        for end in range(frames.valid, 0, -many):
            begin = max(0, end - many)
            chunk = memoryview(os.pread(self._log.descriptor, (end - begin) * size, _offset(frames, begin + 1)))
            if len(chunk) < (end - begin) * size:
                raise StoreError(f"{self._log.file} lost what was written to it.")
            for at in range(len(chunk) - size, -1, -size):
                number, _, salt = _FRAME.unpack_from(chunk, at)
                if salt != frames.salt:
                    raise StoreError(f"{self._log.file} lost what was written to it.")
                yield number, chunk[at + _FRAME.size : at + size]

    def sync(self) -> None:
        """OSError."""
        self.open()
        sync_file(self._log.descriptor)


def numbers(file: Path, page_size: int) -> set[int]:
    """Of all pages that the log may have, whether their frames count or not."""
    return {number for number, _ in versions(file, page_size)}


def versions(file: Path, page_size: int) -> Iterator[tuple[int, bytes]]:
    """Numbers and contents of all pages that the log may have, whether their frames count or not. OSError."""
    try:
        with path(file).open("rb") as log:
            salt = log.read(HEADER_BYTES)[_SALT]
            while len(frame := log.read(_FRAME.size + page_size)) > _FRAME.size:
                number, _, of = _FRAME.unpack_from(frame)
                if of == salt:
                    yield number, frame[_FRAME.size :]
    except FileNotFoundError:
        pass


def write_again(file: Path) -> None:
    """Have the disk have the log as it can be read now; while SQLite does not have it open. OSError.

    A sync that failed may have left pages of it in memory only and marked as written, so that the next sync succeeds
    without them. To write them once more is the one way to have them written.
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
    """Where the frame is; the first has number 1."""
    return HEADER_BYTES + (number - 1) * (_FRAME.size + frames.page_size)


class _Followed:
    """A file that is kept open, and opened again when there is another one of its name."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.descriptor = -1

    def open(self) -> None:
        if self.descriptor >= 0:
            with_name, ours = os.stat(self.file), os.fstat(self.descriptor)
            if (with_name.st_dev, with_name.st_ino) == (ours.st_dev, ours.st_ino):
                return
            self.close()  # SQLite has closed it long ago, since it deletes only what nobody has open
        self.descriptor = os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
