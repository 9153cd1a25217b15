"""Delivery tags, which clients know as lock tokens.

Whoever has the token of a message may settle it by a request, so a token has twelve bytes of the system's random
source. They are drawn in bulk: a call to the system for each message would cost more than its lock.

A token has sixteen bytes, and clients know it in two orders: as the delivery tag the first three groups (of four, two
and two bytes) are reversed. In the tags that are given here these groups read the same in both directions. So tag and
token are the same bytes, and nothing has to be turned around for each delivery.
"""

from __future__ import annotations

import os
from typing import Final

TAG_BYTES: Final = 16
DRAWN: Final = 256
"""Tags drawn at a time: one page of memory."""
_MIRRORED: Final = ((0, 3), (1, 2), (4, 5), (6, 7))
"""Bytes of a tag that are equal."""


class LockTags:
    """Gives tags. None is given twice: of random numbers of this size no two are ever the same."""

    def __init__(self) -> None:
        self._drawn: list[bytes] = []

    def next(self) -> bytes:
        if not self._drawn:
            random = bytearray(os.urandom(TAG_BYTES * DRAWN))
            for place, mirrored in _MIRRORED:
                random[mirrored::TAG_BYTES] = random[place::TAG_BYTES]
            drawn = bytes(random)
            self._drawn = [drawn[at : at + TAG_BYTES] for at in range(0, len(drawn), TAG_BYTES)]
        return self._drawn.pop()
