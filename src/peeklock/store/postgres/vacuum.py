"""The store's own VACUUM: without it, the tables of a busy queue grow, and every read searches removed rows.

It does not depend on autovacuum, whose default waits until a fifth of the table is removed.
"""

from __future__ import annotations

import logging
from threading import Event, Lock
from typing import Any, Final

import psycopg

from .engine import Session
from .failures import Stopped

log = logging.getLogger(__name__)

_LEAST_REMOVED: Final = 50_000
_REMOVED_PART: Final = 0.05
"""The tables are vacuumed after this many removed rows, and at least this part of all rows."""

# Truncation would lock out commits; PostgreSQL reuses the space.
_VACUUM: Final = "VACUUM (TRUNCATE false) message, body, session, history, claim, entity, fence, lease, dropped_entity"
_ROWS: Final = """
    SELECT coalesce(sum(greatest(reltuples, 0)), 0)::bigint FROM pg_class
    WHERE oid IN ('message'::regclass, 'history'::regclass)
"""


class Vacuum:
    """Vacuums the tables on a thread of its own, which calls `run`. Other threads call the other methods."""

    def __init__(self, session: Session, stop: Event) -> None:
        self.runs = 0
        """How often the tables were vacuumed."""
        self._session = session
        self._stop = stop
        self._lock = Lock()
        self._removed = 0
        self._threshold = float(_LEAST_REMOVED)
        self._wake = Event()

    @property
    def removed(self) -> int:
        """The number of rows that were removed or replaced since the last VACUUM."""
        return self._removed

    def note(self, removed: int) -> None:
        """Count rows that were removed or replaced."""
        with self._lock:
            self._removed += removed
        if self._removed >= self._threshold:
            self._wake.set()

    def run(self) -> None:
        """Vacuum whenever it is due, until the store is closed."""
        try:
            self._threshold = self._compute_threshold()
            while True:
                self._wake.wait()
                self._wake.clear()
                if self._stop.is_set():
                    return
                if self._removed >= self._threshold:
                    self._vacuum()
        except Stopped:
            pass
        finally:
            self._session.drop()

    def stop(self) -> None:
        """End `run`; a VACUUM that is running is cancelled. `stop` of the constructor must be set."""
        self._wake.set()
        self._session.cancel()

    def _vacuum(self) -> None:
        with self._lock:
            removed, self._removed = self._removed, 0
        try:
            self._session.connected().execute(_VACUUM)
            self.runs += 1
            self._threshold = self._compute_threshold()
        except psycopg.Error as error:
            if not self._stop.is_set():
                log.warning("VACUUM failed and will be repeated: %s", " ".join(str(error).split()))
            self._session.drop()
            self.note(removed)
            self._session.pause(1.0)

    def _compute_threshold(self) -> float:
        try:
            row: Any = self._session.connected().execute(_ROWS).fetchone()
        except psycopg.Error:
            self._session.drop()
            return self._threshold
        return max(float(_LEAST_REMOVED), _REMOVED_PART * int(row[0]))
