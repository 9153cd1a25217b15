"""The connection that writes the index, which is reopened after a failure.

After an I/O error, SQLite's memory may not match the disk, so the connection is closed. SQLite verifies the WAL only
when the first connection is opened, so the readers' connections are closed too.
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

_MAX_WAL_BYTES: Final = 16 * 1024 * 1024
"""A checkpoint is made when the WAL has this many bytes that are not in the database: every read searches the WAL."""
_BUSY_SECONDS: Final = 10.0
"""The time without attempts after a checkpoint failed because another program was reading."""


class Database:
    """The writing connection of the index. Used by the index thread."""

    def __init__(
        self,
        connection: WriterConnection,
        file: Path,
        set_up: Callable[[WriterConnection], None],
    ) -> None:
        """`set_up` is called with every new connection. Raise StoreError, OSError or sqlite3.Error."""
        self.file = file
        self.applied = 0
        """The last commit that is known to be applied."""
        self.fatal: StoreError | None = None
        """Set when the disk lost applied commits: all writes and reads fail until the broker is restarted."""
        self.close_others: Callable[[], None] = _do_nothing
        """Closes the connections of the readers, which are reopened when needed."""
        self._set_up = set_up
        self._checkpoints = Checkpoints(file)
        self._checkpoints.opened()
        set_up(connection)
        self._connection: WriterConnection | None = connection
        self._long = _MAX_WAL_BYTES
        """The length of the WAL at which the next checkpoint is made."""
        self._full_at: int | None = None
        """The length of the WAL when the disk became full. Until the WAL is longer, checkpoints do not truncate it."""
        self._busy_until = 0.0
        """No checkpoint is attempted before this time: waiting for another program each time would delay reads and
        commits."""

    def connected(self) -> WriterConnection:
        """Return the connection, opening it if it was closed. Raise StoreError, OSError or sqlite3.Error."""
        if self.fatal is not None:
            raise StoreError(str(self.fatal))
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
        """Begin a transaction that also writes the generation, which shows to which database file the WAL belongs."""
        connection = self.connected()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE log SET generation = ?", (self._checkpoints.next_generation(),))
        return connection

    def _check(self, connection: WriterConnection) -> None:
        commit = 0
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'log'").fetchone():
            (commit,) = connection.execute('SELECT "commit" FROM log').fetchone()
        if commit < self.applied:
            self.fatal = StoreError(
                f"{self.file} lost data on the disk: commit {self.applied} had been applied, and the last commit that "
                f"is left is {commit}. Restart the broker to apply the rest from the log."
            )
            raise self.fatal

    def failed(self, error: Exception) -> StoreError:
        """Roll back after an error, and return the StoreError or StoreFull for it."""
        converted = store_error(error, self.file)  # first, because a rollback may free disk space
        self.recover(error)
        return converted

    def recover(self, error: Exception) -> None:
        """Roll back the open transaction, and close the connections unless the error is an SQL constraint."""
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
        """Make all committed transactions durable in the database file. Raise StoreError.

        A short WAL is not truncated: overwriting allocated blocks takes half the time.
        """
        if monotonic() < self._busy_until:
            raise self._busy()
        try:
            length = _length(wal.path(self.file))
            if self._full_at is not None and length > self._full_at:
                self._full_at = None
            keep_space = not is_last and (length < _MAX_WAL_BYTES or self._full_at is not None)
            is_made = self._checkpoints.make(self.connected(), keep_space=keep_space)
        except Exception as error:
            raise self.failed(error) from error
        if not is_made:
            self._busy_until = monotonic() + _BUSY_SECONDS
            raise self._busy()
        self._long = _MAX_WAL_BYTES

    def _busy(self) -> StoreError:
        return StoreError(f"{self.file} cannot be written while another program reads it.")

    def checkpoint_if_long(self) -> None:
        """Make a checkpoint if the WAL is long.

        A failure is only logged, because the transactions stay valid; the checkpoint is retried later.
        """
        try:
            waiting = self._checkpoints.waiting_bytes
            if waiting >= self._long:
                self._long = waiting + _MAX_WAL_BYTES
                self.checkpoint()
        except Exception as error:
            log.warning("the checkpoint of the index failed: %s", self.failed(error))

    def restart_wal(self) -> bool:
        """Make a checkpoint when the disk is full, so that the WAL can be overwritten from its start.

        Commits that mostly remove messages then need no further disk space. Return False if the checkpoint failed.
        """
        self._full_at = _length(wal.path(self.file))
        try:
            self.checkpoint()
        except StoreError:
            return False
        return True

    def close(self) -> None:
        if self._connection is not None:
            self._busy_until = 0.0
            # If the checkpoint fails, the WAL stays until the next start.
            with suppress(StoreError):
                self.checkpoint(is_last=True)
                self._connection.close_and_delete_wal()
            self._disconnect()
        self._checkpoints.close()

    def _disconnect(self) -> None:
        """Close the connections, the readers' too: after a failed sync they could read pages that are not on disk."""
        self.close_others()
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def _do_nothing() -> None:
    """Do nothing: there are no readers."""


def _length(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
