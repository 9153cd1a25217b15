"""The thread that reads and renews the lease over a connection of its own: psycopg blocks.

It carries out one request at a time, in order, and reports each outcome. When to request what is decided by `roles`.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Final

import psycopg
from psycopg import Connection

from peeklock.store.base import StoreError
from peeklock.store.postgres import lease
from peeklock.store.postgres.engine import Engine, connect
from peeklock.store.postgres.lease import Lease

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 0.1
"""Between checks whether the server has closed the connection."""
RELEASE_ATTEMPTS: Final = 2
"""The first one fails if the idle connection was lost."""
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_time() -> float:
    """Return seconds on the clock that also runs while the machine sleeps."""
    return time.clock_gettime_ns(_CLOCK) / 1e9


@dataclass(frozen=True, slots=True)
class Seen:
    """The lease was read, at this time of the monotonic clock."""

    lease: Lease
    at: float


@dataclass(frozen=True, slots=True)
class PollFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class Taken:
    """This node has the lease. The attempt began at this `lease_time`."""

    epoch: int
    began_at: float


@dataclass(frozen=True, slots=True)
class NotTaken:
    reason: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease was renewed. The attempt began at this `lease_time`."""

    began_at: float


@dataclass(frozen=True, slots=True)
class RenewalFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Another node has the lease."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection was lost while it was not used."""


Outcome = Seen | PollFailed | Taken | NotTaken | Renewed | RenewalFailed | LeaseLost | Disconnected


class LeaseThread:
    """Reads, takes, renews and releases the lease.

    This thread calls `report` with each outcome, and `on_ended` at its end.
    """

    def __init__(
        self,
        engine: Engine,
        owner: str,
        address: str,
        report: Callable[[Outcome], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._address = address
        self._report = report
        self._on_ended = on_ended
        self._epoch: int | None = None
        """The epoch of this node; None without the lease."""
        self._connection: Connection[Any] | None = None
        self._wire: Connection[Any] | None = None
        """The same connection, also while it is being set up."""
        self._lock = Lock()
        self._requests: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="peeklock-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def poll(self) -> None:
        self._requests.put(self._poll)

    def take(self, seen: Lease) -> None:
        self._requests.put(partial(self._take, seen))

    def renew(self) -> None:
        self._requests.put(self._renew)

    def finish(self, *, release: bool) -> None:
        """End the thread after the requests before this one. With `release`, it gives up the lease if it has it."""
        if release:
            self._requests.put(self._release)
        self._requests.put(None)

    def interrupt(self) -> None:
        """Cut the connection, so that a request that waits for the server fails. May be called by any thread."""
        with self._lock:
            if self._wire is not None and not self._wire.closed:
                with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._wire.fileno())) as wire:
                    wire.shutdown(socket.SHUT_RDWR)

    # --- the thread ---

    def _run(self) -> None:
        while True:
            try:
                request = self._requests.get(timeout=CHECK_SECONDS)
            except Empty:
                self._check()
                continue
            if request is None:
                break
            request()
        self._drop()
        self._on_ended()

    def _poll(self) -> None:
        try:
            seen = lease.read(self._connected(), self._engine)
        except (psycopg.Error, StoreError) as error:
            self._drop()
            self._report(PollFailed(_reason(error)))
        else:
            self._report(Seen(seen, time.monotonic()))

    def _take(self, seen: Lease) -> None:
        try:
            connection = self._connected()
            began_at = lease_time()
            epoch = lease.take_over(connection, self._engine, seen, self._owner, self._address)
        except (psycopg.Error, StoreError) as error:
            self._drop()  # it may count as a session of a new epoch
            self._report(NotTaken(_reason(error)))
            return
        if epoch is None:
            self._report(NotTaken("another node was first"))
        else:
            self._epoch = epoch
            self._report(Taken(epoch, began_at))

    def _renew(self) -> None:
        assert self._epoch is not None
        try:
            connection = self._connected()
            began_at = lease_time()
            pids = [connection.info.backend_pid]
            is_ours = lease.renew(connection, self._epoch, self._owner, self._address, pids)
        except (psycopg.Error, StoreError) as error:
            self._drop()
            self._report(RenewalFailed(_reason(error)))
        else:
            self._report(Renewed(began_at) if is_ours else LeaseLost())

    def _release(self) -> None:
        if self._epoch is None:
            return
        reason = ""
        for _ in range(RELEASE_ATTEMPTS):
            try:
                lease.release(self._connected(), self._engine, self._epoch, self._owner)
                return
            except (psycopg.Error, StoreError) as error:
                self._drop()
                reason = _reason(error)
        log.warning("the lease could not be released, so another node waits until it is over: %s", reason)

    def _check(self) -> None:
        """Find out whether the server has closed the idle connection, so that it is replaced before it is needed."""
        connection = self._connection
        if connection is None:
            return
        try:
            if not select.select([connection.fileno()], [], [], 0)[0]:
                return
            connection.pgconn.consume_input()
        except (OSError, ValueError, psycopg.Error):
            pass
        if connection.broken or connection.closed:
            self._drop()
            if self._epoch is not None:
                self._report(Disconnected())

    def _connected(self) -> Connection[Any]:
        if self._connection is None:
            connection = connect(self._engine, "lease", self._epoch, self._set_wire)
            with self._lock:
                self._connection = connection
        return self._connection

    def _set_wire(self, connection: Connection[Any]) -> None:
        with self._lock:
            self._wire = connection

    def _drop(self) -> None:
        with self._lock:
            connection, self._connection, self._wire = self._wire, None, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
