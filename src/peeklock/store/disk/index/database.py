"""The connection by which the index is written: opened again after a failure, and closed for good.

What an error of the disk has left in SQLite's memory is in doubt, so that no connection outlives one. SQLite checks its
log when the first connection to it is opened: those of others are closed as well.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final

from ...base import StoreError
from ..failures import store_error
from . import wal
from .connections import WriterConnection, connect_writer
from .pages import Checkpoints

log = logging.getLogger(__name__)

_LONG_BYTES: Final = 16 * 1024 * 1024
"""SQLite's log is moved into the database when it is longer than this: every read looks for its pages in it."""
_BUSY_SECONDS: Final = 10.0


class Database:
    """The thread of the index uses it."""

    def __init__(
        self,
        connection: WriterConnection,
        file: Path,
        set_up: Callable[[WriterConnection], None],
    ) -> None:
        """`set_up` is called with every new connection. StoreError, OSError, sqlite3.Error."""
        self.file = file
        self.applied = 0
        """The last commit that is known to have been applied."""
        self.lost: StoreError | None = None
        """The disk lost what was applied, and only a start can mend it: nothing is written or read any more."""
        self.close_others: Callable[[], None] = _do_nothing
        """Closes the connections of others, who open them again when they need them."""
        self._set_up = set_up
        self._checkpoints = Checkpoints(file)
        self._checkpoints.opened()
        set_up(connection)
        self._connection: WriterConnection | None = connection
        self._long = _LONG_BYTES
        """How long SQLite's log is when it is moved next."""
        self._full_at: int | None = None
        """How long it was when there was no room for more: until it has become longer, it keeps its room."""
        self._busy_until = 0.0
        """Another program was reading: to wait for it each time would keep those waiting who read or commit here."""

    def connected(self) -> WriterConnection:
        """StoreError, OSError, sqlite3.Error."""
        if self.lost is not None:
            raise StoreError(str(self.lost))
        if self._connection is None:
            connection = connect_writer(self.file)
            try:
                self._check(connection)
                self._checkpoints.opened()
                self._set_up(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def begin(self) -> WriterConnection:
        """Connected, and in a transaction that tells to which state of the database SQLite's log belongs."""
        connection = self.connected()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE log SET generation = ?", (self._checkpoints.begun(),))
        return connection

    def _check(self, connection: WriterConnection) -> None:
        commit = 0
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'log'").fetchone():
            (commit,) = connection.execute('SELECT "commit" FROM log').fetchone()
        if commit < self.applied:
            self.lost = StoreError(
                f"{self.file} lost what was written to it: commit {self.applied} had been applied, and the last one "
                f"that is left is {commit}. Restart the broker, which applies the rest from its log."
            )
            raise self.lost

    def failed(self, error: Exception) -> StoreError:
        """What it means, after which nothing of it is left."""
        meant = store_error(error, self.file)  # asks for room, before anything makes some
        self.recover(error)
        return meant

    def recover(self, error: Exception) -> None:
        """Leave no transaction open, and no connection that an I/O error may have left in doubt."""
        if self._connection is None:
            return
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()
            return
        if not isinstance(error, sqlite3.IntegrityError):
            self._disconnect()

    def checkpoint(self, *, is_last: bool = False) -> None:
        """Have all that was committed durable. StoreError.

        SQLite's log keeps its room while it is short: to write over blocks that are there takes half the time.
        """
        if monotonic() < self._busy_until:
            raise self._busy()
        try:
            length = _length(wal.path(self.file))
            if self._full_at is not None and length > self._full_at:
                self._full_at = None
            keep_room = not is_last and (length < _LONG_BYTES or self._full_at is not None)
            is_made = self._checkpoints.make(self.connected(), keep_room=keep_room)
        except Exception as error:
            raise self.failed(error) from error
        if not is_made:
            self._busy_until = monotonic() + _BUSY_SECONDS
            raise self._busy()
        self._long = _LONG_BYTES

    def _busy(self) -> StoreError:
        return StoreError(f"{self.file} is being read by another program, and cannot be written meanwhile.")

    def shorten_log(self) -> None:
        """If it is long. What was committed is so even if this fails; it is tried again later."""
        try:
            waiting = self._checkpoints.waiting_bytes
            if waiting >= self._long:
                self._long = waiting + _LONG_BYTES
                self.checkpoint()
        except Exception as error:
            log.warning("SQLite's log could not be moved into the index: %s", self.failed(error))

    def start_log_again(self) -> bool:
        """Move SQLite's log into the file, over pages that are there already, so that it can be written from its start:
        what mostly removes needs no more room than that, and reads wait for it."""
        self._full_at = _length(wal.path(self.file))
        try:
            self.checkpoint()
        except StoreError:
            return False
        return True

    def close(self) -> None:
        if self._connection is not None:
            self._busy_until = 0.0
            # What cannot be moved out of SQLite's log now stays in it until the next start.
            with suppress(StoreError):
                self.checkpoint(is_last=True)
                self._connection.close_and_delete_log()
            self._disconnect()
        self._checkpoints.close()

    def _disconnect(self) -> None:
        """Also others: what they read next could be what a failed sync left."""
        self.close_others()
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def _do_nothing() -> None:
    """There are no others."""


def _length(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
