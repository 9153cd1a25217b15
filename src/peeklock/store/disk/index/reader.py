"""The reader of the index: messages, sessions and seen keys, each result from one snapshot of the database.

It runs the queries of `queries` and decodes their results. A message whose bytes are damaged is left out of the result
and added to `Reader.damaged`; the read continues with the next message.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from ...base import ACTIVE, SEEN_KEY_BYTES, Body, Position, Range, Run, StoredMessage, StoreError
from ..failures import store_error
from ..keys import LENGTH_MASK, MAX_NUMBER, first_key
from ..log.segments import Segments
from . import queries
from .connections import connect_reader
from .found_runs import RunCollector

_Result = TypeVar("_Result")

_CHUNK_BYTES = 1024 * 1024
_SHORT_ANNEX = 64
"""The most bytes of a common annex: a short annex is likely to be the same for many messages."""
_BEFORE_ALL_TIMES = -(1 << 63)


class Reader:
    """Reads over a connection of its own, which is reopened after a failure. Used by the index thread."""

    def __init__(self, file: Path, segments: Segments) -> None:
        self._file = file
        self._segments = segments
        self._connection: sqlite3.Connection | None = None
        self.connect_writer: Callable[[], object] = _do_nothing
        """Opens the writer's connection. A read that reconnects calls it first: the writer checks the WAL that a
        failed sync may have left. Before that, a read could see outdated pages."""
        self._bodies: WeakValueDictionary[int, Body] = WeakValueDictionary()
        """Bodies that were read and are still in use, so that each is in memory only once."""
        self._common_annex = b""
        """A short annex that was read recently; at first one that no message has."""
        self.damaged: list[tuple[int, StoredMessage, str]] = []
        """Damaged messages that were read: entity id, message without its payload, place of the payload. The owner
        empties this list."""

    def open(self) -> None:
        """Open the connection at the start, so that an error is reported there and not at the first read."""
        self._connection = connect_reader(self._file)

    def read(self, wanted: Range) -> list[StoredMessage]:
        before = first_key(wanted.entity)
        parameters = {
            "after": before + min(max(wanted.after, 0), MAX_NUMBER),
            "through": before + min(max(wanted.through, 0), MAX_NUMBER),
            "state": wanted.state,
            "session_id": wanted.session_id,
            "default_state": _default_state(wanted),
        }
        # At least 1 byte, so that the first message is returned whatever its size.
        return self._in_snapshot(
            lambda connection: self._chunks(
                connection, _query(wanted), wanted.entity, parameters, wanted.limit, max(wanted.max_bytes, 1)
            )
        )

    def read_runs(self, wanted: Range, now: int | None, excluded: list[int]) -> list[Run]:
        before = first_key(wanted.entity)
        parameters = {
            "entity": wanted.entity,
            "after": before + min(max(wanted.after, 0), MAX_NUMBER),
            "through": before + min(max(wanted.through, 0), MAX_NUMBER),
            "state": wanted.state,
            "session_id": wanted.session_id,
            "now": _BEFORE_ALL_TIMES if now is None else now,
        }
        query = _runs_query(wanted)
        found = RunCollector(before, wanted.limit, max(wanted.max_bytes, 1), excluded)

        def chunks(connection: sqlite3.Connection) -> list[Run]:
            are_together = True
            while not found.is_full:
                parameters["rows"] = rows = min(found.remaining, queries.RUN_ROWS)
                if are_together:
                    count, first, last, size = connection.execute(query.together, parameters).fetchone()
                    are_together = not count or found.take(first, last, count, int(size))
                if not are_together:
                    joined_keys, joined_sizes = connection.execute(query.each, parameters).fetchone()
                    keys = _numbers(joined_keys)
                    count, last = len(keys), keys[-1] if keys else 0
                    found.take_each(keys, _numbers(joined_sizes))
                    # After a chunk with gaps, the next chunk mostly has gaps too.
                    are_together = count > 0 and keys[-1] - keys[0] == count - 1
                if count < rows:
                    break
                parameters["after"] = last
            return found.runs()

        return self._in_snapshot(chunks)

    def read_numbers(self, entity: int, numbers: Sequence[int], max_bytes: int) -> list[StoredMessage]:
        before = first_key(entity)
        keys = [before + number for number in sorted(set(numbers)) if 0 < number <= MAX_NUMBER]

        def numbered(connection: sqlite3.Connection) -> list[StoredMessage]:
            found: list[StoredMessage] = []
            room = max(max_bytes, 1)
            for at in range(0, len(keys), queries.CHUNK_ROWS):
                chunk = keys[at : at + queries.CHUNK_ROWS]
                parameters = {"after": before, "keys": json.dumps(chunk), "default_state": ACTIVE}
                messages = self._chunks(connection, queries.BY_KEYS, entity, parameters, len(chunk), room)
                found += messages
                room -= sum(message.read_size for message in messages)
                if room <= 0:
                    break
            return found

        return self._in_snapshot(numbered)

    def any_exists(self, keys: list[int]) -> bool:
        """Return whether a message has one of these keys."""
        (taken,) = self._row(queries.ANY_EXISTS, keys=json.dumps(keys))
        return bool(taken)

    def read_expired(
        self, entity: int, now: int, limit: int, max_bytes: int, after: Position | None
    ) -> tuple[list[StoredMessage], int | None]:
        return self._read_timed(queries.EXPIRED, entity, now, limit, max_bytes, after)

    def read_due(
        self, entity: int, now: int, limit: int, max_bytes: int, after: Position | None
    ) -> tuple[list[StoredMessage], int | None]:
        return self._read_timed(queries.DUE, entity, now, limit, max_bytes, after)

    def read_session_counts(self, entity: int) -> dict[str, int]:
        names, counts = self._row(queries.SESSION_COUNTS, entity=entity)
        return dict(zip(json.loads(names), _numbers(counts), strict=True))

    def read_session_state_sizes(self, entity: int) -> dict[str, int]:
        names, sizes = self._row(queries.SESSION_STATE_SIZES, entity=entity)
        return dict(zip(json.loads(names), _numbers(sizes), strict=True))

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
        self, query: queries.TimedQuery, entity: int, now: int, limit: int, max_bytes: int, after: Position | None
    ) -> tuple[list[StoredMessage], int | None]:
        time, number = after if after is not None else (_BEFORE_ALL_TIMES, 0)
        behind = {"behind": time, "behind_key": first_key(entity) + number}

        def timed(connection: sqlite3.Connection) -> tuple[list[StoredMessage], int | None]:
            parameters = {"now": now, "default_state": query.state} | behind
            found = self._chunks(connection, query.past, entity, parameters, limit, max(max_bytes, 1))
            rest = {"entity": entity, "offset": len(found)} | behind
            following = connection.execute(query.following, rest).fetchone()
            return found, following[0] if following else None

        return self._in_snapshot(timed)

    def _row(self, query: str, **parameters: Any) -> Any:
        return self._in_snapshot(lambda connection: connection.execute(query, parameters).fetchone())

    def _in_snapshot(self, read: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Call `read` in a read transaction. Raise StoreError."""
        try:
            if self._connection is None:
                self.connect_writer()
                self._connection = connect_reader(self._file)
            connection = self._connection
            connection.execute("BEGIN")
            result = read(connection)
            connection.execute("COMMIT")
        except Exception as error:
            self.close()
            raise store_error(error, self._file) from error
        return result

    def _chunks(
        self,
        connection: sqlite3.Connection,
        query: str,
        entity: int,
        parameters: dict[str, Any],
        limit: int,
        max_bytes: int,
    ) -> list[StoredMessage]:
        """Read messages in the order of the query, up to `limit` and up to the one that reaches `max_bytes`."""
        found: list[StoredMessage] = []
        size = offset = 0
        max_rows = queries.CHUNK_ROWS
        while len(found) < limit and size < max_bytes:
            rows = min(limit - len(found), max_rows)
            room = min(max_bytes - size, _CHUNK_BYTES)
            place = {"entity": entity, "rows": rows, "offset": offset, "common_annex": self._common_annex}
            chosen = connection.execute(query, parameters | place).fetchone()
            messages, fetched, last = self._fetch(connection, entity, parameters["default_state"], chosen, room)
            found += messages
            size += sum([message.read_size for message in messages])
            if fetched == chosen[0] < rows:
                break  # there are no more
            if "after" in parameters:
                parameters = parameters | {"after": first_key(entity) + last}
            else:
                offset += fetched
            # If messages are long, few fit: do not query many rows again that will not fit either.
            max_rows = min(2 * fetched + 1, queries.CHUNK_ROWS)
        return found

    def _fetch(
        self, connection: sqlite3.Connection, entity: int, state: int, chosen: Any, room: int
    ) -> tuple[list[StoredMessage], int, int]:
        """Read the payloads of the messages in a row of a query, up to the message that reaches `room` bytes.

        Return the undamaged messages, how many were read with the damaged ones, and the sequence number of the last.
        """
        count, joined_numbers, times, lowest, highest, joined_segments, joined_places, joined_extras, annexed = chosen
        if not count:
            return [], 0, 0
        common = self._common_annex
        with_common: set[int] = set(_numbers(annexed)) if annexed else set()
        extras = {row[0]: row for row in json.loads(joined_extras)} if joined_extras != "[]" else {}
        numbers = _numbers(joined_numbers)
        places = _numbers(joined_places)
        fitting = _fitting(numbers, places, extras, room, with_common, len(common))
        numbers, places = numbers[:fitting], places[:fitting]
        segments = [lowest] if lowest == highest else _numbers(joined_segments)[:fitting]
        contents = self._segments.read(lowest, places) if lowest == highest else self._contents(segments, places)
        messages = [
            StoredMessage(number, content or b"", enqueued_at, state)
            for number, content, enqueued_at in zip(numbers, contents, _numbers(times), strict=False)
        ]
        broken = {at for at, content in enumerate(contents) if content is None}
        if with_common:
            for message in messages:
                if message.sequence_number in with_common:
                    message.annex = common
        if extras:
            broken |= self._add_extras(connection, entity, messages, extras)
        if broken:
            for at in sorted(broken):
                where = self._segments.describe(segments[at] if len(segments) > 1 else lowest, places[at])
                self.damaged.append((entity, messages[at], where))
            messages = [message for at, message in enumerate(messages) if at not in broken]
        return messages, fitting, numbers[-1]

    def _add_extras(
        self, connection: sqlite3.Connection, entity: int, messages: list[StoredMessage], extras: dict[int, Any]
    ) -> set[int]:
        """Set the columns that differ from the defaults. Return the positions of the messages with a damaged body."""
        before = first_key(entity)
        annexed = [
            before + message.sequence_number
            for message in messages
            if (row := extras.get(message.sequence_number)) and row[6] is not None
        ]
        annexes: dict[int, str] = {}
        if annexed:
            (joined,) = connection.execute(queries.ANNEXES, {"keys": json.dumps(annexed)}).fetchone()
            annexes = dict(json.loads(joined))
            last = bytes.fromhex(annexes[annexed[-1] - before])
            if len(last) <= _SHORT_ANNEX:
                self._common_annex = last
        wanted = {row[7] for message in messages if (row := extras.get(message.sequence_number)) and row[7] is not None}
        bodies = self._fetch_bodies(connection, wanted) if wanted else {}
        broken: set[int] = set()
        for at, message in enumerate(messages):
            row = extras.get(message.sequence_number)
            if row is not None:
                _, message.state, message.expires_at, message.delivery_count, message.session_id, *rest = row
                message.due_at, annex, body, _ = rest
                message.annex = None if annex is None else bytes.fromhex(annexes[message.sequence_number])
                if body is not None:
                    message.body = bodies[body]
                    if message.body is None:
                        broken.add(at)
        return broken

    def _contents(self, segments: list[int], places: list[int]) -> list[bytes | None]:
        found: list[bytes | None] = []
        at = 0
        while at < len(segments):
            segment, first = segments[at], at
            while at < len(segments) and segments[at] == segment:
                at += 1
            found += self._segments.read(segment, places[first:at])
        return found

    def _fetch_bodies(self, connection: sqlite3.Connection, wanted: set[int]) -> dict[int, Body | None]:
        """Read bodies by key; None for a damaged one."""
        found: dict[int, Body | None] = {key: body for key in wanted if (body := self._bodies.get(key)) is not None}
        missing = wanted - found.keys()
        if missing:
            parameters = {"keys": json.dumps(sorted(missing))}
            joined_keys, joined_segments, joined_places = connection.execute(queries.BODIES, parameters).fetchone()
            keys, segments, places = _numbers(joined_keys), _numbers(joined_segments), _numbers(joined_places)
            for key, content in zip(keys, self._contents(segments, places), strict=True):
                body = None if content is None else Body(key, content)
                found[key] = body
                if body is not None:
                    self._bodies[key] = body
            if lost := missing - found.keys():
                raise StoreError(f"{self._file} is damaged: it has a message without its body {min(lost)}.")
        return found


