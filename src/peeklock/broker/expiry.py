"""Removes or dead-letters expired messages, whether they are in memory or only in the store."""

from __future__ import annotations

import logging
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from peeklock.broker.dead_lettering import reasons
from peeklock.broker.errors import BrokerError, ChangeRefused, StorageFailed
from peeklock.broker.retries import RETRY_MS
from peeklock.broker.timetable import Batch, Finished, Timetable, read_watched
from peeklock.store.base import ACTIVE, StoredMessage

if TYPE_CHECKING:
    from peeklock.broker.machinery import Machinery
    from peeklock.broker.message_queue import MessageQueue

log = logging.getLogger(__name__)


class Expiry:
    """The expiry of the messages of one queue."""

    def __init__(self, queue: MessageQueue, machinery: Machinery) -> None:
        self._queue = queue
        self._journal = machinery.journal
        self._agenda = machinery.agenda
        store = machinery.store
        self._expiries = Timetable(
            self._agenda,
            lambda now, limit, max_bytes, after, done: read_watched(
                queue.watches, partial(store.read_expired, queue.id, now, limit, max_bytes, after=after), done
            ),
            attrgetter("expires_at"),
            self._expire_found,
            queue.begin_sweep,
            queue.end_sweep,
        )

    def begin(self) -> None:
        """Expire the messages that are due, and make the appointment for the next. Dead letters do not expire."""
        if self._queue.counters.active:
            self._expiries.look()

    def expect(self, message: StoredMessage, delay_ms: int = 0) -> None:
        """Expire an active message when its time to live is over, but not before `delay_ms` have passed."""
        if message.expires_at is not None:
            self._expiries.expect(
                max(message.expires_at, self._agenda.now() + delay_ms) if delay_ms else message.expires_at
            )

    def look(self) -> None:
        """Look for expired messages in the store now. For messages that are active again, with unknown expiry."""
        self._expiries.look()

    def stop(self) -> None:
        self._expiries.stop()

    def _expire_found(self, messages: list[StoredMessage], finished: Finished) -> None:
        queue = self._queue
        if queue.is_deleting:
            finished(False)
            return
        batch: Batch | None = None
        for message in messages:
            # A locked message does not expire. Its expiry is checked again when it is returned.
            if not queue.is_taken(message.sequence_number):
                batch = batch or Batch(finished)
                queue.windows.drop(message)
                self.expire(message, batch)
        if batch is not None:
            lane = self._journal.moves if self._keeps_expired else self._journal.rest
            lane.then(batch.end, None)
        else:
            finished(True)

    def expire(self, message: StoredMessage, batch: Batch | None = None) -> None:
        """Remove or dead-letter a message whose time to live is over. It does not raise: other messages must expire."""
        self._queue.leaving.add(message.sequence_number)
        try:
            self._stage(message, batch)
        except Exception:
            log.exception("an expired message of '%s' could not be removed; the broker tries again", self._queue.path)
            # Returned after a delay, because a queue would at once take it from its window again.
            again = partial(self._expired, message, None, StorageFailed("The message could not expire."))
            self._agenda.after(RETRY_MS, again)

    def _stage(self, message: StoredMessage, batch: Batch | None) -> None:
        if self._keeps_expired:
            properties = reasons("TTLExpiredException", "The message expired and was dead lettered.")
            self._queue.dead_lettering.move(message, properties, self._expired, batch)
        else:
            lane = self._journal.rest
            lane.changes.removals.append((self._queue.id, message))
            lane.then(self._dropped, (message, batch))

    @property
    def _keeps_expired(self) -> bool:
        queue = self._queue
        return queue.definition.dead_lettering_on_message_expiration and queue.dead_letters is not None

    def _dropped(self, argument: tuple[StoredMessage, Batch | None], error: BrokerError | None) -> None:
        message, batch = argument
        if error is None:
            self._queue.on_removed(message)
        self._expired(message, batch, error)

    def _expired(self, message: StoredMessage, batch: Batch | None, error: BrokerError | None) -> None:
        queue = self._queue
        lock = queue.locks.by_number.get(message.sequence_number)
        if lock is not None:
            queue.unlock(lock)  # an expired message of a session is locked, so that the next holder does not receive it
        queue.leaving.discard(message.sequence_number)
        if error is not None:
            if batch is not None and not isinstance(error, ChangeRefused):
                batch.is_whole = False
            if message.state == ACTIVE:
                queue.on_returned(message, was_refused=True)
