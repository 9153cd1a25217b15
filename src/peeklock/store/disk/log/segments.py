"""The files of the log: `log-0000000001` and so on in the data folder, each with a header and then records.

A segment gets its full length when it is made, so that a record that fits never fails halfway for want of room. A
segment that no message needs is kept as a spare for the next one: overwriting allocated blocks is twice as fast as
allocating new ones. The salt tells new records from what such a file held before.
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

from ...base import StoreError
from ..failures import NO_ROOM, WHAT_TO_DO, store_error
from ..folder import sync_folder
from ..keys import LENGTH_BITS, LENGTH_MASK
from .checksums import crc32
from .records import PAYLOAD, PAYLOAD_HEAD, payload_check, payload_seed, read_head

HEADER: Final = Struct("<16sQQQQII")
"""Magic, number of the segment, number of the first commit, the segment before and where that ends, salt, CRC."""

MAGIC: Final = b"Peeklock log v1\n"
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
    """What records begin with, and their checksums."""


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
        """Those from the one on that is applied last, by number. Changes nothing. StoreError when one is damaged."""
        found = {}
        for number, file in self.files(self._folder):
            self._sizes[number] = file.stat().st_size
            if number >= applied:  # what of the others is needed, the index knows
                found[number] = self.header(number)
        return found

    @staticmethod
    def files(folder: Path) -> list[tuple[int, Path]]:
        """Number and file of each, in order."""
        named = [(file.name.removeprefix(_PREFIX), file) for file in folder.glob(f"{_PREFIX}*")]
        return sorted((int(digits), file) for digits, file in named if digits.isdigit())

    def header(self, number: int) -> Segment:
        """StoreError if the file does not begin with it."""
        file = self.path(number)
        try:
            with file.open("rb") as opened:
                header = opened.read(HEADER.size)
        except FileNotFoundError:
            raise StoreError(f"{file} is missing, and the store needs it.") from None
        except OSError as error:
            raise store_error(error, file) from error
        if len(header) == HEADER.size:
            magic, *fields, check = HEADER.unpack(header)
            if magic == MAGIC and check == crc32(header[:-4]) and fields[0] == number:
                return Segment(*fields)
        raise StoreError(
            f"{file} is damaged, or was written by another version of Peeklock: "
            f"the header in its first {HEADER.size} bytes is not valid."
        )

    def check_record(self, number: int, start: int, end: int, commit: int) -> None:
        """StoreError unless this segment has the record of that commit there: it is missing, was cut short, or is
        older or newer than what was written about it."""
        segment, file = self.header(number), self.path(number)
        try:
            with file.open("rb") as opened:
                opened.seek(start)
                data = opened.read(end - start)
        except OSError as error:
            raise store_error(error, file) from error
        head = read_head(data, 0, segment.salt)
        if head is None or head.commit != commit or head.length != end - start:
            cut = len(data) < end - start
            raise StoreError(
                f"{file} is damaged, or was copied at another time than the index: "
                + (f"it ends before byte {end}, " if cut else "")
                + f"the record of commit {commit} is not at offset {start}. {WHAT_TO_DO}"
            )

    def remove_leftovers(self) -> None:
        """Files that a killed broker was about to use."""
        for left in (self._folder / _MADE, *self._folder.glob(f"{_SPARE}*")):
            left.unlink(missing_ok=True)
        self._spares.clear()

    def path(self, number: int) -> Path:
        return self._folder / f"{_PREFIX}{number:010}"

    def describe(self, number: int, place: int) -> str:
        """Where a payload is, for people."""
        return f"{self.path(number)}, offset {place >> LENGTH_BITS}, {place & LENGTH_MASK} bytes"

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
        wanted = max(min(max(self.total, SMALLEST), LARGEST), needed)
        made = self._folder / _MADE
        with self._lock, suppress(FileNotFoundError):
            if self._spares:
                self._spares.pop().rename(made)
        descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = _lengthen(descriptor, wanted, needed)
            fields = HEADER.pack(MAGIC, *segment, 0)[:-4]
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

    def open_for_writing(self, number: int) -> tuple[int, int]:
        """Its descriptor and how long it is. OSError."""
        return os.open(self.path(number), os.O_RDWR | os.O_CLOEXEC), self.size(number)

    def cut(self, number: int, end: int) -> None:
        """Nothing follows this byte: give the rest back. Not while it is written."""
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

    def read(self, number: int, places: list[int]) -> list[bytes | None]:
        """The payloads at these places, in this order; None for one that is damaged. StoreError."""
        descriptor = self._descriptor(number)
        seed = payload_seed(number)
        found: list[bytes | None] = []
        at = 0
        while at < len(places):
            begin = (places[at] >> LENGTH_BITS) - PAYLOAD_HEAD
            end = begin + PAYLOAD_HEAD + (places[at] & LENGTH_MASK)
            through = at + 1
            while through < len(places):
                offset = (places[through] >> LENGTH_BITS) - PAYLOAD_HEAD
                following = offset + PAYLOAD_HEAD + (places[through] & LENGTH_MASK)
                if not (end <= offset <= end + _READ_GAP and following - begin <= _READ_BYTES):
                    break
                end = following
                through += 1
            try:
                read = os.pread(descriptor, end - begin, begin)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise store_error(error, self.path(number)) from error
                # A bad sector: those beside it may be sound.
                found += self._read_one_by_one(number, places[at:through])
                at = through
                continue
            if len(read) < end - begin:
                read = read.ljust(end - begin, b"\0")  # what is missing is damaged
            for place in places[at:through]:
                offset, length = place >> LENGTH_BITS, place & LENGTH_MASK
                within = offset - begin
                payload = read[within : within + length]
                stated, check = PAYLOAD.unpack_from(read, within - PAYLOAD_HEAD)
                is_sound = stated == length and check == payload_check(payload, seed, offset)
                found.append(payload if is_sound else None)
            at = through
        return found

    def _read_one_by_one(self, number: int, places: list[int]) -> list[bytes | None]:
        if len(places) == 1:
            return [None]
        return [payload for place in places for payload in self.read(number, [place])]

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


def _lengthen(descriptor: int, wanted: int, needed: int) -> int:
    """Make the file as long as wanted, or as needed where there is no room for more; how long it is. OSError."""
    length = os.fstat(descriptor).st_size
    for size in (wanted, needed):
        if length >= size:
            return length
        try:
            _reserve(descriptor, length, size)
            return size
        except OSError as error:
            if error.errno not in NO_ROOM or size == needed:
                raise
            os.ftruncate(descriptor, length)  # what was allocated of it before the disk was full
    return length


def _reserve(descriptor: int, length: int, size: int) -> None:
    """Make the file so long, and have the room for it, where the system can promise that."""
    try:
        os.posix_fallocate(descriptor, length, size - length)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _CANNOT_RESERVE:
            raise
        os.ftruncate(descriptor, size)
