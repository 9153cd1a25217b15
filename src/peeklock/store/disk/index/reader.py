"""The reading side of the index: messages, sessions and what was seen, each answer from one snapshot.

It asks the questions of `queries` and takes their answers apart. A message whose bytes are damaged is left out of the
answer, which goes on with the next, and is noted.
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
from .found_runs import Runs

_Result = TypeVar("_Result")

_CHUNK_BYTES = 1024 * 1024
_SHORT_ANNEX = 64
"""Bytes of one that many messages may have alike: it says how they were sent, not what they are."""
_BEFORE_ALL_TIMES = -(1 << 63)


class Reader:
    """Answers reads over a connection of its own; after a failure the next one may work again."""

    def __init__(self, file: Path, segments: Segments) -> None:
        self._file = file
        self._segments = segments
        self._connection: sqlite3.Connection | None = None
        self.connect_writer: Callable[[], object] = _do_nothing
        """Called before this connects. The writer checks what a failed sync left of SQLite's log: a read that came
        earlier could find pages of another time in it."""
        self._bodies: WeakValueDictionary[int, Body] = WeakValueDictionary()
        """What was read and is still in use, so that the readers of several entities have it in memory once."""
        self._usual_annex = b""
        """A short one that was read lately; at first one that no message has."""
        self.damaged: list[tuple[int, StoredMessage, str]] = []
        """Entity, message without its payload, and where the log should have that; for the owner to take."""

    def open(self) -> None:
        """Beforehand, though reading would do it: what cannot be read is told at the start."""
        self._connection = connect_reader(self._file)

    def read(self, wanted: Range) -> list[StoredMessage]:
        before = first_key(wanted.entity)
        parameters = {
            "after": before + min(max(wanted.after, 0), MAX_NUMBER),
            "through": before + min(max(wanted.through, 0), MAX_NUMBER),
            "state": wanted.state,
            "session_id": wanted.session_id,
            "usual_state": _usual_state(wanted),
        }
        # The first message is there whatever its size.
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
        found = Runs(before, wanted.limit, max(wanted.max_bytes, 1), excluded)

        def chunks(connection: sqlite3.Connection) -> list[Run]:
            are_together = True
            while not found.is_full:
                parameters["rows"] = rows = min(found.room, queries.RUN_ROWS)
                if are_together:
                    count, first, last, size = connection.execute(query.together, parameters).fetchone()
                    are_together = not count or found.take(first, last, count, int(size))
                if not are_together:
                    joined_keys, joined_sizes = connection.execute(query.each, parameters).fetchone()
                    keys = _numbers(joined_keys)
                    count, last = len(keys), keys[-1] if keys else 0
                    found.take_each(keys, _numbers(joined_sizes))
                    # Where there were gaps, there are mostly more.
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
                parameters = {"after": before, "keys": json.dumps(chunk), "usual_state": ACTIVE}
                messages = self._chunks(connection, queries.BY_KEYS, entity, parameters, len(chunk), room)
                found += messages
                room -= sum(message.read_size for message in messages)
                if room <= 0:
                    break
            return found

        return self._in_snapshot(numbered)

    def any_exists(self, keys: list[int]) -> bool:
        """Whether any of them is a message's."""
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
            usual = {"now": now, "usual_state": query.state} | behind
            found = self._chunks(connection, query.past, entity, usual, limit, max(max_bytes, 1))
            others = {"entity": entity, "offset": len(found)} | behind
            following = connection.execute(query.following, others).fetchone()
            return found, following[0] if following else None

        return self._in_snapshot(timed)

    def _row(self, question: str, **parameters: Any) -> Any:
        return self._in_snapshot(lambda connection: connection.execute(question, parameters).fetchone())

    def _in_snapshot(self, question: Callable[[sqlite3.Connection], _Result]) -> _Result:
        try:
            if self._connection is None:
                self.connect_writer()
                self._connection = connect_reader(self._file)
            connection = self._connection
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
        max_bytes: int,
    ) -> list[StoredMessage]:
        """Messages in the order of the query, until the limit, or the one that reaches the bytes."""
        found: list[StoredMessage] = []
        size = offset = 0
        most = queries.CHUNK_ROWS
        while len(found) < limit and size < max_bytes:
            rows = min(limit - len(found), most)
            room = min(max_bytes - size, _CHUNK_BYTES)
            place = {"entity": entity, "rows": rows, "offset": offset, "usual_annex": self._usual_annex}
            chosen = connection.execute(query, parameters | place).fetchone()
            messages, looked_at, last = self._fetch(connection, entity, parameters["usual_state"], chosen, room)
            found += messages
            size += sum([message.read_size for message in messages])
            if looked_at == chosen[0] < rows:
                break  # there are no more
            if "after" in parameters:
                parameters = parameters | {"after": first_key(entity) + last}
            else:
                offset += looked_at
            # Those that are long are not looked at again and again.
            most = min(2 * looked_at + 1, queries.CHUNK_ROWS)
        return found

    def _fetch(
        self, connection: sqlite3.Connection, entity: int, state: int, chosen: Any, room: int
    ) -> tuple[list[StoredMessage], int, int]:
        """Of the messages that were chosen those up to the one that reaches the room: the sound ones, how many were
        looked at, and the number of the last of these."""
        count, joined_numbers, times, lowest, highest, joined_segments, joined_places, joined_rich, annexed = chosen
        if not count:
            return [], 0, 0
        usual = self._usual_annex
        with_usual: set[int] = set(_numbers(annexed)) if annexed else set()
        rich = {row[0]: row for row in json.loads(joined_rich)} if joined_rich != "[]" else {}
        numbers = _numbers(joined_numbers)
        places = _numbers(joined_places)
        fitting = _fitting(numbers, places, rich, room, with_usual, len(usual))
        numbers, places = numbers[:fitting], places[:fitting]
        segments = [lowest] if lowest == highest else _numbers(joined_segments)[:fitting]
        contents = self._segments.read(lowest, places) if lowest == highest else self._contents(segments, places)
        messages = [
            StoredMessage(number, content or b"", enqueued_at, state)
            for number, content, enqueued_at in zip(numbers, contents, _numbers(times), strict=False)
        ]
        broken = {at for at, content in enumerate(contents) if content is None}
        if with_usual:
            for message in messages:
                if message.sequence_number in with_usual:
                    message.annex = usual
        if rich:
            broken |= self._enrich(connection, entity, messages, rich)
        if broken:
            for at in sorted(broken):
                where = self._segments.describe(segments[at] if len(segments) > 1 else lowest, places[at])
                self.damaged.append((entity, messages[at], where))
            messages = [message for at, message in enumerate(messages) if at not in broken]
        return messages, fitting, numbers[-1]

    def _enrich(
        self, connection: sqlite3.Connection, entity: int, messages: list[StoredMessage], rich: dict[int, Any]
    ) -> set[int]:
        """Give them what few have; which of them have a damaged body."""
        before = first_key(entity)
        annexed = [
            before + message.sequence_number
            for message in messages
            if (row := rich.get(message.sequence_number)) and row[6] is not None
        ]
        annexes: dict[int, str] = {}
        if annexed:
            (joined,) = connection.execute(queries.ANNEXES, {"keys": json.dumps(annexed)}).fetchone()
            annexes = dict(json.loads(joined))
            last = bytes.fromhex(annexes[annexed[-1] - before])
            if len(last) <= _SHORT_ANNEX:
                self._usual_annex = last
        wanted = {row[7] for message in messages if (row := rich.get(message.sequence_number)) and row[7] is not None}
        bodies = self._fetch_bodies(connection, wanted) if wanted else {}
        broken: set[int] = set()
        for at, message in enumerate(messages):
            row = rich.get(message.sequence_number)
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
        """None for one that is damaged."""
        found: dict[int, Body | None] = {key: body for key in wanted if (body := self._bodies.get(key)) is not None}
        missing = wanted - found.keys()
        if missing:
            asked = {"keys": json.dumps(sorted(missing))}
            joined_keys, joined_segments, joined_places = connection.execute(queries.BODIES, asked).fetchone()
            keys, segments, places = _numbers(joined_keys), _numbers(joined_segments), _numbers(joined_places)
            for key, content in zip(keys, self._contents(segments, places), strict=True):
                body = None if content is None else Body(key, content)
                found[key] = body
                if body is not None:
                    self._bodies[key] = body
            if lost := missing - found.keys():
                raise StoreError(f"{self._file} is damaged: it has a message, but not its body {min(lost)}.")
        return found


def _query(wanted: Range) -> str:
    if wanted.session_id is not None:
        return queries.BY_SESSION if wanted.state is None else queries.BY_SESSION_AND_STATE
    if wanted.state is None:
        return queries.BY_NUMBER
    return queries.IN_LARGE_STATE if wanted.state in queries.LARGE_STATES else queries.IN_SMALL_STATE


def _usual_state(wanted: Range) -> int:
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
    rich: dict[int, Any],
    room: int,
    with_usual: Collection[int] = (),
    usual_size: int = 0,
) -> int:
    """How many from the first on, up to the one that reaches the room; some have the usual annex."""
    total = count = 0
    for place in places:
        total += place & LENGTH_MASK
        if rich and (row := rich.get(numbers[count])) is not None:
            total += (row[6] or 0) + (row[8] or 0)
        elif with_usual and numbers[count] in with_usual:
            total += usual_size
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
    """No writer is there."""
