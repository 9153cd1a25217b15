"""The writer of the index: applies entries of the log to the tables.

While the event loop is busy, every return from SQLite to Python waits for the GIL, up to Python's switch interval. So
an entry is one row inserted into a temporary view, whose trigger makes all changes inside SQLite: this waits once, not
once for each row or statement. With a busy event loop it is three to seven times faster than one statement for each
table.

Transactions that SQLite loses in a power cut are still in the log, and the same transaction that applies entries also
updates the position up to which the log is applied. So nothing needs to be synced until a segment of the log is freed
(`database`, `pages`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ...base import DAMAGED, StoreFull
from ..commits.entry import SECTIONS
from ..keys import LENGTH_MASK, MAX_NUMBER, NUMBER_BITS
from ..log.segments import LogPosition
from . import runs
from .connections import WriterConnection
from .database import Database
from .rows import fields

_PURGE_ROWS = 1000
"""How many rows of a dropped entity are deleted from each table at once, so that no commit waits long."""


_CHANGED = ("state", "delivery_count", "enqueued_at", "expires_at", "due_at")
_SESSION_PLACE = ("session_at", "session_length")
_ANNEX_PLACE = ("annex_at", "annex_length")
_COUNTERS = ("last_sequence_number", "active", "deferred", "scheduled", "size_in_bytes", "damaged", "claimed")
_SET_CHANGED = ", ".join(f"{name} = row.{name}" for name in _CHANGED)
_ADD_COUNTERS = ", ".join(f"{name} = entity.{name} + row.{name}" for name in _COUNTERS[1:])
_ANNEX = "substr(NEW.bytes, annex_at, annex_length)"
_SESSION_ID = "CAST(substr(NEW.bytes, session_at, session_length) AS TEXT)"
_OF_RUN = f"{', '.join(_CHANGED)}, {_SESSION_ID} AS session_id, {_ANNEX} AS annex"
_LATER = "CAST(substr(each.value, instr(each.value, ' ')) AS INTEGER)"
_CHANGED_LATER = ", ".join(
    f"CASE each.type WHEN 'text' THEN {name} + {_LATER} ELSE {name} END" if name == "enqueued_at" else name
    for name in _CHANGED
)
_FREE_BODIES = """
    DELETE FROM body WHERE key IN (SELECT value FROM json_each({freed}))
    AND NOT EXISTS (SELECT 1 FROM message WHERE message.body = body.key)
