"""Looks in the store for messages that are due, to expire or to be enqueued, since most of them are not in memory.

There is one appointment, for the message that is due first. Then the store is asked for messages that are due, a batch
at a time.
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
BATCH_BYTES: Final = 4 * 1024 * 1024
"""A batch also ends with the message that reaches this many bytes."""

Read = Callable[[int, int, int, Position | None, TimedRead], None]
"""(now, limit, max_bytes, after, done)"""
Finished = Callable[[bool], None]
"""Called when the messages of a batch were handled: whether to look on at once, or after a while."""


def read_watched(watches: Watches, read: Callable[[TimedRead], None], done: TimedRead) -> None:
    """Read messages that are due, without those that changed meanwhile: they were removed, or `expect` follows."""

    def found(answer: Any, changed: set[int]) -> None:
        if changed and not isinstance(answer, StoreError):
            messages, next_due = answer
            answer = [message for message in messages if message.sequence_number not in changed], next_due
        done(answer)

    watches.read(read, found)


class Batch:
    """Messages that are handled together and that may fail separately."""

    __slots__ = ("finished", "is_whole")

    def __init__(self, finished: Finished) -> None:
        self.finished = finished
        self.is_whole = True
        """Whether the store accepted all changes, apart from those that it refuses for good: these must not delay
        others."""

    def over(self, _: object, error: BrokerError | None) -> None:
        """All that was staged is in the store, or failed."""
        self.finished(error is None and self.is_whole)


class Timetable:
    """The appointment for the next look, and the look itself. There is one look at a time."""

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
        """Asked before a look, which is put off if it returns False; `end` follows after the look."""
        self._end = end
        self._appointment: Appointment | None = None
        self._again: Appointment | None = None
        """A look that was put off, by elapsed time."""
        self._looking = False
        self._missed = False
        """A message became due during a look, which may have missed it."""
        self._after: Position | None = None
        """The last message of a batch, when messages after it are due. So messages that a receiver holds are
        skipped."""
        self._stopped = False

    def expect(self, at: int) -> None:
        """A message is due at that time."""
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
        """Cancel the appointments; a look that is under way makes no new one."""
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
        """Handle all messages that are due, and make the appointment for the next."""
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
        # After a failure of the broker there must be a next look: otherwise nothing would expire or be enqueued any
        # more.
        try:
            self._read(self._agenda.now(), BATCH, BATCH_BYTES, self._after, self._found)
        except Exception:
            log.exception("messages that are due could not be requested")
            self._put_off()

    def _found(self, found: tuple[list[StoredMessage], int | None] | StoreError) -> None:
        if isinstance(found, StoreError):
            log.error("messages that are due could not be read: %s", found)
            self._put_off()
            return
        messages, next_due = found
        self._after = None
        if not messages:
            if next_due is not None and next_due <= self._agenda.now():
                self._put_off()  # the messages that are due changed meanwhile, or are damaged
            else:
                self._finish(next_due)
            return
        last = messages[-1]
        time = self._time_of(last)
        if next_due is not None and next_due <= self._agenda.now() and time is not None:
            self._after = time, last.sequence_number
        is_told = False

        def finished(whole: bool) -> None:
            nonlocal is_told
            if is_told:
                return
            is_told = True
            if whole:
                self._finish(next_due)
            else:
                self._put_off()

        try:
            self._act(messages, finished)
        except Exception:
            log.exception("messages that are due could not be handled")
            finished(False)

    def _put_off(self) -> None:
        self._missed = False  # the next look finds what was missed
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
