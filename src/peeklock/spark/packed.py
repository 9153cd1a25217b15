"""Reading messages by their numbers in packed pages: many in one answer, their bytes as the broker has them.

An operation of the broker's own, which the open's capabilities tell of; `claims` and `pages` have what works with every
service. Several requests are under way, so that the broker reads while a page is decoded here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from peeklock.amqp.allocation import keep_freed_memory
from peeklock.amqp.types import Array, Int
from peeklock.client import ClientError
from peeklock.spark import ranges
from peeklock.spark.ranges import Ranges
from peeklock.spark.reach import Asked, Reach

PAGE_BYTES: Final = 1 << 20
"""About how large a page is to be: larger ones save nothing, and each is in memory several times."""
MOST_BYTES: Final = 4 << 20
"""What the broker gives at most."""
AT_ONCE: Final = 3
"""Requests under way."""
FIRST_PAGE: Final = 1000
"""Messages asked for while their size is not known."""
_HEAD: Final = 130
"""About how much the broker writes in front of a message, which its size does not count."""
_GROWTH: Final = 8
"""How many times more numbers the next page is asked for at most: it may be that only these had no messages."""
_MOST_RANGES: Final = 8192
_MOST_NUMBER: Final = (1 << 44) - 1


class PackedPage(NamedTuple):
    """An answer."""

    data: bytes
    """Each message behind its length in four bytes."""
    messages: int
    """How many it has."""
    asked: Ranges
    """The numbers that it is the answer for; those of them that it does not have are not there."""


class PackedReading:
    """Reads numbers in order, over one connection."""

    def __init__(self, reach: Reach, message_size: int | None = None) -> None:
        keep_freed_memory()  # of this task's process: every page is a large block, and is copied into others
        self._reach = reach
        self._page = FIRST_PAGE if message_size is None else max(1, PAGE_BYTES // (message_size + _HEAD))
        """How many numbers to ask for at a time."""

    def read(self, wanted: Ranges, what: str) -> Iterator[PackedPage]:
        """All of them that are there; begins again where it was when the service fails. `what` is for errors."""
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
                if len(window) > _MOST_RANGES:
                    window, unasked = window[:_MOST_RANGES], window[_MOST_RANGES:] + unasked
                asked.append((window, self._ask(window)))
            window, request = asked.popleft()
            answer = request.answer()
            data, count, last = answer["messages"], answer["message-count"], answer["last"]
            rest = ranges.after(window, last)
            if rest:  # they are larger than expected
                asked.appendleft((rest, self._ask(rest)))
                window = ranges.until(window, last)
            self._learn(len(data), ranges.count(window))
            yield PackedPage(data, count, window)

    def _ask(self, window: Ranges) -> Asked:
        bounds = [number for each in window for number in each]
        return self._reach.ask("peeklock:read-packed", {"ranges": Array(bounds, int), "max-bytes": Int(MOST_BYTES)})

    def _learn(self, size: int, numbers: int) -> None:
        fitting = PAGE_BYTES * numbers // size if size else self._page * _GROWTH
        self._page = max(1, min(fitting, self._page * _GROWTH))
