"""Connections to PostgreSQL: how a node connects, and the settings of each session.

A session's `application_name` carries the schema and the epoch, so that a node that takes over can find and terminate
the sessions of earlier epochs.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock
from typing import Any, Final, Literal, NoReturn

import psycopg
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ..base import StoreError
from . import arrays
from .failures import Stopped

log = logging.getLogger(__name__)

Replication = Literal["require", "external", "none"]
"""Who keeps a second copy: PostgreSQL itself (a synchronous standby is required), something below it such as a managed
service, or nothing."""

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,39}")
"""Limited, so that the schema, the epoch and the role fit into the 63 bytes of an application_name."""

_DEFAULTS: Final = {
    "target_session_attrs": "read-write",
    "connect_timeout": "4",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
"""Parameters of libpq that the URL may override. They find a connection that is cut off within about ten seconds."""

_SESSION: Final = """
    SET search_path = {schema};
    SET client_encoding = 'UTF8';
    SET default_transaction_isolation = 'read committed';
    SET jit = off;
    SET enable_seqscan = off;
    SET enable_bitmapscan = off;
    SET enable_mergejoin = off;
    SET plan_cache_mode = force_generic_plan;
    SET statement_timeout = 0;
    SET lock_timeout = 0;
    SET idle_in_transaction_session_timeout = '15s';
    SET tcp_keepalives_idle = 5;
    SET tcp_keepalives_interval = 2;
    SET tcp_keepalives_count = 3;
    SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') IN ('off', 'local')
"""
"""Each query has one index that fits it. The settings keep the planner from others, whatever its statistics are."""

_FIRST_DELAY: Final = 0.05
_MAX_DELAY: Final = 0.5
"""Seconds between attempts to connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A database, and the schema of one namespace in it."""

    url: str
    """A connection string or URL of libpq. It may name several hosts; the one that accepts writes is used."""
    schema: str = "peeklock"
    replication: Replication = "require"

    def __post_init__(self) -> None:
        if not _SCHEMA.fullmatch(self.schema):
            raise ValueError(
                f"The schema {self.schema!r} must have up to 40 lower-case letters, digits and underscores, and must "
                f"not begin with a digit."
            )

    @property
    def prefix(self) -> str:
        """How the `application_name` of every session of the namespace begins."""
        return f"peeklock/{self.schema}/"

    def session_name(self, role: str, epoch: int | None) -> str:
        """Return the `application_name` of a session; without an epoch, no take-over terminates the session."""
        return f"{self.prefix}{'-' if epoch is None else epoch}/{role}"


def connect(
    engine: Engine,
    role: str,
    epoch: int | None = None,
    on_connected: Callable[[Connection[Any]], None] = lambda connection: None,
) -> Connection[Any]:
    """Connect, with autocommit. Raise psycopg.Error. `on_connected` is called before the first statement."""
    given = conninfo_to_dict(engine.url)
    conninfo = make_conninfo("", **(_DEFAULTS | given | {"application_name": engine.session_name(role, epoch)}))
    connection = psycopg.connect(conninfo, autocommit=True)
    try:
        on_connected(connection)
        connection.execute(_SESSION.format(schema=engine.schema))
        arrays.register(connection)
        connection.prepare_threshold = 0
    except BaseException:
        connection.close()
        raise
    return connection


def connect_or_refuse(engine: Engine, role: str, epoch: int | None = None) -> Connection[Any]:
    """Connect, or raise StoreError with the reason."""
    try:
        return connect(engine, role, epoch)
    except psycopg.Error as error:
        refuse(error)


def refuse(error: psycopg.Error) -> NoReturn:
    """Raise StoreError for a failure to connect."""
    reason = " ".join(str(error).split()).rstrip(".")
    raise StoreError(f"PostgreSQL cannot be reached: {reason}. Check --store and the server.") from error


class Session:
    """A connection that is opened again when it was lost. Used by one thread; any thread may call `interrupt`."""

    def __init__(self, engine: Engine, role: str, epoch: int, stop: Event) -> None:
        self._engine = engine
        self._role = role
        self._epoch = epoch
        self._stop = stop
        self._connection: Connection[Any] | None = None
        self._wire: Connection[Any] | None = None
        """The same connection, also while its first statements are executed."""
        self._lock = Lock()
        self.generation = 0
        """How often the session was connected."""
        self.on_connected: Callable[[Connection[Any]], None] = lambda connection: None
        """Called with each new connection."""

    def open(self) -> Connection[Any]:
        """Connect at the start. Raise StoreError if that fails."""
        try:
            self._connect()
        except psycopg.Error as error:
            self.drop()
            refuse(error)
        return self.connected()

    def connected(self) -> Connection[Any]:
        """Return the connection. While there is none, try again and again. Raise Stopped if the store is closed."""
        delay = _FIRST_DELAY
        while (connection := self._connection) is None:
            if self._stop.is_set():
                raise Stopped
            try:
                self._connect()
            except psycopg.Error as error:
                self.drop()
                log.warning("PostgreSQL (%s) cannot be reached: %s", self._role, " ".join(str(error).split()))
                self.pause(delay)
                delay = min(2 * delay, _MAX_DELAY)
        return connection

    def pause(self, seconds: float = _FIRST_DELAY) -> None:
        """Wait before the next attempt. Raise Stopped if the store is closed."""
        if self._stop.wait(seconds):
            raise Stopped

    def drop(self) -> None:
        """Close the connection; the next use opens another one."""
        with self._lock:
            connection, self._connection, self._wire = self._wire, None, None
            if connection is not None:
                with suppress(psycopg.Error):
                    connection.close()

    def interrupt(self) -> None:
        """Cut the connection, so that a thread that waits for the server gets an error."""
        with self._lock:
            if self._wire is not None and not self._wire.closed:
                with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._wire.fileno())) as wire:
                    wire.shutdown(socket.SHUT_RDWR)

    def cancel(self) -> None:
        """Ask the server to cancel the running statement."""
        with self._lock:
            if self._connection is not None and not self._connection.closed:
                with suppress(psycopg.Error):
                    self._connection.cancel_safe(timeout=2.0)

    def _connect(self) -> None:
        connection = connect(self._engine, self._role, self._epoch, self._set_wire)
        self.on_connected(connection)
        with self._lock:
            self._connection = connection
            self.generation += 1

    def _set_wire(self, connection: Connection[Any]) -> None:
        with self._lock:
            self._wire = connection
