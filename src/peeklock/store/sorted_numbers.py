"""A sorted set of integers, which the memory store uses as an index. It knows nothing of messages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator


class SortedNumbers:
    """Distinct integers in ascending order, in blocks that are short enough for fast insertion and removal."""

    _BLOCK = 1024

    __slots__ = ("_blocks", "_lasts")

    def __init__(self) -> None:
        self._blocks: list[list[int]] = []
        self._lasts: list[int] = []
        """The last number of each block."""

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    @property
    def first(self) -> int:
        """The lowest number. There must be at least one."""
        return self._blocks[0][0]

    def add(self, number: int) -> None:
        blocks, lasts = self._blocks, self._lasts
        if not lasts or number > lasts[-1]:  # the usual case: numbers are assigned in ascending order
            if blocks and len(blocks[-1]) < self._BLOCK:
                blocks[-1].append(number)
                lasts[-1] = number
            else:
                blocks.append([number])
                lasts.append(number)
            return
        at = bisect_left(lasts, number)
        block = blocks[at]
        insort(block, number)
        if len(block) > 2 * self._BLOCK:
            blocks[at : at + 1] = [block[: self._BLOCK], block[self._BLOCK :]]
            lasts.insert(at, block[self._BLOCK - 1])

    def remove(self, number: int) -> None:
        """Remove a number, which must be present."""
        at = bisect_left(self._lasts, number)
        block = self._blocks[at]
        del block[bisect_left(block, number)]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at]

    def between(self, after: int, through: int | None) -> Iterator[int]:
        """Yield the numbers with after < number <= through, ascending."""
        for at in range(bisect_right(self._lasts, after), len(self._blocks)):
            block = self._blocks[at]
            for index in range(bisect_right(block, after), len(block)):
                number = block[index]
                if through is not None and number > through:
                    return
                yield number
