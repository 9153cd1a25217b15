"""How the store addresses messages and payloads: numbers of 63 bits, because SQLite keeps those as they are.

A message's key is its entity's id in the high bits and its sequence number in the low 44. A payload's place in its
segment is its offset in the high bits and its length in the low 32.
"""

from __future__ import annotations

from typing import Final

from ..base import MAX_ENTITY
from ..base import MAX_NUMBER as MAX_NUMBER

NUMBER_BITS: Final = 44
assert MAX_NUMBER == (1 << NUMBER_BITS) - 1
assert MAX_ENTITY <= (1 << (63 - NUMBER_BITS)) - 1

LENGTH_BITS: Final = 32
LENGTH_MASK: Final = (1 << LENGTH_BITS) - 1


def first_key(entity: int) -> int:
    """The key before the first of an entity's messages: sequence number 0 is never given out."""
    return entity << NUMBER_BITS
