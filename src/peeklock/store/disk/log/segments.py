"""The segments of the log: files `log-0000000001` and so on in the data folder, each with a header and then records.

A segment gets its full length when it is created, so that writing a record that fits never fails for lack of space. A
segment that no message needs is kept as a spare for the next one: overwriting allocated blocks is twice as fast as
allocating new ones. The salt distinguishes new records from the previous contents of such a file.
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
from ..failures import DAMAGE_ADVICE, NO_SPACE, store_error
from ..folder import sync_folder
from ..keys import LENGTH_BITS, LENGTH_MASK
from .checksums import crc32
from .records import PAYLOAD, PAYLOAD_HEAD, payload_check, payload_seed, read_head

HEADER: Final = Struct("<16sQQQQII")
"""Magic, segment number, number of the first commit, number of the previous segment, offset of its end, salt, CRC."""

MAGIC: Final = b"Peeklock log v1\n"
_PREFIX: Final = "log-"
_SPARE: Final = "spare-log"
_NEW: Final = "new-log"
"""The name of a segment while it is being created."""

SMALLEST: int = 1024 * 1024
LARGEST: int = 64 * 1024 * 1024
"""A new segment is as long as all existing ones together, within these limits.

Not final: mypyc would compile the figures into the code, and `make chaos-compiled` could not set shorter ones.
"""
_MAX_SPARES: Final = 4
"""How many segments of the largest size are kept as spares."""

_READ_GAP: Final = 4096
_READ_BYTES: Final = 1024 * 1024
"""Payloads with gaps of at most `_READ_GAP` bytes are read with one call, up to `_READ_BYTES`."""

_OPEN_FILES: Final = 64
_CANNOT_RESERVE: Final = frozenset((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS))


class LogPosition(NamedTuple):
    """A position in the log: the end of a record, where the next record may begin."""

    segment: int
    offset: int
    commit: int
    """The number of the last commit before the position."""


class Segment(NamedTuple):
    """The header of a segment."""

    number: int
    first_commit: int
    previous: int
    """The number of the previous segment."""
    previous_end: int
    """The offset at which the previous segment's last record ends."""
    salt: int = 0
    """The first bytes of each record, and the initial value of the records' checksums."""


