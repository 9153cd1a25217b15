"""The tables of the index.

A message's rowid is its key (`keys`): messages of one entity are stored together, in order, in one B-tree, and appends
go to a page that is in the cache. All indexes are partial: a plain message (active, without session, expiry and shared
body) is in none of them.

`PRAGMA user_version` is the version of the disk format; `application_id` identifies the file as Peeklock's.
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
"""With 4096, appends are a quarter slower. With 16384, a small commit writes twice as many bytes, and large commits are
only a tenth faster."""

IN_STATE_INDEX: Final = "state <> 0 AND state <> 4"
"""The condition of the index of states; each query that uses the index repeats it. Claimed messages (state 4) are not
in it: they are stored together and are found by their keys."""

# The space of removed messages stays in the file's free list and is reused. auto_vacuum would return it to the file
# system, but its pointer map makes every append and removal about a sixth slower.
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
    # segment and place say where in the log the payload is.
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
    # The key comes before the state, so that a session is read in order, in any state or in one. The state is included,
    # so that sessions are counted and listed without reading their messages.
    f"""
    CREATE INDEX message_session ON message (key >> {NUMBER_BITS}, session_id, key, state)
    WHERE session_id IS NOT NULL
    """,
    f"""
    CREATE INDEX message_due ON message (key >> {NUMBER_BITS}, due_at)
    WHERE due_at IS NOT NULL AND state = 2
    """,
    # Tells whether a body is still needed. A stored reference count would be redundant and could become wrong.
    "CREATE INDEX message_body ON message (body) WHERE body IS NOT NULL",
    "CREATE TABLE body (key INTEGER PRIMARY KEY, segment INTEGER NOT NULL, place INTEGER NOT NULL) STRICT",
    "CREATE INDEX body_segment ON body (segment)",
    # The content of a claim is opaque to the store. It names the claim's messages, whose state is 4.
    """
    CREATE TABLE claim (
        entity INTEGER NOT NULL,
        id BLOB NOT NULL,
        content BLOB NOT NULL,
        PRIMARY KEY (entity, id)
    ) STRICT
    """,
    # States may be long, so they are not in the B-tree that lists the sessions, and replacing a state does not change
    # that B-tree.
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
    # The history of duplicate detection. The rowid consists of the entity's id and the time, in bits as for messages. A
    # row has all keys of that millisecond, concatenated: one row for each key would be seven times slower to write.
    "CREATE TABLE history (key INTEGER PRIMARY KEY, seen BLOB NOT NULL) STRICT",
    # Dropped entities whose messages are still being deleted, some at a time.
    "CREATE TABLE dropped_entity (id INTEGER PRIMARY KEY) STRICT",
    # The position up to which the log is applied, and the number of checkpoints before (the generation), which `pages`
    # compares with the checksums.
    """
    CREATE TABLE log (
        segment INTEGER NOT NULL,
        "offset" INTEGER NOT NULL,
        "commit" INTEGER NOT NULL,
        generation INTEGER NOT NULL
    ) STRICT
    """,
    "INSERT INTO log VALUES (0, 0, 0, 0)",
    # Where the last applied record of each segment begins and ends. The start uses it to verify that each segment is
    # present, complete and the same one that was applied.
    """
    CREATE TABLE segment (
        number INTEGER PRIMARY KEY,
        last_record INTEGER NOT NULL,
        "end" INTEGER NOT NULL,
        "commit" INTEGER NOT NULL
    ) STRICT
    """,
    # The range of keys of an entity with payloads in a segment, so that the messages in a segment are found without a
    # full scan. An index on message.segment would slow down every append.
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
    """Raise StoreError for a database of another application or another version of the disk format."""
    application_id = _pragma(connection, "application_id")
    version = _pragma(connection, "user_version")
    if application_id != APPLICATION_ID:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application_id or version or tables:
            raise StoreError(f"{file} is a database of another application.")
    elif version != VERSION:
        raise StoreError(
            f"{file} was written by another version of Peeklock: its format is version {version}, "
            f"and this version of Peeklock requires version {VERSION}."
        )


def create(connection: sqlite3.Connection) -> None:
    """Create all tables in one transaction, if there are none."""
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
