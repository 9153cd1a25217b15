"""A driver for tests: runs commands on a cluster, a line of JSON each, and answers each with a line of JSON.

A task can be held in its middle: where a request has a `held` path, the first task to come by there writes its process
id to it, and goes no further.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from clusters import SETTINGS
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from peeklock.spark.session import local_session

ROWS_AT_ONCE = {"spark.sql.execution.arrow.maxRecordsPerBatch": "50"}
"""The size of a batch, small enough that a writer gets rows before its task has read all."""
ROWS_BEHIND = 250
"""The number of rows before a task stops. Spark passes rows to a Python function in hundreds, so some were written."""

Options = dict[str, str]


def read(spark: SparkSession, options: Options, held: str | None = None, place: str = "executor") -> list[Any]:
    """Read the numbers at the start of bodies, each with the process that read it."""
    messages = _holding(spark.read.format("servicebus").options(**options).load(), held)
    return _rows(messages.withColumn("place", PLACES[place]()))


def claim(
    spark: SparkSession, options: Options, folder: str, held: str | None = None, place: str = "executor"
) -> list[Any]:
    """Move the messages of the queue into files, and return the same of these."""
    messages = _holding(spark.readStream.format("servicebus").options(**options).load(), held)
    writer = messages.withColumn("place", PLACES[place]()).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    writer.start(f"{folder}/rows").awaitTermination()
    return _rows(spark.read.parquet(f"{folder}/rows"))


def write(spark: SparkSession, options: Options, rows: int, held: str | None = None) -> None:
    """Make bodies of 4 KB that start with a number."""
    body = F.rpad(F.concat(F.col("id").cast("string"), F.lit(" ")), 4096, "x").alias("body")
    frame = _holding(spark.range(rows, numPartitions=2).select(body), held)
    frame.write.format("servicebus").options(**options).mode("append").save()


def _rows(frame: DataFrame) -> list[Any]:
    return [[int(bytes(row.body).split()[0]), row.place] for row in frame.select("body", "place").collect()]


def _executor() -> Column:
    """Return the process that forked this worker; each executor has one."""
    return F.udf(lambda: os.getppid(), "long", useArrow=False).asNondeterministic()()


def _host() -> Column:
    """Return the name of the machine."""
    return F.udf(socket.gethostname, "string", useArrow=False).asNondeterministic()()


PLACES: dict[str, Callable[[], Column]] = {"executor": _executor, "host": _host}


def _holding(frame: DataFrame, held: str | None) -> DataFrame:
    """Return the same rows; with `held`, one task stops after some of its rows."""
    if held is None:
        return frame
    passed = itertools.count(1)  # each task has a copy

    def hold(body: Any) -> Any:
        if next(passed) == ROWS_BEHIND:
            try:
                mark = os.open(held, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                return body
            os.write(mark, b"%d\n" % os.getpid())
            os.close(mark)
            while True:
                time.sleep(1)
        return body

    held_body = F.udf(hold, frame.schema["body"].dataType, useArrow=False).asNondeterministic()
    return frame.withColumn("body", held_body("body"))


REQUESTS: dict[str, Callable[..., Any]] = {each.__name__: each for each in (read, claim, write)}


def main(settings: str = "{}") -> None:
    """Start the session, with further Spark settings in JSON."""
    spark = local_session("cluster", settings={**SETTINGS, **ROWS_AT_ONCE, **json.loads(settings)})
    print("started", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = REQUESTS[request.pop("do")](spark, **request)
        print(json.dumps({"answer": answer}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
