"""Drain an entity: run a query until the entity is empty, on every version of Spark.

From Spark 4.2 on, a run with `trigger(availableNow=True)` does that. Older versions end such a run of a Python source
after one micro-batch, and leave its messages claimed. `drain` repeats the run until it finds no messages, and settles
the claims.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.streaming.readwriter import DataStreamWriter

from peeklock.spark.checkpoints import Folder, batches_done, settle_checkpoint
from peeklock.spark.options import Options
from peeklock.spark.triggers import HAS_AVAILABLE_NOW


def drain(writer: DataStreamWriter, options: Mapping[str, str], checkpoint: str, folder: Folder | None = None) -> None:
    """Run a query until its entity is empty. When this returns, the claimed messages were removed.

    `writer` is the query with its sink, not started yet. `options` are the options of its source, and `checkpoint` is
    the folder of its checkpoint. If the checkpoint is not on this machine, also give a `Folder` that can list and read
    it. Before Spark 4.2, messages that arrive meanwhile are read too: the run ends when no message is left.
    """
    parsed, where = Options.parse(options, use="readStream"), folder or checkpoint
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    while True:
        before = batches_done(where)
        writer.start().awaitTermination()
        if parsed.mode == "claim":
            settle_checkpoint(where, parsed)
        if HAS_AVAILABLE_NOW or batches_done(where) == before:
            return
