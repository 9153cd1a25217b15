"""The embedded store: one SQLite file in a folder that one broker holds at a time.

One thread writes and one reads, each with its own connection, so that the event loop goes on while the disk
syncs. Commits that arrive while one is being written wait, and are then written together. This module knows
the threads, the order of answers, opening and closing; `sqlite_batch` and `sqlite_writer` know how changes
are written, `sqlite_reader` how messages are read, `sqlite_file` and `sqlite_schema` the file.
"""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

from .base import (
    Changes,
    Committed,
    Counters,
    MessagesRead,
    Range,
    SeenRead,
    SessionCountsRead,
    SessionsRead,
    SessionStateRead,
    StoredEntity,
    StoreError,
    TimedRead,
)
from .sqlite_batch import Batch
from .sqlite_file import FolderLock, Synchronous, connect_writer, make_folder, store_error, sync_folder
from .sqlite_reader import Reader
from .sqlite_schema import migrate
from .sqlite_writer import Writer

_JOINED_ROWS = 4096
_JOINED_BYTES = 8 * 1024 * 1024
"""Commits that waited are written together up to this, so that the first of them is not kept waiting long."""

_Answer = TypeVar("_Answer")
_Waiting = tuple[Batch | StoreError, Committed]


class SqliteStore:
    """`store.base.Store` in a folder; callbacks are run through `call`, e.g. `loop.call_soon_threadsafe`."""

    def __init__(
        self,
        folder: Path,
        call: Callable[[Callable[[], None]], object],
        *,
        synchronous: Synchronous = "full",
    ) -> None:
        self._folder = folder
        self._file = folder / "peeklock.db"
        self._call = call
        self._synchronous: Synchronous = synchronous
        self._commits: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._reads: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._answers: deque[Callable[[], None]] = deque()
        """Callbacks with what they are told, in order; the caller's thread takes them."""
        self._threads: list[Thread] = []
        self._held = ExitStack()
        self._reader = Reader(self._file)
        self._is_open = False

    def open(self) -> list[StoredEntity]:
        make_folder(self._folder)
        with ExitStack() as held:
            try:
                held.callback(FolderLock(self._folder).release)
                connection = connect_writer(self._file, self._synchronous)
                held.callback(connection.close)
                migrate(connection)
                sync_folder(self._folder)
                entities = _load_entities(connection)
                writer = Writer(connection, self._file, self._synchronous)
                held.callback(writer.close)
                self._reader.open()
                held.callback(self._reader.close)
            except (sqlite3.Error, OSError) as error:
                raise store_error(error, self._file) from error
            self._held = held.pop_all()
        self._is_open = True
        self._threads = [
            Thread(target=self._write, args=(writer,), name="peeklock-store-writer", daemon=True),
            Thread(target=self._answer_reads, name="peeklock-store-reader", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return entities

    def commit(self, changes: Changes, done: Committed) -> None:
        if not self._is_open:
            done(StoreError("The store is closed."))
            return
        batch: Batch | StoreError
        try:
            batch = Batch(changes)
        except StoreError as error:
            batch = error  # told in its turn, after the commits before it
        except UnicodeEncodeError as unencodable:
            batch = StoreError(f"A session id is not text that can be kept: {unencodable}.")
        self._commits.put((batch, done))

    def read(self, wanted: Range, done: MessagesRead) -> None:
        self._ask(lambda: self._reader.read(wanted), done)

    def read_numbers(self, entity: int, numbers: Sequence[int], done: MessagesRead) -> None:
        copied = list(numbers)
        self._ask(lambda: self._reader.read_numbers(entity, copied), done)

    def read_expired(self, entity: int, now: int, limit: int, done: TimedRead) -> None:
        self._ask(lambda: self._reader.read_expired(entity, now, limit), done)

    def read_due(self, entity: int, now: int, limit: int, done: TimedRead) -> None:
        self._ask(lambda: self._reader.read_due(entity, now, limit), done)

    def read_session_counts(self, entity: int, done: SessionCountsRead) -> None:
        self._ask(lambda: self._reader.read_session_counts(entity), done)

    def read_session_state(self, entity: int, session_id: str, done: SessionStateRead) -> None:
        self._ask(lambda: self._reader.read_session_state(entity, session_id), done)

    def read_sessions(self, entity: int, updated_after: int | None, skip: int, top: int, done: SessionsRead) -> None:
        self._ask(lambda: self._reader.read_sessions(entity, updated_after, skip, top), done)

    def read_seen(self, entity: int, since: int, done: SeenRead) -> None:
        self._ask(lambda: self._reader.read_seen(entity, since), done)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._commits.put(None)
            self._reads.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._held.close()
        while self._answers:
            self._run_answer()

    def _ask(self, question: Callable[[], _Answer], done: Callable[[_Answer | StoreError], None]) -> None:
        if not self._is_open:
            done(StoreError("The store is closed."))
            return

        def read() -> None:
            try:
                self._answer(partial(done, question()))
            except StoreError as error:
                self._answer(partial(done, error))

        self._reads.put(read)

    def _answer(self, answer: Callable[[], None]) -> None:
        self._answers.append(answer)
        with suppress(RuntimeError):  # the loop is closed: `close` runs what is left
            self._call(self._run_answer)

    def _run_answer(self) -> None:
        """One call an answer, so that one that raises does not take others with it."""
        if self._answers:
            self._answers.popleft()()

    def _answer_reads(self) -> None:
        while (read := self._reads.get()) is not None:
            read()

    def _write(self, writer: Writer) -> None:
        pending: deque[_Waiting | None] = deque()
        while True:
            try:
                if not pending:
                    pending.append(self._commits.get(block=not writer.has_leftovers))
            except Empty:
                writer.purge()
                continue
            with suppress(Empty):
                while True:
                    pending.append(self._commits.get_nowait())
            group = _take_group(pending)
            if not group:
                return
            self._write_group(writer, group)

    def _write_group(self, writer: Writer, group: list[_Waiting]) -> None:
        outcome: StoreError | None = None
        try:
            writer.apply(_joined(group))
        except StoreError as error:
            if len(group) > 1:  # each alone, so that only the guilty one fails
                for waiting in group:
                    self._write_group(writer, [waiting])
                return
            outcome = error
        for _, done in group:
            self._answer(partial(done, outcome))


def _take_group(pending: deque[_Waiting | None]) -> list[_Waiting]:
    """The next commits that may be written together; none when the end was reached."""
    group: list[_Waiting] = []
    rows = size = 0
    while pending and (waiting := pending[0]) is not None:
        batch, _ = waiting
        if isinstance(batch, StoreError) or batch.stands_alone:
            return group or [_popped(pending, waiting)]
        rows += batch.rows
        size += batch.size
        if group and (rows > _JOINED_ROWS or size > _JOINED_BYTES):
            break
        group.append(_popped(pending, waiting))
    return group


def _popped(pending: deque[_Waiting | None], waiting: _Waiting) -> _Waiting:
    pending.popleft()
    return waiting


def _joined(group: list[_Waiting]) -> Batch:
    batches = []
    for batch, _ in group:
        if isinstance(batch, StoreError):
            raise batch
        batches.append(batch)
    return batches[0] if len(batches) == 1 else Batch.join(batches)


def _load_entities(connection: sqlite3.Connection) -> list[StoredEntity]:
    rows = connection.execute(
        "SELECT id, path, kind, definition, last_sequence_number, active, deferred, scheduled, size_in_bytes "
        "FROM entity ORDER BY id"
    )
    return [
        StoredEntity(id, path, kind, json.loads(definition), Counters(*counters))
        for id, path, kind, definition, *counters in rows
    ]
