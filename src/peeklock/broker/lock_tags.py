"""Delivery tags, which clients use as lock tokens.

A client that has the token of a message may settle the message by a request. So a token is sixteen bytes of the
system's random source. Many are read at once, because a system call for each message would cost more than its lock.
"""

from __future__ import annotations

import os
from typing import Final

TAG_BYTES: Final = 16
DRAWN: Final = 256
"""The number of tags that one system call reads: one page of memory."""
_ORDER: Final = (3, 2, 1, 0, 5, 4, 7, 6, *range(8, TAG_BYTES))
"""Positions of the bytes of a token in the tag: a delivery tag is the UUID with its first three groups reversed."""


class LockTags:
    """Makes delivery tags. Random numbers of this size do not repeat in practice."""

    def __init__(self) -> None:
        self._drawn: list[tuple[bytes, bytes]] = []

    def next(self) -> tuple[bytes, bytes]:
        """Return a new tag, and its bytes in the order of a lock token."""
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
