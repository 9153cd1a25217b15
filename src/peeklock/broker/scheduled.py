"""Enqueues scheduled messages when they are due, and cancels them before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from peeklock.broker.annex import Annex
from peeklock.broker.dead_lettering import reasons
from peeklock.broker.errors import BrokerError, ChangeRefused, EntityNotFound, MessageNotFound
from peeklock.broker.reading import read_numbers, unreadable
from peeklock.broker.retries import RETRY_MS
from peeklock.broker.timetable import Batch, Finished, Timetable, read_watched
from peeklock.store.base import SCHEDULED, StoredMessage, StoreError

if TYPE_CHECKING:
    from peeklock.broker.entity import Done, Entity
    from peeklock.broker.machinery import Machinery

log = logging.getLogger(__name__)

NOT_ENQUEUED: Final = "EnqueueFailed"
"""The dead-letter reason of a scheduled message that the broker could not enqueue."""
MAX_DESCRIPTION: Final = 4096
"""The most characters of the description of that failure."""

Move = Callable[[StoredMessage, dict[Any, Any], Callable[..., None], Any], None]
"""Stages the move of a message to the dead-letter queue; see `DeadLettering.move`."""


class Scheduled:
    """The scheduled messages of one entity."""

    def __init__(self, entity: Entity, machinery: Machinery) -> None:
        self._entity = entity
        self._store = store = machinery.store
        self._journal = machinery.journal
        self._agenda = machinery.agenda
        self.move: Move | None = None
        """Moves a message to the dead-letter queue; None for a topic and a sub-queue, which have none."""
        self._due = Timetable(
            self._agenda,
            lambda now, limit, max_bytes, after, done: read_watched(
                entity.watches, partial(store.read_due, entity.id, now, limit, max_bytes, after=after), done
            ),
            attrgetter("due_at"),
            self._enqueue_due,
        )

    def begin(self) -> None:
        """Enqueue the messages that became due while the broker was down, and make the appointment for the next."""
        if self._entity.counters.scheduled:
            self._due.look()

    def expect(self, message: StoredMessage) -> None:
        """Enqueue a scheduled message, which is in the store, when it is due."""
        assert message.due_at is not None
        self._due.expect(message.due_at)

    def stop(self) -> None:
        self._due.stop()

    # --- when they are due ---

    def _enqueue_due(self, messages: list[StoredMessage], finished: Finished) -> None:
        """Enqueue messages that are due, with new sequence numbers. Their enqueued time is the scheduled time."""
        if self._entity.is_deleting:
            finished(False)
            return
        leaving = self._entity.leaving
        batch: Batch | None = None
        for message in messages:
            if message.sequence_number not in leaving:
                batch = batch or Batch(finished)
                leaving.add(message.sequence_number)
                try:
                    self._enqueue(message, batch)
                except Exception as failure:
                    self._dead_letter(message, failure, batch)
        if batch is not None:
            self._journal.moves.then(batch.end, None)
        else:
            finished(True)

    def _enqueue(self, message: StoredMessage, batch: Batch) -> None:
        assert message.due_at is not None
        annex = Annex.decode(message.annex)
        enqueued = self._entity.enqueued(
            message.payload,
            annex._replace(ttl_ms=None).encode_if_any(),
            annex.ttl_ms,
            message.session_id,
            message.due_at,
        )
        lane = self._journal.moves
        lane.changes.removals.append((self._entity.id, message))
        try:
            self._entity.stage(lane, [enqueued], lambda error: self._enqueued(message, batch, error))
        except BaseException:
            lane.changes.removals.pop()
            raise

    def _enqueued(self, message: StoredMessage, batch: Batch, error: BrokerError | None) -> None:
        if isinstance(error, ChangeRefused):
            self._dead_letter(message, error, batch)
            return
        self._entity.leaving.discard(message.sequence_number)
        if error is None:
            self._entity.on_removed(message)
        else:
            batch.is_whole = False

    def _dead_letter(self, message: StoredMessage, failure: Exception, batch: Batch) -> None:
        """Dead-letter a message that the broker could not enqueue, so that the other messages are enqueued."""
        log.error("a scheduled message of '%s' could not be enqueued", self._entity.path, exc_info=failure)
        try:
            if self.move is None:
                raise failure  # there is no dead-letter queue: the broker tries the message again
            why = f"The broker could not enqueue the message when it was due: {failure}"
            self.move(message, reasons(NOT_ENQUEUED, why[:MAX_DESCRIPTION]), self._moved, batch)
        except Exception:
            self._moved(message, batch, ChangeRefused("The message could not be enqueued."))

    def _moved(self, message: StoredMessage, batch: Batch, error: BrokerError | None) -> None:
        self._entity.leaving.discard(message.sequence_number)
        if error is not None:
            batch.is_whole = batch.is_whole and isinstance(error, ChangeRefused)
            self._due.expect(self._agenda.now() + RETRY_MS)

    # --- before they are due ---

    def cancel(self, numbers: list[int], done: Done) -> None:
        """Cancel scheduled messages: all of them, or none if one does not exist."""
        entity = self._entity
        entity.watches.read(
            partial(read_numbers, self._store, entity.id, numbers), partial(self._cancel, set(numbers), done)
        )

    def _cancel(self, numbers: set[int], done: Done, found: Any, changed: set[int]) -> None:
        entity = self._entity
        if isinstance(found, StoreError):
            done(unreadable(found))
            return
        if numbers & changed:
            self.cancel(list(numbers), done)
            return
        if entity.is_deleting:
            done(EntityNotFound(entity.path))
            return
        scheduled = {message.sequence_number: message for message in found if message.state == SCHEDULED}
        missing = sorted(number for number in numbers if number not in scheduled or number in entity.leaving)
        if missing:
            done(MessageNotFound(f"No scheduled message of '{entity.path}' has the sequence number {missing[0]}."))
            return
        lane = self._journal.rest
        entity.leaving |= numbers
        lane.changes.removals.extend((entity.id, message) for message in scheduled.values())
        lane.then(self._cancelled, (list(scheduled.values()), done))

    def _cancelled(self, argument: tuple[list[StoredMessage], Done], error: BrokerError | None) -> None:
        messages, done = argument
        for message in messages:
            self._entity.leaving.discard(message.sequence_number)
            if error is None:
                self._entity.on_removed(message)
            else:
                self.expect(message)  # the message may have become due meanwhile
        done(error)
