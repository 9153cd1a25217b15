"""The SQL queries of the reader.

Every return from SQLite to Python may wait for the GIL while the event loop is busy, and a cursor returns once for each
row. So a query returns a chunk of messages as one row: each column's values joined by commas, and JSON only for columns
that few messages use. Payloads are returned as segments and places in the log. Damaged messages are left out.
"""

from __future__ import annotations

from typing import NamedTuple

from ...base import ACTIVE, CLAIMED, DAMAGED, SCHEDULED
from ..keys import LENGTH_MASK, MAX_NUMBER, NUMBER_BITS
from .schema import IN_STATE_INDEX

CHUNK_ROWS = 512
"""The most messages that one query returns."""

RUN_ROWS = 4096
"""The most messages of a query that returns only keys and sizes."""

_ENTITY_EXISTS = "EXISTS (SELECT 1 FROM entity WHERE id = :entity)"
"""Excludes the messages of dropped entities, which are deleted later."""

_IS_SOUND = f"state <> {DAMAGED}"

_HAS_EXTRAS = " OR ".join(
    f"{column} IS NOT {default}"
    for column, default in {
        "state": ":default_state",
        "expires_at": "NULL",
        "delivery_count": "0",
        "session_id": "NULL",
        "due_at": "NULL",
        "coalesce(annex, :common_annex)": ":common_annex",
        "message.body": "NULL",
    }.items()
)
"""Selects messages with columns that differ from the defaults. The common annex is one that many messages have; it is
not returned for each of them."""

_BODY_LENGTH = f"(SELECT place & {LENGTH_MASK} FROM body WHERE body.key = message.body)"


def _joined(blobs: str) -> str:
    """Concatenate blobs. SQLite has an aggregate for texts only; a text may contain any bytes."""
    return f"CAST(group_concat(CAST({blobs} AS TEXT), '') AS BLOB)"


def _make_query(place: str, index: str, condition: str) -> str:
    return f"""
        SELECT
            count(*),
            group_concat(key & {MAX_NUMBER}),
            group_concat(enqueued_at),
            min(segment),
            max(segment),
            group_concat(segment),
            group_concat(place),
            json_group_array(json_array(
                key & {MAX_NUMBER}, state, expires_at, delivery_count, session_id, due_at,
                length(annex), message.body, {_BODY_LENGTH}
            )) FILTER (WHERE {_HAS_EXTRAS}),
            group_concat(key & {MAX_NUMBER}) FILTER (WHERE annex = :common_annex)
        FROM (
            SELECT * FROM message {index}
            WHERE {condition} AND {_ENTITY_EXISTS}
            ORDER BY {place}, key LIMIT :rows OFFSET :offset
        ) AS message
    """


def _range_query(condition: str, index: str) -> str:
    """Query a range of keys. The index is named, so that the query planner never chooses a full scan."""
    return _make_query("key", index, f"key > :after AND key <= :through AND {condition}")


BY_NUMBER = _range_query(_IS_SOUND, "NOT INDEXED")
IN_LARGE_STATE = _range_query("state = :state", "NOT INDEXED")
"""For a state that many messages have; it is in no index."""
IN_SMALL_STATE = _range_query(f"state = :state AND {IN_STATE_INDEX}", "INDEXED BY message_state")

_OF_ENTITY = f"key >> {NUMBER_BITS} = :entity"
_OF_SESSION = f"{_OF_ENTITY} AND session_id = :session_id"
BY_SESSION = _range_query(f"{_OF_SESSION} AND {_IS_SOUND}", "INDEXED BY message_session")
BY_SESSION_AND_STATE = _range_query(f"{_OF_SESSION} AND state = :state", "INDEXED BY message_session")

LARGE_STATES = (ACTIVE, CLAIMED)

BY_KEYS = _make_query(
    "key", "NOT INDEXED", f"key IN (SELECT value FROM json_each(:keys) WHERE value > :after) AND {_IS_SOUND}"
)


_SIZE = f"(place & {LENGTH_MASK}) + CASE WHEN body IS NULL THEN 0 ELSE {_BODY_LENGTH} END"


class RunsQuery(NamedTuple):
    """Two queries for the same messages of one state, in order."""

    together: str
    """Returns their number, the first and the last key, and the total size."""
    each: str
    """Returns the keys and sizes."""


