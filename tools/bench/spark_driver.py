"""A Spark in a child process, for one build of Peeklock: `python -m tools.bench.spark_driver`.

Each line of its input is a piece of work in JSON, each line of its output what it took: seconds, rows, and the CPU
seconds of Spark's JVM and of the Python below and beside it. The process that started it knows the rest.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from itertools import count as counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.bench.processes import tree
from tools.bench.sessions import start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PROPERTIES: Final = 3
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Spark's output must not be mixed with the answers
    folder = Path(settings["folder"])
    with ExitStack() as started:
        own = {"spark.jars": ",".join(settings["jars"])} if settings["jars"] else {}
        session = start_spark(settings["cores"], folder, started, settings=own, path=[Path(settings["package"])])
        work = Work(session, folder)
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                answer = _measured(work, asked)
            except Exception as failure:
                answer = {"failure": str(failure)[:2000]}
            print(json.dumps(answer), file=answers, flush=True)


def _measured(work: Work, asked: dict[str, Any]) -> dict[str, Any]:
    do = getattr(work, asked.pop("do"))
    before, began = cpu(), time.monotonic()
    rows = do(**asked)
    took, after = time.monotonic() - began, cpu()
    return {"seconds": took, "rows": work.rows() if rows is None else rows} | {
        kind: after[kind] - before[kind] for kind in after
    }


class Work:
    """The commands. Each writes Parquet to a new folder; `rows` counts its rows."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._numbers = counter(1)
        self._folder = folder
        self._written = folder

    def rows(self) -> int:
        return self._spark.read.parquet(str(self._written)).count()

    def fill_kafka(self, address: str, topic: str, count: int, size: int, tasks: int) -> int:
        from pyspark.sql import functions as F

        header = [F.struct(F.lit(f"p{n}").alias("key"), F.lit(b"value").alias("value")) for n in range(_PROPERTIES)]
        rows = self._spark.range(0, count, 1, tasks).select(
            F.format_string("%016x", "id").alias("key"),
            F.lit(b"x" * size).alias("value"),
            F.array(*header).alias("headers"),
        )
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", address)
        writer.option("topic", topic).option("includeHeaders", "true").save()
        return count

    def kafka_batch(self, address: str, topic: str) -> None:
        reader = self._spark.read.format("kafka").options(**_kafka(address, topic))
        self._write(reader.load())

    def kafka_stream(self, address: str, topic: str, batch: int) -> None:
        reader = self._spark.readStream.format("kafka").options(**_kafka(address, topic))
        self._stream(reader.option("maxOffsetsPerTrigger", batch).load())

    def read(self, url: str, queue: str, tasks: int) -> None:
        reader = self._spark.read.format("servicebus").options(connectionString=url, queue=queue)
        self._write(reader.option("numPartitions", tasks).load())

    def claim(self, url: str, queue: str, tasks: int, batch: int) -> None:
        reader = self._spark.readStream.format("servicebus").options(connectionString=url, queue=queue)
        self._stream(reader.option("numPartitions", tasks).option("maxMessagesPerTrigger", batch).load())

    def capture(self, url: str, queue: str, tasks: int, batch: int) -> int:
        from peeklock.spark.pipelines import capture

        seen = 0

        def told(done: capture.Batch) -> None:
            nonlocal seen
            seen += done.rows

        source = {"connectionString": url, "maxMessagesPerTrigger": str(batch), "numPartitions": str(tasks)}
        target = capture.Target(folder=str(self._place("captured")), until_empty=True)
        capture.capture(self._spark, [queue], source, target, told)
        return seen

    def _write(self, rows: DataFrame) -> None:
        rows.write.parquet(str(self._place("batch")))

    def _stream(self, rows: DataFrame) -> None:
        written = self._place("stream")
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(self._place("checkpoint")))
        query = writer.trigger(availableNow=True).start(str(written))
        query.awaitTermination()
        self._written = written

    def _place(self, name: str) -> Path:
        self._written = self._folder / f"{name}-{next(self._numbers)}"
        return self._written


def _kafka(address: str, topic: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": address,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }


def cpu() -> dict[str, float]:
    """Return the CPU seconds of the JVM and of all Python processes so far, including ended ones."""
    jvm = python = 0.0
    for pid in tree(os.getpid()):
        try:
            own, waited, is_java = _times(pid)
        except OSError:
            continue  # the process has ended
        if is_java:
            jvm, python = jvm + own, python + waited
        else:
            python += own + waited
    return {"jvm": jvm, "python": python}


def _times(pid: int) -> tuple[float, float, bool]:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    user, system, waited_user, waited_system = map(int, fields[11:15])
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    return (user + system) / _TICKS, (waited_user + waited_system) / _TICKS, name == "java"


if __name__ == "__main__":
    main()
