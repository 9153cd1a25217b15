"""The tables of the index.

A message's rowid is its key (`keys`): messages of one entity lie together, in order, in one B-tree, and appending goes
to a page that is in the cache. All indexes are partial, so that a plain message (active, without session, expiry and
shared body) is in none of them.

`PRAGMA user_version` is the version of the disk format, `application_id` says whose file it is.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from ...base import StoreError
from ..keys import NUMBER_BITS

APPLICATION_ID: Final = 0x506B4C6B  # "PkLk"

VERSION: Final = 1

PAGE_SIZE: Final = 8192
"""4096 appends a quarter slower; 16384 doubles what a small commit writes for a tenth more in large ones."""

IN_STATE_INDEX: Final = "state <> 0 AND state <> 4"
"""Repeated by each query that is to use the index of states. Claimed messages are not in it: they lie together and are
found by their keys."""

# Space that messages leave behind stays in the file's free list and is used again. auto_vacuum would give it
# back to the file system, but its pointer map costs every append and removal about a sixth.
_TABLES: Final = (
    """
    CREATE TABLE entity (
        id INTEGER PRIMARY KEY,
        path TEXT NOT NULL,
        kind TEXT NOT NULL,
        last_sequence_number INTEGER NOT NULL,
        active INTEGER NOT NULL,
        deferred INTEGER NOT NULL,
        scheduled INTEGER NOT NULL,
        damaged INTEGER NOT NULL,
        claimed INTEGER NOT NULL,
        size_in_bytes INTEGER NOT NULL,
        definition TEXT NOT NULL
    ) STRICT
    """,
    # The payload is in this segment of the log, at this place.
    """
    CREATE TABLE message (
        key INTEGER PRIMARY KEY,
        segment INTEGER NOT NULL,
        place INTEGER NOT NULL,
        enqueued_at INTEGER NOT NULL,
        expires_at INTEGER,
        delivery_count INTEGER NOT NULL DEFAULT 0,
        state INTEGER NOT NULL DEFAULT 0,
        session_id TEXT,
        due_at INTEGER,
        annex BLOB,
        body INTEGER
    ) STRICT
    """,
    f"""
    CREATE INDEX message_expiry ON message (key >> {NUMBER_BITS}, expires_at)
    WHERE expires_at IS NOT NULL AND state = 0
    """,
    f"CREATE INDEX message_state ON message (state) WHERE {IN_STATE_INDEX}",
    # With the key before the state, so that a session is read in order in any state or in one; and with the state, so
    # that sessions are counted and listed without a look at their messages.
    f"""
    CREATE INDEX message_session ON message (key >> {NUMBER_BITS}, session_id, key, state)
    WHERE session_id IS NOT NULL
    """,
    f"""
    CREATE INDEX message_due ON message (key >> {NUMBER_BITS}, due_at)
    WHERE due_at IS NOT NULL AND state = 2
    """,
    # What says whether a body is still needed. A count beside it would be one more thing that can be wrong.
    "CREATE INDEX message_body ON message (body) WHERE body IS NOT NULL",
    "CREATE TABLE body (key INTEGER PRIMARY KEY, segment INTEGER NOT NULL, place INTEGER NOT NULL) STRICT",
    "CREATE INDEX body_segment ON body (segment)",
    # What is kept of a claim is opaque; which messages it has is in there, and in their state.
    """
    CREATE TABLE claim (
        entity INTEGER NOT NULL,
        id BLOB NOT NULL,
        content BLOB NOT NULL,
        PRIMARY KEY (entity, id)
    ) STRICT
    """,
    # States may be long, so they are not in the B-tree that sessions are listed from, and are set again without
    # touching it.
    """
    CREATE TABLE session (
        id INTEGER PRIMARY KEY,
        entity INTEGER NOT NULL,
        session_id TEXT NOT NULL,
        updated_at INTEGER NOT NULL,
        state BLOB NOT NULL,
        UNIQUE (entity, session_id)
    ) STRICT
    """,
    # The rowid is the entity's id and the time, in bits as for messages, and a row has all keys of that millisecond one
    # after the other: a row a key is written seven times slower where there are many.
    "CREATE TABLE history (key INTEGER PRIMARY KEY, seen BLOB NOT NULL) STRICT",
    # Entities that are gone, while their messages are still being deleted a few at a time.
    "CREATE TABLE dropped_entity (id INTEGER PRIMARY KEY) STRICT",
    # How far the log is applied, and how many checkpoints there were before: `pages` compares that with the checksums.
    """
    CREATE TABLE log (
        segment INTEGER NOT NULL,
        "offset" INTEGER NOT NULL,
        "commit" INTEGER NOT NULL,
        generation INTEGER NOT NULL
    ) STRICT
    """,
    "INSERT INTO log VALUES (0, 0, 0, 0)",
    # Where the last record that was applied of each segment begins and ends, by which a start knows that the segment is
    # the one that was applied, and whole.
    """
    CREATE TABLE segment (
        number INTEGER PRIMARY KEY,
        last_record INTEGER NOT NULL,
        "end" INTEGER NOT NULL,
        "commit" INTEGER NOT NULL
    ) STRICT
    """,
    # Between which keys a segment has payloads of an entity, so that what needs it is found without a look at
    # everything; an index would cost every message.
    """
    CREATE TABLE extent (
        segment INTEGER NOT NULL,
        entity INTEGER NOT NULL,
        first_key INTEGER NOT NULL,
        last_key INTEGER NOT NULL,
        PRIMARY KEY (segment, entity)
    ) STRICT, WITHOUT ROWID
    """,
)


def check(connection: sqlite3.Connection, file: Path) -> None:
    """Refuse a file that is not ours, or of another version, before anything about it is changed. StoreError."""
    application_id = _pragma(connection, "application_id")
    version = _pragma(connection, "user_version")
    if application_id != APPLICATION_ID:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application_id or version or tables:
            raise StoreError(f"{file} is a database of another application.")
    elif version != VERSION:
        raise StoreError(
            f"{file} was written by another version of Peeklock: its format is version {version}, "
            f"this one reads and writes version {VERSION}."
        )


def create(connection: sqlite3.Connection) -> None:
    """Make the tables in a file that has none, all or none of them."""
    if _pragma(connection, "user_version") == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)
