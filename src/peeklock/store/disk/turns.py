"""Long work in turns with other threads: compiled code keeps the interpreter until it is done, or lets go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import sleep
from typing import Any, TypeVar

_Item = TypeVar("_Item")


def in_turns(items: Iterable[_Item], many: int, count: Callable[[_Item], int] = lambda item: 1) -> Iterator[_Item]:
    """The same items; whenever so many are done, others have a turn. `count` says as how many one counts."""
    done = 0
    for item in items:
        yield item
        done += count(item)
        if done >= many:
            done = 0
            sleep(0)


def clear(items: list[Any], many: int) -> None:
    """Empty the list, so many at a time: to free what is in them takes its time, too."""
    while items:
        del items[-many:]
        sleep(0)
