"""The reader: answers the reads of the store over a connection of its own.

Each read first compares the fence with the last commit that was acknowledged. A connection to a server that does not
have that commit, such as a primary that was replaced, is closed, and the read is repeated over another one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import psycopg
from psycopg import Connection

from ..base import MAX_NUMBER, SEEN_KEY_BYTES, Body, Position, Range, Run, StoredMessage, StoreError
from . import queries
from .arrays import Integers
from .engine import Session
from .failures import fenced, is_transient, store_error
from .keys import MIN_BIGINT, bigint, first_key, key_in, last_key

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
Timed = tuple[list[StoredMessage], int | None]

_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class _Stale(Exception):
    """The server does not have a commit that was acknowledged."""


class Reader:
    """Reads over one connection. Used by the reader's thread.

    Every method raises StoreError, Fenced if another node took over, and Stopped when the store is closed.
    """

    def __init__(self, session: Session, epoch: int, acknowledged: Callable[[], int]) -> None:
        """`acknowledged` returns the number of the last commit that reads must see."""
        self._session = session
        self._epoch = epoch
        self._acknowledged = acknowledged
        self._bodies: WeakValueDictionary[int, Body] = WeakValueDictionary()
        """Bodies that were read and are still in use, so that each is in memory only once."""

    def read(self, wanted: Range) -> list[StoredMessage]:
        query = queries.by_range(wanted)
        parameters = _range_parameters(wanted)
        return self._in_snapshot(
            lambda connection: self._chunks(connection, query, parameters, wanted.limit, wanted.max_bytes)
        )

    def read_runs(self, wanted: Range, now: int | None, excluded: Sequence[int]) -> list[Run]:
        query = queries.runs(wanted, has_excluded=bool(excluded))
        parameters = _range_parameters(wanted) | {"now": MIN_BIGINT if now is None else bigint(now)}
        if excluded:
            parameters["excluded"] = Integers([number for number in excluded if 0 < number <= MAX_NUMBER])

        def read(connection: Connection[Any]) -> list[Run]:
            found: list[Run] = []
            remaining, room = wanted.limit, max(wanted.max_bytes, 1)
            while remaining > 0 and room > 0:
                rows = min(remaining, queries.RUN_ROWS)
                place = {"rows": rows, "room": bigint(room)}
                runs = connection.execute(query, parameters | place, binary=True).fetchall()
                count = 0
                for first, last, size, messages in runs:
                    count += messages
                    room -= size
                    if found and found[-1].last == first - 1:
                        found[-1] = Run(found[-1].first, last, found[-1].size + size)
                    else:
                        found.append(Run(first, last, size))
                remaining -= count
                if count < rows:
                    break
                _continue_after(parameters, wanted.entity, found[-1].last)
            return found

        return self._in_snapshot(read)

    def read_numbers(self, entity: int, numbers: Sequence[int], max_bytes: int) -> list[StoredMessage]:
        ascending = [number for number in sorted(set(numbers)) if 0 < number <= MAX_NUMBER]

        def read(connection: Connection[Any]) -> list[StoredMessage]:
            found: list[StoredMessage] = []
            room = max(max_bytes, 1)
            at = 0
            while at < len(ascending) and room > 0:
                chunk = ascending[at : at + queries.CHUNK_ROWS]
                parameters = {"entity": entity, "keys": Integers([first_key(entity) + number for number in chunk])}
                limited = min(room, queries.CHUNK_BYTES)
                messages, size = self._messages(connection, queries.BY_KEYS, parameters, len(chunk), limited)
                found += messages
                room -= size
                if size >= limited:
                    at = ascending.index(messages[-1].sequence_number, at) + 1
                else:
                    at += len(chunk)
            return found

        return self._in_snapshot(read)

    def read_expired(self, entity: int, now: int, limit: int, max_bytes: int, after: Position | None) -> Timed:
        return self._read_timed(queries.EXPIRED, lambda each: each.expires_at, entity, now, limit, max_bytes, after)

    def read_due(self, entity: int, now: int, limit: int, max_bytes: int, after: Position | None) -> Timed:
        return self._read_timed(queries.DUE, lambda each: each.due_at, entity, now, limit, max_bytes, after)

    def read_session_counts(self, entity: int) -> dict[str, int]:
        return {name.decode(): count for name, count in self._rows(queries.SESSION_COUNTS, {"entity": entity})}

    def read_session_state_sizes(self, entity: int) -> dict[str, int]:
        return {name.decode(): size for name, size in self._rows(queries.SESSION_STATE_SIZES, {"entity": entity})}

    def read_session_state(self, entity: int, session_id: str) -> bytes | None:
        rows = self._rows(queries.SESSION_STATE, {"entity": entity, "session_id": session_id.encode()})
        return rows[0][0] if rows else None

    def read_sessions(self, entity: int, updated_after: int | None, skip: int, top: int) -> list[str]:
        page = {"entity": entity, "skip": bigint(skip), "top": bigint(top)}
        if updated_after is None:
            rows = self._rows(queries.SESSIONS, page)
        else:
            rows = self._rows(queries.UPDATED_SESSIONS, page | {"updated_after": bigint(updated_after)})
        return [name.decode() for (name,) in rows]

    def read_seen(self, entity: int, since: int) -> list[tuple[bytes, int]]:
        if since > MAX_NUMBER:
            return []

        def read(connection: Connection[Any]) -> list[tuple[bytes, int]]:
            found: list[tuple[bytes, int]] = []
            place = {"entity": entity, "first": key_in(entity, since), "last": last_key(entity)}
            while True:
                rows = connection.execute(queries.SEEN, place, binary=True).fetchall()
                for key, joined in rows:
                    at = key & MAX_NUMBER
                    found += [(joined[n : n + SEEN_KEY_BYTES], at) for n in range(0, len(joined), SEEN_KEY_BYTES)]
                if len(rows) < queries.CHUNK_ROWS:
                    return found
                place["first"] = rows[-1][0] + 1

        return self._in_snapshot(read)

    def close(self) -> None:
        self._session.drop()

    def _read_timed(
        self,
        query: queries.Timed,
        time_of: Callable[[StoredMessage], int | None],
        entity: int,
        now: int,
        limit: int,
        max_bytes: int,
        after: Position | None,
    ) -> Timed:
        time, number = after if after is not None else (MIN_BIGINT, 0)
        parameters = {"entity": entity, "now": bigint(now), "after_time": bigint(time), "after": bigint(number)}

        def read(connection: Connection[Any]) -> Timed:
            found = self._chunks(connection, query.past, parameters, limit, max_bytes, time_of)
            rest = dict(parameters)
            del rest["now"]
            if found:
                _continue_after_time(rest, found[-1], time_of)
            following = connection.execute(query.following, rest, binary=True).fetchone()
            return found, following[0] if following else None

        return self._in_snapshot(read)

    def _rows(self, query: str, parameters: dict[str, Any]) -> list[Any]:
        return self._in_snapshot(lambda connection: connection.execute(query, parameters, binary=True).fetchall())

    def _in_snapshot(self, read: Callable[[Connection[Any]], _Result]) -> _Result:
        """Call `read` in a transaction; again, over another connection, after a failure that may pass."""
        while True:
            acknowledged = self._acknowledged()
            connection = self._session.connected()
            try:
                # One round trip for all up to the first query of `read`, and one for the end.
                with connection.pipeline():
                    connection.execute(_BEGIN)
                    fence = connection.execute(queries.FENCE, binary=True)
                    result = read(connection)
                    self._check(fence.fetchone(), acknowledged)
                    connection.execute("COMMIT")
                return result
            except _Stale:
                log.warning("the connection for reads is to a server without the last commits; it is replaced")
                self._session.drop()
                self._session.pause()
            except Exception as error:
                if is_transient(error, connection):
                    log.warning("a read is repeated: %s", " ".join(str(error).split()))
                    self._session.drop()
                    self._session.pause()
                    continue
                self._end(connection)
                raise store_error(error) from error

    def _check(self, fence: Any, acknowledged: int) -> None:
        epoch, last_commit = fence
        if epoch != self._epoch:
            raise fenced(self._epoch)
        if last_commit < acknowledged:
            raise _Stale

    def _end(self, connection: Connection[Any]) -> None:
        with suppress(psycopg.Error):
            connection.execute("ROLLBACK")
            return
        self._session.drop()

    def _chunks(
        self,
        connection: Connection[Any],
        query: str,
        parameters: dict[str, Any],
        limit: int,
        max_bytes: int,
        time_of: Callable[[StoredMessage], int | None] | None = None,
    ) -> list[StoredMessage]:
        """Read messages in the order of the query, up to `limit` and up to the one that reaches `max_bytes`."""
        found: list[StoredMessage] = []
        parameters = dict(parameters)
        remaining = max(max_bytes, 1)  # so that the first message is returned whatever its size
        while len(found) < limit and remaining > 0:
            rows = min(limit - len(found), queries.CHUNK_ROWS)
            room = min(remaining, queries.CHUNK_BYTES)
            messages, size = self._messages(connection, query, parameters, rows, room)
            found += messages
            remaining -= size
            if len(messages) < rows and size < room:
                break  # there are no more
            if time_of is None:
                _continue_after(parameters, parameters["entity"], messages[-1].sequence_number)
            else:
                _continue_after_time(parameters, messages[-1], time_of)
        return found

    def _messages(
        self, connection: Connection[Any], query: str, parameters: dict[str, Any], rows: int, room: int
    ) -> tuple[list[StoredMessage], int]:
        """Execute a query for messages. Return them, and the sum of their sizes."""
        place = {"rows": rows, "room": bigint(room)}
        chosen = connection.execute(query, parameters | place, binary=True).fetchall()
        bodies = self._fetch_bodies(connection, {row[9] for row in chosen if row[9] is not None})
        messages: list[StoredMessage] = []
        size = 0
        for number, payload, at, state, session_id, annex, expires_at, count, due_at, body, body_size in chosen:
            size += len(payload) + (len(annex) if annex is not None else 0) + (body_size or 0)
            messages.append(
                StoredMessage(
                    number,
                    payload,
                    at,
                    state,
                    None if session_id is None else session_id.decode(),
                    annex,
                    expires_at,
                    count,
                    due_at,
                    None if body is None else bodies[body],
                )
            )
        return messages, size

    def _fetch_bodies(self, connection: Connection[Any], wanted: set[int]) -> dict[int, Body]:
        found = {key: body for key in wanted if (body := self._bodies.get(key)) is not None}
        missing = wanted - found.keys()
        if missing:
            keys = {"keys": Integers(list(missing))}
            for key, data in connection.execute(queries.BODIES, keys, binary=True):
                found[key] = self._bodies[key] = Body(key, data)
            if lost := missing - found.keys():
                raise StoreError(f"The database is damaged: it has a message without its body {min(lost)}.")
        return found


def _range_parameters(wanted: Range) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "entity": wanted.entity,
        "after": min(max(wanted.after, 0), MAX_NUMBER),
        "through": min(max(wanted.through, 0), MAX_NUMBER),
        "after_key": key_in(wanted.entity, wanted.after),
        "through_key": key_in(wanted.entity, wanted.through),
    }
    if wanted.state is not None:
        parameters["state"] = wanted.state
    if wanted.session_id is not None:
        parameters["session_id"] = wanted.session_id.encode()
    return parameters


def _continue_after(parameters: dict[str, Any], entity: int, number: int) -> None:
    parameters["after"] = number
    parameters["after_key"] = first_key(entity) + number


def _continue_after_time(
    parameters: dict[str, Any], message: StoredMessage, time_of: Callable[[StoredMessage], int | None]
) -> None:
    parameters["after_time"] = time_of(message)
    parameters["after"] = message.sequence_number
