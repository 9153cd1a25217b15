"""When locks of single messages run out: they are given back, counted. (Those of a session end with its lock.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from peeklock.broker.agenda import Agenda, Appointment
from peeklock.broker.locks import Lock, LockTable


class ExpiryHost(Protocol):
    """The queue."""

    @property
    def doomed(self) -> bool: ...

    @property
    def lock_duration_ms(self) -> int: ...


class LockExpiry:
    """One appointment for the lock that runs out first."""

    def __init__(self, host: ExpiryHost, locks: LockTable, agenda: Agenda, give_back: Callable[[Lock], None]) -> None:
        self._host = host
        self._locks = locks
        self._agenda = agenda
        self._give_back = give_back
        self._timer: Appointment | None = None
        self._latest = 0
        self._is_disordered = False
        """Locks are not in the order in which they run out: the lock duration was shortened."""

    def from_now(self) -> tuple[int, int]:
        """When a lock that is given now runs out: by the monotonic clock, and in Unix time, as the client is told.

        The Unix time is read first: should the process rest in between, a lock lasts longer than it was told to.
        """
        duration = self._host.lock_duration_ms
        locked_until = self._agenda.now() + duration
        return self._agenda.monotonic() + duration, locked_until

    def expect(self, expiry: int) -> None:
        """A lock was given that runs out then: look, unless that is done earlier anyway."""
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
        """Give back what was held too long, and look again when the next lock runs out."""
        self.stop()
        if self._host.doomed:
            return
        now = self._agenda.monotonic()
        held = self._locks.by_number
        if not held:
            return
        # Settlements that are on their way may fail, so at the latest:
        due = now + self._host.lock_duration_ms
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
                self._give_back(lock)
        if self._is_disordered and is_ordered:
            self._is_disordered = False
            self._latest = latest
        self._timer = self._agenda.when_elapsed(due, self.look)
