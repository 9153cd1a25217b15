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


class LockTags:
    """Gives tags. None is given twice: of random numbers of this size no two are ever the same."""

    def __init__(self) -> None:
        self._drawn: list[bytes] = []

    def next(self) -> bytes:
        if not self._drawn:
            drawn = os.urandom(TAG_BYTES * DRAWN)
            self._drawn = [drawn[at : at + TAG_BYTES] for at in range(0, len(drawn), TAG_BYTES)]
        return self._drawn.pop()