"""
_CLAIMS = f"""(
    SELECT {fields("entity", "id_at", "id_length", "content_at", "content_length")} FROM json_each(NEW.claims)
) AS row"""
_CLAIM_ID = "substr(NEW.bytes, id_at, id_length)"
_SESSION_STATES = f"""(
    SELECT {fields("entity", "session_at", "session_length", "state_at", "state_length", "updated_at")}
    FROM json_each(NEW.session_states)
) AS row"""

_STEPS = {
    "entities": f"""
        INSERT INTO entity (id, path, kind, definition, {", ".join(_COUNTERS)})
        SELECT {fields("id", "path", "kind", "definition", *_COUNTERS)}
        FROM json_each(NEW.entities) WHERE true
        ON CONFLICT (id) DO UPDATE
        SET path = excluded.path, kind = excluded.kind, definition = excluded.definition;
    """,
    "appends": f"""
        INSERT INTO message (key, segment, place, {", ".join(_CHANGED)}, session_id, annex)
        SELECT first_key + each.key, segment, CAST(each.value AS INTEGER), {_CHANGED_LATER}, session_id, annex
        FROM (SELECT first_key, segment, {_OF_RUN}, places
              FROM (SELECT {fields("first_key", *_CHANGED, *_SESSION_PLACE, *_ANNEX_PLACE, "segment", "places")}
                    FROM json_each(NEW.appends))
              LIMIT -1 OFFSET 0) -- so that each run is decoded once, not once for each message
        CROSS JOIN json_each(places) AS each;
    """,
    "bodies": f"""
        INSERT INTO body (key, segment, place)
        SELECT key, segment, place
        FROM (SELECT {fields("key", "segment", "place")} FROM json_each(NEW.bodies)) WHERE true
        ON CONFLICT (key) DO NOTHING;
    """,
    "copies": f"""
        INSERT INTO message (key, segment, place, body, {", ".join(_CHANGED)}, session_id, annex)
        SELECT key, segment, place, body, {", ".join(_CHANGED)}, session_id, annex
        FROM (SELECT {fields("key", "place", "body")}, segment, {", ".join(_CHANGED)}, session_id, annex
              FROM (SELECT {_OF_RUN}, segment, copies
                    FROM (SELECT {fields(*_CHANGED, *_SESSION_PLACE, *_ANNEX_PLACE, "segment", "copies")}
                          FROM json_each(NEW.copies))
                    LIMIT -1 OFFSET 0)
              CROSS JOIN json_each(copies));
    """,
    "updates": f"""
        UPDATE message SET {_SET_CHANGED}
        FROM (SELECT {fields("key", *_CHANGED)} FROM json_each(NEW.updates)) AS row
        WHERE message.key = row.key;
    """,
    # An upsert of existing rows: for an UPDATE FROM, SQLite would scan all messages.
    "rewrites": f"""
        INSERT INTO message (key, segment, place, {", ".join(_CHANGED)}, annex)
        SELECT first_key + each.key, segment, each.value, {", ".join(_CHANGED)}, annex
        FROM (SELECT first_key, segment, {", ".join(_CHANGED)}, {_ANNEX} AS annex, places
              FROM (SELECT {fields("first_key", *_CHANGED, *_ANNEX_PLACE, "segment", "places")}
                    FROM json_each(NEW.rewrites))
              LIMIT -1 OFFSET 0)
        CROSS JOIN json_each(places) AS each
        WHERE first_key + each.key IN (SELECT key FROM message)
        ON CONFLICT (key) DO UPDATE
        SET segment = excluded.segment, place = excluded.place, annex = excluded.annex,
            {", ".join(f"{name} = excluded.{name}" for name in _CHANGED)};
    """,
    "moves": f"""
        UPDATE message SET segment = row.segment, place = row.place
        FROM (SELECT {fields("key", "before", "segment", "place")} FROM json_each(NEW.moves)) AS row
        WHERE message.key = row.key AND message.segment = row.before;
    """,
    "body_moves": f"""
        UPDATE body SET segment = row.segment, place = row.place
        FROM (SELECT {fields("key", "before", "segment", "place")} FROM json_each(NEW.body_moves)) AS row
        WHERE body.key = row.key AND body.segment = row.before;
    """,
    "first_key": "DELETE FROM message WHERE key BETWEEN NEW.first_key AND NEW.last_key;",
    "runs": f"""
        DELETE FROM message WHERE key IN (
            SELECT run_message.key
            FROM (SELECT {fields("first_key", "last_key")} FROM json_each(NEW.runs))
            CROSS JOIN message AS run_message
            WHERE run_message.key BETWEEN first_key AND last_key
        );
    """,
    "freed": f"{_FREE_BODIES.format(freed='NEW.freed')};",
    **runs.STEPS,
    "damaged": runs.MARK_DAMAGED,
    "claims": f"""
        INSERT INTO claim (entity, id, content)
        SELECT entity, {_CLAIM_ID}, substr(NEW.bytes, content_at, content_length)
        FROM {_CLAIMS}
        WHERE content_at IS NOT NULL AND entity IN (SELECT id FROM entity)
        ON CONFLICT (entity, id) DO UPDATE SET content = excluded.content;

        DELETE FROM claim WHERE rowid IN (
            SELECT old.rowid FROM {_CLAIMS} CROSS JOIN claim AS old
            WHERE content_at IS NULL AND old.entity = row.entity AND old.id = {_CLAIM_ID}
        );
    """,
    "session_states": f"""
        INSERT INTO session (entity, session_id, updated_at, state)
        SELECT entity, {_SESSION_ID}, updated_at, substr(NEW.bytes, state_at, state_length)
        FROM {_SESSION_STATES}
        WHERE state_at IS NOT NULL AND entity IN (SELECT id FROM entity)
        ON CONFLICT (entity, session_id) DO UPDATE SET updated_at = excluded.updated_at, state = excluded.state;

        DELETE FROM session WHERE id IN (
            SELECT cleared.id FROM {_SESSION_STATES} CROSS JOIN session AS cleared
            WHERE state_at IS NULL AND cleared.entity = row.entity AND cleared.session_id = {_SESSION_ID}
        );
    """,
    "seen": f"""
        INSERT INTO history (key, seen)
        SELECT key, substr(NEW.bytes, seen_at, seen_length)
        FROM (SELECT {fields("key", "seen_at", "seen_length")} FROM json_each(NEW.seen))
        WHERE key >> {NUMBER_BITS} IN (SELECT id FROM entity)
        ON CONFLICT (key) DO UPDATE SET seen = CAST(seen || excluded.seen AS BLOB);
    """,
    "forgotten": f"""
        DELETE FROM history WHERE key IN (
            SELECT old.key
            FROM (SELECT {fields("first_key", "end_key")} FROM json_each(NEW.forgotten))
            CROSS JOIN history AS old
            WHERE old.key >= first_key AND old.key < end_key
        );
    """,
    "deltas": f"""
        UPDATE entity SET
            last_sequence_number = max(entity.last_sequence_number, row.last_sequence_number), {_ADD_COUNTERS}
        FROM (SELECT {fields("id", *_COUNTERS)} FROM json_each(NEW.deltas)) AS row
        WHERE entity.id = row.id;
    """,
    "dropped": """
        INSERT INTO dropped_entity (id)
        SELECT id FROM entity WHERE id IN (SELECT value FROM json_each(NEW.dropped));
        DELETE FROM entity WHERE id IN (SELECT value FROM json_each(NEW.dropped));
    """,
    "extents": f"""
        INSERT INTO extent (segment, entity, first_key, last_key)
        SELECT {fields("segment", "entity", "first_key", "last_key")} FROM json_each(NEW.extents) WHERE true
        ON CONFLICT (segment, entity) DO UPDATE
        SET first_key = min(first_key, excluded.first_key), last_key = max(last_key, excluded.last_key);
    """,
}
"""The statements for each section, in this order."""

_RARE_SECTIONS = (
    "entities",
    "bodies",
    "copies",
    "rewrites",
    "moves",
    "body_moves",
    "freed",
    *runs.STEPS,
    "damaged",
    "claims",
    "session_states",
    "seen",
    "forgotten",
    "dropped",
)
"""Sections that few entries have. Statements for an empty section take some time, so entries without these sections are
applied through a view without their statements."""


def _create(view: str, steps: Iterable[str]) -> list[str]:
    return [
        f"CREATE TEMP VIEW {view} AS SELECT {', '.join(f'NULL AS {name}' for name in SECTIONS)}",
        f"CREATE TEMP TRIGGER apply_{view} INSTEAD OF INSERT ON {view} BEGIN {''.join(steps)} END",
    ]


_SET_UP = [
    *runs.TRIGGERS,
    *_create("entry", _STEPS.values()),
    *_create("common_entry", (step for section, step in _STEPS.items() if section not in _RARE_SECTIONS)),
]

_APPLY = f"INSERT INTO entry VALUES ({', '.join(f':{name}' for name in SECTIONS)})"
_APPLY_COMMON = _APPLY.replace("entry", "common_entry")

_OF_ENTITY = f"key BETWEEN :entity << {NUMBER_BITS} AND :entity << {NUMBER_BITS} | {MAX_NUMBER}"
_NEXT_DROPPED = "SELECT min(id) FROM dropped_entity"
_DROPPED_AMONG = f"""
    SELECT id FROM dropped_entity
    WHERE id IN (SELECT id FROM (SELECT {fields("id")} FROM json_each(:entities)))
