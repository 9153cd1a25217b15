"""The embedded store: a log and its index, in a folder that one broker holds at a time.

One thread writes the log, so that the event loop goes on while the disk syncs; commits that arrive while one is being
written wait, and are then written together. Another applies the log to the index, a SQLite file, and answers
questions from it. This module knows the threads, the order of answers, opening and closing; `log` is the log,
`commits` what a commit is, `index` what the log amounts to.
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
from .folder import FolderLock, keep_from_others, make_folder, sync_folder
from .index.connections import connect_writer
from .index.index import Index
from .index.inspection import inspect
from .index.pages import verify
from .index.reader import Reader
from .index.schema import create
from .index.tidying import Tidying
from .index.writer import SegmentEnd, Writer
from .log.records import PAYLOAD_HEAD
from .log.replay import Replay, remove_torn
from .log.segments import Place, Segments
from .log.synced import Synced
from .log.writer import Log
from .pin import Pin
from .reserve import Reserve

_JOINED_ROWS = 4096
_JOINED_BYTES = 8 * 1024 * 1024
"""Commits that waited are written together up to this, so that the first of them is not kept waiting long."""

_CLAIMS = "SELECT entity, id, content FROM claim WHERE entity IN (SELECT id FROM entity)"

_REPLAYED_RECORDS = 100
"""Of the log, applied together at the start."""

_Answer = TypeVar("_Answer")
_Waiting = tuple[Batch | StoreError, Committed]


class DiskStore:
    """`store.base.Store` in a folder; callbacks are run through `call`, e.g. `loop.call_soon_threadsafe`."""

    def __init__(
        self,
        folder: Path,
        call: Callable[[Callable[[], None]], object],
    ) -> None:
        self._folder = folder
        self._file = folder / "peeklock.db"
        self._call = call
        self._on_damage: OnDamage = ignore_damage
        self._damaged: set[tuple[int, int]] = set()
        """Entity and number of those that were told."""
        self._unmarked: set[tuple[int, int]] = set()
        """Those of them whose state in the index is not that of a damaged message yet."""
        self._commits: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._questions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """For the thread of the index."""
        self._answers: deque[Callable[[], None]] = deque()
        """Callbacks with what they are told, in order; the caller's thread takes them."""
        self._threads: list[Thread] = []
        self._held = ExitStack()
        self._reserve = Reserve(folder)
        self._segments = Segments(folder)
        self._synced = Synced(folder)
        self._reader = Reader(self._file, self._segments)
        self._catch_up: Callable[[], None] = _nothing
        """Have the index know all that was committed, before it is asked."""
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
        known = Known(entities, self._are_taken)
        index = Index(writer, log.place, self._reserve)
        pin = Pin(self._folder)
        tidying = Tidying(writer, self._segments, pin, lambda moves: self._commits.put((moves, moved)), self._examine)

        def moved(error: StoreError | None) -> None:
            self._questions.put(lambda: tidying.moved(failed=error is not None))

        def catch_up() -> None:
            before = index.applied
            index.catch_up()
            if index.applied != before:
                tidying.free_some(index.applied)

        self._catch_up = catch_up
        self._is_open = True
        self._threads = [
            Thread(target=self._write, args=(log, index, known), name="peeklock-store-log", daemon=True),
            Thread(target=self._keep_index, args=(index, writer, tidying), name="peeklock-store-index", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return entities

    def highest_body_key(self) -> int:
        return self._highest_body_key

    def claims(self) -> list[tuple[int, bytes, bytes]]:
        return self._claims

    def _open(self, held: ExitStack) -> tuple[Log, Writer, list[StoredEntity]]:
        """Look at everything before anything is changed: a start that is refused leaves the folder as it was."""
        try:
            verify(self._file)
            inspected = inspect(self._file)
            replay = Replay(self._segments, inspected.applied, self._synced.read())
            examined = replay.examine()
            for end in inspected.ends:
                self._segments.check_record(*end)
            keep_from_others(self._folder)
            self._segments.remove_leftovers()
            replay.mend(examined, self._folder)
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
                connection = writer.database.connected()  # a full disk had it opened again
                entities = _load_entities(connection)
                (self._highest_body_key,) = connection.execute("SELECT coalesce(max(key), 0) FROM body").fetchone()
                self._claims = connection.execute(_CLAIMS).fetchall()
                self._reader.open()
                opened.callback(self._reader.close)
                log = Log(self._segments, self._synced, self._reserve)
                log.go_on(examined.end, examined.last)
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
            batch = error  # told in its turn, after the commits before it
        except UnicodeEncodeError as unencodable:
            batch = StoreError(f"A session id is not text that can be kept: {unencodable}.")
        self._commits.put((batch, done))

    def read(self, wanted: Range, done: MessagesRead) -> None:
        self._ask(lambda: self._reader.read(wanted), done)

    def read_runs(self, wanted: Range, done: RunsRead, now: int | None = None, but: Sequence[int] = ()) -> None:
        if wanted.state is None:
            self._ask(_refuse_any_state, done)
            return
        left_out = list(but)

        def read() -> list[Run]:
            # Those that are not marked yet are still in the state that they were in.
            left_out.extend(number for entity, number in list(self._unmarked) if entity == wanted.entity)
            return self._reader.read_runs(wanted, now, left_out)

        self._ask(read, done)

    def read_numbers(self, entity: int, numbers: Sequence[int], max_bytes: int, done: MessagesRead) -> None:
        copied = list(numbers)
        self._ask(lambda: self._reader.read_numbers(entity, copied, max_bytes), done)

    def read_expired(
        self, entity: int, now: int, limit: int, max_bytes: int, done: TimedRead, after: Position | None = None
    ) -> None:
        self._ask(lambda: self._reader.read_expired(entity, now, limit, max_bytes, after), done)

    def read_due(
        self, entity: int, now: int, limit: int, max_bytes: int, done: TimedRead, after: Position | None = None
    ) -> None:
        self._ask(lambda: self._reader.read_due(entity, now, limit, max_bytes, after), done)

    def read_session_counts(self, entity: int, done: SessionCountsRead) -> None:
        self._ask(lambda: self._reader.read_session_counts(entity), done)

    def read_session_state_sizes(self, entity: int, done: SessionCountsRead) -> None:
        self._ask(lambda: self._reader.read_session_state_sizes(entity), done)

    def read_session_state(self, entity: int, session_id: str, done: SessionStateRead) -> None:
        self._ask(lambda: self._reader.read_session_state(entity, session_id), done)

    def read_sessions(self, entity: int, updated_after: int | None, skip: int, top: int, done: SessionsRead) -> None:
        self._ask(lambda: self._reader.read_sessions(entity, updated_after, skip, top), done)

    def read_seen(self, entity: int, since: int, done: SeenRead) -> None:
        self._ask(lambda: self._reader.read_seen(entity, since), done)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._commits.put(None)  # the log's thread passes it on, when all is written
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

        def answer() -> None:
            try:
                self._catch_up()
                found = question()
                self._report_damage()
                self._answer(partial(done, found))
            except Exception as error:
                self._answer(partial(done, store_error(error, self._file)))

        self._questions.put(answer)

    def _examine(self, entity: int, number: int) -> None:
        """Report this message if it is damaged. StoreError."""
        self._reader.read_numbers(entity, [number], 1)
        self._report_damage()

    def _report_damage(self) -> None:
        """Messages that a read could not give out: from now on they are known as damaged, also after a restart."""
        found, self._reader.damaged = self._reader.damaged, []
        found_now: set[tuple[int, int]] = set()
        batch = Batch(Changes())
        for entity, message, where in found:
            number, before = message.sequence_number, message.state
            if (entity, number) not in self._damaged:
                self._damaged.add((entity, number))
                found_now.add((entity, number))
                batch.mark_damaged(entity, number)
                damage = Damage(entity, number, before, message.session_id, where)
                self._answer(partial(self._on_damage, damage))
        if found_now:
            self._unmarked |= found_now

            def marked(error: StoreError | None) -> None:
                if error is None:
                    self._unmarked.difference_update(found_now)

            self._commits.put((batch, marked))

    def _are_taken(self, keys: list[int]) -> bool:
        """Asked by the thread of the log, which waits for the answer."""
        answers: SimpleQueue[bool | StoreError] = SimpleQueue()

        def answer() -> None:
            try:
                self._catch_up()
                answers.put(self._reader.are_taken(keys))
            except Exception as error:
                answers.put(store_error(error, self._file))

        self._questions.put(answer)
        taken = answers.get()
        if isinstance(taken, StoreError):
            raise taken
        return taken

    def _answer(self, answer: Callable[[], None]) -> None:
        self._answers.append(answer)
        with suppress(RuntimeError):  # the loop is closed: `close` runs what is left
            self._call(self._run_answer)

    def _run_answer(self) -> None:
        """One call an answer, so that one that raises does not take others with it."""
        if self._answers:
            self._answers.popleft()()

    def _keep_index(self, index: Index, writer: Writer, tidying: Tidying) -> None:
        while True:
            has_leftovers = index.failure is None and (writer.has_leftovers or tidying.has_work)
            patience = 0.0 if has_leftovers else index.patience
            looks_next = index.failure is None and _is_shorter(tidying.patience, patience)
            try:
                question = self._questions.get(timeout=tidying.patience if looks_next else patience)
            except Empty:
                if looks_next:
                    tidying.go_on(index.applied)
                else:
                    self._tidy_up(writer, tidying)
                continue
            if question is None:
                break
            question()
            if index.is_due:
                self._tidy_up(writer, tidying)
        with suppress(StoreError):  # what is not applied now is at the next start
            self._catch_up()
            tidying.free_all(index.applied)

    def _tidy_up(self, writer: Writer, tidying: Tidying) -> None:
        with suppress(StoreError):  # who commits or asks is told
            self._catch_up()
            if writer.has_leftovers:
                writer.purge()
            elif tidying.has_work:
                tidying.empty_some()

    def _write(self, log: Log, index: Index, known: Known) -> None:
        pending: deque[_Waiting | None] = deque()
        while True:
            if not pending:
                pending.append(self._commits.get())
            with suppress(Empty):
                while True:
                    pending.append(self._commits.get_nowait())
            group = _take_group(pending)
            if not group:
                break
            index.room.wait()
            self._write_group(log, index, known, group)
        log.close()
        remove_torn(self._folder)
        self._questions.put(None)

    def _write_group(self, log: Log, index: Index, known: Known, group: list[_Waiting]) -> None:
        outcome: StoreError | None = None
        try:
            for entry, place in self._log_group(log, index, known, group):
                if index.take(entry, place):
                    self._questions.put(_nothing)
        except StoreError as error:
            if len(group) > 1:  # each alone, so that only the guilty one fails
                for waiting in group:
                    self._write_group(log, index, known, [waiting])
                return
            outcome = error
        for _, done in group:
            self._answer(partial(done, outcome))

    def _log_group(self, log: Log, index: Index, known: Known, group: list[_Waiting]) -> list[tuple[Entry, Place]]:
        """Make these durable, or none of them (StoreError)."""
        batches = [_checked(batch) for batch, _ in group]
        grows = any(batch.makes_longer for batch in batches)
        if grows and index.failure is not None:
            raise type(index.failure)(str(index.failure))
        entries: list[tuple[Entry, Place]] = []
        try:
            log.begin(sum([batch.size + PAYLOAD_HEAD * batch.rows for batch in batches]), len(batches), grows=grows)
            for batch in batches:
                entry, payloads = Entry.of(batch, *log.payloads_at())
                entry.record_at = log.place.offset
                known.check(batch, entry, is_alone=len(batches) == 1)
                end = to_bytes(entry)
                entry.size = len(end)
                log.add(payloads, end)
                entries.append((entry, log.place))
            log.commit()
        except Exception as error:
            log.forget()
            raise store_error(error, self._segments.path(log.place.segment)) from error
        for batch in batches:
            known.learn(batch)
        return entries


def _refuse_any_state() -> list[Run]:
    raise StoreError("Runs are read of one state.")


def _is_shorter(patience: float | None, other: float | None) -> bool:
    """None is endless."""
    return patience is not None and (other is None or patience < other)


def _nothing() -> None:
    """Asked to wake who waits for questions, and might wait too long."""


def _apply(replay: Replay, writer: Writer, through: Place) -> None:
    """Apply what the log has and the index has not."""
    waiting: list[dict[str, Any]] = []
    ends: dict[int, SegmentEnd] = {}
    for record in replay.records():
        place = record.place
        waiting.append(parameters_of(record.end))
        ends[place.segment] = SegmentEnd(place.segment, record.start, place.offset, place.commit)
        if len(waiting) == _REPLAYED_RECORDS:
            writer.apply(waiting, place, ends.values())
            waiting, ends = [], {}
    if waiting or writer.applied() != through:
        writer.apply(waiting, through, ends.values())


def _checked(batch: Batch | StoreError) -> Batch:
    if isinstance(batch, StoreError):
        raise batch
    return batch


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


def _load_entities(connection: sqlite3.Connection) -> list[StoredEntity]:
    rows = connection.execute(
        "SELECT id, path, kind, definition, "
        "last_sequence_number, active, deferred, scheduled, size_in_bytes, damaged, claimed FROM entity ORDER BY id"
    )
    return [
        StoredEntity(id, path, kind, json.loads(definition), Counters(*counters))
        for id, path, kind, definition, *counters in rows
    ]
