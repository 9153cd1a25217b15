"""The tables of a namespace, in a PostgreSQL schema of their own.

A message's key consists of its entity's id and its sequence number (`keys`), so the messages of an entity are together
and in order in the primary key. All other indexes of messages are partial: a plain message (active, without session,
expiry and shared body) is in none of them. They are on expressions of the key instead of the key itself, so that each
query of `queries` fits exactly one index.

Session ids are bytea: a text cannot contain NUL, and bytes of UTF-8 are in the order of code points.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import Connection

from ..base import CLAIMED, MAX_NUMBER, SCHEDULED, StoreError
from .engine import Engine
from .failures import store_error
from .keys import NUMBER_BITS

VERSION: Final = 1
"""The version of the tables that this version of Peeklock writes."""

ENTITY: Final = f"(key >> {NUMBER_BITS})"
NUMBER: Final = f"(key & {MAX_NUMBER})"
"""The parts of a key, as the indexes have them."""

IN_STATE_INDEX: Final = f"state <> 0 AND state <> {CLAIMED}"
"""The condition of the index of states; each query that uses the index repeats it. Claimed messages are not in it: they
are stored together and are found by their keys."""

TABLES: Final = ("entity", "message", "body", "session", "history", "claim", "dropped_entity", "fence", "lease")

_TABLES: Final = f"""
    -- Versions of Peeklock with tables from `least` to `version` can use these tables.
    CREATE TABLE version (
        only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
        version integer NOT NULL,
        least integer NOT NULL
    );

    -- Renewed by the node that holds the lease, several times in each period.
    CREATE TABLE lease (
        only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
        epoch bigint NOT NULL,
        beat bigint NOT NULL,
        owner text,
        address text,
        pids integer[] NOT NULL DEFAULT '{{}}'
    ) WITH (fillfactor = 10);
    INSERT INTO lease (epoch, beat) VALUES (0, 0);

    -- Checked and raised by every commit. Not a part of the lease, so that renewals do not wait for commits.
    CREATE TABLE fence (
        only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
        epoch bigint NOT NULL,
        last_commit bigint NOT NULL
    ) WITH (fillfactor = 10);
    INSERT INTO fence (epoch, last_commit) VALUES (0, 0);

    CREATE TABLE entity (
        id bigint PRIMARY KEY,
        path text NOT NULL,
        kind text NOT NULL,
        definition text NOT NULL,
        last_sequence_number bigint NOT NULL,
        active bigint NOT NULL,
        deferred bigint NOT NULL,
        scheduled bigint NOT NULL,
        size_in_bytes bigint NOT NULL,
        damaged bigint NOT NULL,
        claimed bigint NOT NULL
    ) WITH (fillfactor = 50);

    -- body_size repeats the length of the body, so that reads that count bytes do not need the body.
    CREATE TABLE message (
        key bigint PRIMARY KEY,
        enqueued_at bigint NOT NULL,
        expires_at bigint,
        due_at bigint,
        body bigint,
        body_size integer,
        delivery_count integer NOT NULL DEFAULT 0,
        state smallint NOT NULL DEFAULT 0,
        session_id bytea,
        annex bytea,
        payload bytea NOT NULL
    );
    ALTER TABLE message ALTER payload SET STORAGE EXTERNAL, ALTER annex SET STORAGE EXTERNAL;
    CREATE INDEX message_expiry ON message ({ENTITY}, expires_at, {NUMBER})
        WHERE expires_at IS NOT NULL AND state = 0;
    CREATE INDEX message_due ON message ({ENTITY}, due_at, {NUMBER})
        WHERE due_at IS NOT NULL AND state = {SCHEDULED};
    CREATE INDEX message_state ON message ({ENTITY}, state, {NUMBER}) WHERE {IN_STATE_INDEX};
    CREATE INDEX message_session ON message ({ENTITY}, session_id, {NUMBER}) INCLUDE (key, state)
        WHERE session_id IS NOT NULL;
    CREATE INDEX message_body ON message (body) WHERE body IS NOT NULL;

    CREATE TABLE body (key bigint PRIMARY KEY, data bytea NOT NULL);
    ALTER TABLE body ALTER data SET STORAGE EXTERNAL;

    -- The content of a claim is opaque to the store. It names the claim's messages, whose state is {CLAIMED}.
    CREATE TABLE claim (
        entity bigint NOT NULL,
        id bytea NOT NULL,
        content bytea NOT NULL,
        PRIMARY KEY (entity, id)
    );

    CREATE TABLE session (
        entity bigint NOT NULL,
        session_id bytea NOT NULL,
        updated_at bigint NOT NULL,
        state bytea NOT NULL,
        PRIMARY KEY (entity, session_id)
    );
    ALTER TABLE session ALTER state SET STORAGE EXTERNAL;

    -- The history of duplicate detection. The key consists of the entity's id and the time, in bits as for messages. A
    -- row has all keys of that millisecond, concatenated.
    CREATE TABLE history (key bigint PRIMARY KEY, seen bytea NOT NULL);
    ALTER TABLE history ALTER seen SET STORAGE EXTERNAL;

    -- Dropped entities whose messages are still being deleted, some at a time.
    CREATE TABLE dropped_entity (id bigint PRIMARY KEY);

    INSERT INTO version (version, least) VALUES ({VERSION}, {VERSION});
"""


def create(connection: Connection[Any], engine: Engine) -> bool:
    """Create the schema and its tables unless they exist. Return whether they were created. Raise StoreError.

    Nodes that do this at the same time take turns.
    """
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (engine.prefix,))
            if _has_tables(connection, engine):
                check_version(connection, engine)
                return False
            (has_schema,) = _row(connection, "SELECT to_regnamespace(%s) IS NOT NULL", engine.schema)
            if not has_schema:  # CREATE SCHEMA IF NOT EXISTS needs its privilege even if the schema exists
                connection.execute(f"CREATE SCHEMA {engine.schema}")
            connection.execute(_TABLES, prepare=False)
        return True
    except psycopg.Error as error:
        raise store_error(error) from error


def check_version(connection: Connection[Any], engine: Engine) -> None:
    """Raise StoreError unless this version of Peeklock can use the tables of the schema."""
    try:
        if not _has_tables(connection, engine):
            raise StoreError(
                f"The schema {engine.schema!r} has no tables of Peeklock. Run `peeklock store init` to create them."
            )
        version, least = _row(connection, f"SELECT version, least FROM {engine.schema}.version")
    except psycopg.Error as error:
        raise store_error(error) from error
    if not least <= VERSION <= version:
        raise StoreError(
            f"The schema {engine.schema!r} has tables of version {version}, and this version of Peeklock requires "
            f"version {VERSION}. Start a version of Peeklock that fits the tables."
        )


def _has_tables(connection: Connection[Any], engine: Engine) -> bool:
    return bool(_row(connection, "SELECT to_regclass(%s) IS NOT NULL", f"{engine.schema}.version")[0])


def _row(connection: Connection[Any], query: str, *parameters: Any) -> Any:
    return connection.execute(query, parameters).fetchone()
