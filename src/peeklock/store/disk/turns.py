"""Long loops that let other threads run: compiled code holds the GIL until it releases it or ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import sleep
from typing import Any, TypeVar

_Item = TypeVar("_Item")


def yield_between(
    items: Iterable[_Item], steps: int, count: Callable[[_Item], int] = lambda item: 1
) -> Iterator[_Item]:
    """Iterate over the items, and release the GIL after every `steps` steps. `count` returns the steps of an item."""
    done = 0
    for item in items:
        yield item
        done += count(item)
        if done >= steps:
            done = 0
            sleep(0)


def clear(items: list[Any], at_once: int) -> None:
    """Empty the list, `at_once` items at a time, and release the GIL in between: freeing the items takes time too."""
    while items:
        del items[-at_once:]
        sleep(0)
