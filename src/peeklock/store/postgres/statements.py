"""The SQL that changes the tables: one statement for each kind of change, with arrays as parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from psycopg import Cursor

from ..base import MAX_NUMBER
from .arrays import Blobs, Integers
from .batch import Row
from .keys import first_key, last_key, runs_of
from .plan import Section, separate

_Item = TypeVar("_Item")
Execute = Callable[..., Cursor[Any]]

_PIECE_ROWS: Final = 10_000
_PIECE_BYTES: Final = 16 * 1024 * 1024
"""The most rows and bytes of one statement, roughly."""

_FEW_RUNS: Final = 4
"""Removals are a few ranges of keys if there are this many times as many messages as ranges."""

_COLUMNS: Final[tuple[tuple[str, type[Integers] | type[Blobs]], ...]] = (
    ("key", Integers),
    ("enqueued_at", Integers),
    ("payload", Blobs),
    ("annex", Blobs),
    ("state", Integers),
    ("delivery_count", Integers),
    ("expires_at", Integers),
    ("due_at", Integers),
    ("session_id", Blobs),
    ("body", Integers),
    ("body_size", Integers),
)
"""The columns of `batch.Row`. The ones after the third are left out of a statement if all rows have the default."""
_REQUIRED: Final = 3
_DEFAULTS: Final = {"state": 0, "delivery_count": 0}

_CHANGED: Final = ("enqueued_at", "state", "delivery_count", "expires_at", "due_at")
_SET_CHANGED: Final = ", ".join(f"{name} = row.{name}" for name in _CHANGED)
_COUNTERS: Final = ("last_sequence_number", "active", "deferred", "scheduled", "size_in_bytes", "damaged", "claimed")

_INSERT_ENTITIES: Final = f"""
    INSERT INTO entity (id, path, kind, definition, {", ".join(_COUNTERS)})
    SELECT * FROM unnest(
        %s::bigint[], %s::text[], %s::text[], %s::text[], {", ".join(["%s::bigint[]"] * len(_COUNTERS))}
    )
    ON CONFLICT (id) DO UPDATE SET path = excluded.path, kind = excluded.kind, definition = excluded.definition
"""
_INSERT_BODIES: Final = """
    INSERT INTO body (key, data) SELECT * FROM unnest(%s::bigint[], %s::bytea[]) ON CONFLICT (key) DO NOTHING
"""
_UPDATE: Final = f"""
    UPDATE message SET {_SET_CHANGED}
    FROM unnest({", ".join(["%s::bigint[]"] * 6)}) AS row (key, {", ".join(_CHANGED)})
    WHERE message.key = row.key
"""
_REWRITE: Final = f"""
    UPDATE message SET payload = row.payload, annex = row.annex, {_SET_CHANGED}
    FROM unnest(%s::bigint[], %s::bytea[], %s::bytea[], {", ".join(["%s::bigint[]"] * 5)})
        AS row (key, payload, annex, {", ".join(_CHANGED)})
    WHERE message.key = row.key
"""
_DELETE: Final = "DELETE FROM message WHERE key = ANY(%s::bigint[])"
_DELETE_RANGES: Final = """
    DELETE FROM message USING unnest(%s::bigint[], %s::bigint[]) AS run (first, last)
    WHERE message.key BETWEEN run.first AND run.last
"""
_FREE_BODIES: Final = """
    DELETE FROM body WHERE key = ANY(%s::bigint[]) AND NOT EXISTS (SELECT FROM message WHERE message.body = body.key)
"""
_RUNS: Final = "unnest(%(first)s::bigint[], %(last)s::bigint[], %(before)s::bigint[]) AS run (first, last, before)"
_IS_IN_RUN: Final = "message.key BETWEEN run.first AND run.last AND message.state = run.before"
_UPDATE_RUNS: Final = f"""
    UPDATE message SET state = run.after
    FROM unnest(%(first)s::bigint[], %(last)s::bigint[], %(before)s::bigint[], %(after)s::bigint[])
        AS run (first, last, before, after)
    WHERE {_IS_IN_RUN}
"""
_FREE_BODIES_OF_RUNS: Final = f"""
    DELETE FROM body
    WHERE key IN (SELECT message.body FROM {_RUNS}, message WHERE {_IS_IN_RUN} AND message.body IS NOT NULL)
    AND NOT EXISTS (
        SELECT FROM message
        WHERE message.body = body.key AND NOT EXISTS (SELECT FROM {_RUNS} WHERE {_IS_IN_RUN})
    )
"""
_DELETE_RUNS: Final = f"DELETE FROM message USING {_RUNS} WHERE {_IS_IN_RUN}"
_SET_CLAIMS: Final = """
    INSERT INTO claim (entity, id, content) SELECT * FROM unnest(%s::bigint[], %s::bytea[], %s::bytea[])
    ON CONFLICT (entity, id) DO UPDATE SET content = excluded.content
