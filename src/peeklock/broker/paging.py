"""The sizes of the pages that a window of a queue reads from the store, and when it reads the next page."""

from __future__ import annotations

from peeklock.broker.window_budget import Budget

FIRST_PAGE_MESSAGES = 128
"""The size of the first page. Pages grow, because most receivers that accept a session take only a few messages of it.
If the window has more messages than this, the first page is as long as the window."""
PAGE_MESSAGES = 2048
PAGE_BYTES = 4 * 1024 * 1024
LEAST_PAGE_BYTES = 64 * 1024
"""The least size of a page, if the budget is used up. So every queue can be received from, whatever memory other queues
use."""
LOW_MESSAGES = 16_384
"""With fewer messages in memory the next page is read, so that it arrives before the window is empty: the store may
have to apply the latest commits first. While pages grow, the next page is read when half of one is left."""
LOW_BYTES = 8 * 1024 * 1024
"""No page is read while the window has more bytes than this, and more than half of what is left of the budget."""


class Paging:
    """The pages of one window."""

    __slots__ = ("_budget", "_next", "low")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._next = FIRST_PAGE_MESSAGES
        self.low = LOW_MESSAGES
        """With fewer messages in memory the next page is read."""

    def is_full_enough(self, size: int) -> bool:
        """Return whether a window of `size` bytes need not read the next page."""
        return size > max(LOW_BYTES, (self._budget.limit - self._budget.used) // 2)

    def limit(self, in_memory: int) -> int:
        """Return the most messages that the next page may have."""
        return min(max(self._next, in_memory), PAGE_MESSAGES)

    @property
    def max_bytes(self) -> int:
        """The most bytes that the next page may have."""
        return min(PAGE_BYTES, max(LEAST_PAGE_BYTES, self._budget.limit - self._budget.used))

    def on_page(self, limit: int) -> None:
        """A page of at most `limit` messages was read: make the next one longer."""
        self.low = LOW_MESSAGES if limit == PAGE_MESSAGES else limit // 2
        self._next = min(4 * limit, PAGE_MESSAGES)
