"""The interface between a queue and its active messages, which does not depend on the order of delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peeklock.store.base import Run, StoredMessage

if TYPE_CHECKING:
    from peeklock.broker.backlog import Backlog


class Windows:
    """The active messages of a queue that are in memory, for sweeps and claims. Abstract."""

    @property
    def loading(self) -> bool:
        """Whether a page of messages is being read."""
        raise NotImplementedError  # abstract

    def hold(self, held: bool) -> None:
        """Stop reading pages if `held`, else resume. Pages are not read while a sweep removes messages."""
        raise NotImplementedError  # abstract

    def drop(self, message: StoredMessage) -> None:
        """Drop a message from memory that is removed from the queue while it is active."""
        raise NotImplementedError  # abstract

    def next_after(self, number: int, session_id: str | None = None) -> int:
        """Return the lowest number above `number` that an active, unlocked message may have."""
        raise NotImplementedError  # abstract


class Waiting(Windows):
    """The active messages of a queue without sessions. Abstract: subclasses are `Backlog` and `PriorityBacklog`."""

    @property
    def lanes(self) -> list[Backlog]:
        """The lanes in the order of delivery. Within a lane the lowest number is delivered first."""
        raise NotImplementedError  # abstract

    @property
    def at_hand(self) -> int:
        """About how many messages can be taken without reading from the store."""
        raise NotImplementedError  # abstract

    def resume(self, tail: int, any_stored: bool) -> None:
        """At start: set the highest number in the store, and whether the store has any message."""
        raise NotImplementedError  # abstract

    def add(self, message: StoredMessage) -> None:
        """Add a message that is active in the store: a new one, or one that was returned."""
        raise NotImplementedError  # abstract

    def take(self) -> StoredMessage | None:
        """Take the next message. Return None if there is none, or if it is still being read."""
        raise NotImplementedError  # abstract

    def drop_runs(self, runs: list[Run]) -> None:
        """Drop claimed messages from memory. They were the first active messages when the claim began."""
        raise NotImplementedError  # abstract

    def read_again(self, runs: list[Run]) -> None:
        """Read messages from the store in their turn, because they are active again and not in memory."""
        raise NotImplementedError  # abstract

    def forget(self) -> None:
        """Release the memory: the entity was deleted."""
        raise NotImplementedError  # abstract
