"""Finds, extracts and replaces the sections of an encoded message (3.2) without decoding them.

The broker keeps the bytes of messages as they arrived, and reads them with these functions. `scan` finds the sections
of a message, `raw_fields` the fields of a list, and other functions make sections from encoded parts. `codec` decodes
values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from peeklock.amqp.errors import DecodeError
from peeklock.amqp.message import Message

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES = 0x73, 0x74
DATA, AMQP_SEQUENCE, AMQP_VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78

NULL = b"\x40"

_uint_at = struct.Struct(">I").unpack_from
_pack_uint = struct.Struct(">I").pack
_FIXED_WIDTH = {0x40: 0, 0x50: 1, 0x60: 2, 0x70: 4, 0x80: 8, 0x90: 16}
_MAX_DESCRIPTORS = 8


class Scanned:
    """The positions of the sections of a message. A slice covers a section's value, without its descriptor."""

    __slots__ = (
        "annotations",
        "application_properties",
        "bare",
        "data",
        "delivery_annotations",
        "header",
        "properties",
    )

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.header: slice | None = None
        self.delivery_annotations: slice | None = None
        self.annotations: slice | None = None
        self.properties: slice | None = None
        """A slice of `bare`, as is `application_properties`. The other slices are of `data`."""
        self.application_properties: slice | None = None
        self.bare = data
        """The bare message: the message from its properties on, which intermediaries do not change."""


def value_end(data: bytes, at: int) -> int:
    """Return the end of the value at `at`. Only the size of the value is read, not its elements."""
    try:
        code = data[at]
        for _ in range(_MAX_DESCRIPTORS):
            if code != 0:
                break
            at = value_end(data, at + 1)
            code = data[at]
        else:
            raise DecodeError("a value in the message has too many descriptors")
        kind = code & 0xF0
        width = _FIXED_WIDTH.get(kind)
        if width is not None:
            end = at + 1 + width
        elif kind in (0xA0, 0xC0, 0xE0):
            end = at + 2 + data[at + 1]
        elif kind in (0xB0, 0xD0, 0xF0):
            end = at + 5 + _uint_at(data, at + 1)[0]
        else:
            raise DecodeError(f"unknown constructor 0x{code:02x} in a message")
    except (IndexError, struct.error, RecursionError):
        raise DecodeError("the message ends in the middle of a value") from None
    if end > len(data):
        raise DecodeError("the message ends in the middle of a value")
    return end


def scan(data: bytes) -> Scanned:
    """Find the sections of an encoded message. Raise DecodeError if it is malformed."""
    found = Scanned(data)
    at = 0
    size = len(data)
    bare_from = -1
    strays: list[slice] = []
    if not size:
        raise DecodeError("the message is empty")
    while at < size:
        if at + 3 >= size or data[at] or data[at + 1] != 0x53:
            return _scan_unusual(data)
        code = data[at + 2]
        # The common constructors are handled here, without a call of `value_end`.
        constructor = data[at + 3]
        if constructor == 0xB0 and at + 8 <= size:
            end = at + 8 + _uint_at(data, at + 4)[0]
        elif (constructor == 0xC0 or constructor == 0xC1 or constructor == 0xA0) and at + 5 <= size:
            end = at + 5 + data[at + 4]
        else:
            end = value_end(data, at + 3)
        if end > size:
            raise DecodeError("the message ends in the middle of a section")
        if code >= PROPERTIES:
            if bare_from < 0:
                bare_from = at
            if code == PROPERTIES:
                _check_list(constructor, "properties")
                found.properties = slice(at + 3 - bare_from, end - bare_from)
            elif code == APPLICATION_PROPERTIES:
                _check_map(constructor, "application-properties")
                found.application_properties = slice(at + 3 - bare_from, end - bare_from)
            elif code > FOOTER:
                raise DecodeError(f"0x{code:02x} is not a message section")
        else:
            if bare_from >= 0:
                strays.append(slice(at, end))
            if code == HEADER:
                _check_list(constructor, "header")
                found.header = slice(at + 3, end)
            elif code == MESSAGE_ANNOTATIONS:
                _check_map(constructor, "message-annotations")
                found.annotations = slice(at + 3, end)
            elif code == DELIVERY_ANNOTATIONS:
                _check_map(constructor, "delivery-annotations")
                found.delivery_annotations = slice(at + 3, end)
            else:
                raise DecodeError(f"0x{code:02x} is not a message section")
        at = end
    if strays:
        _remove_strays(found, bare_from, strays)
    elif bare_from < 0:
        found.bare = b""
    elif bare_from:
        found.bare = data[bare_from:]
    return found


