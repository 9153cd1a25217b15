"""Run a stream until its entity is empty, on every version of Spark."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql.streaming import DataStreamWriter

from peeklock.spark.triggers import HAS_AVAILABLE_NOW

SECONDS = 90


def take_all(writer: DataStreamWriter, checkpoint: Path, target: Path | None = None) -> None:
    """Run a query until no message is left; before Spark 4.2 that takes several AvailableNow runs."""
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    while True:
        before = _batches(checkpoint)
        query = writer.start(None if target is None else str(target))
        try:
            assert query.awaitTermination(SECONDS)
        finally:
            query.stop()
        if HAS_AVAILABLE_NOW or _batches(checkpoint) == before:
            return


def _batches(checkpoint: Path) -> int:
    """Return the number of finished batches."""
    return len(list((checkpoint / "commits").glob("[0-9]*")))
