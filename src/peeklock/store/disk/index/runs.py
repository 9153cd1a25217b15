"""Runs of messages that change their state or leave together, as SQL.

Each run is a row of a temporary view, whose trigger does one range of keys: a claim may have thousands of runs, and a
statement for each would return to Python as often. Messages that were found damaged stay, and the counters, which come
with the entry and count them as if they changed too, are corrected.
"""

from __future__ import annotations

from typing import Final

from ...base import ACTIVE, CLAIMED, DAMAGED, DEFERRED, SCHEDULED
from ..keys import LENGTH_MASK, NUMBER_BITS
from .rows import fields
from .schema import IN_STATE_INDEX

STEPS: Final = {
    "run_updates": f"""
        INSERT INTO run_update (first_key, last_key, before, after)
        SELECT {fields("first_key", "last_key", "before", "after")} FROM json_each(NEW.run_updates);
    """,
    "run_removals": f"""
        INSERT INTO run_removal (first_key, last_key, before)
        SELECT {fields("first_key", "last_key", "before")} FROM json_each(NEW.run_removals);
    """,
}
"""Of an entry, by section."""

_COUNTERS = {ACTIVE: "active", DEFERRED: "deferred", SCHEDULED: "scheduled", CLAIMED: "claimed"}
_IN_RUN = "key BETWEEN NEW.first_key AND NEW.last_key"
_IS_CHANGED = f"message.{_IN_RUN} AND message.state = NEW.before"
_BODY_LENGTH = f"(SELECT place & {LENGTH_MASK} FROM body WHERE body.key = message.body)"
_COUNT_DAMAGED = f"""
    FROM (
        SELECT count(*) AS count, coalesce(sum((place & {LENGTH_MASK}) + coalesce({_BODY_LENGTH}, 0)), 0) AS size
        FROM message INDEXED BY message_state
        WHERE state = {DAMAGED} AND {IN_STATE_INDEX} AND {_IN_RUN}
    ) AS damaged
    WHERE entity.id = NEW.first_key >> {NUMBER_BITS} AND damaged.count > 0
"""


def _corrected(change: str) -> str:
    """Of a counter: what to set it to, where `{}` stands for the state that it counts."""
    return ", ".join(
        f"{counter} = entity.{counter} + damaged.count * ({change.format(state)})"
        for state, counter in _COUNTERS.items()
    )


TRIGGERS: Final = (
    "CREATE TEMP VIEW run_update AS SELECT NULL AS first_key, NULL AS last_key, NULL AS before, NULL AS after",
    f"""
    CREATE TEMP TRIGGER apply_run_update INSTEAD OF INSERT ON run_update BEGIN
        UPDATE entity SET {_corrected("(NEW.before = {0}) - (NEW.after = {0})")} {_COUNT_DAMAGED};

        UPDATE message SET state = NEW.after WHERE {_IS_CHANGED};
    END
    """,
    "CREATE TEMP VIEW run_removal AS SELECT NULL AS first_key, NULL AS last_key, NULL AS before",
    f"""
    CREATE TEMP TRIGGER apply_run_removal INSTEAD OF INSERT ON run_removal BEGIN
        UPDATE entity SET {_corrected("NEW.before = {0}")}, size_in_bytes = entity.size_in_bytes + damaged.size
        {_COUNT_DAMAGED};

        DELETE FROM body
        WHERE key IN (SELECT message.body FROM message NOT INDEXED WHERE {_IS_CHANGED} AND message.body IS NOT NULL)
            AND NOT EXISTS (SELECT 1 FROM message WHERE message.body = body.key AND NOT ({_IS_CHANGED}));

        DELETE FROM message WHERE {_IS_CHANGED};
    END
    """,
)
"""On a connection of a `Writer`, after its views."""