def _scan_unusual(data: bytes) -> Scanned:
    """Scan a message with legal but unusual descriptors (a long code, a symbol), after encoding it again."""
    rewritten = Message.decode(data).encode()
    if rewritten == data:
        raise DecodeError("a message section has no descriptor")
    return scan(rewritten)


def _check_list(constructor: int, name: str) -> None:
    if constructor not in (0x45, 0xC0, 0xD0):
        raise DecodeError(f"the {name} section is not a list")


def _check_map(constructor: int, name: str) -> None:
    if constructor not in (0xC1, 0xD1):
        raise DecodeError(f"the {name} section is not a map")


def _remove_strays(found: Scanned, bare_from: int, strays: list[slice]) -> None:
    """Remove header and annotations from the bare message: some clients write them after the properties."""
    data = found.data
    kept = []
    at = bare_from
    for stray in strays:
        kept.append(data[at : stray.start])
        at = stray.stop
    kept.append(data[at:])
    inner = scan(b"".join(kept))
    found.bare, found.properties = inner.bare, inner.properties
    found.application_properties = inner.application_properties


def compound_body(data: bytes, at: int) -> tuple[int, int]:
    """Return the start of the elements of the list or map at `at`, and their number."""
    try:
        code = data[at]
        if code == 0x45:
            return at + 1, 0
        if code in (0xC0, 0xC1):
            return at + 3, data[at + 2]
        return at + 9, int(_uint_at(data, at + 5)[0])
    except (IndexError, struct.error):
        raise DecodeError("the message ends in the middle of a list") from None


def cut(data: bytes, part: slice) -> bytes:
    return data[part.start : part.stop]


def raw_fields(data: bytes, part: slice) -> list[bytes]:
    """Return the elements of the list or map in `part`, each still encoded."""
    at, count = compound_body(data, part.start)
    if count > part.stop - at:
        raise DecodeError("a list in the message has more elements than bytes")
    fields = []
    for _ in range(count):
        end = value_end(data, at)
        fields.append(data[at:end])
        at = end
    if at > part.stop:
        raise DecodeError("the elements of a list in the message are longer than its size")
    return fields


def first_field_is_null(data: bytes, part: slice) -> bool:
    at, count = compound_body(data, part.start)
    return count == 0 or data[at : at + 1] == NULL


def raw_entries(data: bytes, part: slice) -> Iterator[tuple[bytes, bytes]]:
    """Return the keys and values of the map in `part`, each still encoded."""
    fields = raw_fields(data, part)
    if len(fields) % 2:
        raise DecodeError("a map in the message has a key without a value")
    return zip(fields[::2], fields[1::2], strict=True)


def _compound(small: bytes, large: bytes, fields: Sequence[bytes]) -> bytes:
    body = b"".join(fields)
    if len(body) < 255 and len(fields) < 256:
        return small + bytes((len(body) + 1, len(fields))) + body
    return large + _pack_uint(len(body) + 4) + _pack_uint(len(fields)) + body


def compound_map(fields: Sequence[bytes]) -> bytes:
    """Make a map of encoded keys and values, one after the other."""
    return _compound(b"\xc1", b"\xd1", fields)


def list_section(code: int, fields: Sequence[bytes]) -> bytes:
    """Make a section that is a list of encoded fields."""
    return bytes((0x00, 0x53, code)) + _compound(b"\xc0", b"\xd0", fields)


def map_section(code: int, fields: Sequence[bytes]) -> bytes:
    """Make a section that is a map of encoded keys and values, one after the other."""
    return bytes((0x00, 0x53, code)) + compound_map(fields)


def replace_section(bare: bytes, part: slice | None, section: bytes) -> bytes:
    """Replace the section whose value is in `part` by `section`; None: insert `section` at the start."""
    if part is None:
        return section + bare
    return b"".join((bare[: part.start - 3], section, bare[part.stop :]))


def data_sections(payload: bytes) -> list[bytes]:
    """Return the contents of all data sections of an encoded message, in order. In a batch, each is a message."""
    found = []
    at = 0
    size = len(payload)
    while at < size:
        if payload[at : at + 2] != b"\x00\x53" or at + 3 >= size:
            return list(Message.decode(payload).data)
        end = value_end(payload, at + 3)
        if payload[at + 2] == DATA:
            constructor = payload[at + 3]
            if constructor not in (0xA0, 0xB0):
                raise DecodeError("a data section of the batch is not binary")
            found.append(payload[at + (5 if constructor == 0xA0 else 8) : end])
        at = end
    return found
