"""Transactions under the fence: only the node with the present epoch can commit, and each commit has a number.

A transaction first raises `fence.last_commit` from n - 1 to n, for this node's epoch. If the row does not match, the
transaction fails. So a node that was paused or cut off can commit nothing after another one took over, and a commit
that is repeated cannot be made twice.

After a lost connection it is unknown whether the commit was made. The outcome is found out by a write, never by a read:
a commit may be visible on a server without being on its standby. The write is durable only after everything before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import Connection

from ..base import StoreError
from .engine import Session
from .failures import FENCE_FAILED, WARNING, CommitsLost, OutcomeUnknown, Stopped, fenced, is_transient, store_error

log = logging.getLogger(__name__)

_RAISE: Final = """
    WITH raised AS (
        UPDATE fence SET last_commit = %s WHERE epoch = %s AND last_commit = %s RETURNING 1
    ) SELECT 1 / count(*) FROM raised
"""
_RESOLVE: Final = "UPDATE fence SET epoch = epoch WHERE epoch = %s RETURNING last_commit"
_TERMINATE_PREDECESSORS: Final = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid()
"""


@dataclass(slots=True)
class Outcomes:
    """What became of commits whose outcome was in doubt."""

    in_doubt: int = 0
    done: int = 0
    repeated: int = 0
    fenced: int = 0
    lost: int = 0


@dataclass(slots=True)
class Fence:
    """Makes the commits of one epoch, one after the other. Used by the writer thread."""

    session: Session
    epoch: int
    last_commit: int = 0
    """The number of the last durable commit. The reader's thread reads it."""
    outcomes: Outcomes = field(default_factory=Outcomes)
    is_in_doubt: bool = False
    """Whether the last call of `commit` ended without an outcome: the transaction may be durable all the same."""
    _warned: bool = False

    def connect(self) -> Connection[Any]:
        """Connect at the start. Raise StoreError."""
        self.session.on_connected = self._on_connected
        return self.session.open()

    def open(self, connection: Connection[Any]) -> None:
        """Read the number of the last commit, by a write. Raise psycopg.Error, StoreError, or Fenced."""
        self._warned = False
        found = connection.execute(_RESOLVE, (self.epoch,)).fetchone()
        if found is None:
            raise fenced(self.epoch)
        if self._warned:  # what was read may not be on the standby
            raise StoreError("PostgreSQL stopped waiting for its standby while the store was being opened. Try again.")
        self.last_commit = found[0]

    def commit(self, apply: Callable[[Connection[Any]], None]) -> None:
        """Make one transaction with the changes of `apply` durable. `apply` may be called several times.

        Raise StoreError if the database refused it, and it had no effect; Fenced or CommitsLost if this node must stop;
        OutcomeUnknown if the store was closed meanwhile.
        """
        number = self.last_commit + 1
        self.is_in_doubt = False
        try:
            while not self._try(self.session.connected(), number, apply):
                self.outcomes.in_doubt += 1
                if self._resolve(number):
                    self.outcomes.done += 1
                    break
                self.outcomes.repeated += 1
                self.is_in_doubt = False
        except Stopped:
            if self.is_in_doubt:
                raise OutcomeUnknown("The store was closed while the outcome of the commit was in doubt.") from None
            raise StoreError("The store was closed before PostgreSQL could be reached.") from None
        self.is_in_doubt = False
        self.last_commit = number

    def _try(self, connection: Connection[Any], number: int, apply: Callable[[Connection[Any]], None]) -> bool:
        """Execute the transaction. Return False if the outcome is in doubt. Raise StoreError if it was refused."""
        self._warned = False
        try:
            with connection.pipeline():
                connection.execute("BEGIN")
                connection.execute(_RAISE, (number, self.epoch, number - 1))
                apply(connection)
                end = connection.execute("COMMIT")
        except psycopg.Error as error:
            if error.sqlstate == FENCE_FAILED:  # nothing was changed, but an earlier attempt may have been made
                self._recover(connection)
                return False
            if is_transient(error, connection):
                log.warning("the outcome of commit %d is unknown: %s", number, " ".join(str(error).split()))
                self.is_in_doubt = True
                self.session.drop()
                return False
            self._recover(connection)
            raise store_error(error) from error
        except Exception as error:
            self.session.drop()
            raise store_error(error) from error
        if self._warned or end.statusmessage != "COMMIT":
            log.warning("PostgreSQL stopped waiting for the standby in commit %d", number)
            self.is_in_doubt = True
            return False
        return True

    def _recover(self, connection: Connection[Any]) -> None:
        """End the failed transaction; if that is not possible, close the connection."""
        try:
            if not connection.closed:
                connection.execute("ROLLBACK")
                return
        except psycopg.Error:
            pass
        self.session.drop()

    def _resolve(self, number: int) -> bool:
        """Return whether commit `number` is durable. Raise Fenced, CommitsLost or Stopped."""
        while True:
            connection = self.session.connected()
            self._warned = False
            try:
                found = connection.execute(_RESOLVE, (self.epoch,)).fetchone()
            except psycopg.Error as error:
                log.warning("the outcome of commit %d is still unknown: %s", number, " ".join(str(error).split()))
                self.session.drop()
                self.session.pause()
                continue
            if self._warned:
                self.session.pause()
                continue
            if found is None:
                self.outcomes.fenced += 1
                raise fenced(self.epoch)
            if found[0] == number:
                return True
            if found[0] == number - 1:
                return False
            self.outcomes.lost += 1
            raise CommitsLost(
                f"PostgreSQL lost acknowledged commits: the last one was {number - 1}, and the database is at "
                f"{found[0]}. Stop all nodes, and restore the server that has them."
            )

    def _on_connected(self, connection: Connection[Any]) -> None:
        """Terminate what is left of the previous connection: it could hold the lock on the fence."""
        connection.execute(_TERMINATE_PREDECESSORS)
        connection.add_notice_handler(self._on_notice)

    def _on_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.sqlstate == WARNING:
            self._warned = True
