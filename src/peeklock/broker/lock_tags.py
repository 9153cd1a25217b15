"""Delivery tags, which clients know as lock tokens.

Whoever has the token of a message may settle it by a request, so a token is sixteen bytes of the system's random
source. They are drawn in bulk: a call to the system for each message would cost more than its lock.
"""

from __future__ import annotations

import os
from typing import Final

TAG_BYTES: Final = 16
DRAWN: Final = 256
"""Tags drawn at a time: one page of memory."""
_ORDER: Final = (3, 2, 1, 0, 5, 4, 7, 6, *range(8, TAG_BYTES))
"""Where the bytes of a token are in the tag: a delivery tag is the UUID with its first three groups reversed."""


class LockTags:
    """Gives tags. None is given twice: of random numbers of this size no two are ever the same."""

    def __init__(self) -> None:
        self._drawn: list[tuple[bytes, bytes]] = []

    def next(self) -> tuple[bytes, bytes]:
        """A tag, and the same as the bytes of the lock token."""
        if not self._drawn:
            tags = os.urandom(TAG_BYTES * DRAWN)
            turned = bytearray(len(tags))
            for place, source in enumerate(_ORDER):
                turned[place::TAG_BYTES] = tags[source::TAG_BYTES]
            tokens = bytes(turned)
            self._drawn = [
                (tags[at : at + TAG_BYTES], tokens[at : at + TAG_BYTES]) for at in range(0, len(tags), TAG_BYTES)
            ]
        return self._drawn.pop()
