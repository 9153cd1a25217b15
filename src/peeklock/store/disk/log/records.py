"""Encoding and decoding of records and payloads in a segment, each with a checksum of its own.

A record consists of a head, payloads, and an end that describes the changes of the commit. The head begins with the
segment's salt, 32 random bits: so no client can send a message that is mistaken for a record, and a reader can find the
next record after unreadable bytes. The head's checksum covers the head and the end. It does not cover the payloads,
because each has its own checksum, which is verified whenever the payload is read from disk, not only at replay.

docs/storage.md has the layout byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from .checksums import crc32

RECORD: Final = Struct("<IIIQQQ")
"""The head: salt; checksum; length of the end; length of the payloads with their heads; commit; last synced commit."""

PAYLOAD: Final = Struct("<II")
"""The head of a payload: its length and its checksum."""

PAYLOAD_HEAD: Final = PAYLOAD.size

_UNCHECKED: Final = 8  # salt and checksum
_MASK: Final = 0xFFFF_FFFF
_SPREAD: Final = 0x9E37_79B1


class Head(NamedTuple):
    end_length: int
    payload_length: int
    commit: int
    synced: int
    """The last synced commit when this record was written. Unreadable records up to it were acknowledged: damage."""

    @property
    def length(self) -> int:
        """The length of the whole record in bytes."""
        return RECORD.size + self.payload_length + self.end_length


def payload_seed(segment: int) -> int:
    """Return the segment's part of the initial value of payload checksums; the payload's offset is added to it.

    So an intact payload that is read from a wrong segment or offset does not match.
    """
    return segment * _SPREAD & _MASK


def payload_check(payload: bytes, seed: int, offset: int) -> int:
    """Compute the checksum of a payload at this offset of the segment with this seed."""
    return crc32(payload, (seed + offset) & _MASK)


def payload_head(payload: bytes, seed: int, offset: int) -> bytes:
    """Encode the head of a payload whose own bytes begin at this offset of the segment."""
    return PAYLOAD.pack(len(payload), crc32(payload, (seed + offset) & _MASK))


def record_head(salt: int, end: bytes, payload_length: int, commit: int, synced: int) -> bytes:
    head = RECORD.pack(salt, 0, len(end), payload_length, commit, synced)
    check = crc32(end, crc32(head[_UNCHECKED:], salt))
    return head[:4] + check.to_bytes(4, "little") + head[_UNCHECKED:]


def read_head(data: bytes, offset: int, salt: int) -> Head | None:
    """Decode the head of a record at this offset of the data.

    None if the head or the end does not match the checksum, or if the record is longer than the data.
    """
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


def claimed_length(data: bytes, offset: int, salt: int) -> int:
    """Return the length that the head of a possibly incomplete record states; 0 if no record begins here."""
    if offset + RECORD.size > len(data):
        return 0
    found, _, *fields = RECORD.unpack_from(data, offset)
    return Head(*fields).length if found == salt else 0


def are_payloads_sound(data: bytes, offset: int, head: Head, seed: int, base: int) -> bool:
    """Verify the payloads of the record at this offset of the data. The data begins at byte `base` of the segment."""
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
    """Find the records from this offset on whose heads and ends are intact, skipping unreadable bytes between them."""
    mark = salt.to_bytes(4, "little")
    while (offset := data.find(mark, offset)) >= 0:
        head = read_head(data, offset, salt)
        if head is None:
            offset += 1
        else:
            yield offset, head
            offset += head.length


def sound_payloads(data: bytes, start: int, end: int, salt: int, seed: int) -> Iterator[bytes]:
    """Find intact payloads in a part of a segment whose records cannot be read."""
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
