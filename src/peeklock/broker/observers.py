"""Notifies links of changes to an entity: links that are attached to it, and links that browse its messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from peeklock.broker.errors import BrokerError


class Watcher(Protocol):
    """A link that is attached to an entity, or a receive over HTTP."""

    def on_entity_deleted(self, failure: BrokerError) -> None:
        """The entity was deleted."""
        ...

    def on_entity_changed(self) -> None:
        """The entity has a new definition."""
        ...


class Browser(Protocol):
    """A link that reads messages without locking them."""

    def on_arrival(self) -> None:
        """A message arrived since the browser began to wait."""
        ...


class WaitingBrowsers:
    """The browsers of one entity that have read all messages and wait for the next."""

    __slots__ = ("_waiting", "call_soon")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.call_soon = call_soon
        """Calls a function in a turn of its own."""
        self._waiting: dict[Browser, None] = {}
        """Browsers in the order in which they began to wait."""

    @property
    def any(self) -> bool:
        return bool(self._waiting)

    def add(self, browser: Browser) -> None:
        """Call `on_arrival` once, in a turn of its own, when the next message is in the store."""
        self._waiting[browser] = None

    def remove(self, browser: Browser) -> None:
        self._waiting.pop(browser, None)

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for browser in waiting:
            self.call_soon(browser.on_arrival)