"""
_FIRST_MESSAGES = f"FROM message WHERE {_OF_ENTITY} ORDER BY key LIMIT {_PURGE_ROWS}"
_PURGED_BODIES = (
    f"SELECT json_group_array(DISTINCT body) FILTER (WHERE body IS NOT NULL) FROM (SELECT body {_FIRST_MESSAGES})"
)
_PURGES = (
    f"DELETE FROM message WHERE key IN (SELECT key {_FIRST_MESSAGES})",
    f"DELETE FROM session WHERE id IN (SELECT id FROM session WHERE entity = :entity LIMIT {_PURGE_ROWS})",
    f"DELETE FROM claim WHERE rowid IN (SELECT rowid FROM claim WHERE entity = :entity LIMIT {_PURGE_ROWS})",
    f"DELETE FROM history WHERE key IN (SELECT key FROM history WHERE {_OF_ENTITY} LIMIT {_PURGE_ROWS})",
)

_IN_SEGMENT = """
    FROM extent CROSS JOIN message ON message.key BETWEEN first_key AND last_key AND message.segment = extent.segment
    WHERE extent.segment = :segment
"""
_IS_NEEDED = f"""
    SELECT EXISTS (SELECT 1 {_IN_SEGMENT}) OR EXISTS (SELECT 1 FROM body WHERE segment = :segment)
