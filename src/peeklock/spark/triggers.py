"""What Spark 4.2 brought for streams: limits on a micro-batch, and Trigger.AvailableNow; stand-ins for before.

Older versions call `latestOffset` without arguments, so a reader that serves both has defaults for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

HAS_AVAILABLE_NOW: bool
"""Whether Spark ends a run only when all is read; before 4.2 it ends after one batch, and tells nobody of it."""

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow

        HAS_AVAILABLE_NOW = True
    except ImportError:
        HAS_AVAILABLE_NOW = False

        class AvailableNow:
            """Nobody asks for it."""

        class ReadLimit:
            """Nobody gives one."""

        class ReadAllAvailable(ReadLimit):
            """What those versions always want."""

        class ReadMaxRows(ReadLimit):
            def __init__(self, max_rows: int) -> None:
                self.max_rows = max_rows

        class ReadMaxBytes(ReadLimit):
            def __init__(self, max_bytes: int) -> None:
                self.max_bytes = max_bytes


__all__ = ["HAS_AVAILABLE_NOW", "AvailableNow", "ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "ReadMaxRows"]
