"""What a queue asks of its backlog, whatever the order in which messages leave it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peeklock.store.base import Run, StoredMessage

if TYPE_CHECKING:
    from peeklock.broker.backlog import Backlog


class Waiting:
    """The messages of a queue that wait to be received. Abstract: `Backlog` and `PriorityBacklog` are the two."""

    @property
    def lanes(self) -> list[Backlog]:
        """Messages of an earlier one go first; within one the lowest number does."""
        raise NotImplementedError  # abstract

    @property
    def at_hand(self) -> int:
        """About how many can be taken without reading."""
        raise NotImplementedError  # abstract

    @property
    def loading(self) -> bool:
        """Whether messages are being read."""
        raise NotImplementedError  # abstract

    def resume(self, tail: int, any_stored: bool) -> None:
        """Start with what the store has: numbers up to `tail`."""
        raise NotImplementedError  # abstract

    def add(self, message: StoredMessage) -> None:
        """A message that is active in the store and now waits here: new, or come back."""
        raise NotImplementedError  # abstract

    def take(self) -> StoredMessage | None:
        """The message that is next. None: there is none, or it is still being read."""
        raise NotImplementedError  # abstract

    def drop(self, message: StoredMessage) -> None:
        """That message left for good while it waited."""
        raise NotImplementedError  # abstract

    def begin_claim(self) -> int:
        """The number behind which all messages wait that a claim may find."""
        raise NotImplementedError  # abstract

    def drop_runs(self, runs: list[Run]) -> None:
        """These messages, which were the first that waited when the claim began, were set aside together."""
        raise NotImplementedError  # abstract

    def read_again(self, runs: list[Run]) -> None:
        """These messages are active again in the store, and in no window."""
        raise NotImplementedError  # abstract

    def next_after(self, number: int) -> int:
        """No message above that number and below this one waits, as far as is known."""
        raise NotImplementedError  # abstract

    def hold(self, held: bool) -> None:
        """Read no pages, or read them again: messages that may lie beyond the window are being removed."""
        raise NotImplementedError  # abstract

    def forget(self) -> None:
        """The entity is gone: give the memory back."""
        raise NotImplementedError  # abstract
