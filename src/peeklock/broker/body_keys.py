"""The keys under which the store keeps bodies that several messages share.

A body may outlive the topic that it was sent to: a copy is dead-lettered elsewhere, or forwarded. So keys are
unique in the namespace and do not depend on an entity, whose id and sequence numbers may be used again.
"""

from __future__ import annotations


class BodyKeys:
    """Counts up from the highest key in the store, so that a key is never used twice while a message has its body."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0

    def resume(self, last: int) -> None:
        """At start: continue after the highest key that the store has."""
        self._last = last

    def next(self) -> int:
        self._last += 1
        return self._last
