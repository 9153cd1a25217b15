"""The form of what is in a segment: records, and in them payloads, each with a checksum of its own.

A record is a head, payloads and an end, which says what is to be done with them. The head begins with the segment's
salt, 32 random bits: nobody can send a message that is taken for a record, and a reader that lost its place finds the
next record by it. The head's checksum covers the head and the end. Payloads are not covered, because each is checked by
itself: whenever it is read from disk, not only when the log is replayed.

docs/storage.md has the layout byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from .checksums import crc32

RECORD: Final = Struct("<IIIQQQ")
"""Salt; checksum; length of the end; length of the payloads with their heads; commit; last commit that was synced."""

PAYLOAD: Final = Struct("<II")
"""Before every payload: its length and its checksum."""

PAYLOAD_HEAD: Final = PAYLOAD.size

_UNCHECKED: Final = 8  # salt and checksum
_MASK: Final = 0xFFFF_FFFF
_SPREAD: Final = 0x9E37_79B1


class Head(NamedTuple):
    end_length: int
    payload_length: int
    commit: int
    synced: int
    """Through which commit the log was durable when this record was written: what is damaged there was acknowledged."""

    @property
    def length(self) -> int:
        """Of the whole record."""
        return RECORD.size + self.payload_length + self.end_length


def payload_seed(segment: int) -> int:
    """What checksums of payloads in this segment begin with, together with the offset: bytes at another place, however
    sound, do not pass for those that were asked for."""
    return segment * _SPREAD & _MASK


def payload_check(payload: bytes, seed: int, offset: int) -> int:
    return crc32(payload, (seed + offset) & _MASK)


def payload_head(payload: bytes, seed: int, offset: int) -> bytes:
    """For a payload whose own bytes begin at that offset."""
    return PAYLOAD.pack(len(payload), crc32(payload, (seed + offset) & _MASK))


def record_head(salt: int, end: bytes, payload_length: int, commit: int, synced: int) -> bytes:
    head = RECORD.pack(salt, 0, len(end), payload_length, commit, synced)
    check = crc32(end, crc32(head[_UNCHECKED:], salt))
    return head[:4] + check.to_bytes(4, "little") + head[_UNCHECKED:]


def read_head(data: bytes, offset: int, salt: int) -> Head | None:
    """A head at that offset of these bytes, whose record ends within them; None if there is none."""
    if offset + RECORD.size > len(data):
        return None
    found, check, *fields = RECORD.unpack_from(data, offset)
    if found != salt:
        return None
    head = Head(*fields)
    after = offset + RECORD.size + head.payload_length
    if after + head.end_length > len(data):
        return None
    begun = crc32(data[offset + _UNCHECKED : offset + RECORD.size], salt)
    if check != crc32(data[after : after + head.end_length], begun):
        return None
    return head


def stated_length(data: bytes, offset: int, salt: int) -> int:
    """How long a record that may be torn says it is; 0 if none begins here."""
    if offset + RECORD.size > len(data):
        return 0
    found, _, *fields = RECORD.unpack_from(data, offset)
    return Head(*fields).length if found == salt else 0


def are_payloads_sound(data: bytes, offset: int, head: Head, seed: int, base: int) -> bool:
    """Those of the record at that offset of these bytes, which begin at byte `base` of the segment."""
    at = offset + RECORD.size
    end = at + head.payload_length
    while at < end:
        length, check = PAYLOAD.unpack_from(data, at)
        at += PAYLOAD_HEAD
        if at + length > end or check != payload_check(data[at : at + length], seed, base + at):
            return False
        at += length
    return True


def find_records(data: bytes, offset: int, salt: int) -> Iterator[tuple[int, Head]]:
    """Sound records from that offset on, whatever lies between them."""
    mark = salt.to_bytes(4, "little")
    while (offset := data.find(mark, offset)) >= 0:
        head = read_head(data, offset, salt)
        if head is None:
            offset += 1
        else:
            yield offset, head
            offset += head.length


def sound_payloads(data: bytes, start: int, end: int, salt: int, seed: int) -> Iterator[bytes]:
    """In these bytes of a segment, which have records that cannot be read: payloads whose own checksums match."""
    mark = salt.to_bytes(4, "little")
    while 0 <= start < end:
        at = start + RECORD.size
        while at + PAYLOAD_HEAD <= end:
            length, check = PAYLOAD.unpack_from(data, at)
            at += PAYLOAD_HEAD
            if at + length > end:
                break
            payload = data[at : at + length]
            if length and check == payload_check(payload, seed, at):
                yield payload
            at += length
        start = data.find(mark, start + 1, end)