class Segments:
    """The files of the log, by segment number. A number is never reused.

    The log thread creates segments; the index thread reads and frees them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.has_uncertain_file = False
        """A segment was created but could not be made durable: it may or may not exist after a crash."""
        self._lock = Lock()
        self._sizes: dict[int, int] = {}
        self._spares: list[Path] = []
        self._readable: dict[int, int] = {}
        """Descriptors of recently read segments, by number. Used only by the index thread."""

    def find(self, applied: int) -> dict[int, Segment]:
        """Find the segments and return the headers from number `applied` on, by number. Changes nothing.

        `applied` is the segment up to which the log is applied. Raise StoreError if one of these headers is damaged.
        """
        found = {}
        for number, file in self.files(self._folder):
            self._sizes[number] = file.stat().st_size
            if number >= applied:  # of the earlier segments, the index names the ones that must exist
                found[number] = self.header(number)
        return found

    @staticmethod
    def files(folder: Path) -> list[tuple[int, Path]]:
        """List the segment files of a folder with their numbers, in order."""
        named = [(file.name.removeprefix(_PREFIX), file) for file in folder.glob(f"{_PREFIX}*")]
        return sorted((int(digits), file) for digits, file in named if digits.isdigit())

    def header(self, number: int) -> Segment:
        """Read the header of a segment. Raise StoreError if the file is missing or the header is not valid."""
        file = self.path(number)
        try:
            with file.open("rb") as opened:
                header = opened.read(HEADER.size)
        except FileNotFoundError:
            raise StoreError(f"{file} is missing, and the index refers to it.") from None
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
        """Raise StoreError unless the segment has the record of this commit at these offsets.

        Otherwise the segment is missing, cut short, or from another time than the index.
        """
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
                + f"the record of commit {commit} is not at offset {start}. {DAMAGE_ADVICE}"
            )

    def remove_leftovers(self) -> None:
        """Remove spare and unfinished segments that a killed broker left behind."""
        for file in (self._folder / _NEW, *self._folder.glob(f"{_SPARE}*")):
            file.unlink(missing_ok=True)
        self._spares.clear()

    def path(self, number: int) -> Path:
        return self._folder / f"{_PREFIX}{number:010}"

    def describe(self, number: int, place: int) -> str:
        """Describe the place of a payload for an error message: file, offset and length."""
        return f"{self.path(number)}, offset {place >> LENGTH_BITS}, {place & LENGTH_MASK} bytes"

    @property
    def total(self) -> int:
        """The length of all segments in bytes."""
        with self._lock:
            return sum(self._sizes.values())

    def is_wasteful(self, kept: int) -> bool:
        """Return whether the segments are more than twice as long as the `kept` bytes of messages in them."""
        return self.total > 2 * kept + 2 * LARGEST

    @property
    def last(self) -> int:
        """The highest segment number; 0 if there is no segment."""
        with self._lock:
            return max(self._sizes, default=0)

    def before(self, number: int) -> list[int]:
        """List the segments with lower numbers, in order."""
        with self._lock:
            return sorted(each for each in self._sizes if each < number)

    def size(self, number: int) -> int:
        with self._lock:
            return self._sizes.get(number, 0)

    def make(self, segment: Segment, needed: int) -> tuple[int, int]:
        """Create and sync a segment of at least `needed` bytes. Return its descriptor and its length.

        Raise OSError if that failed; if `has_uncertain_file` is set then, the file may exist after a crash.
        """
        wanted = max(min(max(self.total, SMALLEST), LARGEST), needed)
        made = self._folder / _NEW
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
            self.has_uncertain_file = True
            made.rename(self.path(segment.number))
            sync_folder(self._folder)
            self.has_uncertain_file = False
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):
                made.unlink(missing_ok=True)
            raise
        return descriptor, size

    def open_for_writing(self, number: int) -> tuple[int, int]:
        """Open a segment and return its descriptor and its length. Raise OSError."""
        return os.open(self.path(number), os.O_RDWR | os.O_CLOEXEC), self.size(number)

    def cut(self, number: int, end: int) -> None:
        """Truncate a segment to this length. Not for a segment that is open for writing."""
        with self._lock:
            if self._sizes.get(number, 0) > end:
                with suppress(OSError):
                    os.truncate(self.path(number), end)
                self._sizes[number] = end

    def free(self, number: int) -> None:
        """Delete a segment, or keep it as a spare. No message may need it, and the index without it must be durable."""
        descriptor = self._readable.pop(number, None)
        if descriptor is not None:
            os.close(descriptor)
        file, spare = self.path(number), self._folder / f"{_SPARE}-{number}"
        with self._lock:
            size = self._sizes.pop(number, 0)
            with suppress(OSError):
                if size == LARGEST and len(self._spares) < _MAX_SPARES:
                    file.rename(spare)
                    self._spares.append(spare)
                else:
                    file.unlink(missing_ok=True)

    def read(self, number: int, places: list[int]) -> list[bytes | None]:
        """Read the payloads at these places, in this order; None for each damaged one. Raise StoreError."""
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
                # A bad sector: the payloads beside it may be intact.
                found += self._read_one_by_one(number, places[at:through])
                at = through
                continue
            if len(read) < end - begin:
                read = read.ljust(end - begin, b"\0")  # bytes after the end of the file count as damaged
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
        """Sync a segment. Raise StoreError."""
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
                raise StoreError(f"{self.path(number)} is missing, and it contains messages.") from None
            except OSError as error:
                raise store_error(error, self.path(number)) from error
            if len(self._readable) >= _OPEN_FILES:
                os.close(self._readable.pop(next(iter(self._readable))))
        self._readable[number] = descriptor
        return descriptor


def sync(descriptor: int) -> None:
    """Sync the file's contents and length, but not its other metadata."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:  # on macOS, fsync() does not flush the disk's own cache
        fcntl.fcntl(descriptor, getattr(fcntl, "F_FULLFSYNC"))  # noqa: B009


def _lengthen(descriptor: int, wanted: int, needed: int) -> int:
    """Extend the file to `wanted` bytes, or to `needed` bytes if the disk has no space for more. Return its length.

    Raise OSError.
    """
    length = os.fstat(descriptor).st_size
    for size in (wanted, needed):
        if length >= size:
            return length
        try:
            _reserve(descriptor, length, size)
            return size
        except OSError as error:
            if error.errno not in NO_SPACE or size == needed:
                raise
            os.ftruncate(descriptor, length)  # free the blocks that were allocated before the disk was full
    return length


def _reserve(descriptor: int, length: int, size: int) -> None:
    """Extend the file from `length` to `size` bytes, and allocate its blocks if the file system supports that."""
    try:
        os.posix_fallocate(descriptor, length, size - length)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _CANNOT_RESERVE:
            raise
        os.ftruncate(descriptor, size)
