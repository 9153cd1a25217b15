"""The questions that the reading side of a SQLite store asks, as SQL, and what shape their answers have.

As for the writer, every return from SQLite to Python may wait for a busy event loop, and a cursor returns
once a row. So a chunk of messages comes as one row: each column's values joined by commas, the payloads by
nothing at all, and JSON only for what few messages have.
"""

from __future__ import annotations

from typing import NamedTuple

from .base import ACTIVE, SCHEDULED
from .sqlite_schema import MAX_NUMBER, NUMBER_BITS

CHUNK_ROWS = 512
"""The most that an answer takes together."""

STATE_BITS = 2
"""The state of a message comes in the low bits of its length."""

_ENTITY_EXISTS = "EXISTS (SELECT 1 FROM entity WHERE id = :entity)"
"""The messages of a dropped entity are deleted later."""

_IS_RICH = " OR ".join(
    f"{column} IS NOT {default}"
    for column, default in {
        "expires_at": "NULL",
        "delivery_count": "0",
        "session_id": "NULL",
        "due_at": "NULL",
        "annex": "NULL",
    }.items()
)

_SIZE = """iif(
    message.body IS NULL,
    length(payload),
    (length(payload) + coalesce((SELECT length(data) FROM body WHERE body.key = message.body), 0))
        || ':' || message.body
)"""
"""Of a message with a body: how long it is with that, and the body's key."""


def _joined(blobs: str) -> str:
    """A text keeps any bytes; the aggregate that joins texts has no sibling for blobs."""
    return f"CAST(group_concat(CAST({blobs} AS TEXT), '') AS BLOB)"


class Query(NamedTuple):
    """A question in two steps: how long the next messages are, and which bodies they have, and then as many of them as
    there is room for."""

    sizes: str
    messages: str


def _make_query(place: str, index: str, condition: str) -> Query:
    def chosen(columns: str) -> str:
        return f"""(
            SELECT {columns} FROM message {index}
            WHERE {condition} AND {_ENTITY_EXISTS}
            ORDER BY {place}, key LIMIT :rows OFFSET :offset
        )"""

    messages = f"""
        SELECT
            group_concat(key & {MAX_NUMBER}),
            group_concat(length(payload) << {STATE_BITS} | state),
            group_concat(enqueued_at),
            json_group_array(json_array(
                key & {MAX_NUMBER}, expires_at, delivery_count, session_id, due_at,
                iif(annex IS NULL, NULL, hex(annex))
            )) FILTER (WHERE {_IS_RICH}),
            {_joined("payload")}
        FROM {chosen("*")}
    """
    return Query(f"SELECT group_concat(size) FROM {chosen(f'{_SIZE} AS size')}", messages)


def _range_query(condition: str, index: str) -> Query:
    """The index is named so that no guess of the query planner can turn a read into a scan."""
    return _make_query("key", index, f"key > :after AND key <= :through AND {condition}")


BY_NUMBER = _range_query("true", "NOT INDEXED")
ACTIVE_BY_NUMBER = _range_query("state = 0", "NOT INDEXED")
BY_STATE = _range_query("state = :state AND state <> 0", "INDEXED BY message_state")

_OF_ENTITY = f"key >> {NUMBER_BITS} = :entity"
_OF_SESSION = f"{_OF_ENTITY} AND session_id = :session_id"
BY_SESSION = _range_query(_OF_SESSION, "INDEXED BY message_session")
BY_SESSION_AND_STATE = _range_query(f"{_OF_SESSION} AND state = :state", "INDEXED BY message_session")

BY_KEYS = _make_query("key", "NOT INDEXED", "key IN (SELECT value FROM json_each(:keys) WHERE value > :after)")


class TimedQuery(NamedTuple):
    """Messages of one state whose time has come, and the time that comes after that many of them."""

    past: Query
    following: str


def _timed_query(time: str, state: int, index: str) -> TimedQuery:
    timed = f"{_OF_ENTITY} AND {time} IS NOT NULL AND state = {state}"
    return TimedQuery(
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

BODIES = f"""
    SELECT group_concat(key), group_concat(length(data)), {_joined("data")}
    FROM body WHERE key IN (SELECT value FROM json_each(:keys))
"""
SEEN = f"""
    SELECT group_concat(key & {MAX_NUMBER}), group_concat(length(seen)), {_joined("seen")}
    FROM (
        SELECT key, seen FROM history
        WHERE key >= :since AND key <= :through AND {_ENTITY_EXISTS}
        ORDER BY key LIMIT {CHUNK_ROWS}
    )
"""
