"""The reading side of a SQLite store: messages, sessions and what was seen, each answer from one snapshot.

It asks the questions of `sqlite_queries` and takes their answers apart.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from . import sqlite_queries as queries
from .base import ACTIVE, SEEN_KEY_BYTES, Body, Range, StoredMessage, StoreError
from .sqlite_file import connect_reader, store_error
from .sqlite_schema import MAX_NUMBER, first_key

_Answer = TypeVar("_Answer")

_CHUNK_BYTES = 1024 * 1024
_STATE_MASK = (1 << queries.STATE_BITS) - 1


class Reader:
    """Answers reads over a connection of its own; after a failure the next one may work again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None
        self._bodies: WeakValueDictionary[int, Body] = WeakValueDictionary()
        """What was read and is still in use, so that the readers of several entities have it in memory once."""

    def open(self) -> None:
        """Beforehand, though reading would do it: while someone is connected, a writer that reconnects after
        an I/O error finds the log as far as it was agreed, and not a commit that failed in its last step."""
        self._connection = connect_reader(self._file)

    def read(self, wanted: Range) -> list[StoredMessage]:
        before = first_key(wanted.entity)
        parameters = {
            "after": before + min(max(wanted.after, 0), MAX_NUMBER),
            "through": before + min(max(wanted.through, 0), MAX_NUMBER),
            "state": wanted.state,
            "session_id": wanted.session_id,
        }
        # The first message is there whatever its size.
        return self._in_snapshot(
            lambda connection: self._chunks(
                connection, _query(wanted), wanted.entity, parameters, wanted.limit, max(wanted.max_bytes, 1)
            )
        )

    def read_numbers(self, entity: int, numbers: Sequence[int]) -> list[StoredMessage]:
        before = first_key(entity)
        keys = [before + number for number in sorted(set(numbers)) if 0 < number <= MAX_NUMBER]

        def numbered(connection: sqlite3.Connection) -> list[StoredMessage]:
            found: list[StoredMessage] = []
            for at in range(0, len(keys), queries.CHUNK_ROWS):
                chunk = keys[at : at + queries.CHUNK_ROWS]
                parameters = {"after": before, "keys": json.dumps(chunk)}
                found += self._chunks(connection, queries.BY_KEYS, entity, parameters, len(chunk), None)
            return found

        return self._in_snapshot(numbered)

    def read_expired(self, entity: int, now: int, limit: int) -> tuple[list[StoredMessage], int | None]:
        return self._read_timed(queries.EXPIRED, entity, now, limit)

    def read_due(self, entity: int, now: int, limit: int) -> tuple[list[StoredMessage], int | None]:
        return self._read_timed(queries.DUE, entity, now, limit)

    def read_session_counts(self, entity: int) -> dict[str, int]:
        names, counts = self._row(queries.SESSION_COUNTS, entity=entity)
        return dict(zip(json.loads(names), _numbers(counts), strict=True))

    def read_session_state(self, entity: int, session_id: str) -> bytes | None:
        (state,) = self._row(queries.SESSION_STATE, entity=entity, session_id=session_id) or (None,)
        return state

    def read_sessions(self, entity: int, updated_after: int | None, skip: int, top: int) -> list[str]:
        page = {"entity": entity, "skip": skip, "top": top}
        if updated_after is None:
            (names,) = self._row(queries.SESSIONS, **page)
        else:
            (names,) = self._row(queries.UPDATED_SESSIONS, updated_after=updated_after, **page)
        found: list[str] = json.loads(names)
        return found

    def read_seen(self, entity: int, since: int) -> list[tuple[bytes, int]]:
        before = first_key(entity)
        through = before + MAX_NUMBER

        def seen(connection: sqlite3.Connection) -> list[tuple[bytes, int]]:
            found: list[tuple[bytes, int]] = []
            first = before + max(since, 0)
            while first <= through:
                place = {"entity": entity, "since": first, "through": through}
                times, lengths, keys = connection.execute(queries.SEEN, place).fetchone()
                rows = list(zip(_numbers(times), _parts(lengths, keys), strict=True))
                for at, joined in rows:
                    found += [(joined[n : n + SEEN_KEY_BYTES], at) for n in range(0, len(joined), SEEN_KEY_BYTES)]
                if len(rows) < queries.CHUNK_ROWS:
                    break
                first = before + rows[-1][0] + 1
            return found

        return self._in_snapshot(seen)

    def close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _read_timed(
        self, query: queries.TimedQuery, entity: int, now: int, limit: int
    ) -> tuple[list[StoredMessage], int | None]:
        def timed(connection: sqlite3.Connection) -> tuple[list[StoredMessage], int | None]:
            found = self._chunks(connection, query.past, entity, {"now": now}, limit, None)
            others = {"entity": entity, "offset": len(found)}
            following = connection.execute(query.following, others).fetchone()
            return found, following[0] if following else None

        return self._in_snapshot(timed)

    def _row(self, question: str, **parameters: Any) -> Any:
        return self._in_snapshot(lambda connection: connection.execute(question, parameters).fetchone())

    def _in_snapshot(self, question: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
        try:
            connection = self._connection = self._connection or connect_reader(self._file)
            connection.execute("BEGIN")
            answer = question(connection)
            connection.execute("COMMIT")
        except Exception as error:
            self.close()
            raise store_error(error, self._file) from error
        return answer

    def _chunks(
        self,
        connection: sqlite3.Connection,
        query: queries.Query,
        entity: int,
        parameters: dict[str, Any],
        limit: int,
        max_bytes: int | None,
    ) -> list[StoredMessage]:
        """Messages in the order of the query, until the limit, or the one that reaches the bytes."""
        found: list[StoredMessage] = []
        size = offset = 0
        while len(found) < limit and (max_bytes is None or size < max_bytes):
            rows = min(limit - len(found), queries.CHUNK_ROWS)
            room = _CHUNK_BYTES if max_bytes is None else min(max_bytes - size, _CHUNK_BYTES)
            place = {"entity": entity, "rows": rows, "offset": offset}
            sizes, bodies = _sizes(connection.execute(query.sizes, parameters | place).fetchone()[0])
            fitting, chunk_size = _fitting(sizes, room)
            if not fitting:
                break
            place["rows"] = fitting
            messages = _fetch(connection, query.messages, parameters | place)
            if bodies:
                self._add_bodies(connection, messages, bodies[:fitting])
            found += messages
            size += chunk_size
            if fitting == len(sizes) < rows:
                break  # there are no more
            if "after" in parameters:
                parameters = parameters | {"after": first_key(entity) + found[-1].sequence_number}
            else:
                offset = len(found)
        return found

    def _add_bodies(
        self, connection: sqlite3.Connection, messages: list[StoredMessage], keys: list[int | None]
    ) -> None:
        found = self._fetch_bodies(connection, {key for key in keys if key is not None})
        for message, key in zip(messages, keys, strict=True):
            if key is not None:
                message.body = found[key]

    def _fetch_bodies(self, connection: sqlite3.Connection, wanted: set[int]) -> dict[int, Body]:
        found = {key: body for key in wanted if (body := self._bodies.get(key)) is not None}
        missing = wanted - found.keys()
        if missing:
            keys, lengths, data = connection.execute(queries.BODIES, {"keys": json.dumps(sorted(missing))}).fetchone()
            for key, content in zip(_numbers(keys), _parts(lengths, data), strict=True):
                found[key] = self._bodies[key] = Body(key, content)
            if lost := missing - found.keys():
                raise StoreError(f"{self._file} is damaged: it has a message, but not its body {min(lost)}.")
        return found


def _query(wanted: Range) -> queries.Query:
    if wanted.session_id is not None:
        return queries.BY_SESSION if wanted.state is None else queries.BY_SESSION_AND_STATE
    if wanted.state is None:
        return queries.BY_NUMBER
    return queries.ACTIVE_BY_NUMBER if wanted.state == ACTIVE else queries.BY_STATE


def _numbers(joined: str | None) -> list[int]:
    return [int(digits) for digits in joined.split(",")] if joined else []


def _sizes(joined: str | None) -> tuple[list[int], list[int | None]]:
    """The sizes, and the keys of the bodies if any message has one."""
    if joined is None or ":" not in joined:
        return _numbers(joined), []
    sizes: list[int] = []
    keys: list[int | None] = []
    for size_and_key in joined.split(","):
        size, _, key = size_and_key.partition(":")
        sizes.append(int(size))
        keys.append(int(key) if key else None)
    return sizes, keys


def _fitting(sizes: list[int], room: int) -> tuple[int, int]:
    """How many from the first on, up to the one that reaches the room, and how large they are."""
    total = 0
    for count, size in enumerate(sizes, start=1):
        total += size
        if total >= room:
            return count, total
    return len(sizes), total


def _parts(lengths: str | None, joined: bytes | None) -> Iterator[bytes]:
    if joined is None:
        return
    begin = 0
    for length in _numbers(lengths):
        yield joined[begin : begin + length]
        begin += length


def _fetch(connection: sqlite3.Connection, query: str, parameters: dict[str, Any]) -> list[StoredMessage]:
    numbers, shapes, times, rich, payloads = connection.execute(query, parameters).fetchone()
    messages = []
    begin = 0
    for number, shape, enqueued_at in zip(_numbers(numbers), _numbers(shapes), _numbers(times), strict=True):
        end = begin + (shape >> queries.STATE_BITS)
        message = StoredMessage(number, payloads[begin:end], enqueued_at)
        message.state = shape & _STATE_MASK
        messages.append(message)
        begin = end
    if rich != "[]":
        by_number = {message.sequence_number: message for message in messages}
        for number, expires_at, delivery_count, session_id, due_at, annex in json.loads(rich):
            message = by_number[number]
            message.expires_at = expires_at
            message.delivery_count = delivery_count
            message.session_id = session_id
            message.due_at = due_at
            message.annex = None if annex is None else bytes.fromhex(annex)
    return messages
