"""The questions that the reading side of the index asks, as SQL, and what shape their answers have.

As for the writer, every return from SQLite to Python may wait for a busy event loop, and a cursor returns
once a row. So a chunk of messages comes as one row: each column's values joined by commas, and JSON only for what few
messages have. Payloads come as their segments and places in the log. Messages known to be damaged are left out.
"""

from __future__ import annotations

from typing import NamedTuple

from ...base import ACTIVE, CLAIMED, DAMAGED, SCHEDULED
from ..keys import LENGTH_MASK, MAX_NUMBER, NUMBER_BITS
from .schema import IN_STATE_INDEX

CHUNK_ROWS = 512
"""The most that an answer takes together."""

RUN_ROWS = 4096
"""The same where nothing but keys and sizes are read."""

_ENTITY_EXISTS = "EXISTS (SELECT 1 FROM entity WHERE id = :entity)"
"""The messages of a dropped entity are deleted later."""

_IS_SOUND = f"state <> {DAMAGED}"

_IS_RICH = " OR ".join(
    f"{column} IS NOT {default}"
    for column, default in {
        "state": ":usual_state",
        "expires_at": "NULL",
        "delivery_count": "0",
        "session_id": "NULL",
        "due_at": "NULL",
        "coalesce(annex, :usual_annex)": ":usual_annex",
        "message.body": "NULL",
    }.items()
)
"""The usual annex is one that many messages have: it is not told for each of them."""

_BODY_LENGTH = f"(SELECT place & {LENGTH_MASK} FROM body WHERE body.key = message.body)"


def _joined(blobs: str) -> str:
    """A text keeps any bytes; the aggregate that joins texts has no sibling for blobs."""
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
            )) FILTER (WHERE {_IS_RICH}),
            group_concat(key & {MAX_NUMBER}) FILTER (WHERE annex = :usual_annex)
        FROM (
            SELECT * FROM message {index}
            WHERE {condition} AND {_ENTITY_EXISTS}
            ORDER BY {place}, key LIMIT :rows OFFSET :offset
        ) AS message
    """


def _range_query(condition: str, index: str) -> str:
    """The index is named so that no guess of the query planner can turn a read into a scan."""
    return _make_query("key", index, f"key > :after AND key <= :through AND {condition}")


BY_NUMBER = _range_query(_IS_SOUND, "NOT INDEXED")
IN_LARGE_STATE = _range_query("state = :state", "NOT INDEXED")
"""For a state that many messages are in, and that no index has."""
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
    """Some messages of one state, in order: what is known of them together, and of each."""

    together: str
    """How many, first and last key, size."""
    each: str
    """Keys and sizes."""


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
    """Messages of one state whose time has come, and the time that comes after that many of them."""

    state: int
    past: str
    following: str


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
# The limit is none, but with one SQLite is bound to keep the order for the aggregates.
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
"""Of messages that have one and are part of an answer: they may be long."""

ANY_EXISTS = f"""
    SELECT EXISTS (
        SELECT 1 FROM message
        WHERE key IN (SELECT value FROM json_each(:keys)) AND key >> {NUMBER_BITS} IN (SELECT id FROM entity)
    )
"""
"""Not by what a dropped entity left: if its id comes again, the messages of the new one have these numbers too."""

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
