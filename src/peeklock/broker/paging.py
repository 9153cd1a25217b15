"""How large the pages are that a window of a queue reads from the store, and when it reads the next."""

from __future__ import annotations

from peeklock.broker.window_budget import Budget

FIRST_PAGE_MESSAGES = 128
"""Pages grow from here: most receivers that accept a session take a few messages of it and close it. A page is as long
as the window, if that has more messages."""
PAGE_MESSAGES = 2048
PAGE_BYTES = 4 * 1024 * 1024
LEAST_PAGE_BYTES = 64 * 1024
"""A page has at least this many bytes when the budget is used up: every queue can be received from, however much memory
others use."""
LOW_MESSAGES = 16_384
"""With fewer messages in memory the next page is read, so that it is there before the window is empty: the store may
have to apply the latest commits first. Pages that are still growing are half used by then."""
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
        """Whether a window of so many bytes need not read more."""
        return size > max(LOW_BYTES, (self._budget.limit - self._budget.used) // 2)

    def limit(self, in_memory: int) -> int:
        """How many messages the next page has at most."""
        return min(max(self._next, in_memory), PAGE_MESSAGES)

    @property
    def max_bytes(self) -> int:
        """How many bytes the next page has at most."""
        return min(PAGE_BYTES, max(LEAST_PAGE_BYTES, self._budget.limit - self._budget.used))

    def on_page(self, limit: int) -> None:
        """A page of at most so many messages was read: the next is longer."""
        self.low = LOW_MESSAGES if limit == PAGE_MESSAGES else limit // 2
        self._next = min(4 * limit, PAGE_MESSAGES)
