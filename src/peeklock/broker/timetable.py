"""Messages whose time comes, to expire or to be enqueued: most of them are only in the store, so it is asked.

One appointment stands for the soonest of them. When it is due the store tells what is, and they are dealt with a
batch at a time.
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
"""A batch also ends with the message that reaches this many."""

Read = Callable[[int, int, int, Position | None, TimedRead], None]
"""(now, limit, max_bytes, after, done)"""
Finished = Callable[[bool], None]
"""Told once the messages of a batch are dealt with: whether to go on, or to wait a while before the next look."""


def read_watched(watches: Watches, read: Callable[[TimedRead], None], done: TimedRead) -> None:
    """Read what is due. What changed meanwhile is left out: it is gone, or announced again when it comes back."""

    def found(answer: Any, changed: set[int]) -> None:
        if changed and not isinstance(answer, StoreError):
            messages, next_due = answer
            answer = [message for message in messages if message.sequence_number not in changed], next_due
        done(answer)

    watches.read(read, found)


class Batch:
    """Messages that are dealt with together, each on its own."""

    __slots__ = ("finished", "is_whole")

    def __init__(self, finished: Finished) -> None:
        self.finished = finished
        self.is_whole = True
        """The store took what it can take. What it refuses for good keeps none from being looked at behind it."""

    def over(self, _: object, error: BrokerError | None) -> None:
        """All that was staged is in the store, or has failed."""
        self.finished(error is None and self.is_whole)


class Timetable:
    """When to look, and that nobody looks twice at once."""

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
        """Whether it is a good moment; what it holds back until `end`."""
        self._end = end
        self._appointment: Appointment | None = None
        self._again: Appointment | None = None
        """A look that was put off: by how much, whatever the clock is set to meanwhile."""
        self._looking = False
        self._missed = False
        """Something became due during a look, which may have been too early for it."""
        self._after: Position | None = None
        """The last message that was looked at, while others behind it are due. Messages that cannot be acted on now,
        because a receiver holds them, are so passed by."""
        self._stopped = False

    def expect(self, at: int) -> None:
        """Something is due at that time."""
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
        """Nothing is expected any more, also not by a look that is under way."""
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
        """Deal with all that is due, and find out when the next is."""
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
        # A failure of ours must not be the last look: nothing would expire or fall due here any more.
        try:
            self._read(self._agenda.now(), BATCH, BATCH_BYTES, self._after, self._found)
        except Exception:
            log.exception("what is due could not be asked for")
            self._put_off()

    def _found(self, found: tuple[list[StoredMessage], int | None] | StoreError) -> None:
        if isinstance(found, StoreError):
            log.error("what is due could not be read: %s", found)
            self._put_off()
            return
        messages, next_due = found
        self._after = None
        if not messages:
            if next_due is not None and next_due <= self._agenda.now():
                self._put_off()  # what is due cannot be had: it changed meanwhile, or is damaged
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
            log.exception("what is due could not be dealt with")
            finished(False)

    def _put_off(self) -> None:
        self._missed = False  # what was missed is seen then
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
