"""The SQL queries of the reader. Each fits exactly one index of `schema`."""

from __future__ import annotations

from typing import Final, NamedTuple

from ..base import ACTIVE, CLAIMED, SCHEDULED, Range
from .schema import ENTITY, IN_STATE_INDEX, NUMBER

CHUNK_ROWS: Final = 2000
"""The most messages that one query returns."""

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""The bytes after which a query returns no further message."""

RUN_ROWS: Final = 20_000
"""The most messages of a query that returns only runs."""

FENCE: Final = "SELECT epoch, last_commit FROM fence"

_ENTITY_EXISTS: Final = "EXISTS (SELECT FROM entity WHERE id = %(entity)s)"
"""Excludes the messages of dropped entities, which are deleted later."""

_SIZE: Final = "octet_length(payload) + coalesce(body_size, 0)"
_READ_SIZE: Final = f"{_SIZE} + coalesce(octet_length(annex), 0)"

_LARGE_STATES: Final = (ACTIVE, CLAIMED)
"""States that many messages have; they are in no index."""


def _messages(condition: str, order: str, alias: str) -> str:
    """Query messages in this order, up to the one that reaches %(room)s bytes. `alias` names the order's columns."""
    return f"""
        SELECT number, payload, enqueued_at, state, session_id, annex, expires_at, delivery_count, due_at,
            body, body_size
        FROM (
            SELECT *, sum({_READ_SIZE}) OVER (ORDER BY {alias} ROWS UNBOUNDED PRECEDING) - ({_READ_SIZE}) AS size_before
            FROM (
                SELECT *, {NUMBER} AS number FROM message
                WHERE {condition} AND {_ENTITY_EXISTS}
                ORDER BY {order} LIMIT %(rows)s
            ) AS message
        ) AS message
        WHERE size_before < %(room)s
        ORDER BY {alias}
    """


_BY_KEY: Final = "key > %(after_key)s AND key <= %(through_key)s"
_BY_NUMBER: Final = f"{ENTITY} = %(entity)s AND {NUMBER} > %(after)s AND {NUMBER} <= %(through)s"
_OF_SESSION: Final = "session_id IS NOT NULL AND session_id = %(session_id)s"
_OF_STATE: Final = "state = %(state)s"


class _Condition(NamedTuple):
    text: str
    order: str
    alias: str


def _condition(wanted: Range) -> _Condition:
    if wanted.session_id is not None:
        of_state = "" if wanted.state is None else f" AND {_OF_STATE}"
        return _Condition(f"{_BY_NUMBER} AND {_OF_SESSION}{of_state}", NUMBER, "number")
    if wanted.state is None:
        return _Condition(_BY_KEY, "key", "key")
    if wanted.state in _LARGE_STATES:
        return _Condition(f"{_BY_KEY} AND {_OF_STATE}", "key", "key")
    return _Condition(f"{_BY_NUMBER} AND {_OF_STATE} AND {IN_STATE_INDEX}", NUMBER, "number")


def by_range(wanted: Range) -> str:
    return _messages(*_condition(wanted))


BY_KEYS: Final = _messages("key = ANY(%(keys)s::bigint[])", "key", "key")


def runs(wanted: Range, *, has_excluded: bool) -> str:
    """Query the runs among the next %(rows)s messages: first and last number, size, number of messages.

    The result ends with the message that reaches %(room)s bytes.
    """
    condition, order, alias = _condition(wanted)
    excluded = f"""
        AND NOT EXISTS (SELECT FROM unnest(%(excluded)s::bigint[]) AS row (number) WHERE row.number = {NUMBER})
    """
    return f"""
        SELECT min(number), max(number), sum(size)::bigint, count(*)
        FROM (
            SELECT number, size, number - row_number() OVER (ORDER BY {alias}) AS run,
                sum(size) OVER (ORDER BY {alias} ROWS UNBOUNDED PRECEDING) - size AS size_before
            FROM (
                SELECT key, {NUMBER} AS number, {_SIZE} AS size FROM message
                WHERE {condition} AND (expires_at IS NULL OR expires_at > %(now)s) AND {_ENTITY_EXISTS}
                {excluded if has_excluded else ""}
                ORDER BY {order} LIMIT %(rows)s
            ) AS message
        ) AS message
        WHERE size_before < %(room)s
        GROUP BY run ORDER BY 1
    """


class Timed(NamedTuple):
    """Queries for messages of one state ordered by a time."""

    past: str
    """Returns the messages whose time is not after now."""
    following: str
    """Returns the time of the next message after a position."""


def _timed(time: str, state: int) -> Timed:
    after = f"({time}, {NUMBER}) > (%(after_time)s, %(after)s)"
    condition = f"{ENTITY} = %(entity)s AND {time} IS NOT NULL AND state = {state} AND {after}"
    return Timed(
        _messages(f"{condition} AND {time} <= %(now)s", f"{time}, {NUMBER}", f"{time}, number"),
        f"""
            SELECT {time} FROM message WHERE {condition} AND {_ENTITY_EXISTS}
            ORDER BY {time}, {NUMBER} LIMIT 1
        """,
    )


EXPIRED: Final = _timed("expires_at", ACTIVE)
DUE: Final = _timed("due_at", SCHEDULED)

_WITH_ACTIVE: Final = f"""
    FROM message WHERE {ENTITY} = %(entity)s AND session_id IS NOT NULL AND state = 0 AND {_ENTITY_EXISTS}
"""
SESSION_COUNTS: Final = f"SELECT session_id, count(*) {_WITH_ACTIVE} GROUP BY session_id ORDER BY min(key)"
SESSION_STATE_SIZES: Final = f"""
    SELECT session_id, octet_length(state) FROM session WHERE entity = %(entity)s AND {_ENTITY_EXISTS}
"""
SESSION_STATE: Final = f"""
    SELECT state FROM session WHERE entity = %(entity)s AND session_id = %(session_id)s AND {_ENTITY_EXISTS}
"""
SESSIONS: Final = f"""
    SELECT session_id {_WITH_ACTIVE}
    UNION
    SELECT session_id FROM session WHERE entity = %(entity)s AND {_ENTITY_EXISTS}
    ORDER BY session_id LIMIT %(top)s OFFSET %(skip)s
"""
UPDATED_SESSIONS: Final = f"""
    SELECT session_id FROM session
    WHERE entity = %(entity)s AND updated_at > %(updated_after)s AND {_ENTITY_EXISTS}
    ORDER BY session_id LIMIT %(top)s OFFSET %(skip)s
"""

BODIES: Final = "SELECT key, data FROM body WHERE key = ANY(%(keys)s::bigint[])"
SEEN: Final = f"""
    SELECT key, seen FROM history WHERE key >= %(first)s AND key <= %(last)s AND {_ENTITY_EXISTS}
    ORDER BY key LIMIT {CHUNK_ROWS}
"""

ENTITIES: Final = """
    SELECT id, path, kind, definition,
        last_sequence_number, active, deferred, scheduled, size_in_bytes, damaged, claimed
    FROM entity ORDER BY id
"""
CLAIMS: Final = "SELECT entity, id, content FROM claim WHERE entity IN (SELECT id FROM entity)"
HIGHEST_BODY: Final = "SELECT coalesce(max(key), 0) FROM body"
DROPPED: Final = "SELECT id FROM dropped_entity"
