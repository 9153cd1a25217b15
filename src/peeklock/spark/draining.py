"""Taking all that an entity holds, and ending: the same on every version of Spark.

From Spark 4.2 on a run with `trigger(availableNow=True)` does that. Before, Spark ends such a run of a source in Python
after one micro-batch, and leaves the messages of that claimed. So here the run is repeated until one finds nothing, and
the claims are settled.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.streaming.readwriter import DataStreamWriter

from peeklock.spark.checkpoints import Folder, batches_done, settle_checkpoint
from peeklock.spark.options import Options
from peeklock.spark.triggers import HAS_AVAILABLE_NOW


def drain(writer: DataStreamWriter, options: Mapping[str, str], checkpoint: str, folder: Folder | None = None) -> None:
    """Run a query until it has taken all that its entity holds; what it claimed is removed when this returns.

    `writer` is the query with its sink, which is not started yet; `options` are those of its source, and `checkpoint`
    is where Spark keeps how far it is. A checkpoint that is not on this machine is also given as a `Folder`, which can
    list and read it. Before Spark 4.2 what arrives meanwhile is taken as well: the run ends when nothing is left.
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
