"""Long work in turns with other threads: compiled code keeps the interpreter until it is done, or lets go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import sleep
from typing import Any, TypeVar

_Item = TypeVar("_Item")


def in_turns(items: Iterable[_Item], many: int) -> Iterator[_Item]:
    """The same items; whenever so many are done, others have a turn."""
    for number, item in enumerate(items, 1):
        yield item
        if number % many == 0:
            sleep(0)


def clear(items: list[Any], many: int) -> None:
    """Empty the list, so many at a time: to free what is in them takes its time, too."""
    while items:
        del items[-many:]
        sleep(0)
