"""The check of every message's bytes in the log, and of the index's consistency."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...base import ACTIVE, CLAIMED, DAMAGED, DEFERRED, SCHEDULED, StoreError
from ..commits.record import parameters_of
from ..keys import LENGTH_BITS, LENGTH_MASK, NUMBER_BITS
from ..log.segments import Segments
from .findings import Finding, Kind, Progress, damaged_message
from .salvage import Readable

_ROWS: Final = 512
"""How many payloads are read at once."""

_PATHS: Final = "SELECT id, path FROM entity"
_DROPPED: Final = "(SELECT id FROM dropped_entity)"
_IS_KEPT: Final = f"key >> {NUMBER_BITS} NOT IN {_DROPPED}"
_MARKED: Final = f"SELECT key, segment, place FROM message WHERE state = {DAMAGED} AND {_IS_KEPT}"
_LOCATED: Final = f"""
    SELECT segment, place, key, NULL FROM message WHERE state <> {DAMAGED} AND {_IS_KEPT}
    UNION ALL
    SELECT segment, place, NULL, key FROM body
    ORDER BY 1, 2
"""
_SHARING: Final = f"SELECT key FROM message WHERE body = ? AND state <> {DAMAGED} AND {_IS_KEPT}"
_WITHOUT_BODY: Final = f"""
    SELECT key, segment, place FROM message
    WHERE body IS NOT NULL AND body NOT IN (SELECT key FROM body) AND state <> {DAMAGED} AND {_IS_KEPT}
"""
_WITHOUT_ENTITY: Final = f"""
    SELECT key, segment, place FROM message
    WHERE key >> {NUMBER_BITS} NOT IN (SELECT id FROM entity UNION ALL SELECT id FROM dropped_entity)
"""
_WITHOUT_EXTENT: Final = f"""
    SELECT count(*) FROM message WHERE NOT EXISTS (
        SELECT 1 FROM extent
        WHERE extent.segment = message.segment AND entity = message.key >> {NUMBER_BITS}
            AND message.key BETWEEN first_key AND last_key
    )
"""
_COUNTS: Final = f"""
    SELECT message.key >> {NUMBER_BITS}, state, count(*),
        sum((message.place & {LENGTH_MASK}) + coalesce(body.place & {LENGTH_MASK}, 0))
    FROM message LEFT JOIN body ON body.key = message.body
    GROUP BY 1, 2
