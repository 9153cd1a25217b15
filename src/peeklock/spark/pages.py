"""Browse an entity by sequence number: find the numbers of its messages, and read them page by page.

Nothing here locks or changes a message, or raises its delivery count. Sequence numbers may have gaps of any size. In a
partitioned entity the upper 16 bits are the partition's, and each partition has its own numbers and its own `extent`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final

from peeklock.spark.option_values import MAX_NUMBER
from peeklock.spark.options import Options
from peeklock.spark.packed import PackedReading
from peeklock.spark.ranges import Ranges, count, join
from peeklock.spark.reach import Reach
from peeklock.spark.rows import Head, Page, head_of, number_of

PAGE: Final = 1000
"""Messages in one peek request. The service may return fewer, also because of their size."""
PARTITION_BITS: Final = 48
_SKEW_MS: Final = 60_000
"""How far the service's clock may go back between two messages with ascending numbers."""


class Pages:
    """Browses one entity, over its own connection. A context manager."""

    def __init__(self, options: Options, reach: Reach | None = None) -> None:
        self._reach = reach or Reach(options)

    def __enter__(self) -> Pages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._reach.close()

    def peek(self, first: int, most: int = PAGE, *, bodies: bool = True) -> list[bytes]:
        """Return encoded messages from a number on, in ascending order; empty only if there are none."""
        return self._reach.attempt("peeking at", lambda: self._reach.peek(first, most, bodies=bodies))

    def between(self, first: int, last: int) -> Iterator[list[bytes]]:
        """Read all messages between two numbers, both included, by pages."""
        while first <= last:
            page = self.peek(first, min(PAGE, last - first + 1))
            if not page:
                return
            reached = number_of(page[-1])
            while page and reached > last:
                page.pop()
                reached = number_of(page[-1]) if page else last
            if page:
                yield page
            first = reached + 1

    def read(self, wanted: Ranges) -> Iterator[Page]:
        """Read all messages with these numbers, by pages; packed if the service supports it."""
        if self._reach.attempt("reaching", lambda: self._reach.offers_claims):
            for page in PackedReading(self._reach).read(wanted, "reading"):
                if page.messages:
                    yield page.data
        else:
            for first, last in wanted:
                yield from self.between(first, last)

    def look(self, first: int) -> Head | None:
        """Return the number and time of the first message from a number on, or None."""
        if first > MAX_NUMBER:
            return None
        page = self.peek(first, 1, bodies=False)
        return head_of(page[0]) if page else None

    def last(self, first: int = 0, most: int = MAX_NUMBER) -> int | None:
        """Find the highest number with a message in a range: in growing steps up to a gap, then by halving."""

        def seen_from(number: int) -> Head | None:
            seen = self.look(number) if number <= most else None
            return seen if seen is not None and seen.number <= most else None

        seen = seen_from(first)
        if seen is None:
            return None
        low, step = seen.number, 1
        while (seen := seen_from(low + step)) is not None:
            low, step = seen.number, step * 2
        nothing_from = low + step
        while low + 1 < nothing_from:
            middle = (low + nothing_from) // 2
            seen = seen_from(middle)
            if seen is None:
                nothing_from = middle
            else:
                low = seen.number
        return low

    def extents(self, first: int, last: int) -> Ranges:
        """Find the first and last message in a range: one range for each partition with messages."""
        found: Ranges = []
        while (seen := self.look(first)) is not None and seen.number <= last:
            end = min(last, ((seen.number >> PARTITION_BITS) + 1 << PARTITION_BITS) - 1)
            found.append([seen.number, self.last(seen.number, end) or seen.number])
            first = end + 1
        return found

    def ends(self) -> dict[int, int]:
        """Find the highest number of each partition. An entity without partitions has partition 0 only."""
        return {last >> PARTITION_BITS: last for _, last in self.extents(0, MAX_NUMBER)}

    def enqueued_from(self, extent: list[int], moment_ms: int) -> int:
        """Find the first number in an extent that may have been enqueued from a time on. It may be a little low."""
        return self._first(extent, lambda seen: seen.enqueued_ms >= moment_ms - _SKEW_MS)

    def enqueued_until(self, extent: list[int], moment_ms: int) -> int:
        """Find the last number in an extent that may have been enqueued by a time. It may be a little high."""
        return self._first(extent, lambda seen: seen.enqueued_ms > moment_ms + _SKEW_MS) - 1

    def _first(self, extent: list[int], is_there: Callable[[Head], bool]) -> int:
        low, high = extent[0], extent[1] + 1
        while low < high:
            middle = (low + high) // 2
            seen = self.look(middle)
            if seen is None or seen.number >= high or is_there(seen):
                high = middle
            else:
                low = seen.number + 1
        return low

    def without_gaps(self, extents: Ranges, slices: int) -> Ranges:
        """Remove the larger gaps from extents, so that shares of them are about equal."""
        width = max(1, -(-count(extents) // slices))
        found: Ranges = []
        for first, last in extents:
            while first <= last:
                seen = self.look(first)
                if seen is None or seen.number > last:
                    break
                end = min(last, seen.number + width - 1)
                found.append([seen.number, end])
                first = end + 1
        return join(found)
