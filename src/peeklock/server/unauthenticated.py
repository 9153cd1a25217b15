"""What connections hold in memory that have shown no token or key: frames and messages whose end has not come.

Each of them may begin a long one, so there is one limit for all of them together. The connection that holds most is
dropped first.
"""

from __future__ import annotations

from typing import Final, Protocol

REASON: Final = "connections without a token or key hold too much, and this one most"


class Holder(Protocol):
    """A connection."""

    def drop(self, reason: str) -> None:
        """Close it at once."""
        ...


class Unauthenticated:
    """Counts what they hold."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[Holder, int] = {}
        self.total = 0

    def hold(self, holder: Holder, size: int) -> None:
        """That connection holds so much now."""
        self.total += size - self._held.pop(holder, 0)
        if size:
            self._held[holder] = size
        while self.total > self._limit:
            largest = max(self._held, key=self._held.__getitem__)
            self.forget(largest)
            largest.drop(REASON)

    def forget(self, holder: Holder) -> None:
        """It has logged in, or is gone."""
        self.total -= self._held.pop(holder, 0)
