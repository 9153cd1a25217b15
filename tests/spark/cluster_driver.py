"""A driver for tests: does on a cluster what it is asked for, a line of JSON at a time, and answers with one.

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
"""So that a writer is handed rows before its task has them all."""
ROWS_BEHIND = 250
"""Spark hands rows to a function of Python by the hundred: some have come out of it when it is held."""

Options = dict[str, str]


def read(spark: SparkSession, options: Options, held: str | None = None, place: str = "executor") -> list[Any]:
    """The numbers that bodies begin with, each with where it was read."""
    messages = _holding(spark.read.format("servicebus").options(**options).load(), held)
    return _rows(messages.withColumn("place", PLACES[place]()))


def claim(
    spark: SparkSession, options: Options, folder: str, held: str | None = None, place: str = "executor"
) -> list[Any]:
    """The same, of what was in the queue and is in files now."""
    messages = _holding(spark.readStream.format("servicebus").options(**options).load(), held)
    writer = messages.withColumn("place", PLACES[place]()).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    writer.start(f"{folder}/rows").awaitTermination()
    return _rows(spark.read.parquet(f"{folder}/rows"))


def write(spark: SparkSession, options: Options, rows: int, held: str | None = None) -> None:
    """Bodies of 4 KB, which begin with a number."""
    body = F.rpad(F.concat(F.col("id").cast("string"), F.lit(" ")), 4096, "x").alias("body")
    frame = _holding(spark.range(rows, numPartitions=2).select(body), held)
    frame.write.format("servicebus").options(**options).mode("append").save()


def _rows(frame: DataFrame) -> list[Any]:
    return [[int(bytes(row.body).split()[0]), row.place] for row in frame.select("body", "place").collect()]


def _executor() -> Column:
    """Of a worker: which process forked it. Each executor has one of these."""
    return F.udf(lambda: os.getppid(), "long", useArrow=False).asNondeterministic()()


def _host() -> Column:
    """The name of the machine."""
    return F.udf(socket.gethostname, "string", useArrow=False).asNondeterministic()()


PLACES: dict[str, Callable[[], Column]] = {"executor": _executor, "host": _host}


def _holding(frame: DataFrame, held: str | None) -> DataFrame:
    """The same rows; with `held`, one task stops when it has some of its rows behind it."""
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
    """With further settings of Spark, in JSON."""
    spark = local_session("cluster", settings={**SETTINGS, **ROWS_AT_ONCE, **json.loads(settings)})
    print("started", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = REQUESTS[request.pop("do")](spark, **request)
        print(json.dumps({"answer": answer}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
