"""The keys under which the store keeps bodies that several messages share.

A body may outlive the topic that it was sent to, if a copy is dead-lettered to another entity or forwarded. So keys are
unique in the namespace. They do not depend on an entity, whose id and sequence numbers may be used again.
"""

from __future__ import annotations


class BodyKeys:
    """Assigns keys in ascending order, after the highest key in the store. So two bodies in use never share a key."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0

    def resume(self, last: int) -> None:
        """At start: continue after the highest key in the store."""
        self._last = last

    def next(self) -> int:
        self._last += 1
        return self._last