def _runs_query(condition: str, index: str) -> RunsQuery:
    rows = f"""
        FROM (
            SELECT key, {_SIZE} AS size FROM message {index}
            WHERE key > :after AND key <= :through AND state = :state AND {condition}
                AND (expires_at IS NULL OR expires_at > :now) AND {_ENTITY_EXISTS}
            ORDER BY key LIMIT :rows
        )
    """
    return RunsQuery(
        f"SELECT count(*), min(key), max(key), total(size) {rows}",
        f"SELECT group_concat(key), group_concat(size) {rows}",
    )


RUNS_IN_LARGE_STATE = _runs_query("true", "NOT INDEXED")
RUNS_IN_SMALL_STATE = _runs_query(IN_STATE_INDEX, "INDEXED BY message_state")
RUNS_OF_SESSION = _runs_query(_OF_SESSION, "INDEXED BY message_session")


class TimedQuery(NamedTuple):
    """Queries for messages of one state ordered by a time."""

    state: int
    past: str
    """Returns the messages whose time is not after now."""
    following: str
    """Returns the time of the message after the ones that were returned."""


def _timed_query(time: str, state: int, index: str) -> TimedQuery:
    behind = f"({time}, key) > (:behind, :behind_key)"
    timed = f"{_OF_ENTITY} AND {time} IS NOT NULL AND state = {state} AND {behind}"
    return TimedQuery(
        state,
        _make_query(time, f"INDEXED BY {index}", f"{timed} AND {time} <= :now"),
        f"""
            SELECT {time} FROM message INDEXED BY {index}
            WHERE {timed} AND {_ENTITY_EXISTS}
            ORDER BY {time}, key LIMIT 1 OFFSET :offset
        """,
    )


EXPIRED = _timed_query("expires_at", ACTIVE, "message_expiry")
DUE = _timed_query("due_at", SCHEDULED, "message_due")

_WITH_ACTIVE = f"""
    FROM message INDEXED BY message_session
    WHERE {_OF_ENTITY} AND session_id IS NOT NULL AND state = 0 AND {_ENTITY_EXISTS}
"""
# LIMIT -1 does not limit, but makes SQLite keep the order for the aggregates.
SESSION_COUNTS = f"""
    SELECT json_group_array(session_id), group_concat(count)
    FROM (SELECT session_id, count(*) AS count {_WITH_ACTIVE} GROUP BY session_id ORDER BY min(key) LIMIT -1)
"""
SESSION_STATE_SIZES = f"""
    SELECT json_group_array(session_id), group_concat(length(state))
    FROM session WHERE entity = :entity AND {_ENTITY_EXISTS}
"""
SESSION_STATE = f"""
    SELECT state FROM session WHERE entity = :entity AND session_id = :session_id AND {_ENTITY_EXISTS}
"""
SESSIONS = f"""
    SELECT json_group_array(session_id) FROM (
        SELECT session_id {_WITH_ACTIVE}
        UNION
        SELECT session_id FROM session WHERE entity = :entity AND {_ENTITY_EXISTS}
        ORDER BY session_id LIMIT :top OFFSET :skip
    )
"""
UPDATED_SESSIONS = f"""
    SELECT json_group_array(session_id) FROM (
        SELECT session_id FROM session
        WHERE entity = :entity AND updated_at > :updated_after AND {_ENTITY_EXISTS}
        ORDER BY session_id LIMIT :top OFFSET :skip
    )
"""

ANNEXES = f"""
    SELECT json_group_array(json_array(key & {MAX_NUMBER}, hex(annex)))
    FROM message WHERE key IN (SELECT value FROM json_each(:keys))
"""
"""Returns the annexes of messages that will be returned. A query of its own, because annexes may be long."""

ANY_EXISTS = f"""
    SELECT EXISTS (
        SELECT 1 FROM message
        WHERE key IN (SELECT value FROM json_each(:keys)) AND key >> {NUMBER_BITS} IN (SELECT id FROM entity)
    )
"""
"""Returns whether a message has one of the keys. Ignores messages of dropped entities: a new entity with the same id
uses the same sequence numbers again."""

BODIES = """
    SELECT group_concat(key), group_concat(segment), group_concat(place)
    FROM (SELECT * FROM body WHERE key IN (SELECT value FROM json_each(:keys)) ORDER BY key)
"""
SEEN = f"""
    SELECT group_concat(key & {MAX_NUMBER}), group_concat(length(seen)), {_joined("seen")}
    FROM (
        SELECT key, seen FROM history
        WHERE key >= :since AND key <= :through AND {_ENTITY_EXISTS}
        ORDER BY key LIMIT {CHUNK_ROWS}
    )
"""
