"""Measures of the server for metrics: its standbys, removed rows, and transactions that hold up VACUUM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from psycopg import Connection

from .engine import Engine

# Standbys are visible to a role with pg_monitor; others see rows without a state.
_MEASURE: Final = """
    SELECT
        (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
        (SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = %s),
        (SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = %s),
        (SELECT coalesce(max(age(backend_xmin)), 0)::bigint FROM pg_stat_activity WHERE backend_xmin IS NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class Measures:
    """A server as the metrics show it."""

    synchronous_standbys: int
    dead_rows: int
    """Rows of the namespace that are removed and not vacuumed yet, as PostgreSQL estimates them."""
    bytes: int
    """The size of the namespace's tables and indexes."""
    oldest_xmin_age: int
    """How many transactions ago the oldest open snapshot was taken. VACUUM cannot remove newer rows."""


def measure(connection: Connection[Any], engine: Engine) -> Measures:
    """Measure the server. Raise psycopg.Error."""
    row: Any = connection.execute(_MEASURE, (engine.schema, engine.schema)).fetchone()
    return Measures(*row)
