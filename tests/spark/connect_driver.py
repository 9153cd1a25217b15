"""A client of Spark Connect with a local server, which runs the data source and the pipelines.

`connect_driver.py CONNECTION_STRING QUEUE FOLDER`. Prints one line of JSON. The queue has messages and dead letters,
and `FOLDER/lake` has captured messages.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from peeklock.spark.draining import drain
from peeklock.spark.folders import SparkFolder
from peeklock.spark.pipelines import capture, dead_letters, replay, report
from peeklock.spark.pipelines.compaction import compact
from peeklock.spark.pipelines.tables import make_tables
from peeklock.spark.session import default_tasks

MODES = ("peek", "receiveAndDelete")
"""The other modes of streams. The last one removes all messages."""


def stream_once(spark: SparkSession, options: dict[str, str], folder: str) -> int:
    """Run a stream on two messages, and return how many it read; the checkpoint is read through the server."""
    rows = spark.createDataFrame([(b"1",), (b"2",)], "body binary")
    rows.write.format("servicebus").options(**{name: value for name, value in options.items() if name != "mode"}).mode(
        "append"
    ).save()
    name = f"{folder}/{options['mode']}"
    stream = spark.readStream.format("servicebus").options(**options).load()
    query = stream.writeStream.format("parquet").option("path", name)
    drain(query, options, f"{name}-checkpoint", SparkFolder(spark, f"{name}-checkpoint"))
    return spark.read.parquet(name).count()


def write_stream(spark: SparkSession, options: dict[str, str], folder: str) -> int:
    """Stream the files of a folder into the empty queue, read them back, and return their number."""
    rows = spark.readStream.schema("body binary").parquet(f"{folder}/peek")
    query = rows.select("body").writeStream.format("servicebus").options(**options)
    query.option("checkpointLocation", f"{folder}/to").trigger(availableNow=True).start().awaitTermination()
    stream = spark.readStream.format("servicebus").options(**options).load()
    query = stream.writeStream.format("parquet").option("path", f"{folder}/back")
    drain(query, options, f"{folder}/back-checkpoint", SparkFolder(spark, f"{folder}/back-checkpoint"))
    return spark.read.parquet(f"{folder}/back").count()


def main(connection_string: str, queue: str, folder: str) -> None:
    spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    options = {"connectionString": connection_string, "queue": queue}
    said: dict[str, Any] = {"session": type(spark).__module__}
    said["read"] = spark.read.format("servicebus").options(**options).load().count()

    copies = {**options, "queue": f"{queue}-copies"}
    rows = spark.createDataFrame([(f"copy {n}".encode(),) for n in range(3)], "body binary")
    rows.write.format("servicebus").options(**copies).mode("append").save()
    said["written"] = spark.read.format("servicebus").options(**copies).load().count()

    stream = spark.readStream.format("servicebus").options(**copies).load()
    drain(stream.writeStream.format("parquet").option("path", f"{folder}/drained"), copies, f"{folder}/checkpoint")
    said["drained"] = sorted(bytes(row.body).decode() for row in spark.read.parquet(f"{folder}/drained").collect())
    said["left"] = spark.read.format("servicebus").options(**copies).load().count()

    said["streams"] = {mode: stream_once(spark, {**copies, "mode": mode}, folder) for mode in MODES}
    said["written by a stream"] = write_stream(spark, copies, folder)

    lake = capture.read(spark, f"{folder}/lake")
    entities = {"connectionString": connection_string}
    failed = dead_letters.read_dead_letters(spark, entities, [queue])
    tables = make_tables(dead_letters.triage(failed, lake), f"{folder}/triage")
    said["failed"] = tables["by_reason"][0]["messages"]
    for name, small in (("report", False), ("small", True)):
        made = report.publish(lake, f"{folder}/{name}", Path(folder, name, "report.html"), "lake", small=small)
        said[name] = made.tables["entities"][0]["messages"]
    sent = replay.replay(replay.outgoing(replay.chosen(lake, replay.Choice())), copies, replay.Pace(), tasks=1)
    said["default tasks"] = default_tasks(spark)
    said["replayed"] = sent
    captures = {"connectionString": connection_string, "maxMessagesPerTrigger": "2"}
    for name in ("captured", "captured again"):
        target = capture.Target(folder=f"{folder}/captured", until_empty=True)
        capture.capture(spark, [f"{queue}-copies"], captures, target)
        rows = capture.read(spark, f"{folder}/captured").collect()
        said[name] = [len(rows), len({row.message_id for row in rows})]
    compacted = compact(spark, f"{folder}/captured")
    rows = capture.read(spark, f"{folder}/captured").collect()
    said["compacted"] = [compacted.merged > compacted.into > 0, len({row.message_id for row in rows})]
    said["not captured"] = spark.read.format("servicebus").options(**copies).load().count()
    spark.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
