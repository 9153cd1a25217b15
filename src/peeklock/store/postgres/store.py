"""The store on PostgreSQL: stateless nodes, of which one at a time has the namespace.

One thread makes commits durable, so that the event loop keeps running meanwhile; commits that arrive while others are
being written wait, and are then written in one transaction (group commit). A second thread reads over a connection of
its own, and a third vacuums. This module has the threads, the order of callbacks, opening and closing. The lease, which
decides who may open the store and with which epoch, is in `lease`.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic
from typing import Any, Final, TypeVar

import psycopg
from psycopg import Connection

from ..base import (
    Changes,
    Committed,
    Counters,
    MessagesRead,
    OnDamage,
    Position,
    Range,
    RunsRead,
    SeenRead,
    SessionCountsRead,
    SessionsRead,
    SessionStateRead,
    StoredEntity,
    StoreError,
    TimedRead,
    ignore_damage,
)
from . import queries
from .batch import Batch
from .engine import Engine, Session
from .failures import CommitsLost, Fenced, OutcomeUnknown, Stopped, store_error
from .fence import Fence, Outcomes
from .plan import Known
from .reader import Reader
from .schema import check_version
from .vacuum import Vacuum
from .writer import Writer

log = logging.getLogger(__name__)

_GROUP_ROWS: Final = 4096
_GROUP_BYTES: Final = 8 * 1024 * 1024
"""The most rows and bytes of a group commit, so that its first commit does not wait long."""

_CLOSE_SECONDS: Final = 10.0
"""How long `close` waits for PostgreSQL."""

_Result = TypeVar("_Result")
_Pending = tuple[Batch | StoreError, Committed]


@dataclass(frozen=True, slots=True)
class Figures:
    """What the metrics show of a store."""

    last_commit: int
    outcomes: Outcomes
    """What became of commits whose outcome was in doubt."""
    connections: int
    """How often the writer and the reader connected."""
    removed_rows: int
    """Rows that were removed or replaced since the last VACUUM."""
    vacuums: int


class PostgresStore:
    """Implements `store.base.Store` in a schema of PostgreSQL, for the node that has the lease with this epoch.

    `call` runs the callbacks, e.g. `loop.call_soon_threadsafe`. `on_fatal` is called once, by `call`, when the node
    must stop: with Fenced if another node took over, with CommitsLost if PostgreSQL lost acknowledged commits. From
    then on no commit succeeds, and a commit whose outcome is in doubt is not answered until `close`.
    """

    def __init__(
        self,
        engine: Engine,
        epoch: int,
        call: Callable[[Callable[[], None]], object],
        on_fatal: Callable[[StoreError], None] | None = None,
        close_seconds: float = _CLOSE_SECONDS,
    ) -> None:
        self._engine = engine
        self._epoch = epoch
        self._call = call
        self._on_fatal = on_fatal
        self._close_seconds = close_seconds
        self._stop = Event()
        """Set when the threads must give up waiting for PostgreSQL."""
        self._commits: SimpleQueue[_Pending | None] = SimpleQueue()
        self._reads: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """Reads for the reader's thread; None ends it."""
        self._callbacks: deque[Callable[[], None]] = deque()
        """Callbacks with their results, in order; the caller's thread runs them."""
        self._held: list[Callable[[], None]] = []
        """Callbacks of commits whose outcome is in doubt for good, and of the ones after them."""
        self._sessions = [Session(engine, role, epoch, self._stop) for role in ("write", "read", "vacuum")]
        writing, reading, vacuuming = self._sessions
        self._fence = Fence(writing, epoch)
        self._reader = Reader(reading, epoch, lambda: self._fence.last_commit)
        self._vacuum = Vacuum(vacuuming, self._stop)
        self._threads: list[Thread] = []
        self._is_open = False
        self._reported = False
        self._highest_body_key = 0
        self._claims: list[tuple[int, bytes, bytes]] = []

    def open(self, on_damage: OnDamage = ignore_damage) -> list[StoredEntity]:
        try:
            connection = self._fence.connect()
            check_version(connection, self._engine)
            self._fence.open(connection)
            entities, dropped = self._load(connection)
        except psycopg.Error as error:
            self._drop_sessions()
            raise store_error(error) from error
        except BaseException:
            self._drop_sessions()
            raise
        writer = Writer(self._fence, Known(entities, dropped), has_bodies=self._highest_body_key > 0)
        self._is_open = True
        self._threads = [
            Thread(target=self._run_writer, args=(writer,), name="peeklock-store-writer", daemon=True),
            Thread(target=self._run_reader, name="peeklock-store-reader", daemon=True),
            Thread(target=self._vacuum.run, name="peeklock-store-vacuum", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return entities

    def highest_body_key(self) -> int:
        return self._highest_body_key

    def claims(self) -> list[tuple[int, bytes, bytes]]:
        return self._claims

    def figures(self) -> Figures:
        """Return what the metrics show. May be called by any thread."""
        return Figures(
            self._fence.last_commit,
            replace(self._fence.outcomes),
            sum(session.generation for session in self._sessions[:2]),
            self._vacuum.removed,
            self._vacuum.runs,
        )

    def commit(self, changes: Changes, done: Committed) -> None:
        if not self._is_open:
            done(StoreError("The store is closed."))
            return
        batch: Batch | StoreError
        try:
            batch = Batch(changes)
        except StoreError as error:
            batch = error  # reported in order, after the commits before it
        except UnicodeEncodeError as unencodable:
            batch = StoreError(f"A session id cannot be encoded as UTF-8: {unencodable}.")
        self._commits.put((batch, done))

    def read(self, wanted: Range, done: MessagesRead) -> None:
        self._read(lambda: self._reader.read(wanted), done)

    def read_runs(self, wanted: Range, done: RunsRead, now: int | None = None, excluded: Sequence[int] = ()) -> None:
        if wanted.state is None:
            done(StoreError("A read of runs must name one state."))
            return
        skipped = list(excluded)
        self._read(lambda: self._reader.read_runs(wanted, now, skipped), done)

    def read_numbers(self, entity: int, numbers: Sequence[int], max_bytes: int, done: MessagesRead) -> None:
        copied = list(numbers)
        self._read(lambda: self._reader.read_numbers(entity, copied, max_bytes), done)

    def read_expired(
        self, entity: int, now: int, limit: int, max_bytes: int, done: TimedRead, after: Position | None = None
    ) -> None:
        self._read(lambda: self._reader.read_expired(entity, now, limit, max_bytes, after), done)

    def read_due(
        self, entity: int, now: int, limit: int, max_bytes: int, done: TimedRead, after: Position | None = None
    ) -> None:
        self._read(lambda: self._reader.read_due(entity, now, limit, max_bytes, after), done)

    def read_session_counts(self, entity: int, done: SessionCountsRead) -> None:
        self._read(lambda: self._reader.read_session_counts(entity), done)

    def read_session_state_sizes(self, entity: int, done: SessionCountsRead) -> None:
        self._read(lambda: self._reader.read_session_state_sizes(entity), done)

    def read_session_state(self, entity: int, session_id: str, done: SessionStateRead) -> None:
        self._read(lambda: self._reader.read_session_state(entity, session_id), done)

    def read_sessions(self, entity: int, updated_after: int | None, skip: int, top: int, done: SessionsRead) -> None:
        self._read(lambda: self._reader.read_sessions(entity, updated_after, skip, top), done)

    def read_seen(self, entity: int, since: int, done: SeenRead) -> None:
        self._read(lambda: self._reader.read_seen(entity, since), done)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._commits.put(None)  # the writer thread ends the reader's when everything is written
            end = monotonic() + self._close_seconds
            for thread in self._threads[:2]:
                thread.join(max(0.0, end - monotonic()))
            self._stop.set()
            self._vacuum.stop()
            self._threads[2].join(2.0)
            while any(thread.is_alive() for thread in self._threads):
                for session in self._sessions:
                    session.interrupt()
                for thread in self._threads:
                    thread.join(0.1)
            self._threads.clear()
            self._drop_sessions()
            self._callbacks.extend(self._held)
            self._held.clear()
        while self._callbacks:
            self._run_callback()

    def _load(self, connection: Connection[Any]) -> tuple[list[StoredEntity], list[int]]:
        entities = [
            StoredEntity(id, path, kind, json.loads(definition), Counters(*counters))
            for id, path, kind, definition, *counters in connection.execute(queries.ENTITIES)
        ]
        self._claims = connection.execute(queries.CLAIMS).fetchall()
        highest: Any = connection.execute(queries.HIGHEST_BODY).fetchone()
        self._highest_body_key = highest[0]
        return entities, [id for (id,) in connection.execute(queries.DROPPED)]

    def _read(self, query: Callable[[], _Result], done: Callable[[_Result | StoreError], None]) -> None:
        """Run the query on the reader's thread and pass its result to `done`."""
        if not self._is_open:
            done(StoreError("The store is closed."))
            return

        def answer() -> None:
            found: _Result | StoreError
            try:
                found = query()
            except Stopped:
                found = StoreError("The store was closed before PostgreSQL answered.")
            except UnicodeEncodeError as unencodable:
                found = StoreError(f"A session id cannot be encoded as UTF-8: {unencodable}.")
            except Exception as error:
                found = store_error(error)
                if isinstance(found, Fenced):
                    self._report(found)
            self._post(partial(done, found))

        self._reads.put(answer)

    def _post(self, callback: Callable[[], None]) -> None:
        """Have the caller's thread run the callback, after all callbacks that were posted before it."""
        self._callbacks.append(callback)
        with suppress(RuntimeError):  # the event loop is closed: `close` runs the remaining callbacks
            self._call(self._run_callback)

    def _run_callback(self) -> None:
        """Run the next callback. Each has a call of its own, so that an exception in one does not skip the others."""
        if self._callbacks:
            self._callbacks.popleft()()

    def _report(self, error: StoreError) -> None:
        """Report that the node must stop, once."""
        if not self._reported and isinstance(error, Fenced | CommitsLost):
            self._reported = True
            log.error("%s", error)
            if self._on_fatal is not None:
                self._post(partial(self._on_fatal, error))

    def _run_reader(self) -> None:
        while (task := self._reads.get()) is not None:
            task()
        self._reader.close()

    def _run_writer(self, writer: Writer) -> None:
        """Run the writer thread: write the waiting commits in groups, until None; meanwhile purge dropped entities."""
        pending: deque[_Pending | None] = deque()
        while True:
            if not pending:
                with suppress(Empty):
                    pending.append(self._commits.get(timeout=writer.purge_timeout(is_busy=False)))
            with suppress(Empty):
                while True:
                    pending.append(self._commits.get_nowait())
            if pending:
                group = _take_group(pending)
                if not group:
                    break
                self._write_group(writer, group)
            if writer.purge_timeout(is_busy=bool(pending)) == 0.0 and not self._stop.is_set():
                writer.purge()
            self._vacuum.note(writer.removed)
            writer.removed = 0
        self._sessions[0].drop()
        self._reads.put(None)

    def _write_group(self, writer: Writer, group: list[_Pending]) -> None:
        outcomes = writer.write([batch for batch, _ in group])
        if writer.fatal is not None:
            self._report(writer.fatal)
        callbacks = [partial(done, outcome) for (_, done), outcome in zip(group, outcomes, strict=True)]
        if self._held or (writer.is_in_doubt and not self._stop.is_set()):
            if not self._held:
                unknown = OutcomeUnknown(f"The outcome of the commit is unknown. {writer.fatal}")
                callbacks = [partial(done, unknown) for _, done in group]
            self._held += callbacks
            return
        for callback in callbacks:
            self._post(callback)

    def _drop_sessions(self) -> None:
        for session in self._sessions:
            session.drop()


def _take_group(pending: deque[_Pending | None]) -> list[_Pending]:
    """Take the next commits that may be written together from the queue; an empty list at its end."""
    group: list[_Pending] = []
    rows = size = 0
    while pending and (waiting := pending[0]) is not None:
        batch, _ = waiting
        if isinstance(batch, Batch):
            rows += batch.rows
            size += batch.size
            if group and (rows > _GROUP_ROWS or size > _GROUP_BYTES):
                break
        pending.popleft()
        group.append(waiting)
    return group
