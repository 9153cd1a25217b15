"""The memory of unauthenticated connections: incomplete frames and WebSocket messages, and HTTP requests.

Each connection may hold a frame or a head of the maximum size, so there is one limit for all unauthenticated
connections together. When it is exceeded, the connection that holds the most is dropped.
"""

from __future__ import annotations

from typing import Final, Protocol

REASON: Final = "connections without a token or key hold too much memory, and this one the most"


class Holder(Protocol):
    """An unauthenticated connection."""

    def drop(self, reason: str) -> None:
        """Close the connection at once."""
        ...


class Unauthenticated:
    """Counts the bytes that unauthenticated connections hold, and enforces the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[Holder, int] = {}
        self.total = 0

    def hold(self, holder: Holder, size: int) -> None:
        """Set the number of bytes that a connection holds."""
        self.total += size - self._held.pop(holder, 0)
        if size:
            self._held[holder] = size
        while self.total > self._limit:
            largest = max(self._held, key=self._held.__getitem__)
            self.forget(largest)
            largest.drop(REASON)

    def forget(self, holder: Holder) -> None:
        """Remove a connection that has logged in or is closed."""
        self.total -= self._held.pop(holder, 0)
