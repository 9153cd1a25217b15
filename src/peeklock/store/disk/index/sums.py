"""The file `peeklock.sums`: a checksum of every page of the index.

It consists of blocks of 4 KiB. Each block has its own checksum and is stored twice, one copy after the other. The first
block has the number of pages, and identifies the frames of the WAL that the sums were made for; each further block has
the sums of the next 1019 pages. A change overwrites the older copy, so a torn write leaves the other copy intact: the
start reads the newest intact copy of each block. Blocks are changed independently, so after a power cut some may be old
and some new; `pages` explains why that is safe. A change needs no disk space except for additional blocks: messages can
be removed while the disk is full.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from struct import Struct, pack, unpack_from
from typing import Final, NamedTuple

from ...base import StoreError
from ..failures import DAMAGE_ADVICE
from ..folder import sync_file, sync_folder
from ..log.checksums import crc32

_BLOCK: Final = 4096
_HEAD: Final = Struct("<8sIQ")
"""Magic, number of the block, number of the change. The last bytes of a block are the checksum of everything before."""
_MAGIC: Final = b"PkLkSum1"
_CHECK_BYTES: Final = 4
_IN_BLOCK: Final = (_BLOCK - _HEAD.size - _CHECK_BYTES) // 4
_STATE: Final = Struct("<III8sQ")
"""Page size, number of pages, frames of the WAL that the sums were made for, salt of the WAL, generation (the number of
checkpoints before)."""
_SUMMED_AT_ONCE: Final = 4096
"""For more bytes, crc32 would release the GIL, and then wait to get it back."""


class State(NamedTuple):
    page_size: int
    pages: int
    frames: int
    salt: bytes
    generation: int


def path(file: Path) -> Path:
    return file.with_suffix(".sums")


def page_sum(number: int, content: bytes | memoryview) -> int:
    """Compute the checksum of a page, starting with its number: a page at a wrong offset does not match."""
    check = number
    for at in range(0, len(content), _SUMMED_AT_ONCE):
        check = crc32(content[at : at + _SUMMED_AT_ONCE], check)
    return check


class Sums:
    """The checksums of a database's pages. Used by one thread."""

    def __init__(self, file: Path) -> None:
        """Read the sums of a database. Raise StoreError if they are damaged, FileNotFoundError if there are none."""
        self.file = path(file)
        self._descriptor = os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._slots: list[int] = []
            """For each block, which copy is the newer one; the next change overwrites the other."""
            self._changes: list[int] = []
            """For each block, the number of its last change."""
            self.state, self.sums = self._load()
        except BaseException:
            self.close()
            raise
        self._unsynced = set(range(len(self._slots)))
        """Blocks whose newer copy may not be durable."""
        self._durable = len(self._slots)
        """How many blocks have a durable copy."""
        self._is_writable = False

    def start_writing(self) -> None:
        """Write the sums again and sync them, since the process that wrote them may not have synced. Raise OSError."""
        if not self._is_writable:
            os.close(self._descriptor)
            self._descriptor = -1
            self._descriptor = os.open(self.file, os.O_RDWR | os.O_CLOEXEC)
            self._is_writable = True
        for number in self._unsynced:
            self._write(number, self._slots[number])
        sync_file(self._descriptor)
        self._unsynced.clear()

    def change(self, pages: Iterable[tuple[int, memoryview]], state: State) -> None:
        """Write and sync the sums of these pages; if a page occurs twice, the first one counts. Raise OSError.

        After a failure, the changed blocks are written again with the next change.
        """
        changed: set[int] = set()
        blocks = {0}
        zeros = bytes(state.page_size)
        for number in range(len(self.sums) + 1, state.pages + 1):  # new pages that SQLite does not write are zeros
            self.sums.append(page_sum(number, zeros))
            blocks.add(_block(number))
        for number, content in pages:
            if number not in changed and number <= state.pages:
                changed.add(number)
                self.sums[number - 1] = page_sum(number, content)
                blocks.add(_block(number))
        self.state = state
        self._unsynced |= blocks
        while len(self._slots) <= _block(state.pages):
            self._slots.append(1)
            self._changes.append(0)
        written = sorted(self._unsynced, reverse=True)  # the first block last, because it has the number of blocks
        for number in written:
            if number == 0 and len(self._slots) > self._durable:
                sync_file(self._descriptor)
            self._changes[number] += 1
            self._write(number, 1 - self._slots[number])
        sync_file(self._descriptor)
        for number in written:
            self._slots[number] = 1 - self._slots[number]
        self._unsynced.clear()
        self._durable = len(self._slots)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _load(self) -> tuple[State, array[int]]:
        state = State(*_STATE.unpack_from(self._read(0)))
        sums = array("I")
        for number in range(1, _block(state.pages) + 1):
            sums.extend(unpack_from(f"<{_IN_BLOCK}I", self._read(number)))
        del sums[state.pages :]
        return state, sums

    def _read(self, number: int) -> bytes:
        """Read the newest intact copy of a block. Blocks must be read in order. Raise StoreError if there is none."""
        newest, slot, content = 0, -1, b""
        for copy in (0, 1):
            block = os.pread(self._descriptor, _BLOCK, (2 * number + copy) * _BLOCK)
            change = _change(block, number)
            if change > newest:
                newest, slot, content = change, copy, block[_HEAD.size : -_CHECK_BYTES]
        if slot < 0:
            raise StoreError(
                f"{self.file} is damaged: block {number} (offset {2 * number * _BLOCK}) does not match its checksum. "
                f"The index cannot be checked without it. {DAMAGE_ADVICE}"
            )
        self._slots.append(slot)
        self._changes.append(newest)
        return content

    def _write(self, number: int, copy: int) -> None:
        content = _STATE.pack(*self.state) if number == 0 else _to_bytes(self.sums, number)
        _write_block(self._descriptor, number, copy, self._changes[number], content)