"""
_NEEDED_BYTES = f"""
    SELECT coalesce((SELECT sum(message.place & {LENGTH_MASK}) {_IN_SEGMENT}), 0)
        + coalesce((SELECT sum(place & {LENGTH_MASK}) FROM body WHERE segment = :segment), 0)
"""
_NEEDED_MESSAGES = f"""
    SELECT message.key, message.place {_IN_SEGMENT}
    AND state <> {DAMAGED} AND message.key NOT IN (SELECT value FROM json_each(:messages)) LIMIT :rows
"""
_NEEDED_BODIES = """
    SELECT key, place FROM body
    WHERE segment = :segment AND key NOT IN (SELECT value FROM json_each(:bodies)) LIMIT :rows
"""


class SegmentEnd(NamedTuple):
    """Where the last applied record of a segment begins and ends, and its commit."""

    segment: int
    start: int
    end: int
    commit: int


class Writer:
    """Writes the index; a call that fails changes nothing, and later calls may succeed. Used by the index thread."""

    def __init__(self, connection: WriterConnection, file: Path) -> None:
        """Raise StoreError, OSError or sqlite3.Error."""
        self.file = file
        self.database = Database(connection, file, _set_up)
        self._has_dropped = True
        """There may be rows of dropped entities. Their ids are read each time and not cached: an id may belong to a new
        entity meanwhile, also after a commit that seemed to fail."""
        self._may_purge = True

    def applied(self) -> LogPosition:
        """Read the position up to which the log is applied. Raise StoreError."""
        try:
            return read_applied(self.database.connected())
        except Exception as error:
            raise self.database.failed(error) from error

    def apply(self, entries: Iterable[dict[str, Any]], through: LogPosition, ends: Iterable[SegmentEnd]) -> None:
        """Apply the entries, up to this position of the log, and set the ends of segments, in one transaction.

        Raise StoreError if that failed; in rare cases the transaction was committed all the same.
        """
        rows, known = list(entries), list(ends)
        try:
            self._apply(rows, through, known)
        except StoreFull:
            if not self.database.restart_wal():
                raise
            self._apply(rows, through, known)

    def _apply(self, entries: list[dict[str, Any]], through: LogPosition, ends: list[SegmentEnd]) -> None:
        try:
            connection = self.database.begin()
            for parameters in entries:
                if parameters["dropped"] is not None:
                    self._has_dropped = True
                apply_entry(connection, parameters)
            connection.execute('UPDATE log SET segment = ?, "offset" = ?, "commit" = ?', through)
            for end in ends:
                connection.execute("INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?)", end)
            connection.execute("COMMIT")
        except Exception as error:
            raise self.database.failed(error) from error
        self.database.applied = through.commit
        self._may_purge = True
        self.database.checkpoint_if_long()

    @property
    def needs_purge(self) -> bool:
        """Whether there may be rows of dropped entities to delete."""
        return self._has_dropped and self._may_purge

    def purge(self) -> None:
        """Delete some rows of a dropped entity. After a failure, purging continues when the next entry was applied."""
        try:
            connection = self.database.connected()
            (entity,) = connection.execute(_NEXT_DROPPED).fetchone()
            if entity is None:
                self._has_dropped = False
                return
            _purge_some(self.database.begin(), entity)
            connection.execute("COMMIT")
        except Exception as error:
            self.database.recover(error)
            self._may_purge = False

    def is_needed(self, segment: int) -> bool:
        """Return whether a message or body has its bytes in this segment. Raise StoreError."""
        return bool(self._row(_IS_NEEDED, segment)[0])

    def needed_bytes(self, segment: int) -> int:
        """Return the bytes of messages and bodies in this segment. Raise StoreError."""
        return int(self._row(_NEEDED_BYTES, segment)[0])

    def stored_bytes(self) -> int:
        """Return the size of all messages; a body is counted once for each of its messages. Raise StoreError."""
        return int(self._row("SELECT coalesce(sum(size_in_bytes), 0) FROM entity", 0)[0])

    def needed(
        self, segment: int, rows: int, excluded_messages: set[int], excluded_bodies: set[int]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return keys and places of up to `rows` messages and up to `rows` bodies with their bytes in this segment.

        Messages known to be damaged and the excluded keys are left out. Raise StoreError.
        """
        wanted = {
            "segment": segment,
            "rows": rows,
            "messages": json.dumps(list(excluded_messages)),
            "bodies": json.dumps(list(excluded_bodies)),
        }
        try:
            connection = self.database.connected()
            return (
                connection.execute(_NEEDED_MESSAGES, wanted).fetchall(),
                connection.execute(_NEEDED_BODIES, wanted).fetchall(),
            )
        except Exception as error:
            raise self.database.failed(error) from error

    def messages_with(self, body: int) -> list[int]:
        """Return the keys of the messages with this body. Raise StoreError."""
        try:
            rows = self.database.connected().execute("SELECT key FROM message WHERE body = ?", (body,))
            return [key for (key,) in rows]
        except Exception as error:
            raise self.database.failed(error) from error

    def forget_segments(self, segments: list[int]) -> None:
        """Delete the index's rows about these segments, and make a checkpoint. Raise StoreError.

        Afterwards it is durable that no message needs the segments, and they may be freed.
        """
        try:
            connection = self.database.begin()
            for table, column in (("extent", "segment"), ("segment", "number")):
                connection.execute(
                    f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))", (str(segments),)
                )
            connection.execute("COMMIT")
        except Exception as error:
            raise self.database.failed(error) from error
        self.database.checkpoint()

    def close(self) -> None:
        self.database.close()

    def _row(self, query: str, segment: int) -> Any:
        try:
            return self.database.connected().execute(query, {"segment": segment}).fetchone()
        except Exception as error:
            raise self.database.failed(error) from error


