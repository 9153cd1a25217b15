"""Memory over many micro-batches: as many as a stream has in an hour, one immediately after the other.

The queue is filled before. At intervals of batches, two figures are recorded: the driver's JVM after a garbage
collection, and the resident memory of the processes. Growth is computed for the second half, when caches are full.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.bench.brokers import QUEUE, Peeklock, Target
from tools.bench.interrupts import interrupts
from tools.bench.load import LoadProcesses
from tools.bench.memory import JVM, PLANNING, PYTHON, STREAM, TASKS, resident_now
from tools.bench.plain import Plain
from tools.bench.processes import file_system
from tools.bench.report import NOTHING, figure, machine, megabytes, print_table
from tools.bench.sessions import check_spark, failures_in_short, start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SINKS: Final = ("noop", "capture")
HEAP: Final = f"{JVM}, heap after a collection"
BESIDE: Final = f"{JVM}, outside the heap"
_KINDS: Final = (JVM, PYTHON, STREAM, PLANNING, TASKS)
_EVERY: Final = 50
_PAUSE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of this benchmark."""

    batches: int = 3600
    messages: int = 10
    """Messages of a micro-batch."""
    size: int = 1024
    tasks: int = 2
    sink: str = "noop"
    """`capture` writes Parquet files as the pipeline does."""

    @property
    def every(self) -> int:
        """Batches between two samples."""
        return max(1, min(_EVERY, self.batches // 10))


@dataclass(slots=True)
class Sample:
    """A sample of the memory."""

    batches: int
    """Batches done so far."""
    seconds: float
    """Seconds since the start of the query."""
    memory: dict[str, int] = field(default_factory=dict)
    processes: int = 0
    """The resident memory of Spark's Python processes."""


def run(options: Options, folder: Path, started: ExitStack) -> dict[str, Any]:
    """Measure, print the table, and return all figures."""
    check_spark()
    print(f"Batches: {options.batches:,} micro-batches of {options.messages} messages into '{options.sink}'.")
    print(f"{machine()}; data on {file_system(folder)}.")
    broker = Peeklock(folder, started)
    broker.start()
    with interrupts.held():
        loads = started.enter_context(LoadProcesses(1))
    plain = Plain(loads, broker.target())
    plain.send(options.batches * options.messages, options.size)
    spark = start_spark(options.tasks, folder, started)
    with failures_in_short(), _streaming(spark, broker.target(), folder, options) as query:
        samples = list(_samples(spark, query, plain, options))
    _print(options, samples)
    return {
        "benchmark": "batches",
        "machine": machine(),
        "file_system": file_system(folder),
        "options": asdict(options),
        "samples": [asdict(each) for each in samples],
    }


@contextmanager
def _streaming(spark: SparkSession, target: Target, folder: Path, options: Options) -> Iterator[StreamingQuery]:
    from peeklock.spark.pipelines import capture

    source = {
        "connectionString": target.url,
        "maxMessagesPerTrigger": str(options.messages),
        "numPartitions": str(options.tasks),
    }
    gate = capture.Gate()
    if options.sink == "capture":
        query = capture.start(spark, QUEUE, source, capture.Target(folder=str(folder / "captured")), gate=gate)
    else:
        rows = spark.readStream.format("servicebus").options(**source, queue=QUEUE).load()
        query = rows.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        yield query
    finally:
        gate.close()
        query.stop()


def _samples(spark: SparkSession, query: StreamingQuery, plain: Plain, options: Options) -> Iterator[Sample]:
    """Run the query until the queue is empty and all messages are settled."""
    began = time.monotonic()
    every = due = options.every
    while True:
        if not query.isActive:
            query.awaitTermination()  # raises what ended it
        progress = query.lastProgress
        done = 0 if progress is None else progress["batchId"] + 1
        if done >= due:
            yield _look(spark, done, time.monotonic() - began)
            due = done - done % every + every
        elif done >= options.batches and plain.is_empty():
            return
        time.sleep(_PAUSE_SECONDS)


def _look(spark: SparkSession, batches: int, seconds: float) -> Sample:
    jvm: Any = spark._jvm
    jvm.System.gc()
    memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    sample = Sample(batches, seconds)
    sample.memory[HEAP] = memory.getHeapMemoryUsage().getUsed()
    sample.memory[BESIDE] = memory.getNonHeapMemoryUsage().getUsed()
    for kind, found in resident_now().items():
        sample.memory[f"{kind}, resident"] = found.largest_bytes
        sample.processes += found.number if kind in (STREAM, PLANNING, TASKS) else 0
    return sample


def growth(samples: list[Sample], what: str) -> float | None:
    """Return the bytes per 1000 batches, by linear regression over the second half; None with too few samples."""
    known = [(each.batches, each.memory[what]) for each in samples[len(samples) // 2 :] if what in each.memory]
    if len(known) < 2:
        return None
    return statistics.linear_regression(*zip(*known, strict=True)).slope * 1000


def _print(options: Options, samples: list[Sample]) -> None:
    first, middle, last = samples[0], samples[len(samples) // 2], samples[-1]
    print_table(
        f"Memory in MB, of the largest process of a kind ('{options.sink}', {last.batches:,} micro-batches)",
        ["what", *(f"after {each.batches:,}" for each in (first, middle, last)), "growth in 1,000"],
        [
            [
                what,
                *(megabytes(each.memory.get(what), 1) for each in (first, middle, last)),
                megabytes(growth(samples, what), 2),
            ]
            for what in (HEAP, BESIDE, *(f"{kind}, resident" for kind in _KINDS))
        ],
    )
    print(f"Python processes of Spark: {first.processes}, {middle.processes}, {last.processes}.")
    halves = [_pace(samples[: len(samples) // 2 + 1]), _pace(samples[len(samples) // 2 :])]
    print(f"Seconds for a micro-batch: {halves[0]} in the first half, {halves[1]} in the second.")


def _pace(samples: list[Sample]) -> str:
    batches = samples[-1].batches - samples[0].batches
    return figure((samples[-1].seconds - samples[0].seconds) / batches, 3) if batches else NOTHING
