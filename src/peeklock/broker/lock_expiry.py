"""Returns messages whose locks have expired. (The messages of a session are returned when its lock expires.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from peeklock.broker.agenda import Agenda, Appointment
from peeklock.broker.locks import Lock, LockTable

if TYPE_CHECKING:
    from peeklock.broker.queue import Queue


class LockExpiry:
    """One appointment for the lock that expires first."""

    def __init__(self, queue: Queue, locks: LockTable, agenda: Agenda, on_expired: Callable[[Lock], None]) -> None:
        self._queue = queue
        self._locks = locks
        self._agenda = agenda
        self._on_expired = on_expired
        self._timer: Appointment | None = None
        self._latest = 0
        self._is_disordered = False
        """Whether the locks are not in the order of their expiry, because the lock duration was shortened."""

    def from_now(self) -> tuple[int, int]:
        """Return when a lock that is made now expires: by the monotonic clock, and in Unix time for the client.

        The Unix time is read first. If the process is suspended between the two reads, the lock lasts longer than the
        client knows, and not shorter.
        """
        duration = self._queue.definition.lock_duration_ms
        locked_until = self._agenda.now() + duration
        return self._agenda.monotonic() + duration, locked_until

    def expect(self, expiry: int) -> None:
        """Check the locks when a new lock expires, at `expiry`, unless a check is due earlier."""
        if expiry < self._latest:
            self._is_disordered = True
        else:
            self._latest = expiry
        if self._timer is None or expiry < self._timer.at:
            self.stop()
            self._timer = self._agenda.when_elapsed(expiry, self.look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Return the messages whose locks have expired, and make the appointment for the next expiry."""
        self.stop()
        if self._queue.is_deleting:
            return
        now = self._agenda.monotonic()
        held = self._locks.by_number
        if not held:
            return
        # The latest time of the next check, for locks of messages that are being settled: their commit may fail.
        due = now + self._queue.definition.lock_duration_ms
        latest, is_ordered = 0, True
        for lock in list(held.values()):
            is_ordered = is_ordered and lock.expires_at >= latest
            latest = max(latest, lock.expires_at)
            if lock.settling:
                continue
            if lock.expires_at > now:
                due = min(due, lock.expires_at)
                if not self._is_disordered:
                    break
            else:
                self._on_expired(lock)
        if self._is_disordered and is_ordered:
            self._is_disordered = False
            self._latest = latest
        self._timer = self._agenda.when_elapsed(due, self.look)