def _query(wanted: Range) -> str:
    if wanted.session_id is not None:
        return queries.BY_SESSION if wanted.state is None else queries.BY_SESSION_AND_STATE
    if wanted.state is None:
        return queries.BY_NUMBER
    return queries.IN_LARGE_STATE if wanted.state in queries.LARGE_STATES else queries.IN_SMALL_STATE


def _default_state(wanted: Range) -> int:
    return ACTIVE if wanted.state is None else wanted.state


def _runs_query(wanted: Range) -> queries.RunsQuery:
    if wanted.session_id is not None:
        return queries.RUNS_OF_SESSION
    return queries.RUNS_IN_LARGE_STATE if wanted.state in queries.LARGE_STATES else queries.RUNS_IN_SMALL_STATE


def _numbers(joined: str | None) -> list[int]:
    numbers: list[int] = json.loads(f"[{joined or ''}]")  # half the time of split() and int()
    return numbers


def _fitting(
    numbers: list[int],
    places: list[int],
    extras: dict[int, Any],
    room: int,
    with_common: Collection[int] = (),
    common_size: int = 0,
) -> int:
    """Count the messages up to the one that reaches `room` bytes; the ones in `with_common` have the common annex."""
    total = count = 0
    for place in places:
        total += place & LENGTH_MASK
        if extras and (row := extras.get(numbers[count])) is not None:
            total += (row[6] or 0) + (row[8] or 0)
        elif with_common and numbers[count] in with_common:
            total += common_size
        count += 1
        if total >= room:
            break
    return count


def _parts(lengths: str | None, joined: bytes | None) -> Iterator[bytes]:
    if joined is None:
        return
    begin = 0
    for length in _numbers(lengths):
        yield joined[begin : begin + length]
        begin += length


def _do_nothing() -> None:
    """Do nothing: there is no writer."""