"""
_STATES: Final = {
    ACTIVE: "active",
    DEFERRED: "deferred",
    SCHEDULED: "scheduled",
    DAMAGED: "damaged",
    CLAIMED: "claimed",
}
_COUNTERS: Final = f"SELECT id, path, size_in_bytes, {', '.join(_STATES.values())} FROM entity"


class Totals(NamedTuple):
    """How much there is to check."""

    messages: int
    steps: int
    """The number of payloads and bodies to read."""


def count(connection: sqlite3.Connection) -> Totals:
    """Count the messages and bodies in the index. Raise sqlite3.Error."""
    (messages,) = connection.execute("SELECT count(*) FROM message").fetchone()
    (bodies,) = connection.execute("SELECT count(*) FROM body").fetchone()
    return Totals(messages, messages + bodies)


def damaged_messages(connection: sqlite3.Connection, segments: Segments, progress: Progress) -> Iterator[Finding]:
    """Find the messages that cannot be delivered, including the ones that a broker has already found damaged.

    Raise sqlite3.Error or StoreError.
    """
    paths = dict(connection.execute(_PATHS).fetchall())
    for query, text in (
        (_MARKED, "A broker found this message damaged."),
        (_WITHOUT_BODY, "The shared body of this message is missing."),
        (_WITHOUT_ENTITY, "The entity of this message does not exist."),
    ):
        for key, number, place in connection.execute(query).fetchall():
            yield damaged_message(
                key, segments.path(number), text, path=paths.get(key >> NUMBER_BITS), offset=place >> LENGTH_BITS
            )
    total = count(connection).steps
    cursor = connection.execute(_LOCATED)
    while rows := cursor.fetchmany(_ROWS):
        progress("Reading messages", len(rows), total)
        for (number, place, key, body), is_sound in zip(rows, _are_sound(segments, rows), strict=True):
            if is_sound:
                continue
            keys = [key] if body is None else [each for (each,) in connection.execute(_SHARING, (body,))]
            for each in keys:
                yield damaged_message(
                    each,
                    segments.path(number),
                    f"{'The payload' if body is None else 'The shared body'} at offset {place >> LENGTH_BITS} "
                    f"({place & LENGTH_MASK} bytes) is damaged or missing.",
                    path=paths.get(each >> NUMBER_BITS),
                    offset=place >> LENGTH_BITS,
                )


def damaged_unapplied(records: list[Readable], segments: Segments, paths: dict[int, str]) -> Iterator[Finding]:
    """Find damaged messages in records that are not applied to the index yet."""
    for record in records:
        if record.is_sound:
            continue
        for key, number, place in _located(parameters_of(record.end)):
            if not next(_are_sound(segments, [(number, place)])):
                text = (
                    f"The payload at offset {place >> LENGTH_BITS} ({place & LENGTH_MASK} bytes) is damaged or missing."
                )
                file, offset = segments.path(number), place >> LENGTH_BITS
                if key is None:
                    yield Finding(kind=Kind.MESSAGE, file=file, offset=offset, commit=record.commit, text=text)
                else:
                    path = paths.get(key >> NUMBER_BITS)
                    yield damaged_message(key, file, text, path=path, offset=offset, commit=record.commit)


def contradictions(connection: sqlite3.Connection, file: Path) -> Iterator[Finding]:
    """Check the database with SQLite, and extents and counters against the messages. Raise sqlite3.Error."""
    for (sentence,) in connection.execute("PRAGMA integrity_check(20)"):
        if sentence != "ok":
            yield Finding(kind=Kind.INDEX, file=file, text=f"SQLite: {sentence}.")
    (uncovered,) = connection.execute(_WITHOUT_EXTENT).fetchone()
    if uncovered:
        text = f"{uncovered} messages are in segments that the broker could free, because no extent includes them."
        yield Finding(kind=Kind.INDEX, file=file, text=text)
    counted: dict[int, dict[str, int]] = {}
    sizes: dict[int, int] = {}
    for entity, state, number, size in connection.execute(_COUNTS):
        counted.setdefault(entity, {})[_STATES.get(state, "")] = number
        sizes[entity] = sizes.get(entity, 0) + size
    for entity, path, size, *counters in connection.execute(_COUNTERS):
        found = counted.get(entity, {})
        for state, counter in zip(_STATES.values(), counters, strict=True):
            if found.get(state, 0) != counter:
                text = f"{path} counts {counter} {state} messages, but has {found.get(state, 0)}."
                yield Finding(kind=Kind.INDEX, file=file, entity=entity, path=path, text=text)
        if sizes.get(entity, 0) != size:
            text = f"{path} counts {size} bytes, but its messages have {sizes.get(entity, 0)}."
            yield Finding(kind=Kind.INDEX, file=file, entity=entity, path=path, text=text)


def _are_sound(segments: Segments, rows: list[Any]) -> Iterator[bool]:
    """Verify the payloads of rows that begin with segment and place."""
    at = 0
    while at < len(rows):
        number, first = rows[at][0], at
        while at < len(rows) and rows[at][0] == number:
            at += 1
        try:
            yield from [each is not None for each in segments.read(number, [row[1] for row in rows[first:at]])]
        except StoreError:  # the segment is missing
            yield from [False] * (at - first)


def _located(parameters: dict[str, Any]) -> Iterator[tuple[int | None, int, int]]:
    """Yield key, segment and place of each message in a record, and the same of each shared body, with None as key."""

    def rows(section: str) -> list[Any]:
        value = parameters[section]
        return [] if value is None else json.loads(value)

    for section in ("appends", "rewrites"):
        for first, *_, segment, places in rows(section):
            for at, place in enumerate(places):
                yield first + at, segment, place
    for *_, segment, copies in rows("copies"):
        for key, place, _ in copies:
            yield key, segment, place
    for key, _, segment, place in rows("moves"):
        yield key, segment, place
    for _, segment, place in rows("bodies"):
        yield None, segment, place
    for _, _, segment, place in rows("body_moves"):
        yield None, segment, place
