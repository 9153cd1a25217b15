"""Checks of a PostgreSQL server before a node uses it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import Connection

from ..base import StoreError
from .engine import Engine, Replication, connect_or_refuse
from .failures import store_error

_LEAST_VERSION: Final = 140_000
_CLOCK_SECONDS: Final = 1.0
_PROBE: Final = "peeklock.probe"


def check_engine(engine: Engine) -> list[str]:
    """Connect and check the server. Return warnings for the log. Raise StoreError if a node cannot use the server."""
    with connect_or_refuse(engine, "check") as first, connect_or_refuse(engine, "check") as second:
        try:
            check_version(first)
            check_writable(first)
            check_replication(first, engine.replication)
            check_pooling(first, second)
            warnings = [check_clock(first), check_sync(first)]
        except psycopg.Error as error:
            raise store_error(error) from error
    return [warning for warning in warnings if warning is not None]


def check_version(connection: Connection[Any]) -> None:
    """Raise StoreError for a server that is too old."""
    version = connection.info.server_version
    if version < _LEAST_VERSION:
        raise StoreError(
            f"The server is PostgreSQL {version // 10_000}, and Peeklock requires {_LEAST_VERSION // 10_000} or newer. "
            "Upgrade the server."
        )


def check_writable(connection: Connection[Any]) -> None:
    """Raise StoreError for a standby, or a server that is read-only."""
    (is_standby,) = _row(connection, "SELECT pg_is_in_recovery()")
    (is_read_only,) = _row(connection, "SELECT current_setting('transaction_read_only')::boolean")
    if is_standby:
        raise StoreError(
            "The server is a standby. Name the primary, or all hosts with target_session_attrs=read-write, in --store."
        )
    if is_read_only:
        raise StoreError("The server is read-only. Set default_transaction_read_only to off for the role of the store.")


def check_replication(connection: Connection[Any], replication: Replication) -> None:
    """Raise StoreError if a synchronous standby is required and none is configured."""
    (names,) = _row(connection, "SELECT current_setting('synchronous_standby_names')")
    if replication == "require" and not names.strip():
        raise StoreError(
            "The server has no synchronous standby, so acknowledged messages would be lost with it. Set "
            "synchronous_standby_names, or choose --replication external or none."
        )


def check_pooling(first: Connection[Any], second: Connection[Any]) -> None:
    """Raise StoreError if a pooler gives the sessions of the server to other connections between transactions."""
    _row(first, f"SELECT set_config('{_PROBE}', 'first', false)")
    read = f"SELECT coalesce(current_setting('{_PROBE}', true), '')"
    second.execute("BEGIN")  # takes the session that a pooler has just got back
    try:
        is_shared = _row(second, read) == ("first",) or _row(first, read) != ("first",)
    finally:
        second.execute("ROLLBACK")
    if is_shared:
        raise StoreError(
            "A pooler shares the sessions of the server between connections. Use session pooling, or connect directly."
        )


def check_clock(connection: Connection[Any], clock: Callable[[], float] = time.time) -> str | None:
    """Return a warning if the clocks of this machine and of the server differ."""
    before = clock()
    (at,) = _row(connection, "SELECT extract(epoch FROM clock_timestamp())::double precision")
    after = clock()
    difference = max(before - at, at - after)
    if difference <= _CLOCK_SECONDS:
        return None
    return (
        f"The clocks of this machine and of the PostgreSQL server differ by {difference:.1f} s. Synchronize them: "
        "messages expire and fall due by the clock of the node that has the namespace."
    )


def check_sync(connection: Connection[Any]) -> str | None:
    """Return a warning if the server does not sync its log to the disk."""
    (is_on,) = _row(connection, "SELECT current_setting('fsync')::boolean")
    if is_on:
        return None
    return "The PostgreSQL server runs with fsync = off: a power failure can destroy the database. Set it to on."


def _row(connection: Connection[Any], query: str) -> Any:
    return connection.execute(query).fetchone()
