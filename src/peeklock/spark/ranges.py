"""Sequence numbers as sorted ranges `[[first, last], ...]`: few bytes for many numbers, also in an offset's JSON.

A range has both its ends. Ranges never touch or overlap: `join` makes them so from anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Ranges = list[list[int]]


def of_numbers(numbers: Iterable[int]) -> Ranges:
    """Return the ranges of exactly these numbers, given in any order."""
    found: Ranges = []
    for number in sorted(numbers):
        if found and number <= found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def join(*several: Ranges) -> Ranges:
    """Return the union."""
    found: Ranges = []
    for first, last in sorted(each for ranges in several for each in ranges):
        if found and first <= found[-1][1] + 1:
            found[-1][1] = max(found[-1][1], last)
        else:
            found.append([first, last])
    return found


def subtract(ranges: Ranges, others: Ranges) -> Ranges:
    """Return the numbers that are in the first and not in the second."""
    found: Ranges = []
    away = iter(join(others))
    gone = next(away, None)
    for first, last in join(ranges):
        while gone is not None and gone[1] < first:
            gone = next(away, None)
        while gone is not None and gone[0] <= last:
            if first < gone[0]:
                found.append([first, gone[0] - 1])
            first = gone[1] + 1
            if gone[1] > last:
                break  # it reaches into the next range too
            gone = next(away, None)
        if first <= last:
            found.append([first, last])
    return found


def intersect(ranges: Ranges, first: int, last: int) -> Ranges:
    """Return the part between two numbers, both included."""
    return [[max(first, a), min(last, b)] for a, b in ranges if a <= last and b >= first]


def count(ranges: Ranges) -> int:
    return sum(last - first + 1 for first, last in ranges)


def numbers(ranges: Ranges) -> Iterator[int]:
    """Yield each number, in ascending order."""
    for first, last in ranges:
        yield from range(first, last + 1)


def contains(ranges: Ranges, number: int) -> bool:
    return any(first <= number <= last for first, last in ranges)


def split(ranges: Ranges, parts: int) -> list[Ranges]:
    """Split in order into at most so many non-empty parts, whose sizes differ by at most one number."""
    left = count(ranges)
    found: list[Ranges] = []
    rest = [list(each) for each in ranges]
    for remaining in range(min(parts, left), 0, -1):
        wanted = -(-left // remaining)
        left -= wanted
        part: Ranges = []
        while wanted:
            first, last = rest[0]
            taken = min(wanted, last - first + 1)
            part.append([first, first + taken - 1])
            wanted -= taken
            if first + taken > last:
                rest.pop(0)
            else:
                rest[0][0] = first + taken
        found.append(part)
    return found


def take(ranges: Ranges, most: int) -> tuple[Ranges, Ranges]:
    """Return the first `most` numbers, and the rest."""
    left = most
    for at, (first, last) in enumerate(ranges):
        if last - first + 1 > left:
            if not left:
                return ranges[:at], ranges[at:]
            return [*ranges[:at], [first, first + left - 1]], [[first + left, last], *ranges[at + 1 :]]
        left -= last - first + 1
    return ranges, []


def after(ranges: Ranges, number: int) -> Ranges:
    """Return the part after a number."""
    return [[max(first, number + 1), last] for first, last in ranges if last > number]


def until(ranges: Ranges, number: int) -> Ranges:
    """Return the part up to and including a number."""
    return [[first, min(last, number)] for first, last in ranges if first <= number]


def chunks(ranges: Ranges, size: int) -> Iterator[list[int]]:
    """Yield the numbers in lists of at most `size`."""
    chunk: list[int] = []
    for number in numbers(ranges):
        chunk.append(number)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def check(value: Any) -> Ranges:
    """Check ranges from an untrusted source, such as an offset's JSON. Raises ValueError if they are not ranges."""
    try:
        found = [[int(first), int(last)] for first, last in value]
    except (TypeError, ValueError):
        raise ValueError(f"ranges of sequence numbers are pairs of numbers, not {value!r}") from None
    if any(first > last for first, last in found) or found != join(found):
        raise ValueError(f"ranges of sequence numbers ascend and do not touch, unlike {value!r}")
    return found
