"""Errors of PostgreSQL: which of them leave the outcome of a commit open, and their conversion to StoreError."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import Connection

from ..base import StoreError, StoreFull

WARNING: Final = "01000"
"""A plain warning. During a commit: PostgreSQL no longer waits for the standby, so the commit may exist on this server
only."""
FENCE_FAILED: Final = "22012"
"""Division by zero: the fence divides by the number of its rows that matched."""
_DISK_FULL: Final = "53100"
_UNIQUE_VIOLATION: Final = "23505"

_TRANSIENT: Final = frozenset(
    {
        "25006",  # the server became a standby
        "40001",  # serialization failure
        "40P01",  # deadlock
        "53300",  # too many connections
        "55P03",  # lock not available
        "57014",  # an administrator cancelled the statement
    }
)
_TRANSIENT_CLASSES: Final = frozenset({"08", "57"})
"""Connection failures, and interventions of an administrator such as a shutdown."""


class Fenced(StoreError):
    """Another node has taken over the namespace: this node can commit nothing any more and must exit."""


class CommitsLost(StoreError):
    """PostgreSQL no longer has commits that it had acknowledged. The node must stop, and a person must decide."""


class OutcomeUnknown(StoreError):
    """The store was closed before it could find out whether the commit is durable."""


class Stopped(Exception):
    """The store is being closed while PostgreSQL does not answer."""


def fenced(epoch: int) -> Fenced:
    return Fenced(f"Another node has taken over the namespace: epoch {epoch} of this node is over. Restart the node.")


def is_transient(error: Exception, connection: Connection[Any]) -> bool:
    """Return whether the statement may succeed when it is repeated, perhaps over a new connection or another server.

    If it was a commit, its outcome is open.
    """
    if not isinstance(error, psycopg.Error):
        return False
    if connection.closed or connection.broken:
        return True
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return True
    state = error.sqlstate or ""
    return state in _TRANSIENT or state[:2] in _TRANSIENT_CLASSES


def store_error(error: Exception) -> StoreError:
    """Convert an error: StoreFull if the disk of the server is full, else StoreError."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, psycopg.Error):
        what = error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
        if error.sqlstate == _DISK_FULL:
            return StoreFull(f"PostgreSQL has no free disk space: {what}.")
        if error.sqlstate == _UNIQUE_VIOLATION:
            detail = error.diag.message_detail or what
            return StoreError(f"Cannot append messages: a sequence number is in use. {detail}")
        return StoreError(f"PostgreSQL reported an error: {what} ({error.sqlstate or 'no code'}).")
    return StoreError(f"PostgreSQL could not be used: {type(error).__name__}: {error}.")
