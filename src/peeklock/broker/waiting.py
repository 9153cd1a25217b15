"""What a queue asks of the place where its active messages wait, whatever the order in which they leave it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peeklock.store.base import Run, StoredMessage

if TYPE_CHECKING:
    from peeklock.broker.backlog import Backlog


class Windows:
    """The active messages of a queue that are in memory. Abstract: what sweeps and claims need of any queue."""

    @property
    def loading(self) -> bool:
        """Whether a page of messages is being read."""
        raise NotImplementedError  # abstract

    def hold(self, held: bool) -> None:
        """Stop reading pages, or resume: messages beyond the windows are being removed."""
        raise NotImplementedError  # abstract

    def drop(self, message: StoredMessage) -> None:
        """Remove a message that left for good while it waited."""
        raise NotImplementedError  # abstract

    def next_after(self, number: int, session_id: str | None = None) -> int:
        """The lowest number above `number` that an active message may have; the messages in between are locked."""
        raise NotImplementedError  # abstract


class Waiting(Windows):
    """The active messages of a queue without sessions. Abstract: `Backlog` and `PriorityBacklog` are the two."""

    @property
    def lanes(self) -> list[Backlog]:
        """Messages of an earlier lane are delivered first; within a lane the lowest number is."""
        raise NotImplementedError  # abstract

    @property
    def at_hand(self) -> int:
        """About how many messages can be taken without reading."""
        raise NotImplementedError  # abstract

    def resume(self, tail: int, any_stored: bool) -> None:
        """Start with what the store has: numbers up to `tail`."""
        raise NotImplementedError  # abstract

    def add(self, message: StoredMessage) -> None:
        """Add a message that is active in the store: a new one, or one that was returned."""
        raise NotImplementedError  # abstract

    def take(self) -> StoredMessage | None:
        """Take the next message. None: there is none, or it is still being read."""
        raise NotImplementedError  # abstract

    def drop_runs(self, runs: list[Run]) -> None:
        """Remove messages that a claim took: they were the first that waited when the claim began."""
        raise NotImplementedError  # abstract

    def read_again(self, runs: list[Run]) -> None:
        """Make room for these messages, which are active again in the store and in no window."""
        raise NotImplementedError  # abstract

    def forget(self) -> None:
        """Release the memory: the entity was deleted."""
        raise NotImplementedError  # abstract
