"""The messages that were returned to a window of a queue, by sequence number."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from peeklock.store.base import StoredMessage


class ReturnedMessages:
    """The returned messages of one window. They are added in any order, and taken by the lowest number."""

    __slots__ = ("heap", "numbers")

    def __init__(self) -> None:
        self.heap: list[tuple[int, StoredMessage]] = []
        self.numbers: set[int] = set()

    def push(self, message: StoredMessage) -> None:
        number = message.sequence_number
        heappush(self.heap, (number, message))
        self.numbers.add(number)

    def pop(self) -> StoredMessage:
        """Remove the message with the lowest number."""
        number, message = heappop(self.heap)
        self.numbers.discard(number)
        return message

    def remove_all(self, is_removed: Callable[[int], bool]) -> list[StoredMessage]:
        """Remove and return the messages for whose numbers `is_removed` is true."""
        removed = [message for number, message in self.heap if is_removed(number)]
        if removed:
            self.heap = [each for each in self.heap if not is_removed(each[0])]
            heapify(self.heap)
            self.numbers = {number for number, _ in self.heap}
        return removed

    def clear(self) -> list[StoredMessage]:
        """Remove and return all messages."""
        messages = [message for _, message in self.heap]
        self.heap.clear()
        self.numbers.clear()
        return messages
