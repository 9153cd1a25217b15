"""Keys of messages: the id of the entity in the high bits, the sequence number in the low 44 bits."""

from __future__ import annotations

from typing import Final

from ..base import MAX_NUMBER

NUMBER_BITS: Final = 44

MIN_BIGINT: Final = -(1 << 63)
MAX_BIGINT: Final = (1 << 63) - 1


def first_key(entity: int) -> int:
    """Return the key before the entity's first message: the one of sequence number 0."""
    return entity << NUMBER_BITS


def last_key(entity: int) -> int:
    """Return the highest key that a message of the entity can have."""
    return entity << NUMBER_BITS | MAX_NUMBER


def key_in(entity: int, number: int) -> int:
    """Return the key of a sequence number, which is limited to the entity's range."""
    return first_key(entity) + min(max(number, 0), MAX_NUMBER)


def bigint(value: int) -> int:
    """Limit a value to what a column of the type bigint can have."""
    return min(max(value, MIN_BIGINT), MAX_BIGINT)


def runs_of(keys: list[int]) -> tuple[list[int], list[int]]:
    """Return the first and the last keys of runs of consecutive keys; `keys` are ascending and distinct."""
    firsts: list[int] = []
    lasts: list[int] = []
    last = -1
    for key in keys:
        if key != last + 1 or not firsts:
            firsts.append(key)
            lasts.append(key)
        else:
            lasts[-1] = key
        last = key
    return firsts, lasts
