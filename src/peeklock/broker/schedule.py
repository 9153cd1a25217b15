"""What time does to the messages of an entity: they expire, and scheduled ones are enqueued when they are due."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final

from peeklock.broker.container import MAX_REASON_LENGTH, Container
from peeklock.broker.definitions import AnyDefinition
from peeklock.broker.entity import Done, Machinery
from peeklock.broker.envelope import Annex
from peeklock.broker.errors import (
    BrokerError,
    ChangeRefused,
    EntityNotFound,
    MessageNotFound,
    QuotaExceeded,
    StorageFailed,
)
from peeklock.broker.journal import Lane
from peeklock.broker.timetable import AGAIN_MS, Finished, Timetable
from peeklock.store.base import (
    ACTIVE,
    SCHEDULED,
    Counters,
    MessagesRead,
    StoredMessage,
    StoreError,
    TimedRead,
)

MAX_NUMBERED_BYTES: Final = 16 * 1024 * 1024
"""One request by sequence numbers is for messages of up to so many bytes together, or for a single larger one. What one
request can schedule (`nodes.management`), one request can cancel."""


class TooMuchAtOnce(StoreError):
    """Messages that were asked for by their numbers have more bytes than one request may ask for."""


log = logging.getLogger(__name__)

NOT_ENQUEUED: Final = "EnqueueFailed"
"""The reason of a dead letter: it was due, and the broker failed at it."""


class _Batch:
    """Messages that are dealt with together, each on its own."""

    __slots__ = ("is_whole",)

    def __init__(self) -> None:
        self.is_whole = True
        """The store took what it can take. What it refuses for good keeps none from being looked at behind it."""


class Scheduling(Container):
    """The part of a container that asks what time it is."""

    def __init__(
        self,
        id: int,
        path: str,
        definition: AnyDefinition,
        machinery: Machinery,
        counters: Counters,
        dead_letters: Container | None,
        transfer_dead_letters: Container | None = None,
    ) -> None:
        super().__init__(id, path, definition, machinery, counters, dead_letters, transfer_dead_letters)
        store = self._store
        self._expiries = Timetable(
            self._agenda,
            lambda now, limit, max_bytes, after, done: self._read_timed(
                partial(store.read_expired, self.id, now, limit, max_bytes, after=after), done
            ),
            attrgetter("expires_at"),
            self._expire_found,
            self._may_sweep,
            self._swept,
        )
        self._due = Timetable(
            self._agenda,
            lambda now, limit, max_bytes, after, done: self._read_timed(
                partial(store.read_due, self.id, now, limit, max_bytes, after=after), done
            ),
            attrgetter("due_at"),
            self._enqueue_due,
        )
        self._leaving: set[int] = set()
        """Numbers of messages on their way out that nobody has locked: expired, deleted, enqueued, cancelled."""
        self._sweeps = 0
        """How many are removing messages wherever they stand."""

    def begin(self) -> None:
        """What fell due while nobody looked, and what will. Nothing does in a dead-letter queue."""
        if self.counters.active:
            self._expiries.look()
        if self.counters.scheduled:
            self._due.look()

    def _read_timed(self, read: Callable[[TimedRead], None], done: TimedRead) -> None:
        """What changed while it was read is left out: it is gone, or announced again when it comes back."""
        self._watch(read, lambda answer, changed: done(_unchanged(answer, changed)))

    def vanish(self) -> None:
        self._expiries.stop()
        self._due.stop()
        super().vanish()

    # --- for subclasses ---

    def _may_sweep(self) -> bool:
        """Whether messages may be removed wherever they stand; if so no pages are read until `_swept`."""
        raise NotImplementedError  # abstract

    def _swept(self) -> None:
        """One of those who may sweep is done."""
        raise NotImplementedError  # abstract

    def _stayed(self, message: StoredMessage) -> None:
        """An active message was to leave and the store refused: it waits again, and nobody is told for a while."""
        raise NotImplementedError  # abstract

    def _is_out(self, number: int) -> bool:
        """Whether a message does not wait: somebody has it, or it is leaving."""
        return number in self._locks or number in self._leaving

    def _discard(self, message: StoredMessage) -> None:
        """A waiting message leaves; it may stand in a window."""

    # --- expiry ---

    def _expire_found(self, messages: list[StoredMessage], finished: Finished) -> None:
        if self.doomed:
            finished(False)
            return
        batch: _Batch | None = None
        for message in messages:
            number = message.sequence_number
            # Not while it is locked; it is looked at again when it comes back.
            if not self._is_out(number):
                batch = batch or _Batch()
                self._discard(message)
                self._expire(message, batch)
        if batch is not None:
            lane = self._journal.moves if self._keeps_expired else self._journal.rest
            lane.then(_tell, (finished, batch))
        else:
            finished(True)

    def _expire(self, message: StoredMessage, batch: _Batch | None = None) -> None:
        """A waiting message is past its time: out, or to the dead letters. Others must not wait for one that fails."""
        self._leaving.add(message.sequence_number)
        try:
            self._stage_expiry(message, batch)
        except Exception:
            log.exception("a message of '%s' could not expire yet", self.path)
            # Later: whoever takes messages out of the window would find it there again and again.
            again = partial(self._expired, message, None, StorageFailed("The message could not expire."))
            self._agenda.after(AGAIN_MS, again)

    def _stage_expiry(self, message: StoredMessage, batch: _Batch | None) -> None:
        if self._keeps_expired:
            properties = {
                "DeadLetterReason": "TTLExpiredException",
                "DeadLetterErrorDescription": "The message expired and was dead lettered.",
            }
            self._move(message, properties, self._expired, batch)
        else:
            lane = self._journal.rest
            lane.changes.removals.append((self.id, message))
            lane.then(self._dropped, (message, batch))

    @property
    def _keeps_expired(self) -> bool:
        return self.definition.dead_lettering_on_message_expiration and self.dead_letters is not None

    def _dropped(self, argument: tuple[StoredMessage, _Batch | None], error: BrokerError | None) -> None:
        message, batch = argument
        if error is None:
            self._gone(message)
        self._expired(message, batch, error)

    def _expired(self, message: StoredMessage, batch: _Batch | None, error: BrokerError | None) -> None:
        self._leaving.discard(message.sequence_number)
        if error is not None:
            if batch is not None and not isinstance(error, ChangeRefused):
                batch.is_whole = False
            if message.state == ACTIVE:
                self._stayed(message)

    # --- scheduled messages ---

    def _scheduled(self, message: StoredMessage) -> None:
        assert message.due_at is not None
        self._due.expect(message.due_at)

    def _enqueue_due(self, messages: list[StoredMessage], finished: Finished) -> None:
        """Scheduled messages become active: with new numbers, at the time they were meant for."""
        if self.doomed:
            finished(False)
            return
        lane = self._journal.moves
        batch: _Batch | None = None
        for message in messages:
            if message.sequence_number not in self._leaving:
                batch = batch or _Batch()
                self._leaving.add(message.sequence_number)
                try:
                    self._enqueue(lane, message, batch)
                except Exception as failure:
                    self._set_aside_due(message, failure, batch)
        if batch is not None:
            lane.then(_tell, (finished, batch))
        else:
            finished(True)

    def _enqueue(self, lane: Lane, message: StoredMessage, batch: _Batch) -> None:
        assert message.due_at is not None
        annex = Annex.decode(message.annex)
        enqueued = self._active(
            message.payload,
            annex._replace(ttl_ms=None).encode_if_any(),
            annex.ttl_ms,
            message.session_id,
            message.due_at,
        )
        lane.changes.removals.append((self.id, message))
        try:
            self._stage(lane, [enqueued], lambda error: self._enqueued(message, batch, error))
        except BaseException:
            lane.changes.removals.pop()
            raise

    def _set_aside_due(self, message: StoredMessage, failure: Exception, batch: _Batch) -> None:
        """The broker failed at a message that is due: the others are enqueued, this one is a dead letter."""
        log.error("a message of '%s' that is due could not be enqueued", self.path, exc_info=failure)
        try:
            if self.dead_letters is None:
                raise failure  # a topic has none: the message is tried again
            why = f"The broker could not enqueue the message when it was due: {failure}"
            properties = {"DeadLetterReason": NOT_ENQUEUED, "DeadLetterErrorDescription": why[:MAX_REASON_LENGTH]}
            self._move(message, properties, self._due_moved, batch)
        except Exception:
            self._due_moved(message, batch, ChangeRefused("The message could not be enqueued."))

    def _due_moved(self, message: StoredMessage, batch: _Batch, error: BrokerError | None) -> None:
        self._leaving.discard(message.sequence_number)
        if error is not None:
            batch.is_whole = batch.is_whole and isinstance(error, ChangeRefused)
            self._due.expect(self._agenda.now() + AGAIN_MS)

    def _enqueued(self, message: StoredMessage, batch: _Batch, error: BrokerError | None) -> None:
        if isinstance(error, ChangeRefused):
            self._set_aside_due(message, error, batch)
            return
        self._leaving.discard(message.sequence_number)
        if error is None:
            self._gone(message)
        else:
            batch.is_whole = False

    def cancel_scheduled(self, numbers: list[int], done: Done) -> None:
        """Take scheduled messages back before they are due: all of them, or none when one is not there."""
        self._watch(partial(self._read_numbers, numbers), partial(self._cancel, set(numbers), done))

    def _read_numbers(self, numbers: list[int], done: MessagesRead) -> None:
        """The messages with these numbers, all of them: a `TooMuchAtOnce` if they are larger than one request takes."""
        wanted = sorted(set(numbers))

        def found(messages: list[StoredMessage] | StoreError) -> None:
            done(TooMuchAtOnce() if _is_cut(messages, wanted) else messages)

        self._store.read_numbers(self.id, wanted, MAX_NUMBERED_BYTES, found)

    def _cancel(self, numbers: set[int], done: Done, found: Any, changed: set[int]) -> None:
        if isinstance(found, StoreError):
            done(unreadable(found))
            return
        if numbers & changed:
            self.cancel_scheduled(list(numbers), done)
            return
        if self.doomed:
            done(EntityNotFound(self.path))
            return
        scheduled = {message.sequence_number: message for message in found if message.state == SCHEDULED}
        missing = sorted(number for number in numbers if number not in scheduled or number in self._leaving)
        if missing:
            done(MessageNotFound(f"No scheduled message of '{self.path}' has the sequence number {missing[0]}."))
            return
        lane = self._journal.rest
        self._leaving |= numbers
        lane.changes.removals.extend((self.id, message) for message in scheduled.values())
        lane.then(self._cancelled, (list(scheduled.values()), done))

    def _cancelled(self, argument: tuple[list[StoredMessage], Done], error: BrokerError | None) -> None:
        messages, done = argument
        for message in messages:
            self._leaving.discard(message.sequence_number)
            if error is None:
                self._gone(message)
            else:
                self._scheduled(message)  # it may have fallen due meanwhile
        done(error)


def _unchanged(answer: Any, changed: set[int]) -> Any:
    if not changed or isinstance(answer, StoreError):
        return answer
    messages, next_due = answer
    return [message for message in messages if message.sequence_number not in changed], next_due


def _is_cut(messages: list[StoredMessage] | StoreError, wanted: list[int]) -> bool:
    if isinstance(messages, StoreError) or not messages or messages[-1].sequence_number == wanted[-1]:
        return False
    return sum(message.read_size for message in messages) >= MAX_NUMBERED_BYTES


def unreadable(error: StoreError) -> BrokerError:
    if isinstance(error, TooMuchAtOnce):
        limit = MAX_NUMBERED_BYTES >> 20
        return QuotaExceeded(f"The messages have more than {limit} MiB together. Ask for fewer in one request.")
    return StorageFailed(f"The broker could not read from its store: {error}")


def _tell(argument: tuple[Finished, _Batch], error: BrokerError | None) -> None:
    finished, batch = argument
    finished(error is None and batch.is_whole)
