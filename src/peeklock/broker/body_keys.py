"""The keys under which the store keeps bodies that several messages share.

A body may outlive the topic that it was sent to: a copy is dead-lettered elsewhere, or forwarded. So its key is of the
whole namespace and says nothing of an entity, whose id and sequence numbers may come again.
"""

from __future__ import annotations


class BodyKeys:
    """Counts up from the highest key in the store: a key is never used while a message has its body."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0

    def resume(self, last: int) -> None:
        """At start: the highest key that the store has."""
        self._last = last

    def next(self) -> int:
        self._last += 1
        return self._last