"""
_DELETE_CLAIMS: Final = """
    DELETE FROM claim USING unnest(%s::bigint[], %s::bytea[]) AS row (entity, id)
    WHERE claim.entity = row.entity AND claim.id = row.id
"""
_SET_SESSIONS: Final = """
    INSERT INTO session (entity, session_id, state, updated_at)
    SELECT * FROM unnest(%s::bigint[], %s::bytea[], %s::bytea[], %s::bigint[])
    ON CONFLICT (entity, session_id) DO UPDATE SET state = excluded.state, updated_at = excluded.updated_at
"""
_DELETE_SESSIONS: Final = """
    DELETE FROM session USING unnest(%s::bigint[], %s::bytea[]) AS row (entity, session_id)
    WHERE session.entity = row.entity AND session.session_id = row.session_id
"""
_SEE: Final = """
    INSERT INTO history (key, seen) SELECT * FROM unnest(%s::bigint[], %s::bytea[])
    ON CONFLICT (key) DO UPDATE SET seen = history.seen || excluded.seen
"""
_FORGET: Final = """
    DELETE FROM history USING unnest(%s::bigint[], %s::bigint[]) AS row (first, "end")
    WHERE history.key >= row.first AND history.key < row."end"
"""
_ADD_DELTAS: Final = f"""
    UPDATE entity SET
        last_sequence_number = greatest(entity.last_sequence_number, row.last_sequence_number),
        {", ".join(f"{name} = entity.{name} + row.{name}" for name in _COUNTERS[1:])}
    FROM unnest({", ".join(["%s::bigint[]"] * (len(_COUNTERS) + 1))}) AS row (id, {", ".join(_COUNTERS)})
    WHERE entity.id = row.id
"""
_DROP: Final = (
    "INSERT INTO dropped_entity (id) SELECT id FROM entity WHERE id = ANY(%s::bigint[])",
    "DELETE FROM entity WHERE id = ANY(%s::bigint[])",
)

_OF_ENTITY: Final = "key BETWEEN %(first)s AND %(last)s"
_FIRST_MESSAGES: Final = f"FROM message WHERE {_OF_ENTITY} ORDER BY key LIMIT %(rows)s"
_PURGES: Final = (
    f"""
    DELETE FROM body
    WHERE key IN (SELECT body FROM (SELECT body {_FIRST_MESSAGES}) AS first_message WHERE body IS NOT NULL)
    AND NOT EXISTS (
        SELECT FROM message WHERE message.body = body.key
        AND message.key NOT BETWEEN %(first)s AND (SELECT max(key) FROM (SELECT key {_FIRST_MESSAGES}) AS first_message)
    )
    """,
    f"DELETE FROM message WHERE key IN (SELECT key {_FIRST_MESSAGES})",
    """
    DELETE FROM session WHERE entity = %(entity)s
    AND session_id IN (SELECT session_id FROM session WHERE entity = %(entity)s LIMIT %(rows)s)
    """,
    "DELETE FROM claim WHERE entity = %(entity)s",
    f"DELETE FROM history WHERE key IN (SELECT key FROM history WHERE {_OF_ENTITY} ORDER BY key LIMIT %(rows)s)",
)
_FINISH_PURGE: Final = f"""
    DELETE FROM dropped_entity WHERE id = %(entity)s
    AND NOT EXISTS (SELECT FROM message WHERE {_OF_ENTITY})
    AND NOT EXISTS (SELECT FROM session WHERE entity = %(entity)s)
    AND NOT EXISTS (SELECT FROM history WHERE {_OF_ENTITY})
