"""Encoded values with wrong sizes or counts, or with extreme expansion, which Peeklock's encoders would not write."""

from __future__ import annotations

import struct
from typing import Final

NULL: Final = b"\x40"
ZERO_WIDTH: Final = (b"\x40", b"\x41", b"\x42", b"\x43", b"\x44", b"\x45")
"""Constructors of values encoded in zero bytes (null, true, false, 0, 0, an empty list)."""


def described(code: int, *fields: bytes) -> bytes:
    """Encode a composite with these encoded fields."""
    return b"\x00\x53" + bytes((code,)) + listed(*fields)


def listed(*values: bytes, count: int | None = None) -> bytes:
    return _compound(0xD0, len(values) if count is None else count, b"".join(values))


def mapped(*values: bytes, count: int | None = None) -> bytes:
    return _compound(0xD1, len(values) if count is None else count, b"".join(values))


def array(count: int, constructor: bytes, elements: bytes = b"") -> bytes:
    return _compound(0xF0, count, constructor + elements)


def binary(data: bytes) -> bytes:
    return b"\xb0" + struct.pack(">I", len(data)) + data


def string(data: bytes) -> bytes:
    return b"\xb1" + struct.pack(">I", len(data)) + data


def symbol(data: bytes) -> bytes:
    return b"\xb3" + struct.pack(">I", len(data)) + data


def expanding(levels: int, width: int) -> bytes:
    """Encode nested arrays with a number of elements that grows exponentially, in a few bytes per level."""
    value = struct.pack(">II", 5, width) + b"\x40"
    for _ in range(levels - 1):
        # All elements of an array share one constructor, so each level repeats the one below it.
        value = struct.pack(">II", 5 + 2 * len(value), 2) + b"\xf0" + value * 2
    return b"\xf0" + value


def nested(depth: int, kind: str) -> bytes:
    """Encode a nested value of this kind: list, map, array or described."""
    if kind == "described":
        return b"\x00" * depth + b"\x40"
    value = NULL
    for _ in range(depth):
        match kind:
            case "list":
                value = listed(value)
            case "map":
                value = mapped(b"\x43", value)
            case _:
                value = array(1, value[:1], value[1:])
    return value


def _compound(code: int, count: int, body: bytes) -> bytes:
    return bytes((code,)) + struct.pack(">II", 4 + len(body), count) + body
