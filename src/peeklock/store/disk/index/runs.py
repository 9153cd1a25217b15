"""SQL that changes the state of runs of messages, or removes them.

Each run is inserted into a temporary view, whose trigger changes one range of keys: a claim may have thousands of runs,
and one statement for each would return to Python as often. Damaged messages stay as they are. The deltas of the
counters in the entry assume that they changed too, so the counters are corrected for them.
"""

from __future__ import annotations

from typing import Final

from ...base import ACTIVE, CLAIMED, DAMAGED, DEFERRED, SCHEDULED
from ..keys import LENGTH_MASK, NUMBER_BITS
from .rows import fields
from .schema import IN_STATE_INDEX

_COUNTERS = {ACTIVE: "active", DEFERRED: "deferred", SCHEDULED: "scheduled", CLAIMED: "claimed"}
_IS_CHANGED = "message.key BETWEEN NEW.first_key AND NEW.last_key AND message.state = NEW.before"
_BODY_LENGTH = f"(SELECT place & {LENGTH_MASK} FROM body WHERE body.key = message.body)"


def _of_damaged(runs: str, change: str, size: str) -> str:
    """Correct the counters of entities for damaged messages in runs; `{0}` in `change` is the state of a counter."""
    changes = [f"sum({change.format(state)}) AS {counter}" for state, counter in _COUNTERS.items()]
    return f"""
        UPDATE entity SET
            {", ".join(f"{counter} = entity.{counter} + row.{counter}" for counter in _COUNTERS.values())},
            size_in_bytes = entity.size_in_bytes + row.size
        FROM (
            SELECT first_key >> {NUMBER_BITS} AS id, {", ".join(changes)}, sum({size}) AS size
            FROM ({runs} LIMIT -1 OFFSET 0) -- so that each run is decoded only once
            CROSS JOIN message INDEXED BY message_state
            WHERE message.state = {DAMAGED} AND {IN_STATE_INDEX} AND message.key BETWEEN first_key AND last_key
            GROUP BY 1
        ) AS row
        WHERE entity.id = row.id;
    """


_UPDATES = f"SELECT {fields('first_key', 'last_key', 'before', 'after')} FROM json_each(NEW.run_updates)"
_REMOVALS = f"SELECT {fields('first_key', 'last_key', 'before')} FROM json_each(NEW.run_removals)"

STEPS: Final = {
    "run_updates": f"""
        {_of_damaged(_UPDATES, "(before = {0}) - (after = {0})", "0")}
        INSERT INTO run_update (first_key, last_key, before, after) {_UPDATES};
    """,
    "run_removals": f"""
        {_of_damaged(_REMOVALS, "before = {0}", f"(place & {LENGTH_MASK}) + coalesce({_BODY_LENGTH}, 0)")}
        INSERT INTO run_removal (first_key, last_key, before) {_REMOVALS};
    """,
}
"""The statements for the sections of an entry, by section."""

_FOUND_DAMAGED = (
    f"message WHERE message.key IN (SELECT value FROM json_each(NEW.damaged)) AND message.state <> {DAMAGED}"
)
MARK_DAMAGED: Final = f"""
    UPDATE entity SET
        {", ".join(f"{counter} = entity.{counter} - row.{counter}" for counter in _COUNTERS.values())},
        damaged = entity.damaged + row.count
    FROM (
        SELECT message.key >> {NUMBER_BITS} AS id, count(*) AS count,
            {", ".join(f"sum(message.state = {state}) AS {counter}" for state, counter in _COUNTERS.items())}
        FROM {_FOUND_DAMAGED} GROUP BY 1
    ) AS row
    WHERE entity.id = row.id;

    UPDATE message SET state = {DAMAGED} WHERE message.key IN (SELECT value FROM json_each(NEW.damaged));
"""
"""The statements for the section `damaged`. The messages may have been changed or removed since they were read."""

TRIGGERS: Final = (
    "CREATE TEMP VIEW run_update AS SELECT NULL AS first_key, NULL AS last_key, NULL AS before, NULL AS after",
    f"""
    CREATE TEMP TRIGGER apply_run_update INSTEAD OF INSERT ON run_update BEGIN
        UPDATE message SET state = NEW.after WHERE {_IS_CHANGED};
    END
    """,
    "CREATE TEMP VIEW run_removal AS SELECT NULL AS first_key, NULL AS last_key, NULL AS before",
    # If the table of bodies is empty, as in a broker without topics, messages are not searched for bodies. This is done
    # by the end of the range, which SQLite evaluates once; it would evaluate a condition for each message.
    f"""
    CREATE TEMP TRIGGER apply_run_removal INSTEAD OF INSERT ON run_removal BEGIN
        DELETE FROM body
        WHERE key IN (
            SELECT message.body FROM message NOT INDEXED
            WHERE message.key BETWEEN NEW.first_key AND iif(EXISTS (SELECT 1 FROM body), NEW.last_key, 0)
                AND message.state = NEW.before AND message.body IS NOT NULL
        ) AND NOT EXISTS (SELECT 1 FROM message WHERE message.body = body.key AND NOT ({_IS_CHANGED}));

        DELETE FROM message WHERE {_IS_CHANGED};
    END
    """,
)
"""Created on each connection of a `Writer`, before the views of entries."""
