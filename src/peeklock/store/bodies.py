"""Bytes that several messages have in common.

Stands alone because stores hold it by weak references, which a compiled class does not have (docs/compiling.md).
"""

from __future__ import annotations


class Body:
    """Bytes that several messages have in common: stored once, as long as one of them is."""

    __slots__ = ("__weakref__", "cost", "data", "key")

    def __init__(self, key: int, data: bytes, cost: int | None = None) -> None:
        self.key = key
        """Not used for other bytes while a message has this body."""
        self.data = data
        self.cost = len(data) if cost is None else cost
        """What one message that has it is charged in memory. The store does not keep it."""
