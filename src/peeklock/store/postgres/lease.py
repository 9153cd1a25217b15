"""The lease of a namespace: which node may open the store, and with which epoch.

These functions do one step each, on a connection of the caller's; when to do them is decided elsewhere. The lease alone
does not protect the contents: every commit checks the epoch in the fence, which a take-over changes in the same
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psycopg
from psycopg import Connection

from .engine import Engine
from .failures import WARNING, OutcomeUnknown, is_transient, store_error

_Result = TypeVar("_Result")

# A session of another role shows its pid, but not its name.
_READ: Final = """
    SELECT epoch, beat, owner, address, pids, EXISTS (
        SELECT FROM pg_stat_activity
        WHERE starts_with(application_name, %s || epoch || '/')
        OR (pid = ANY(pids) AND coalesce(application_name, '') = '' AND usename IS DISTINCT FROM current_user)
    )
    FROM lease
"""
_TAKE: Final = """
    UPDATE lease SET epoch = epoch + 1, beat = beat + 1, owner = %s, address = %s, pids = '{}'
    WHERE epoch = %s AND beat = %s RETURNING epoch
"""
_TERMINATE: Final = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND substring(application_name FROM %s)::bigint < %s
"""
_SET_FENCE: Final = "UPDATE fence SET epoch = %s WHERE epoch < %s"
_SET_NAME: Final = "SELECT set_config('application_name', %s, false)"
_RENEW: Final = """
    UPDATE lease SET beat = beat + 1, pids = %s::integer[], address = coalesce(%s::text, address)
    WHERE epoch = %s AND owner = %s
"""
_RELEASE: Final = """
    UPDATE lease SET beat = beat + 1, owner = NULL, address = NULL, pids = '{}' WHERE epoch = %s AND owner = %s
"""
_LOCALLY: Final = "SET LOCAL synchronous_commit = local"
"""A renewal does not wait for the standby: if it hangs, the node keeps the lease. A renewal that is lost in a failover
is followed by another one."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What a node sees of the lease."""

    epoch: int
    beat: int
    """Raised by every renewal. A node that sees it unchanged for the lease's duration may take over."""
    owner: str | None
    """The id of the node that holds the lease; None if it was released."""
    address: str | None
    """Where that node accepts connections."""
    has_sessions: bool
    """Whether sessions of the present epoch are connected to the server."""


def read(connection: Connection[Any], engine: Engine) -> Lease:
    """Read the lease. Raise StoreError, or psycopg.Error if the server cannot be reached."""
    row: Any = _guarded(connection, lambda: connection.execute(_READ, (engine.prefix,)).fetchone())
    epoch, beat, owner, address, _, has_sessions = row
    return Lease(epoch, beat, owner, address, has_sessions)


def take_over(connection: Connection[Any], engine: Engine, seen: Lease, owner: str, address: str) -> int | None:
    """Take over the lease as it was seen, and return the new epoch; None if it changed meanwhile.

    Sessions of lower epochs are terminated: the server could keep waiting for one of a paused node, and that session
    can have a lock on the fence. From then on this connection counts as a session of the new epoch. The transaction is
    synchronous. Raise OutcomeUnknown if it is not known to be on the standby, and StoreError or psycopg.Error like
    `read`; then read the lease again.
    """
    warnings: list[str | None] = []

    def take() -> int | None:
        with connection.transaction() as transaction:
            row: Any = connection.execute(_TAKE, (owner, address, seen.epoch, seen.beat)).fetchone()
            if row is None:
                raise psycopg.Rollback(transaction)
            (epoch,) = row
            pattern = f"^{engine.prefix}([0-9]+)/"
            connection.execute(_TERMINATE, (pattern, epoch))
            connection.execute(_SET_FENCE, (epoch, epoch))
            connection.execute(_SET_NAME, (engine.session_name("lease", epoch),))
            return int(epoch)
        return None

    def note(notice: psycopg.errors.Diagnostic) -> None:
        warnings.append(notice.sqlstate)

    connection.add_notice_handler(note)
    try:
        epoch = _guarded(connection, take)
    finally:
        connection.remove_notice_handler(note)
    if WARNING in warnings:
        raise OutcomeUnknown("PostgreSQL stopped waiting for its standby during a take-over; read the lease again.")
    return epoch


def renew(
    connection: Connection[Any], epoch: int, owner: str, address: str | None = None, pids: Sequence[int] = ()
) -> bool:
    """Raise the beat of the lease. Return False if another node has it. Raise like `read`.

    `pids` are the server processes of this node's sessions, and `address` replaces the node's address.
    """
    return _update(connection, _RENEW, (list(pids), address, epoch, owner))


def release(connection: Connection[Any], engine: Engine, epoch: int, owner: str) -> bool:
    """Give up the lease, so that another node takes over at once. Return False if another node has it already.

    The connection no longer counts as a session of the epoch.
    """
    is_released = _update(connection, _RELEASE, (epoch, owner))
    _guarded(connection, lambda: connection.execute(_SET_NAME, (engine.session_name("lease", None),)))
    return is_released


def _update(connection: Connection[Any], statement: str, parameters: tuple[Any, ...]) -> bool:
    def update() -> bool:
        with connection.pipeline(), connection.transaction():
            connection.execute(_LOCALLY)
            cursor = connection.execute(statement, parameters)
        return cursor.rowcount == 1

    return _guarded(connection, update)


def _guarded(connection: Connection[Any], step: Callable[[], _Result]) -> _Result:
    """Call `step`. Errors that may pass are raised as they are, others as StoreError."""
    try:
        return step()
    except psycopg.Error as error:
        if is_transient(error, connection):
            raise
        raise store_error(error) from error
