"""The reading side of a SQLite store: ranges of messages, each read from one snapshot.

As for the writer, every return from SQLite to Python may wait for a busy event loop, and a cursor returns
once a row. So a chunk of messages comes as one row: their columns as one JSON array, their payloads as one
string of hexadecimal digits, which SQLite has an aggregate for and Python turns back at a byte a nanosecond.
Long payloads, which would cost memory this way and are few, are fetched one by one.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from .base import ACTIVE, Range, StoredMessage
from .sqlite_file import connect_reader, store_error
from .sqlite_schema import MAX_NUMBER, NUMBER_BITS, first_key

_Answer = TypeVar("_Answer")

_CHUNK_ROWS = 512
_CHUNK_BYTES = 1024 * 1024
_LONG_PAYLOAD = 32 * 1024

_ENTITY_EXISTS = "EXISTS (SELECT 1 FROM entity WHERE id = :entity)"
"""The messages of a dropped entity are deleted later."""

_CHUNK = f"""
    SELECT
        json_group_array(json_array(
            key & {MAX_NUMBER}, length(payload), enqueued_at, expires_at, delivery_count, state, session_id,
            due_at, iif(annex IS NULL, NULL, hex(annex))
        )),
        group_concat(iif(length(payload) > {_LONG_PAYLOAD}, '', hex(payload)), '')
    FROM (
        SELECT wanted_key FROM (
            SELECT *, sum(size) OVER (ORDER BY place, wanted_key ROWS UNBOUNDED PRECEDING) AS total FROM (
                SELECT key AS wanted_key, {{place}} AS place, length(payload) AS size
                FROM message {{index}}
                WHERE {{condition}} AND {_ENTITY_EXISTS}
                ORDER BY {{place}}, key LIMIT :rows OFFSET :offset
            )
        )
        WHERE total - size < :bytes
        ORDER BY place, wanted_key
    )
    CROSS JOIN message ON key = wanted_key
"""


def _range_query(condition: str, index: str) -> str:
    """The index is named so that no guess of the query planner can turn a read into a scan."""
    condition = f"key > :after AND key <= :through AND {condition}"
    return _CHUNK.format(place="key", index=index, condition=condition)


_BY_NUMBER = _range_query("true", "NOT INDEXED")
_ACTIVE = _range_query("state = 0", "NOT INDEXED")
_BY_STATE = _range_query("state = :state AND state <> 0", "INDEXED BY message_state")
_BY_SESSION = _range_query("session_id = :session_id", "INDEXED BY message_session")
_BY_SESSION_AND_STATE = _range_query("session_id = :session_id AND state = :state", "INDEXED BY message_session")

_EXPIRING = f"key >> {NUMBER_BITS} = :entity AND expires_at IS NOT NULL AND state = 0"
_EXPIRED = _CHUNK.format(
    place="expires_at", index="INDEXED BY message_expiry", condition=f"{_EXPIRING} AND expires_at <= :now"
)
_NEXT_EXPIRY = f"""
    SELECT expires_at FROM message INDEXED BY message_expiry
    WHERE {_EXPIRING} AND {_ENTITY_EXISTS}
    ORDER BY expires_at, key LIMIT 1 OFFSET :offset
"""


class Reader:
    """Answers reads over a connection of its own; after a failure the next one may work again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None

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

    def read_expired(self, entity: int, now: int, limit: int) -> tuple[list[StoredMessage], int | None]:
        def expired(connection: sqlite3.Connection) -> tuple[list[StoredMessage], int | None]:
            found = self._chunks(connection, _EXPIRED, entity, {"now": now}, limit, None)
            others = {"entity": entity, "offset": len(found)}
            following = connection.execute(_NEXT_EXPIRY, others).fetchone()
            return found, following[0] if following else None

        return self._in_snapshot(expired)

    def close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

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
        query: str,
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
            place = {"entity": entity, "rows": rows, "bytes": room, "offset": offset}
            chunk = _fetch(connection, query, entity, parameters | place)
            chunk_size = sum(len(message.payload) for message in chunk)
            found += chunk
            size += chunk_size
            if len(chunk) < rows and chunk_size < room:
                break  # there are no more
            if "after" in parameters:
                parameters = parameters | {"after": first_key(entity) + chunk[-1].sequence_number}
            else:
                offset = len(found)
        return found


def _query(wanted: Range) -> str:
    if wanted.session_id is not None:
        return _BY_SESSION if wanted.state is None else _BY_SESSION_AND_STATE
    if wanted.state is None:
        return _BY_NUMBER
    return _ACTIVE if wanted.state == ACTIVE else _BY_STATE


def _fetch(connection: sqlite3.Connection, query: str, entity: int, parameters: dict[str, Any]) -> list[StoredMessage]:
    columns, digits = connection.execute(query, parameters).fetchone()
    payloads = bytes.fromhex(digits or "")
    messages = []
    begin = 0
    for row in json.loads(columns):
        number, length, *_, annex = row
        if length > _LONG_PAYLOAD:
            key = first_key(entity) + number
            (row[1],) = connection.execute("SELECT payload FROM message WHERE key = ?", (key,)).fetchone()
        else:
            row[1] = payloads[begin : begin + length]
            begin += length
        if annex is not None:
            row[-1] = bytes.fromhex(annex)
        messages.append(StoredMessage(*row))
    return messages