"""
_ALL_ROWS: Final = MAX_NUMBER + 1


def apply(execute: Execute, section: Section, *, has_bodies: bool) -> None:
    """Execute the statements for a section. `has_bodies` is false if no message of the namespace ever had a body."""
    for entity in section.purges:
        purge(execute, entity, _ALL_ROWS)
    if section.entities:
        ids, paths, kinds, definitions, counters = zip(*section.entities.values(), strict=True)
        columns = [Integers([getattr(each, name) for each in counters]) for name in _COUNTERS]
        execute(_INSERT_ENTITIES, [Integers(ids), list(paths), list(kinds), list(definitions), *columns])
    if section.bodies:
        _insert_bodies(execute, section)
    for rows in _pieces(section.appends.values(), _row_size):
        _insert(execute, rows)
    for updates in _pieces(section.updates.items(), lambda row: 0):
        keys, changed = zip(*updates, strict=True)
        execute(_UPDATE, [Integers(keys), *map(Integers, zip(*changed, strict=True))])
    for rewrites in _pieces(section.rewrites.items(), lambda row: len(row[1][1])):
        keys, rewritten = zip(*rewrites, strict=True)
        enqueued_at, payloads, annexes, *others = zip(*rewritten, strict=True)
        execute(
            _REWRITE,
            [Integers(keys), Blobs(payloads), Blobs(annexes), Integers(enqueued_at), *map(Integers, others)],
        )
    if section.removals:
        _delete(execute, sorted(section.removals))
    if section.freed:
        execute(_FREE_BODIES, [Integers(list(section.freed))])
    for group in separate(section.run_updates):
        execute(_UPDATE_RUNS, _run_parameters(group))
    for group in separate(section.run_removals):
        parameters = _run_parameters(group)
        if has_bodies:
            execute(_FREE_BODIES_OF_RUNS, parameters)
        execute(_DELETE_RUNS, parameters)
    _apply_rest(execute, section)


def purge(execute: Execute, entity: int, rows: int) -> Cursor[Any]:
    """Delete up to `rows` rows of a dropped entity from each table.

    The row count of the cursor that is returned is 1 if there was nothing left, and the drop is complete.
    """
    parameters = {"entity": entity, "first": first_key(entity), "last": last_key(entity), "rows": rows}
    for statement in _PURGES:
        execute(statement, parameters)
    return execute(_FINISH_PURGE, parameters)


def _apply_rest(execute: Execute, section: Section) -> None:
    if section.claims:
        kept = [(*name, content) for name, content in section.claims.items() if content is not None]
        gone = [name for name, content in section.claims.items() if content is None]
        if kept:
            entities, ids, contents = zip(*kept, strict=True)
            execute(_SET_CLAIMS, [Integers(entities), Blobs(ids), Blobs(contents)])
        if gone:
            entities, ids = zip(*gone, strict=True)
            execute(_DELETE_CLAIMS, [Integers(entities), Blobs(ids)])
    if section.session_states:
        states = [(*name, state, at) for name, (state, at) in section.session_states.items() if state is not None]
        for piece in _pieces(states, lambda row: len(row[2])):
            entities, names, values, times = zip(*piece, strict=True)
            execute(_SET_SESSIONS, [Integers(entities), Blobs(names), Blobs(values), Integers(times)])
        cleared = [name for name, (state, _) in section.session_states.items() if state is None]
        if cleared:
            entities, names = zip(*cleared, strict=True)
            execute(_DELETE_SESSIONS, [Integers(entities), Blobs(names)])
    if section.seen:
        execute(_SEE, [Integers(list(section.seen)), Blobs([b"".join(keys) for keys in section.seen.values()])])
    if section.forgotten:
        firsts = [first_key(entity) for entity in section.forgotten]
        execute(_FORGET, [Integers(firsts), Integers(list(section.forgotten.values()))])
    if section.deltas:
        columns = [Integers([getattr(each, name) for each in section.deltas.values()]) for name in _COUNTERS]
        execute(_ADD_DELTAS, [Integers(list(section.deltas)), *columns])
    if section.dropped:
        for statement in _DROP:
            execute(statement, [Integers(section.dropped)])


def _insert(execute: Execute, rows: Sequence[Row]) -> None:
    columns = list(zip(*rows, strict=True))
    chosen = [
        (name, make, values)
        for at, ((name, make), values) in enumerate(zip(_COLUMNS, columns, strict=True))
        if at < _REQUIRED or values.count(_DEFAULTS.get(name)) < len(rows)
    ]
    arrays = ", ".join("%s::bytea[]" if make is Blobs else "%s::bigint[]" for _, make, _ in chosen)
    execute(
        f"INSERT INTO message ({', '.join(name for name, _, _ in chosen)}) SELECT * FROM unnest({arrays})",
        [make(values) for _, make, values in chosen],
    )


def _insert_bodies(execute: Execute, section: Section) -> None:
    """Insert the bodies that appended messages still need: others may have been removed in the same section."""
    needed = {row[9] for row in section.appends.values()}
    bodies = [(key, data) for key, data in section.bodies.items() if key in needed]
    for piece in _pieces(bodies, lambda row: len(row[1])):
        keys, contents = zip(*piece, strict=True)
        execute(_INSERT_BODIES, [Integers(keys), Blobs(contents)])


def _delete(execute: Execute, keys: list[int]) -> None:
    firsts, lasts = runs_of(keys)
    if len(firsts) * _FEW_RUNS <= len(keys):
        execute(_DELETE_RANGES, [Integers(firsts), Integers(lasts)])
    else:
        execute(_DELETE, [Integers(keys)])


def _run_parameters(runs: list[tuple[int, ...]]) -> dict[str, Integers]:
    names = ("first", "last", "before", "after")
    return {name: Integers(column) for name, column in zip(names, zip(*runs, strict=True), strict=False)}


def _row_size(row: Row) -> int:
    return len(row[2])


def _pieces(items: Iterable[_Item], size_of: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Divide the items among statements of limited size."""
    rest = iter(items)
    while chunk := list(islice(rest, _PIECE_ROWS)):
        piece: list[_Item] = []
        size = 0
        for item in chunk:
            piece.append(item)
            size += size_of(item)
            if size >= _PIECE_BYTES:
                yield piece
                piece, size = [], 0
        if piece:
            yield piece
