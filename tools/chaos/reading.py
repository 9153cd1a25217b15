"""Reads everything in a store, through the store's protocol, from a data folder that no broker uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any, Final, TypeVar

from peeklock.client import Message
from peeklock.store.base import (
    ACTIVE,
    CLAIMED,
    DEFERRED,
    SCHEDULED,
    Damage,
    Range,
    StoredEntity,
    StoredMessage,
    StoreError,
)
from peeklock.store.disk.store import DiskStore
from tools.chaos import bodies
from tools.chaos.entities import place

_ALL: Final = (1 << 44) - 1
_ANSWER_SECONDS: Final = 60
_FIELDS: Final = (
    "sequence_number",
    "enqueued_at",
    "expires_at",
    "delivery_count",
    "state",
    "session_id",
    "due_at",
    "annex",
)
_Answer = TypeVar("_Answer")


class Inconsistent(Exception):
    """The store has wrong contents or fails to answer; `str()` has the details."""


@dataclass(slots=True)
class Contents:
    """Everything read from a data folder."""

    found: dict[Any, Any] = field(default_factory=dict)
    messages: dict[tuple[str, int], Any] = field(default_factory=dict)
    """By entity and sequence number."""
    counters: dict[str, Any] = field(default_factory=dict)
    """By entity."""
    damaged: set[tuple[str, int]] = field(default_factory=set)
    """Messages that were reported as damaged: entity and sequence number."""


class Reading:
    """Opens a store, reads everything, and closes it."""

    def __init__(self, folder: Path) -> None:
        self._calls: Queue[Callable[[], None]] = Queue()
        self._damaged: list[Damage] = []
        self._store = DiskStore(folder, self._calls.put)

    def read(self) -> Contents:
        """Read everything. StoreError when the store cannot be opened."""
        entities = self._store.open(self._damaged.append)
        try:
            return self._read_all(entities)
        finally:
            self._store.close()

    def _read_all(self, entities: list[StoredEntity]) -> Contents:
        contents = Contents()
        paths = {entity.id: place(entity.path) for entity in entities}
        for entity in entities:
            path = paths[entity.id]
            contents.found[path] = entity.kind, entity.definition
            contents.counters[path] = entity.counters
            for message in self._messages(entity.id, None):
                contents.messages[path, message.sequence_number] = _as_values(message)
            for state in ACTIVE, DEFERRED, SCHEDULED, CLAIMED:
                found = {message.sequence_number for message in self._messages(entity.id, state)}
                numbered = {
                    number for (of, number), each in contents.messages.items() if (of, each["state"]) == (path, state)
                }
                if found != numbered:
                    raise Inconsistent(
                        f"in state {state} {path} has the numbers {sorted(found)}, not {sorted(numbered)}"
                    )
            contents.found[path, "seen"] = sorted(self._ask(partial(self._store.read_seen, entity.id, 0)))
            sessions = self._ask(partial(self._store.read_sessions, entity.id, None, 0, 1000))
            contents.found[path, "sessions"] = sessions
            for session in sessions:
                state = self._ask(partial(self._store.read_session_state, entity.id, session))
                contents.found[path, "state", session] = state
        for id, claim, content in self._store.claims():
            contents.found[paths[id], "claim", claim] = content
        contents.damaged = {(paths[each.entity], each.sequence_number) for each in self._damaged}
        return contents

    def _messages(self, entity: int, state: int | None) -> list[StoredMessage]:
        wanted = Range(entity=entity, through=_ALL, limit=1_000_000, max_bytes=1 << 40, state=state)
        return self._ask(partial(self._store.read, wanted))

    def _ask(self, read: Callable[[Callable[[_Answer | StoreError], None]], None]) -> _Answer:
        answers: list[_Answer | StoreError] = []
        read(answers.append)
        while not answers:
            self._calls.get(timeout=_ANSWER_SECONDS)()
        if isinstance(answers[0], StoreError):
            raise Inconsistent(f"the store was opened, but then a read failed: {answers[0]}")
        return answers[0]


def _as_values(message: StoredMessage) -> dict[str, Any]:
    values = {name: getattr(message, name) for name in _FIELDS}
    content = bytes(message.content)
    return values | {"content": content, "id": _id(content)}


def _id(content: bytes) -> str:
    try:
        return bodies.id_of(Message.decode(content))
    except Exception as error:
        return f"no message: {error}"
