"""Messages whose time comes, to expire or to be enqueued: most of them are only in the store, so it is asked.

One appointment stands for the soonest of them. When it is due the store tells what is, and they are dealt with a
batch at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from peeklock.broker.agenda import Agenda, Appointment
from peeklock.store.base import StoredMessage, StoreError, TimedRead

log = logging.getLogger(__name__)

BATCH: Final = 1000
AGAIN_MS: Final = 1000
"""After a failure, or when it is not a good moment."""

Read = Callable[[int, int, TimedRead], None]
"""(now, limit, done)"""
Finished = Callable[[bool], None]
"""Told once the messages of a batch are dealt with: whether to go on, or to wait a while before the next look."""


class Timetable:
    """When to look, and that nobody looks twice at once."""

    def __init__(
        self,
        agenda: Agenda,
        read: Read,
        act: Callable[[list[StoredMessage], Finished], None],
        begin: Callable[[], bool] = lambda: True,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._agenda = agenda
        self._read = read
        self._act = act
        self._begin = begin
        """Whether it is a good moment; what it holds back until `end`."""
        self._end = end
        self._appointment: Appointment | None = None
        self._looking = False
        self._missed = False
        """Something became due during a look, which may have been too early for it."""

    def expect(self, at: int) -> None:
        """Something is due at that time."""
        if self._appointment is not None:
            if self._appointment.at <= at:
                return
            self._appointment.cancel()
        self._appointment = self._agenda.at(at, self.look)

    def stop(self) -> None:
        """Nothing is expected any more."""
        if self._appointment is not None:
            self._appointment.cancel()

    def look(self) -> None:
        """Deal with all that is due, and find out when the next is."""
        self._appointment = None
        if self._looking:
            self._missed = True
            return
        if not self._begin():
            self.expect(self._agenda.now() + AGAIN_MS // 10)
            return
        self._looking = True
        self._read(self._agenda.now(), BATCH, self._found)

    def _found(self, found: tuple[list[StoredMessage], int | None] | StoreError) -> None:
        if isinstance(found, StoreError):
            log.error("what is due could not be read: %s", found)
            self._put_off()
            return
        messages, next_due = found
        if len(messages) == BATCH:
            next_due = self._agenda.now()
        if messages:
            self._act(messages, lambda whole: self._finish(next_due) if whole else self._put_off())
        else:
            self._finish(next_due)

    def _put_off(self) -> None:
        self._missed = False  # what was missed is seen then
        self._finish(self._agenda.now() + AGAIN_MS)

    def _finish(self, again_at: int | None) -> None:
        self._looking = False
        self._end()
        if self._missed:
            self._missed = False
            again_at = self._agenda.now()
        if again_at is not None:
            self.expect(again_at)