def apply_entry(connection: sqlite3.Connection, parameters: dict[str, Any]) -> None:
    """Apply one entry, in a transaction on a connection of a `Writer`. Raise sqlite3.Error."""
    if parameters["entities"] is not None:
        _purge_predecessors(connection, parameters["entities"])
    is_common = all(parameters[section] is None for section in _RARE_SECTIONS)
    connection.execute(_APPLY_COMMON if is_common else _APPLY, parameters)


def _purge_some(connection: sqlite3.Connection, entity: int) -> bool:
    """Delete some rows of a dropped entity. Return False if it had none: then the drop is complete."""
    (bodies,) = connection.execute(_PURGED_BODIES, {"entity": entity}).fetchone()
    deleted = any(connection.execute(purge, {"entity": entity}).rowcount for purge in _PURGES)
    connection.execute(_FREE_BODIES.format(freed=":freed"), {"freed": bodies})
    if not deleted:
        connection.execute("DELETE FROM dropped_entity WHERE id = ?", (entity,))
    return deleted


def _purge_predecessors(connection: sqlite3.Connection, entities: str) -> None:
    """Delete all rows of dropped entities whose ids are used for these new entities.

    This may take long, but an id is seldom reused before its rows were deleted in the background. Extents stay: they
    name the keys that a segment may contain, and are deleted with the segment.
    """
    for (entity,) in connection.execute(_DROPPED_AMONG, {"entities": entities}).fetchall():
        while _purge_some(connection, entity):
            pass


def read_applied(connection: sqlite3.Connection) -> LogPosition:
    """Read the position up to which the log is applied."""
    return LogPosition(*connection.execute('SELECT segment, "offset", "commit" FROM log').fetchone())


def read_segment_ends(connection: sqlite3.Connection) -> list[SegmentEnd]:
    """Read the ends of all segments that were applied and not freed."""
    rows = connection.execute('SELECT number, last_record, "end", "commit" FROM segment ORDER BY number')
    return [SegmentEnd(*row) for row in rows]


def _set_up(connection: WriterConnection) -> None:
    for statement in _SET_UP:
        connection.execute(statement)
