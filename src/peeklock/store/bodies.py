"""Shared bodies: bytes that several messages share.

A module of its own, which is not compiled: stores hold bodies by weak references, which compiled classes do not support
(docs/compiling.md).
"""

from __future__ import annotations


class Body:
    """Bytes that several messages share. The store keeps one copy until the last of these messages is removed."""

    __slots__ = ("__weakref__", "cost", "data", "key")

    def __init__(self, key: int, data: bytes, cost: int | None = None) -> None:
        self.key = key
        """Identifies the bytes: not used for other bytes while any message has this body."""
        self.data = data
        self.cost = len(data) if cost is None else cost
        """Bytes of memory charged to each message with this body. The store does not save it."""
