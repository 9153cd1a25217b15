"""Reads messages by their sequence numbers in packed pages: many in one answer, in the form of the broker's log.

Only Peeklock has this operation, and offers it as a capability; `claims` and `pages` work with every service. Several
requests are outstanding, so that the broker reads while a page is decoded here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from peeklock.amqp.allocation import keep_freed_memory
from peeklock.amqp.types import Array, Int
from peeklock.client import ClientError
from peeklock.limits.amqp import MAX_PEEKED_BYTES
from peeklock.limits.broker import MAX_CLAIM_RANGES
from peeklock.spark import ranges
from peeklock.spark.ranges import Ranges
from peeklock.spark.reach import Asked, Reach

PAGE_BYTES: Final = 2 << 20
"""The size of a page to aim at. In half of it each message costs 0.8 us more of the broker and the task together; twice
of it saves little, and a page is in memory several times."""
AT_ONCE: Final = 3
"""Outstanding requests."""
FIRST_PAGE: Final = 1000
"""Messages of the first page, whose size is not known."""
_HEAD: Final = 130
"""Approximate size of the head that the broker adds to a message."""
_GROWTH: Final = 8
"""The largest factor from one page to the next: it may be that only the numbers of this page had no messages."""
_MOST_NUMBER: Final = (1 << 44) - 1


class PackedPage(NamedTuple):
    """One answer."""

    data: bytes
    """Each message follows its length in four bytes."""
    messages: int
    """Number of messages."""
    asked: Ranges
    """The numbers that this answers. Those without a message in it do not exist."""


class PackedReading:
    """Reads numbers in order, over one connection."""

    def __init__(self, reach: Reach, message_size: int | None = None) -> None:
        keep_freed_memory()  # of this task's process: every page is a large block, and is copied into others
        self._reach = reach
        self._page = FIRST_PAGE if message_size is None else max(1, PAGE_BYTES // (message_size + _HEAD))
        """How many numbers to request at a time."""

    def read(self, wanted: Ranges, what: str) -> Iterator[PackedPage]:
        """Read all that exist, and resume where it was when the service fails. `what` is for error messages."""
        left = ranges.intersect(wanted, 1, _MOST_NUMBER)
        while left:
            try:
                for page in self._read(left):
                    left = ranges.after(left, page.asked[-1][1])
                    self._reach.succeeded(what)
                    yield page
            except ClientError as error:
                self._reach.failed(what, error)

    def _read(self, unasked: Ranges) -> Iterator[PackedPage]:
        asked: deque[tuple[Ranges, Asked]] = deque()
        while unasked or asked:
            while unasked and len(asked) < AT_ONCE:
                window, unasked = ranges.take(unasked, self._page)
                if len(window) > MAX_CLAIM_RANGES:
                    window, unasked = window[:MAX_CLAIM_RANGES], window[MAX_CLAIM_RANGES:] + unasked
                asked.append((window, self._ask(window)))
            window, request = asked.popleft()
            answer = request.answer()
            data, count, last = answer["messages"], answer["message-count"], answer["last"]
            rest = ranges.after(window, last)
            if rest:
                # The page did not hold all requested messages, as they are larger than estimated: request the rest.
                asked.appendleft((rest, self._ask(rest)))
                window = ranges.until(window, last)
            self._learn(len(data), ranges.count(window))
            yield PackedPage(data, count, window)

    def _ask(self, window: Ranges) -> Asked:
        bounds = [number for each in window for number in each]
        return self._reach.ask(
            "peeklock:read-packed", {"ranges": Array(bounds, int), "max-bytes": Int(MAX_PEEKED_BYTES)}
        )

    def _learn(self, size: int, numbers: int) -> None:
        fitting = PAGE_BYTES * numbers // size if size else self._page * _GROWTH
        self._page = max(1, min(fitting, self._page * _GROWTH))
