"""The store on disk: a log of commits and an SQLite index of it, in a data folder that one process uses at a time.

One thread writes the log, so that the event loop keeps running while the disk syncs. Commits that arrive while others
are being written wait, and are then written and synced together (group commit). A second thread applies the log to the
index and answers reads from it. This module has the threads, the order of callbacks, opening and closing; `log`
contains the log's files, `commits` the conversion of changes to records, `index` the SQLite index.
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
from typing import Any, TypeVar

from ..base import (
    Changes,
    Committed,
    Counters,
    Damage,
    MessagesRead,
    OnDamage,
    Position,
    Range,
    Run,
    RunsRead,
    SeenRead,
    SessionCountsRead,
    SessionsRead,
    SessionStateRead,
    StoredEntity,
    StoreError,
    StoreFull,
    TimedRead,
    ignore_damage,
)
from .commits.batch import Batch
from .commits.entry import Entry
from .commits.known import Known
from .commits.record import parameters_of, to_bytes
from .failures import store_error
from .folder import FolderLock, make_folder, restrict_permissions, sync_folder
from .index.compaction import Compaction
from .index.connections import connect_writer
from .index.index import Index
from .index.inspection import inspect
from .index.pages import verify
from .index.reader import Reader
from .index.schema import create
from .index.writer import SegmentEnd, Writer
from .log.records import PAYLOAD_HEAD
from .log.replay import Replay, remove_torn
from .log.segments import LogPosition, Segments
from .log.synced import Synced
from .log.writer import Log
from .pin import Pin
from .reserve import Reserve

_GROUP_ROWS = 4096
_GROUP_BYTES = 8 * 1024 * 1024
"""The most rows and bytes of a group commit, so that its first commit does not wait long."""

_CLAIMS = "SELECT entity, id, content FROM claim WHERE entity IN (SELECT id FROM entity)"

_REPLAYED_RECORDS = 100
"""Records of the log that are applied in one transaction at the start."""

_Result = TypeVar("_Result")
_Pending = tuple[Batch | StoreError, Committed]


class DiskStore:
    """Implements `store.base.Store` in a folder. `call` runs the callbacks, e.g. `loop.call_soon_threadsafe`."""

    def __init__(
        self,
        folder: Path,
        call: Callable[[Callable[[], None]], object],
    ) -> None:
        self._folder = folder
        self._file = folder / "peeklock.db"
        self._call = call
        self._on_damage: OnDamage = ignore_damage
        self._reported: set[tuple[int, int]] = set()
        """Entity id and sequence number of the damaged messages that were reported."""
        self._unmarked: set[tuple[int, int]] = set()
        """The reported messages that do not have the state DAMAGED in the index yet."""
        self._commits: SimpleQueue[_Pending | None] = SimpleQueue()
        self._index_tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """Reads and other work for the index thread; None ends it."""
        self._callbacks: deque[Callable[[], None]] = deque()
        """Callbacks with their results, in order; the caller's thread runs them."""
        self._threads: list[Thread] = []
        self._held = ExitStack()
        self._reserve = Reserve(folder)
        self._segments = Segments(folder)
        self._synced = Synced(folder)
        self._reader = Reader(self._file, self._segments)
        self._catch_up: Callable[[], None] = _do_nothing
        """Applies all committed entries to the index; called before each read."""
        self._is_open = False
        self._highest_body_key = 0
        self._claims: list[tuple[int, bytes, bytes]] = []

    def open(self, on_damage: OnDamage = ignore_damage) -> list[StoredEntity]:
        self._on_damage = on_damage
        make_folder(self._folder)
        with ExitStack() as held:
            try:
                held.callback(FolderLock(self._folder).release)
                try:
                    opened = self._open(held)
                except StoreFull:
                    if not self._reserve.release():
                        raise
                    opened = self._open(held)
            except (sqlite3.Error, OSError) as error:
                raise store_error(error, self._file) from error
            self._held = held.pop_all()
        log, writer, entities = opened
        self._reserve.hold()
        known = Known(entities, self._any_exists)
        index = Index(writer, log.position, self._reserve)
        pin = Pin(self._folder)
        compaction = Compaction(
            writer, self._segments, pin, lambda moves: self._commits.put((moves, moved)), self._check_message
        )

        def moved(error: StoreError | None) -> None:
            self._index_tasks.put(lambda: compaction.moved(failed=error is not None))

        def catch_up() -> None:
            before = index.applied
            index.catch_up()
            if index.applied != before:
                compaction.free_some(index.applied)

        self._catch_up = catch_up
        self._is_open = True
        self._threads = [
            Thread(target=self._run_log, args=(log, index, known), name="peeklock-store-log", daemon=True),
            Thread(target=self._run_index, args=(index, writer, compaction), name="peeklock-store-index", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return entities

    def highest_body_key(self) -> int:
        return self._highest_body_key

    def claims(self) -> list[tuple[int, bytes, bytes]]:
        return self._claims

    def _open(self, held: ExitStack) -> tuple[Log, Writer, list[StoredEntity]]:
        """Open the log and the index. All checks precede all changes, so a refused start changes no file."""
        try:
            verify(self._file)
            inspected = inspect(self._file)
            replay = Replay(self._segments, inspected.applied, self._synced.read())
            examined = replay.examine()
            for end in inspected.ends:
                self._segments.check_record(*end)
            restrict_permissions(self._folder)
            self._segments.remove_leftovers()
            replay.fix_end(examined, self._folder)
            with ExitStack() as opened:
                opened.callback(self._synced.close)
                opened.callback(self._segments.close)
                self._synced.open()
                self._synced.write(examined.end.commit)
                connection = connect_writer(self._file)
                opened.callback(connection.close)
                create(connection)
                sync_folder(self._folder)
                writer = Writer(connection, self._file)
                writer.database.close_others = self._reader.close
                self._reader.connect_writer = writer.database.connected
                opened.callback(writer.close)
                _apply(replay, writer, examined.end)
                connection = writer.database.connected()  # if the disk was full, the connection was reopened
                entities = _load_entities(connection)
                (self._highest_body_key,) = connection.execute("SELECT coalesce(max(key), 0) FROM body").fetchone()
                self._claims = connection.execute(_CLAIMS).fetchall()
                self._reader.open()
                opened.callback(self._reader.close)
                log = Log(self._segments, self._synced, self._reserve)
                log.resume(examined.end, examined.last)
                held.push(opened.pop_all())
            return log, writer, entities
        except (sqlite3.Error, OSError) as error:
            raise store_error(error, self._file) from error

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
            self._read(_refuse_any_state, done)
            return
        skipped = list(excluded)

        def read() -> list[Run]:
            # Damaged messages that are not marked yet still have their previous state in the index.
            skipped.extend(number for entity, number in list(self._unmarked) if entity == wanted.entity)
            return self._reader.read_runs(wanted, now, skipped)

        self._read(read, done)

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
            self._commits.put(None)  # the log thread ends the index thread when everything is written
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._held.close()
        while self._callbacks:
            self._run_callback()

    def _read(self, query: Callable[[], _Result], done: Callable[[_Result | StoreError], None]) -> None:
        """Run the query on the index thread and pass its result to `done`."""
        if not self._is_open:
            done(StoreError("The store is closed."))
            return

        def answer() -> None:
            try:
                self._catch_up()
                found = query()
                self._report_damage()
                self._post(partial(done, found))
            except Exception as error:
                self._post(partial(done, store_error(error, self._file)))

        self._index_tasks.put(answer)

    def _check_message(self, entity: int, number: int) -> None:
        """Read a message, and report it if it is damaged. Raise StoreError."""
        self._reader.read_numbers(entity, [number], 1)
        self._report_damage()

    def _report_damage(self) -> None:
        """Call `on_damage` for new damaged messages of the last read, and commit that they are damaged."""
        found, self._reader.damaged = self._reader.damaged, []
        found_now: set[tuple[int, int]] = set()
        batch = Batch(Changes())
        for entity, message, where in found:
            number, before = message.sequence_number, message.state
            if (entity, number) not in self._reported:
                self._reported.add((entity, number))
                found_now.add((entity, number))
                batch.mark_damaged(entity, number)
                damage = Damage(entity, number, before, message.session_id, where)
                self._post(partial(self._on_damage, damage))
        if found_now:
            self._unmarked |= found_now

            def marked(error: StoreError | None) -> None:
                if error is None:
                    self._unmarked.difference_update(found_now)

            self._commits.put((batch, marked))

    def _any_exists(self, keys: list[int]) -> bool:
        """Return whether a message has one of these keys.

        Called by the log thread; the index thread runs the query.
        """
        answers: SimpleQueue[bool | StoreError] = SimpleQueue()

        def answer() -> None:
            try:
                self._catch_up()
                answers.put(self._reader.any_exists(keys))
            except Exception as error:
                answers.put(store_error(error, self._file))

        self._index_tasks.put(answer)
        taken = answers.get()
        if isinstance(taken, StoreError):
            raise taken
        return taken

    def _post(self, callback: Callable[[], None]) -> None:
        """Have the caller's thread run the callback, after all callbacks that were posted before it."""
        self._callbacks.append(callback)
        with suppress(RuntimeError):  # the event loop is closed: `close` runs the remaining callbacks
            self._call(self._run_callback)

    def _run_callback(self) -> None:
        """Run the next callback. Each has a call of its own, so that an exception in one does not skip the others."""
        if self._callbacks:
            self._callbacks.popleft()()

    def _run_index(self, index: Index, writer: Writer, compaction: Compaction) -> None:
        """Run the index thread: tasks in order; after a delay, apply waiting entries, purge and free segments."""
        while True:
            needs_purge = index.failure is None and (writer.needs_purge or compaction.has_work)
            timeout = 0.0 if needs_purge else index.timeout
            checks_segments = index.failure is None and _is_sooner(compaction.timeout, timeout)
            try:
                task = self._index_tasks.get(timeout=compaction.timeout if checks_segments else timeout)
            except Empty:
                if checks_segments:
                    compaction.continue_freeing(index.applied)
                else:
                    self._do_maintenance(writer, compaction)
                continue
            if task is None:
                break
            task()
            if index.is_due:
                self._do_maintenance(writer, compaction)
        with suppress(StoreError):  # the next start applies the rest
            self._catch_up()
            compaction.free_all(index.applied)

    def _do_maintenance(self, writer: Writer, compaction: Compaction) -> None:
        with suppress(StoreError):  # later commits and reads get the error
            self._catch_up()
            if writer.needs_purge:
                writer.purge()
            elif compaction.has_work:
                compaction.move_some()

    def _run_log(self, log: Log, index: Index, known: Known) -> None:
        """Run the log thread: write the waiting commits in groups, until None."""
        pending: deque[_Pending | None] = deque()
        while True:
            if not pending:
                pending.append(self._commits.get())
            with suppress(Empty):
                while True:
                    pending.append(self._commits.get_nowait())
            group = _take_group(pending)
            if not group:
                break
            index.has_capacity.wait()
            self._write_group(log, index, known, group)
        log.close()
        remove_torn(self._folder)
        self._index_tasks.put(None)

    def _write_group(self, log: Log, index: Index, known: Known, group: list[_Pending]) -> None:
        outcome: StoreError | None = None
        try:
            for entry, position in self._log_group(log, index, known, group):
                if index.take(entry, position):
                    self._index_tasks.put(_do_nothing)
        except StoreError as error:
            if len(group) > 1:  # write each commit separately, so that only the invalid one fails
                for waiting in group:
                    self._write_group(log, index, known, [waiting])
                return
            outcome = error
        for _, done in group:
            self._post(partial(done, outcome))

    def _log_group(
        self, log: Log, index: Index, known: Known, group: list[_Pending]
    ) -> list[tuple[Entry, LogPosition]]:
        """Write and sync the commits of a group. Raise StoreError if that failed; then none of them is durable."""
        batches = [_batch_or_raise(batch) for batch, _ in group]
        grows = any(batch.needs_space for batch in batches)
        if grows and index.failure is not None:
            raise type(index.failure)(str(index.failure))
        entries: list[tuple[Entry, LogPosition]] = []
        try:
            log.begin(sum([batch.size + PAYLOAD_HEAD * batch.rows for batch in batches]), len(batches), grows=grows)
            for batch in batches:
                entry, payloads = Entry.of(batch, *log.payloads_at())
                entry.record_at = log.position.offset
                known.check(batch, entry, is_alone=len(batches) == 1)
                end = to_bytes(entry)
                entry.size = len(end)
                log.add(payloads, end)
                entries.append((entry, log.position))
            log.commit()
        except Exception as error:
            log.discard()
            raise store_error(error, self._segments.path(log.position.segment)) from error
        for batch in batches:
            known.learn(batch)
        return entries


def _refuse_any_state() -> list[Run]:
    raise StoreError("A read of runs must name one state.")


def _is_sooner(timeout: float | None, other: float | None) -> bool:
    """Compare two time-outs; None means to wait without limit."""
    return timeout is not None and (other is None or timeout < other)


def _do_nothing() -> None:
    """Do nothing: as a task, it wakes the index thread, which then computes its time-out again."""


def _apply(replay: Replay, writer: Writer, through: LogPosition) -> None:
    """Apply to the index the records of the log that it does not have yet."""
    waiting: list[dict[str, Any]] = []
    ends: dict[int, SegmentEnd] = {}
    for record in replay.records():
        position = record.position
        waiting.append(parameters_of(record.end))
        ends[position.segment] = SegmentEnd(position.segment, record.start, position.offset, position.commit)
        if len(waiting) == _REPLAYED_RECORDS:
            writer.apply(waiting, position, ends.values())
            waiting, ends = [], {}
    if waiting or writer.applied() != through:
        writer.apply(waiting, through, ends.values())


def _batch_or_raise(batch: Batch | StoreError) -> Batch:
    if isinstance(batch, StoreError):
        raise batch
    return batch


def _take_group(pending: deque[_Pending | None]) -> list[_Pending]:
    """Take the next commits that may be written together from the queue; an empty list at its end."""
    group: list[_Pending] = []
    rows = size = 0
    while pending and (waiting := pending[0]) is not None:
        batch, _ = waiting
        if isinstance(batch, StoreError) or batch.is_logged_alone:
            return group or [_pop(pending, waiting)]
        rows += batch.rows
        size += batch.size
        if group and (rows > _GROUP_ROWS or size > _GROUP_BYTES):
            break
        group.append(_pop(pending, waiting))
    return group


def _pop(pending: deque[_Pending | None], waiting: _Pending) -> _Pending:
    pending.popleft()
    return waiting


def _load_entities(connection: sqlite3.Connection) -> list[StoredEntity]:
    rows = connection.execute(
        "SELECT id, path, kind, definition, "
        "last_sequence_number, active, deferred, scheduled, size_in_bytes, damaged, claimed FROM entity ORDER BY id"
    )
    return [
        StoredEntity(id, path, kind, json.loads(definition), Counters(*counters))
        for id, path, kind, definition, *counters in rows
    ]
