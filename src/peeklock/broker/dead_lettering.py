"""Moves messages of a queue to its dead-letter queue, or to another of its sub-queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from peeklock.amqp.service_bus import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from peeklock.broker import envelope
from peeklock.broker.errors import BrokerError, EntityNotFound
from peeklock.broker.journal import Journal
from peeklock.store.base import ACTIVE, StoredMessage

if TYPE_CHECKING:
    from peeklock.broker.entity import Entity
    from peeklock.broker.message_queue import MessageQueue


def reasons(reason: str, description: str) -> dict[Any, Any]:
    """Return the application properties with the reason why a message was dead-lettered."""
    return {DEAD_LETTER_REASON: reason, DEAD_LETTER_DESCRIPTION: description}


def growth(message: StoredMessage, changed: StoredMessage) -> int:
    """Return the bytes that a change adds to a message, at least 0. Space is not free before the commit is done."""
    return max(0, len(changed.payload) - len(message.payload))


class DeadLettering:
    """Moves messages of one queue to its sub-queues."""

    def __init__(self, queue: MessageQueue, journal: Journal) -> None:
        self._queue = queue
        self._journal = journal

    def move(
        self,
        message: StoredMessage,
        properties: dict[Any, Any],
        outcome: Callable[..., None],
        argument: Any,
        target: Entity | None = None,
    ) -> None:
        """Stage the move of a message to `target`, which is a sub-queue; None: the dead-letter queue.

        The message gets these application properties. `outcome(message, argument, error)` is called after the commit.
        """
        target = target or self._queue.dead_letters
        assert target is not None
        if self._queue.is_deleting:
            raise EntityNotFound(self._queue.path)
        letter = message.copy()
        letter.payload, letter.annex = envelope.dead_letter(
            message.payload, message.annex, properties, self._queue.path
        )
        letter.state, letter.due_at = ACTIVE, None
        letter.expires_at = None  # messages do not expire in a dead-letter queue
        lane = self._journal.moves
        lane.changes.appends.append((target.id, letter))
        lane.changes.removals.append((self._queue.id, message))
        self._queue.root.staged_bytes += growth(message, letter)
        lane.then(self._on_moved, (target, message, letter, outcome, argument))

    def _on_moved(self, argument: tuple[Any, ...], error: BrokerError | None) -> None:
        target, message, letter, outcome, rest = argument
        self._queue.root.staged_bytes -= growth(message, letter)
        if error is None:
            self._queue.on_removed(message)
            target.on_stored(letter)
        outcome(message, rest, error)
