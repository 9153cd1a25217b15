"""The writer: makes groups of waiting commits durable, and deletes the rows of dropped entities."""

from __future__ import annotations

import logging
from time import monotonic
from typing import Any, Final

from psycopg import Connection, Cursor

from ..base import StoreError
from . import statements
from .batch import Batch
from .failures import CommitsLost, Fenced, OutcomeUnknown
from .fence import Fence
from .plan import Known, Plan

log = logging.getLogger(__name__)

_PURGE_ROWS: Final = 1000
"""How many rows of a dropped entity are deleted from each table at once, so that no commit waits long."""
_PURGE_PAUSE: Final = 0.05
"""Seconds between two purges while commits are waiting."""
_PURGE_RETRY: Final = 5.0
"""Seconds after which a failed purge is repeated."""


class Writer:
    """Used by the writer thread."""

    def __init__(self, fence: Fence, known: Known, *, has_bodies: bool) -> None:
        self.fatal: StoreError | None = None
        """Set when this node must stop."""
        self.removed = 0
        """Rows that were removed or replaced since the owner last reset this."""
        self._fence = fence
        self._known = known
        self._has_bodies = has_bodies
        self._next_purge = 0.0
        self._changed: list[Cursor[Any]] = []
        """Cursors of statements that removed or replaced rows."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether the outcome of the last group is unknown, and will stay so."""
        return self._fence.is_in_doubt

    def write(self, group: list[Batch | StoreError]) -> list[StoreError | None]:
        """Make the commits of a group durable, in one transaction if possible. Return the outcome of each."""
        if self.fatal is not None:
            return [self.fatal] * len(group)
        plan = Plan(self._known)
        outcomes: list[StoreError | None] = []
        for batch in group:
            try:
                if isinstance(batch, StoreError):
                    raise batch
                plan.add(batch)
                outcomes.append(None)
            except StoreError as error:
                outcomes.append(error)
        if not plan.sections:
            return outcomes
        try:
            self._commit(plan)
        except (Fenced, CommitsLost, OutcomeUnknown) as error:
            self.fatal = error
            return [error] * len(group)
        except StoreError as error:
            if len(group) == 1:
                return [error]
            return [outcome for batch in group for outcome in self.write([batch])]  # only the faulty one fails
        plan.finish()
        return outcomes

    def _commit(self, plan: Plan) -> None:
        self._has_bodies = self._has_bodies or any(section.bodies for section in plan.sections)

        def apply(connection: Connection[Any]) -> None:
            self._changed.clear()

            def execute(statement: str, parameters: Any) -> Cursor[Any]:
                return self._execute(connection, statement, parameters)

            for section in plan.sections:
                statements.apply(execute, section, has_bodies=self._has_bodies)

        self._fence.commit(apply)
        self._count_removed()

    def purge_timeout(self, *, is_busy: bool) -> float | None:
        """Return after how many seconds the next purge is due; None if there is nothing to purge."""
        if not self._known.dropped or self.fatal is not None:
            return None
        pause = _PURGE_PAUSE if is_busy else 0.0
        return max(0.0, self._next_purge + pause - monotonic())

    def purge(self) -> None:
        """Delete some rows of a dropped entity. A failure is logged, and the purge repeated later."""
        entity = min(self._known.dropped)
        last: list[Cursor[Any]] = []

        def apply(connection: Connection[Any]) -> None:
            self._changed.clear()
            last[:] = [
                statements.purge(
                    lambda statement, parameters: self._execute(connection, statement, parameters), entity, _PURGE_ROWS
                )
            ]

        try:
            self._fence.commit(apply)
        except (Fenced, CommitsLost, OutcomeUnknown) as error:
            self.fatal = error
        except StoreError as error:
            log.warning("deleting messages of a dropped entity failed and will be repeated: %s", error)
            self._next_purge = monotonic() + _PURGE_RETRY
        else:
            self._next_purge = monotonic()
            self._count_removed()
            if last[0].rowcount == 1:
                self._known.dropped.discard(entity)

    def _execute(self, connection: Connection[Any], statement: str, parameters: Any) -> Cursor[Any]:
        cursor = connection.execute(statement, parameters)
        if statement.lstrip().startswith(("DELETE", "UPDATE message")):
            self._changed.append(cursor)
        return cursor

    def _count_removed(self) -> None:
        self.removed += sum(max(cursor.rowcount, 0) for cursor in self._changed)
        self._changed.clear()
