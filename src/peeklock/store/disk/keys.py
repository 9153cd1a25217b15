"""Keys of messages and places of payloads: integers of 63 bits, because an SQLite integer has 64 bits with the sign.

A message's key consists of its entity's id in the high bits and its sequence number in the low 44 bits. A payload's
place consists of its offset in the segment in the high bits and its length in the low 32 bits.
"""

from __future__ import annotations

from typing import Final

from ..base import MAX_ENTITY_ID
from ..base import MAX_NUMBER as MAX_NUMBER

NUMBER_BITS: Final = 44
assert MAX_NUMBER == (1 << NUMBER_BITS) - 1
assert MAX_ENTITY_ID <= (1 << (63 - NUMBER_BITS)) - 1

LENGTH_BITS: Final = 32
LENGTH_MASK: Final = (1 << LENGTH_BITS) - 1


def first_key(entity: int) -> int:
    """Return the key of sequence number 0, which no message has: all keys of the entity's messages are higher."""
    return entity << NUMBER_BITS
