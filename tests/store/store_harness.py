"""A synchronous interface to a store for tests: every call waits for its callback; a queue is the event loop."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any, TypeVar

from peeklock.store.base import (
    Body,
    Changes,
    Damage,
    Position,
    Range,
    Run,
    Store,
    StoredEntity,
    StoredMessage,
    StoreError,
)
from peeklock.store.disk.index.connections import connect_writer
from peeklock.store.disk.index.writer import Writer
from peeklock.store.disk.store import DiskStore
from peeklock.store.memory import MemoryStore

MAX_NUMBER = 2**44 - 1
MANY_BYTES = 1 << 30
FIELDS = (
    "sequence_number",
    "payload",
    "enqueued_at",
    "expires_at",
    "delivery_count",
    "state",
    "session_id",
    "due_at",
    "annex",
    "body",
)
"""The attributes of a stored message."""
Call = Callable[[Callable[[], None]], object]
Answer = TypeVar("Answer")


class Driver:
    """One open store. `reopen` closes it and creates a new one with `make`."""

    def __init__(self, make: Callable[[Call], Store]) -> None:
        self._make = make
        self._calls: Queue[Callable[[], None]] = Queue()
        self.damages: list[Damage] = []
        self.store = make(self._calls.put)
        self.entities = self.store.open(self.damages.append)

    def reopen(self) -> list[StoredEntity]:
        self.store.close()
        self.store = self._make(self._calls.put)
        self.entities = self.store.open(self.damages.append)
        return self.entities

    def wait(self, answers: list[Any], count: int = 1) -> None:
        """Run callbacks until this many results have arrived."""
        while len(answers) < count:
            self._calls.get(timeout=30)()

    def try_commit(self, changes: Changes) -> StoreError | None:
        answers: list[StoreError | None] = []
        self.store.commit(changes, answers.append)
        self.wait(answers)
        return answers[0]

    def commit(self, changes: Changes) -> None:
        if error := self.try_commit(changes):
            raise error

    def create(self, *ids: int) -> None:
        self.commit(Changes(entities={id: entity(id) for id in ids}))

    def append(self, id: int, *messages: StoredMessage) -> None:
        self.commit(Changes(appends=[(id, each) for each in messages]))

    def read(self, id: int, **wanted: Any) -> list[StoredMessage]:
        full = {"entity": id, "through": MAX_NUMBER, "limit": 1000, "max_bytes": MANY_BYTES} | wanted
        return self.ask(partial(self.store.read, Range(**full)))

    def numbers(self, id: int, **wanted: Any) -> list[int]:
        return [each.sequence_number for each in self.read(id, **wanted)]

    def runs(self, id: int, now: int | None = None, excluded: Sequence[int] = (), **wanted: Any) -> list[Run]:
        full = {"entity": id, "through": MAX_NUMBER, "limit": 100_000, "max_bytes": MANY_BYTES} | wanted
        return self.ask(partial(self.store.read_runs, Range(**full), now=now, excluded=excluded))

    def spans(
        self, id: int, now: int | None = None, excluded: Sequence[int] = (), **wanted: Any
    ) -> list[tuple[int, int]]:
        """Return the first and the last sequence number of each run."""
        return [(run.first, run.last) for run in self.runs(id, now, excluded, **wanted)]

    def numbered(self, id: int, *numbers: int, max_bytes: int = MANY_BYTES) -> list[int]:
        return [each.sequence_number for each in self.ask(partial(self.store.read_numbers, id, numbers, max_bytes))]

    def expired(
        self, id: int, now: int, limit: int = 1000, max_bytes: int = MANY_BYTES, after: Position | None = None
    ) -> tuple[list[int], int | None]:
        messages, following = self.ask(partial(self.store.read_expired, id, now, limit, max_bytes, after=after))
        return [each.sequence_number for each in messages], following

    def due(
        self, id: int, now: int, limit: int = 1000, max_bytes: int = MANY_BYTES, after: Position | None = None
    ) -> tuple[list[int], int | None]:
        messages, following = self.ask(partial(self.store.read_due, id, now, limit, max_bytes, after=after))
        return [each.sequence_number for each in messages], following

    def set_state(self, id: int, session_id: str, state: bytes | None, at: int = 1000) -> None:
        self.commit(Changes(session_states=[(id, session_id, state, at)]))

    def state(self, id: int, session_id: str) -> bytes | None:
        answers: list[bytes | StoreError | None] = []
        self.store.read_session_state(id, session_id, answers.append)
        return self._answered(answers)

    def state_sizes(self, id: int) -> dict[str, int]:
        return self.ask(partial(self.store.read_session_state_sizes, id))

    def session_counts(self, id: int) -> list[tuple[str, int]]:
        """Return the counts as a list, because their order matters."""
        return list(self.ask(partial(self.store.read_session_counts, id)).items())

    def sessions(self, id: int, updated_after: int | None = None, skip: int = 0, top: int = 1000) -> list[str]:
        return self.ask(partial(self.store.read_sessions, id, updated_after, skip, top))

    def seen(self, id: int, since: int = 0) -> list[tuple[bytes, int]]:
        return sorted(self.ask(partial(self.store.read_seen, id, since)))

    @property
    def bodies(self) -> int:
        """The number of bodies in the store, after the rows of dropped entities are deleted."""
        if isinstance(self.store, MemoryStore):
            entities = self.store._entities.values()
            return len({id(each.body) for entity in entities for each in entity.messages.values() if each.body})
        if not isinstance(self.store, DiskStore):
            return self._bodies_in_postgres()
        self.store.close()
        finish_purging(self.store._file)
        ((count,),) = query(self.store._file, "SELECT count(*) FROM body")
        self.reopen()
        return int(count)

    def _bodies_in_postgres(self) -> int:
        # Here: only tests of this store need its packages.
        from postgres_harness import count_bodies

        return count_bodies(self.store)

    def ask(self, read: Callable[[Callable[[Answer | StoreError], None]], None]) -> Answer:
        answers: list[Answer | StoreError] = []
        read(answers.append)
        return self._answered(answers)

    def _answered(self, answers: list[Answer | StoreError]) -> Answer:
        self.wait(answers)
        if isinstance(answers[0], StoreError):
            raise answers[0]
        return answers[0]


def entity(id: int, **fields: Any) -> StoredEntity:
    defaults: dict[str, Any] = {"path": f"queue-{id}", "kind": "queue", "definition": {}}
    return StoredEntity(id, **(defaults | fields))


def message(number: int, payload: bytes | None = None, *, enqueued_at: int = 1000, **fields: Any) -> StoredMessage:
    content = payload if payload is not None else b"payload %d" % number
    return StoredMessage(number, content, enqueued_at, **fields)


def body(number: int, data: bytes | None = None) -> Body:
    return Body(number, data if data is not None else b" and body %d" % number)


def as_dict(of: StoredMessage) -> dict[str, Any]:
    fields = {name: getattr(of, name) for name in FIELDS}
    return fields | {"body": of.body and (of.body.key, of.body.data)}


def query(file: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(statement).fetchall()


def finish_purging(file: Path) -> None:
    """Delete the rows of dropped entities in the index of a closed store."""
    writer = Writer(connect_writer(file), file)
    while writer.needs_purge:
        writer.purge()
    writer.close()


def damage(folder: Path, content: bytes) -> None:
    """Flip a bit in each occurrence of these bytes in the log."""
    found = 0
    for file in folder.glob("log-*"):
        data = file.read_bytes()
        at = data.find(content)
        while at >= 0:
            with file.open("r+b") as opened:
                opened.seek(at)
                opened.write(bytes([data[at] ^ 4]))
            found += 1
            at = data.find(content, at + 1)
    assert found
