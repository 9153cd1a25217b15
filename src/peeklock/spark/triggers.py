"""Limits of a micro-batch and Trigger.AvailableNow, which Spark has from 4.2 on, with substitutes for older versions.

Older versions call `latestOffset` without arguments, so a reader that serves both has defaults for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

HAS_AVAILABLE_NOW: bool
"""Whether Spark ends an AvailableNow run when all is read. Before 4.2 it ends after one batch without notice."""

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
            """A substitute; these versions of Spark do not use it."""

        class ReadLimit:
            """A substitute; these versions of Spark pass no limit."""

        class ReadAllAvailable(ReadLimit):
            """The limit for versions that pass none: all available messages."""

        class ReadMaxRows(ReadLimit):
            def __init__(self, max_rows: int) -> None:
                self.max_rows = max_rows

        class ReadMaxBytes(ReadLimit):
            def __init__(self, max_bytes: int) -> None:
                self.max_bytes = max_bytes


__all__ = ["HAS_AVAILABLE_NOW", "AvailableNow", "ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "ReadMaxRows"]
