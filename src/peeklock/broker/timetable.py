"""Finds messages in the store that are due to expire or to be enqueued. Most of them are not in memory.

There is one appointment, for the message that is due first. At that time the messages that are due are read from the
store and handled, a batch at a time. This is called a look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from peeklock.broker.agenda import Agenda, Appointment
from peeklock.broker.errors import BrokerError
from peeklock.broker.retries import BUSY_RETRY_MS, RETRY_MS
from peeklock.broker.watches import Watches
from peeklock.store.base import Position, StoredMessage, StoreError, TimedRead

log = logging.getLogger(__name__)

BATCH: Final = 1000
"""The most messages of a batch."""
BATCH_BYTES: Final = 4 * 1024 * 1024
"""A batch also ends with the message that reaches this many bytes."""

Read = Callable[[int, int, int, Position | None, TimedRead], None]
"""Called with now, limit, max_bytes, after, done."""
Finished = Callable[[bool], None]
"""Called when the messages of a batch were handled. True: the next look is at the next due time; False: after a delay,
because some messages failed."""


def read_watched(watches: Watches, read: Callable[[TimedRead], None], done: TimedRead) -> None:
    """Read messages that are due, without those that changed meanwhile.

    A message that changed was removed, or `Timetable.expect` is called for it.
    """

    def found(answer: Any, changed: set[int]) -> None:
        if changed and not isinstance(answer, StoreError):
            messages, next_due = answer
            answer = [message for message in messages if message.sequence_number not in changed], next_due
        done(answer)

    watches.read(read, found)


class Batch:
    """Messages that are handled together. Each may fail separately."""

    __slots__ = ("finished", "is_whole")

    def __init__(self, finished: Finished) -> None:
        self.finished = finished
        self.is_whole = True
        """Whether no change failed that may succeed later. A change that the store refuses for good does not count,
        because it must not delay other messages."""

    def end(self, _: object, error: BrokerError | None) -> None:
        """End the batch: all its changes are in the store, or have failed."""
        self.finished(error is None and self.is_whole)


class Timetable:
    """The appointment for the next look, and the look. There is one look at a time."""

    def __init__(
        self,
        agenda: Agenda,
        read: Read,
        time_of: Callable[[StoredMessage], int | None],
        act: Callable[[list[StoredMessage], Finished], None],
        begin: Callable[[], bool] = lambda: True,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._agenda = agenda
        self._read = read
        self._time_of = time_of
        self._act = act
        self._begin = begin
        """Called before a look. If it returns False, the look is delayed. `end` is called after the look."""
        self._end = end
        self._appointment: Appointment | None = None
        """The appointment for the message that is due first, in Unix time."""
        self._again: Appointment | None = None
        """The appointment for a delayed look, by the monotonic clock."""
        self._looking = False
        self._missed = False
        """Whether a message became due during a look, which may have missed it."""
        self._after: Position | None = None
        """The position of the last message of a batch, if messages after it are due. So the next batch skips messages
        that are still due because a receiver has locked them."""
        self._stopped = False

    def expect(self, at: int) -> None:
        """Handle a message when it is due, at the Unix time `at`."""
        if self._after is not None and at <= self._after[0]:
            self._after = None
        if self._looking and at <= self._agenda.now():
            self._missed = True
        self._appoint(at)

    def _appoint(self, at: int) -> None:
        if self._stopped:
            return
        if self._appointment is not None:
            if self._appointment.at <= at:
                return
            self._appointment.cancel()
        self._appointment = self._agenda.at(at, self.look)

    def stop(self) -> None:
        """Cancel the appointments. A look that is under way makes no new one."""
        self._stopped = True
        for appointment in (self._appointment, self._again):
            if appointment is not None:
                appointment.cancel()

    def _look_after(self, delay_ms: int) -> None:
        if self._stopped:
            return
        if self._again is not None:
            self._again.cancel()
        self._again = self._agenda.after(delay_ms, self.look)

    def look(self) -> None:
        """Handle a batch of messages that are due, and make the appointment for the next batch or message."""
        self._appointment = None
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._looking:
            self._missed = True
            return
        if not self._begin():
            self._look_after(BUSY_RETRY_MS)
            return
        self._looking = True
        # There must be a next look even after an unexpected exception: otherwise no message would ever expire or be
        # enqueued again.
        try:
            self._read(self._agenda.now(), BATCH, BATCH_BYTES, self._after, self._found)
        except Exception:
            log.exception("messages that are due could not be requested from the store")
            self._delay()

    def _found(self, found: tuple[list[StoredMessage], int | None] | StoreError) -> None:
        if isinstance(found, StoreError):
            log.error("messages that are due could not be read: %s", found)
            self._delay()
            return
        messages, next_due = found
        self._after = None
        if not messages:
            if next_due is not None and next_due <= self._agenda.now():
                self._delay()  # the messages that are due changed meanwhile, or are damaged
            else:
                self._finish(next_due)
            return
        last = messages[-1]
        time = self._time_of(last)
        if next_due is not None and next_due <= self._agenda.now() and time is not None:
            self._after = time, last.sequence_number
        is_finished = False

        def finished(whole: bool) -> None:
            nonlocal is_finished
            if is_finished:
                return
            is_finished = True
            if whole:
                self._finish(next_due)
            else:
                self._delay()

        try:
            self._act(messages, finished)
        except Exception:
            log.exception("messages that are due could not be handled")
            finished(False)

    def _delay(self) -> None:
        """End the look, and look again after a delay."""
        self._missed = False  # the next look finds messages that this one missed
        self._after = None
        self._finish(None)
        self._look_after(RETRY_MS)

    def _finish(self, again_at: int | None) -> None:
        self._looking = False
        self._end()
        if self._missed:
            self._missed = False
            self._after = None
            again_at = self._agenda.now()
        if again_at is not None:
            self._appoint(again_at)