def create(file: Path, page_size: int, sums: array[int], generation: int) -> None:
    """Write a new file of sums, which replaces an existing one. Raise OSError."""
    made = Path(f"{path(file)}.new")
    with suppress(FileNotFoundError):
        made.unlink()
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write_block(descriptor, 0, 0, 1, _STATE.pack(page_size, len(sums), 0, bytes(8), generation))
        for number in range(1, _block(len(sums)) + 1):
            _write_block(descriptor, number, 0, 1, _to_bytes(sums, number))
        sync_file(descriptor)
    finally:
        os.close(descriptor)
    made.rename(path(file))
    sync_folder(file.parent)


def _block(page: int) -> int:
    """Return the number of the block with the sum of this page."""
    return (page - 1) // _IN_BLOCK + 1


def _change(block: bytes, number: int) -> int:
    """Return the number of the change that wrote this copy of the block; 0 if the copy is damaged."""
    if len(block) < _BLOCK or int.from_bytes(block[-_CHECK_BYTES:], "little") != crc32(block[:-_CHECK_BYTES]):
        return 0
    magic, of, change = _HEAD.unpack_from(block)
    return int(change) if magic == _MAGIC and of == number else 0


def _write_block(descriptor: int, number: int, copy: int, change: int, content: bytes) -> None:
    block = (_HEAD.pack(_MAGIC, number, change) + content).ljust(_BLOCK - _CHECK_BYTES, b"\0")
    block += crc32(block).to_bytes(_CHECK_BYTES, "little")
    offset = (2 * number + copy) * _BLOCK
    while block:
        written = os.pwrite(descriptor, block, offset)
        block, offset = block[written:], offset + written


def _to_bytes(sums: array[int], number: int) -> bytes:
    """Encode the content of a block of sums."""
    chosen = sums[(number - 1) * _IN_BLOCK : number * _IN_BLOCK]
    return pack(f"<{len(chosen)}I", *chosen)
