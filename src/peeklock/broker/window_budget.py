"""The memory budget for active messages, shared by all queues of a namespace."""

from __future__ import annotations

from typing import Final

from peeklock.store.base import StoredMessage

OBJECT_BYTES: Final = 300
"""About how much memory a message uses in addition to its payload."""


def memory_cost(message: StoredMessage) -> int:
    """Return about how much memory a message uses. A shared body counts as a share of its size."""
    cost = len(message.payload) + OBJECT_BYTES
    if message.body is not None:
        cost += message.body.cost
    if message.annex is not None:
        cost += len(message.annex)
    return cost


class Budget:
    """The memory that all windows of a namespace share."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = 128 * 1024 * 1024) -> None:
        self.limit = limit
        self.used = 0
