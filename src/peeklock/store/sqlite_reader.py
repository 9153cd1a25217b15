"""The reading side of a SQLite store: messages and sessions, each answer from one snapshot.

As for the writer, every return from SQLite to Python may wait for a busy event loop, and a cursor returns
once a row. So a chunk of messages comes as one row: each column's values joined by commas, the payloads by
nothing at all, and JSON only for what few messages have.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from .base import ACTIVE, SCHEDULED, SEEN_KEY_BYTES, Body, Range, StoredMessage, StoreError
from .sqlite_file import connect_reader, store_error
from .sqlite_schema import MAX_NUMBER, NUMBER_BITS, first_key

_Answer = TypeVar("_Answer")

_CHUNK_ROWS = 512
_CHUNK_BYTES = 1024 * 1024

_ENTITY_EXISTS = "EXISTS (SELECT 1 FROM entity WHERE id = :entity)"
"""The messages of a dropped entity are deleted later."""

_IS_RICH = " OR ".join(
    f"{column} IS NOT {default}"
    for column, default in {
        "expires_at": "NULL",
        "delivery_count": "0",
        "state": "0",
        "session_id": "NULL",
        "due_at": "NULL",
        "annex": "NULL",
    }.items()
)


_SIZE = """iif(
    message.body IS NULL,
    length(payload),
    length(payload) + coalesce((SELECT length(data) FROM body WHERE body.key = message.body), 0) || ':' || message.body
)"""
"""Of a message with a body, all of it, and the body's key."""


def _joined(blobs: str) -> str:
    """A text keeps any bytes; the aggregate that joins texts has no sibling for blobs."""
    return f"CAST(group_concat(CAST({blobs} AS TEXT), '') AS BLOB)"


class _Query(NamedTuple):
    """A question in two steps: how long the next messages are, and which bodies they have, and then as many of them as
    there is room for."""

    sizes: str
    messages: str


def _make_query(place: str, index: str, condition: str) -> _Query:
    def chosen(columns: str) -> str:
        return f"""(
            SELECT {columns} FROM message {index}
            WHERE {condition} AND {_ENTITY_EXISTS}
            ORDER BY {place}, key LIMIT :rows OFFSET :offset
        )"""

    messages = f"""
        SELECT
            group_concat(key & {MAX_NUMBER}),
            group_concat(length(payload)),
            group_concat(enqueued_at),
            json_group_array(json_array(
                key & {MAX_NUMBER}, expires_at, delivery_count, state, session_id, due_at,
                iif(annex IS NULL, NULL, hex(annex))
            )) FILTER (WHERE {_IS_RICH}),
            {_joined("payload")}
        FROM {chosen("*")}
    """
    return _Query(f"SELECT group_concat(size) FROM {chosen(f'{_SIZE} AS size')}", messages)


def _range_query(condition: str, index: str) -> _Query:
    """The index is named so that no guess of the query planner can turn a read into a scan."""
    return _make_query("key", index, f"key > :after AND key <= :through AND {condition}")


_BY_NUMBER = _range_query("true", "NOT INDEXED")
_ACTIVE = _range_query("state = 0", "NOT INDEXED")
_BY_STATE = _range_query("state = :state AND state <> 0", "INDEXED BY message_state")

_OF_ENTITY = f"key >> {NUMBER_BITS} = :entity"
_OF_SESSION = f"{_OF_ENTITY} AND session_id = :session_id"
_BY_SESSION = _range_query(_OF_SESSION, "INDEXED BY message_session")
_BY_SESSION_AND_STATE = _range_query(f"{_OF_SESSION} AND state = :state", "INDEXED BY message_session")

_BY_KEYS = _make_query("key", "NOT INDEXED", "key IN (SELECT value FROM json_each(:keys) WHERE value > :after)")


class _TimedQuery(NamedTuple):
    """Messages of one state whose time has come, and the time that comes after that many of them."""

    past: _Query
    following: str


def _timed_query(time: str, state: int, index: str) -> _TimedQuery:
    timed = f"{_OF_ENTITY} AND {time} IS NOT NULL AND state = {state}"
    return _TimedQuery(
        _make_query(time, f"INDEXED BY {index}", f"{timed} AND {time} <= :now"),
        f"""
            SELECT {time} FROM message INDEXED BY {index}
            WHERE {timed} AND {_ENTITY_EXISTS}
            ORDER BY {time}, key LIMIT 1 OFFSET :offset
        """,
    )


_EXPIRED = _timed_query("expires_at", ACTIVE, "message_expiry")
_DUE = _timed_query("due_at", SCHEDULED, "message_due")

_WITH_ACTIVE = f"""
    FROM message INDEXED BY message_session
    WHERE {_OF_ENTITY} AND session_id IS NOT NULL AND state = 0 AND {_ENTITY_EXISTS}
"""
# The limit is none, but with one SQLite is bound to keep the order for the aggregates.
_SESSION_COUNTS = f"""
    SELECT json_group_array(session_id), group_concat(count)
    FROM (SELECT session_id, count(*) AS count {_WITH_ACTIVE} GROUP BY session_id ORDER BY min(key) LIMIT -1)
"""
_SESSION_STATE = f"""
    SELECT state FROM session WHERE entity = :entity AND session_id = :session_id AND {_ENTITY_EXISTS}
"""
_SESSIONS = f"""
    SELECT json_group_array(session_id) FROM (
        SELECT session_id {_WITH_ACTIVE}
        UNION
        SELECT session_id FROM session WHERE entity = :entity AND {_ENTITY_EXISTS}
        ORDER BY session_id LIMIT :top OFFSET :skip
    )
"""
_UPDATED_SESSIONS = f"""
    SELECT json_group_array(session_id) FROM (
        SELECT session_id FROM session
        WHERE entity = :entity AND updated_at > :updated_after AND {_ENTITY_EXISTS}
        ORDER BY session_id LIMIT :top OFFSET :skip
    )
"""


