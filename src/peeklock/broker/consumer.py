"""The interface of the consumers that a queue delivers messages to."""

from __future__ import annotations

from typing import Protocol

from peeklock.broker.locks import Lock
from peeklock.store.base import StoredMessage


class Consumer(Protocol):
    """A receiver: a link, a receive over HTTP, or a forwarder."""

    deletes: bool
    """Whether it receives and deletes: its messages are removed before they are delivered, and have no lock."""

    def ready(self) -> bool:
        """Return whether it can take one more message now."""
        ...

    def deliver(self, message: StoredMessage, lock: Lock | None) -> None: ...

    def reserve(self, message: StoredMessage) -> None:
        """Reserve room for a message that is being removed. It is delivered after the commit."""
        ...

    def unreserve(self, message: StoredMessage) -> None:
        """Release the room: the removal failed, and the message is not delivered."""
        ...

    def on_starved(self) -> None:
        """The queue has no more messages for the consumer at the moment. The consumer may answer a drain."""
        ...
