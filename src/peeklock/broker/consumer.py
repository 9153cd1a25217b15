"""What a queue delivers messages to."""

from __future__ import annotations

from typing import Protocol

from peeklock.broker.locks import Lock
from peeklock.store.base import StoredMessage


class Consumer(Protocol):
    """A receiver: a link, a receive over HTTP, or a forwarder."""

    deletes: bool
    """Whether it receives and deletes: messages are removed before it gets them, without a lock."""

    def ready(self) -> bool:
        """Whether it can take one more message now."""
        ...

    def deliver(self, message: StoredMessage, lock: Lock | None) -> None: ...

    def reserve(self) -> None:
        """A message for it is being removed, and is delivered when that is done."""
        ...

    def unreserve(self) -> None:
        """The message could not be removed, and is not delivered."""
        ...

    def starved(self) -> None:
        """There is no more message for it at the moment: it may answer a drain."""
        ...