_BODIES = f"""
    SELECT group_concat(key), group_concat(length(data)), {_joined("data")}
    FROM body WHERE key IN (SELECT value FROM json_each(:keys))
"""
_SEEN = f"""
    SELECT group_concat(key & {MAX_NUMBER}), group_concat(length(seen)), {_joined("seen")}
    FROM (
        SELECT key, seen FROM history
        WHERE key >= :since AND key <= :through AND {_ENTITY_EXISTS}
        ORDER BY key LIMIT {_CHUNK_ROWS}
    )
"""


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
            for at in range(0, len(keys), _CHUNK_ROWS):
                chunk = keys[at : at + _CHUNK_ROWS]
                parameters = {"after": before, "keys": json.dumps(chunk)}
                found += self._chunks(connection, _BY_KEYS, entity, parameters, len(chunk), None)
            return found

        return self._in_snapshot(numbered)

    def read_expired(self, entity: int, now: int, limit: int) -> tuple[list[StoredMessage], int | None]:
        return self._read_timed(_EXPIRED, entity, now, limit)

    def read_due(self, entity: int, now: int, limit: int) -> tuple[list[StoredMessage], int | None]:
        return self._read_timed(_DUE, entity, now, limit)

    def read_session_counts(self, entity: int) -> dict[str, int]:
        names, counts = self._row(_SESSION_COUNTS, entity=entity)
        return dict(zip(json.loads(names), _numbers(counts), strict=True))

    def read_session_state(self, entity: int, session_id: str) -> bytes | None:
        (state,) = self._row(_SESSION_STATE, entity=entity, session_id=session_id) or (None,)
        return state

    def read_sessions(self, entity: int, updated_after: int | None, skip: int, top: int) -> list[str]:
        page = {"entity": entity, "skip": skip, "top": top}
        if updated_after is None:
            (names,) = self._row(_SESSIONS, **page)
        else:
            (names,) = self._row(_UPDATED_SESSIONS, updated_after=updated_after, **page)
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
                times, lengths, keys = connection.execute(_SEEN, place).fetchone()
                rows = list(zip(_numbers(times), _parts(lengths, keys), strict=True))
                for at, joined in rows:
                    found += [(joined[n : n + SEEN_KEY_BYTES], at) for n in range(0, len(joined), SEEN_KEY_BYTES)]
                if len(rows) < _CHUNK_ROWS:
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
        self, query: _TimedQuery, entity: int, now: int, limit: int
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
        query: _Query,
        entity: int,
        parameters: dict[str, Any],
        limit: int,
        max_bytes: int | None,
    ) -> list[StoredMessage]:
        """Messages in the order of the query, until the limit, or the one that reaches the bytes."""
        found: list[StoredMessage] = []
        size = offset = 0
        while len(found) < limit and (max_bytes is None or size < max_bytes):
            rows = min(limit - len(found), _CHUNK_ROWS)
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
            keys, lengths, data = connection.execute(_BODIES, {"keys": json.dumps(sorted(missing))}).fetchone()
            for key, content in zip(_numbers(keys), _parts(lengths, data), strict=True):
                found[key] = self._bodies[key] = Body(key, content)
            if lost := missing - found.keys():
                raise StoreError(f"{self._file} is damaged: it has a message, but not its body {min(lost)}.")
        return found


def _query(wanted: Range) -> _Query:
    if wanted.session_id is not None:
        return _BY_SESSION if wanted.state is None else _BY_SESSION_AND_STATE
    if wanted.state is None:
        return _BY_NUMBER
    return _ACTIVE if wanted.state == ACTIVE else _BY_STATE


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
    begin = 0
    for length in _numbers(lengths):
        yield (joined or b"")[begin : begin + length]
        begin += length


def _fetch(connection: sqlite3.Connection, query: str, parameters: dict[str, Any]) -> list[StoredMessage]:
    numbers, lengths, times, rich, payloads = connection.execute(query, parameters).fetchone()
    messages = []
    begin = 0
    for number, length, enqueued_at in zip(_numbers(numbers), _numbers(lengths), _numbers(times), strict=True):
        messages.append(StoredMessage(number, payloads[begin : begin + length], enqueued_at))
        begin += length
    if rich != "[]":
        by_number = {message.sequence_number: message for message in messages}
        for number, expires_at, delivery_count, state, session_id, due_at, annex in json.loads(rich):
            message = by_number[number]
            message.expires_at = expires_at
            message.delivery_count = delivery_count
            message.state = state
            message.session_id = session_id
            message.due_at = due_at
            message.annex = None if annex is None else bytes.fromhex(annex)
    return messages
