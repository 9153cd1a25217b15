"""The files of the log: `log-0000000001` and so on in the data folder, each with a header and then records.

A file is given its length when it is made, so that a record that fits is not refused halfway for want of room. One that
no message needs any more is kept for the next to be made from, since to write over blocks that are there is twice as
fast as to be given new ones; what it held before is told from new records by their checksums.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Final, NamedTuple
from zlib import crc32

from ...base import StoreError
from ..failures import store_error
from ..folder import sync_folder
from ..keys import LENGTH_BITS, LENGTH_MASK

HEADER: Final = Struct("<16sQQQQII")
"""Magic, number of the segment, number of the first commit, the segment before and where that ends, salt, CRC."""

_MAGIC: Final = b"Peeklock log 1\n\0"
_PREFIX: Final = "log-"
_SPARE: Final = "spare-log"
_MADE: Final = "new-log"
"""One that is being made; only who makes it touches it."""

SMALLEST: Final = 1024 * 1024
LARGEST: Final = 64 * 1024 * 1024
"""Segments are as long as all that are there together, between these."""
_SPARES: Final = 4
"""So many of the largest are kept for their room."""

_READ_GAP: Final = 4096
_READ_BYTES: Final = 1024 * 1024
"""Payloads that lie closer than the gap are read at once, up to so many bytes."""

_OPEN_FILES: Final = 64
_CANNOT_RESERVE: Final = frozenset((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS))


class Place(NamedTuple):
    """Where a record ends, and so where the next may begin."""

    segment: int
    offset: int
    commit: int
    """The number of the last commit before."""


class Segment(NamedTuple):
    number: int
    first_commit: int
    previous: int
    previous_end: int
    salt: int = 0
    """What checksums begin with: nobody can send a message that a start would take for a record, should it find it at
    the end of the log in a file that was used before."""


class Segments:
    """The files, by number. One thread makes them, another reads and frees them; a number is never used again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.has_orphan = False
        """One was made that may be there or not after a crash."""
        self._lock = Lock()
        self._sizes: dict[int, int] = {}
        self._spares: list[Path] = []
        self._readable: dict[int, int] = {}
        """Descriptors of those that were read lately, by number; only for the thread that reads."""

    def find(self, applied: int) -> dict[int, Segment]:
        """Those from the one on that is applied last, by number. StoreError when one of them is damaged."""
        found = {}
        for left in (self._folder / _MADE, *self._folder.glob(f"{_SPARE}*")):
            left.unlink(missing_ok=True)
        self._spares.clear()
        for file in self._folder.glob(f"{_PREFIX}*"):
            digits = file.name.removeprefix(_PREFIX)
            if not digits.isdigit():
                continue
            number = int(digits)
            self._sizes[number] = file.stat().st_size
            if number < applied:
                continue  # what of it is needed, the index knows
            segment = _read_header(file)
            if segment is None or segment.number != number:
                raise StoreError(
                    f"{file} is damaged, or was written by a newer Peeklock: it does not begin as it should."
                )
            found[number] = segment
        return found

    def path(self, number: int) -> Path:
        return self._folder / f"{_PREFIX}{number:010}"

    @property
    def total(self) -> int:
        with self._lock:
            return sum(self._sizes.values())

    def is_wasteful(self, kept: int) -> bool:
        """They are much longer than what is kept in them."""
        return self.total > 2 * kept + 2 * LARGEST

    @property
    def last(self) -> int:
        with self._lock:
            return max(self._sizes, default=0)

    def before(self, number: int) -> list[int]:
        with self._lock:
            return sorted(each for each in self._sizes if each < number)

    def size(self, number: int) -> int:
        with self._lock:
            return self._sizes.get(number, 0)

    def make(self, segment: Segment, needed: int) -> tuple[int, int]:
        """A new one that is durable, with room for so much: its descriptor and how long it is. OSError, and none is."""
        size = max(min(max(self.total, SMALLEST), LARGEST), needed)
        made = self._folder / _MADE
        with self._lock, suppress(FileNotFoundError):
            if self._spares:
                self._spares.pop().rename(made)
        descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            length = os.fstat(descriptor).st_size
            if length < size:
                _reserve(descriptor, size)
            else:
                size = length
            fields = HEADER.pack(_MAGIC, *segment, 0)[:-4]
            os.pwrite(descriptor, fields + crc32(fields).to_bytes(4, "little"), 0)
            os.fsync(descriptor)
            with self._lock:
                self._sizes[segment.number] = size
            self.has_orphan = True
            made.rename(self.path(segment.number))
            sync_folder(self._folder)
            self.has_orphan = False
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):
                made.unlink(missing_ok=True)
            raise
        return descriptor, size

    def cut(self, number: int, end: int) -> None:
        """Nothing follows its last record: give back what it was given too much. Not while it is written."""
        with self._lock:
            if self._sizes.get(number, 0) > end:
                with suppress(OSError):
                    os.truncate(self.path(number), end)
                self._sizes[number] = end

    def free(self, number: int) -> None:
        """No message needs it, and the index that says so is durable."""
        descriptor = self._readable.pop(number, None)
        if descriptor is not None:
            os.close(descriptor)
        file, spare = self.path(number), self._folder / f"{_SPARE}-{number}"
        with self._lock:
            size = self._sizes.pop(number, 0)
            with suppress(OSError):
                if size == LARGEST and len(self._spares) < _SPARES:
                    file.rename(spare)
                    self._spares.append(spare)
                else:
                    file.unlink(missing_ok=True)

    def read(self, number: int, places: list[int]) -> list[bytes]:
        """The bytes at these places, in this order. StoreError."""
        descriptor = self._descriptor(number)
        found: list[bytes] = []
        at = 0
        while at < len(places):
            begin = places[at] >> LENGTH_BITS
            end = begin + (places[at] & LENGTH_MASK)
            through = at + 1
            while through < len(places):
                offset = places[through] >> LENGTH_BITS
                following = offset + (places[through] & LENGTH_MASK)
                if not (end <= offset <= end + _READ_GAP and following - begin <= _READ_BYTES):
                    break
                end = following
                through += 1
            try:
                read = os.pread(descriptor, end - begin, begin)
            except OSError as error:
                raise store_error(error, self.path(number)) from error
            if len(read) < end - begin:
                raise StoreError(f"{self.path(number)} is damaged: it ends before byte {end}.")
            for place in places[at:through]:
                offset = (place >> LENGTH_BITS) - begin
                found.append(read[offset : offset + (place & LENGTH_MASK)])
            at = through
        return found

    def sync(self, number: int) -> None:
        """StoreError."""
        descriptor = self._descriptor(number)
        try:
            sync(descriptor)
        except OSError as error:
            raise store_error(error, self.path(number)) from error

    def close(self) -> None:
        for spare in self._spares:
            with suppress(OSError):
                spare.unlink(missing_ok=True)
        self._spares.clear()
        while self._readable:
            os.close(self._readable.popitem()[1])

    def _descriptor(self, number: int) -> int:
        descriptor = self._readable.pop(number, None)
        if descriptor is None:
            try:
                descriptor = os.open(self.path(number), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise StoreError(f"{self.path(number)} is missing, and messages need it.") from None
            except OSError as error:
                raise store_error(error, self.path(number)) from error
            if len(self._readable) >= _OPEN_FILES:
                os.close(self._readable.pop(next(iter(self._readable))))
        self._readable[number] = descriptor
        return descriptor


def sync(descriptor: int) -> None:
    """What was written to a file is durable, though perhaps not when it was changed."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:  # macOS, where fsync() leaves it in the disk's own cache
        fcntl.fcntl(descriptor, getattr(fcntl, "F_FULLFSYNC"))  # noqa: B009


def _reserve(descriptor: int, size: int) -> None:
    """Make the file so long, and have the room for it, where the system can promise that."""
    length = os.fstat(descriptor).st_size
    try:
        os.posix_fallocate(descriptor, length, size - length)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _CANNOT_RESERVE:
            raise
        os.ftruncate(descriptor, size)


def _read_header(file: Path) -> Segment | None:
    with file.open("rb") as opened:
        header = opened.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    magic, *fields, check = HEADER.unpack(header)
    if magic != _MAGIC or check != crc32(header[:-4]):
        return None
    return Segment(*fields)
