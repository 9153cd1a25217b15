"""The tables of a SQLite store, how they came to be, and the key that orders messages.

A message's rowid is its entity's number in the high bits and its sequence number in the low 44: messages of
one entity lie together, in order, in one B-tree, and appending goes to a page that is in the cache. All
its indexes are partial, so that a plain message (active, without session, expiry and shared body) is in none of them.

`PRAGMA user_version` counts the migrations that were applied, `application_id` says whose file it is.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ...base import StoreError
from ..keys import NUMBER_BITS

APPLICATION_ID = 0x506B4C6B  # "PkLk"

PAGE_SIZE = 8192
"""4096 holds three messages of 1 KiB and appends a quarter slower; 16384 doubles what a small commit writes
for a tenth more in large ones."""

# Space that messages leave behind stays in the file's free list and is used again. auto_vacuum would give it
# back to the file system, but its pointer map costs every append and removal about a sixth.
MIGRATIONS: list[list[str]] = [
    [
        """
        CREATE TABLE entity (
            id INTEGER PRIMARY KEY,
            path TEXT NOT NULL,
            kind TEXT NOT NULL,
            last_sequence_number INTEGER NOT NULL,
            active INTEGER NOT NULL,
            deferred INTEGER NOT NULL,
            scheduled INTEGER NOT NULL,
            size_in_bytes INTEGER NOT NULL,
            definition TEXT NOT NULL
        ) STRICT
        """,
        """
        CREATE TABLE message (
            key INTEGER PRIMARY KEY,
            enqueued_at INTEGER NOT NULL,
            expires_at INTEGER,
            delivery_count INTEGER NOT NULL DEFAULT 0,
            state INTEGER NOT NULL DEFAULT 0,
            session_id TEXT,
            due_at INTEGER,
            annex BLOB,
            payload BLOB NOT NULL
        ) STRICT
        """,
        f"""
        CREATE INDEX message_expiry ON message (key >> {NUMBER_BITS}, expires_at)
        WHERE expires_at IS NOT NULL AND state = 0
        """,
        "CREATE INDEX message_state ON message (state) WHERE state <> 0",
        "CREATE INDEX message_session ON message (session_id) WHERE session_id IS NOT NULL",
        # Entities that are gone, while their messages are still being deleted a few at a time.
        "CREATE TABLE dropped_entity (id INTEGER PRIMARY KEY) STRICT",
    ],
    [
        # With the key before the state, so that a session is read in order in any state or in one; and with the
        # state, so that sessions are counted and listed without a look at their messages.
        "DROP INDEX message_session",
        f"""
        CREATE INDEX message_session ON message (key >> {NUMBER_BITS}, session_id, key, state)
        WHERE session_id IS NOT NULL
        """,
        f"""
        CREATE INDEX message_due ON message (key >> {NUMBER_BITS}, due_at)
        WHERE due_at IS NOT NULL AND state = 2
        """,
        # States may be long, so they are not in the B-tree that sessions are listed from, and are set again
        # without touching it.
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
    ],
    [
        # The last column: where it is NULL, SQLite sees that before the payload, however long that is.
        "ALTER TABLE message ADD COLUMN body INTEGER",
        # What says whether a body is still needed. A count beside the data would be written again with all of the
        # data whenever it changes, and a count can be wrong.
        "CREATE INDEX message_body ON message (body) WHERE body IS NOT NULL",
        "CREATE TABLE body (key INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT",
        # The rowid is the entity's number and the time, in bits as for messages, and a row has all keys of that
        # millisecond one after the other: a row a key is written seven times slower where there are many.
        "CREATE TABLE history (key INTEGER PRIMARY KEY, seen BLOB NOT NULL) STRICT",
    ],
    [
        # Payloads and bodies stay where the log has them: in this segment, at the offset in the high bits of the place,
        # with the length in the low 32. Those from before have no segment, and their bytes here.
        "ALTER TABLE message ADD COLUMN segment INTEGER",
        "ALTER TABLE message ADD COLUMN place INTEGER",
        "ALTER TABLE body ADD COLUMN segment INTEGER",
        "ALTER TABLE body ADD COLUMN place INTEGER",
        "CREATE INDEX body_segment ON body (segment) WHERE segment IS NOT NULL",
        # How far the log is applied, and how often segments of it were freed.
        """
        CREATE TABLE log (
            segment INTEGER NOT NULL,
            "offset" INTEGER NOT NULL,
            "commit" INTEGER NOT NULL,
            frees INTEGER NOT NULL
        ) STRICT
        """,
        "INSERT INTO log VALUES (0, 0, 0, 0)",
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
    ],
]
"""The statements that lead from each version to the next; what was released here is never changed."""


def check(connection: sqlite3.Connection, file: Path) -> None:
    """Refuse a file that is not ours, or newer than we are, before anything about it is changed."""
    application_id = _pragma(connection, "application_id")
    version = _pragma(connection, "user_version")
    if application_id != APPLICATION_ID:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application_id or version or tables:
            raise StoreError(f"{file} is a database of another application.")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{file} was written by a newer Peeklock: its schema version is {version}, "
            f"this one knows versions up to {len(MIGRATIONS)}."
        )


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a checked file to the newest version, each step whole or not at all."""
    version = _pragma(connection, "user_version")
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)
