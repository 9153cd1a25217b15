"""Serial number arithmetic (RFC 1982) for the 32-bit counters of sessions and links."""

from __future__ import annotations

from typing import Final

SERIAL_MASK: Final = 0xFFFFFFFF


def serial_sub(left: int, right: int) -> int:
    """Return how far `left` is ahead of `right`; negative if it is behind."""
    distance = (left - right) & SERIAL_MASK
    return distance - 0x100000000 if distance & 0x80000000 else distance
