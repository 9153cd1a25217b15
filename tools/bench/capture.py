"""The capture pipeline from end to end: fill a queue, capture it into Parquet until it is empty, compact the files.

The times of the stages come from Spark's progress events and from clocks around the pipeline's steps. The stages run
one after the other and add up to the total, with the remainder. Finally every message must be in the files once.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.bench.brokers import QUEUE, Peeklock, Target
from tools.bench.interrupts import interrupts
from tools.bench.load import LoadFailed, LoadProcesses
from tools.bench.memory import Kind, Peaks
from tools.bench.plain import Plain
from tools.bench.processes import file_system
from tools.bench.report import figure, machine, megabytes, print_table
from tools.bench.sessions import check_spark, failures_in_short, start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tools.bench.clocks import Clocks

_PATIENCE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of this benchmark."""

    count: int = 1_000_000
    size: int = 1024
    batch_size: int = 10_000
    tasks: int = 2


@dataclass(slots=True)
class Measured:
    """All figures; seconds."""

    sending: float = 0.0
    starting: float = 0.0
    """Spark's seconds."""
    capturing: float = 0.0
    compacting: float = 0.0
    batches: int = 0
    files: int = 0
    """Files before the compaction."""
    files_compacted: int = 0
    spark_ms: dict[str, int] = field(default_factory=dict)
    """Spark's own figures, summed over all micro-batches."""
    clocks: dict[str, float] = field(default_factory=dict)
    """The seconds of the pipeline's steps."""
    memory: dict[str, Kind] = field(default_factory=dict)

    def stages(self) -> dict[str, float]:
        """Return the stages of the capture in the order of a micro-batch; they add up to the total."""
        step, ms = self.clocks.get, self.spark_ms.get
        adding, writing, moving = step("Lake.add_batch", 0.0), step("Lake.write", 0.0), step("LocalFiles.move", 0.0)
        stages = {
            "settle: have removed what is in the files": step("BrokerClaims.settle", 0.0),
            "claim": step("BrokerClaims.next", 0.0),
            "plan": (ms("queryPlanning", 0) + ms("getBatch", 0)) / 1000,
            "tasks: read, decode, write Parquet": writing - moving,
            "commit: files synced, moved and listed": adding - writing + moving,
            "Spark's own logs": (ms("walCommit", 0) + ms("commitOffsets", 0)) / 1000,
        }
        in_batches = ms("triggerExecution", 0) / 1000
        return {
            **stages,
            "the rest of the micro-batches": in_batches - sum(stages.values()),
            "start and end of the query": self.capturing - in_batches,
        }


def run(options: Options, folder: Path, started: ExitStack) -> dict[str, Any]:
    """Measure, print the tables, and return all figures."""
    check_spark()
    from tools.bench.clocks import Clocks

    print(f"Capture: {options.count:,} messages of {options.size:,} bytes, {options.batch_size:,} in a micro-batch.")
    print(f"{machine()}; data on {file_system(folder)}.")
    broker = Peeklock(folder, started)
    broker.start()
    with interrupts.held():
        loads = started.enter_context(LoadProcesses(1))
    plain = Plain(loads, broker.target())
    figures = Measured()
    figures.sending = plain.send(options.count, options.size)
    peaks = started.enter_context(Peaks({"broker": broker.pid}))
    clocks = Clocks(folder)
    began = time.monotonic()
    spark = start_spark(options.tasks, folder, started, path=[clocks.path])
    figures.starting = time.monotonic() - began
    clocks.start()
    with failures_in_short():
        _capture(spark, broker.target(), str(folder / "captured"), options, clocks, figures)
    plain.check_empty()
    figures.memory = peaks.highest()
    _print(options, figures)
    return {
        "benchmark": "capture",
        "machine": machine(),
        "file_system": file_system(folder),
        "options": asdict(options),
        "figures": {**asdict(figures), "stages": figures.stages()},
    }


def _capture(
    spark: SparkSession, target: Target, lake: str, options: Options, clocks: Clocks, figures: Measured
) -> None:
    from peeklock.spark.pipelines import capture
    from peeklock.spark.pipelines.compaction import compact

    source = {
        "connectionString": target.url,
        "maxMessagesPerTrigger": str(options.batch_size),
        "numPartitions": str(options.tasks),
    }
    heard = _Heard(spark)
    seen = 0

    def told(batch: capture.Batch) -> None:
        nonlocal seen
        seen += batch.rows
        figures.files += batch.files

    began = time.monotonic()
    capture.capture(spark, [QUEUE], source, capture.Target(folder=lake, until_empty=True), told)
    figures.capturing = time.monotonic() - began
    figures.clocks = clocks.seconds()
    figures.batches, figures.spark_ms = heard.sums()
    began = time.monotonic()
    done = compact(spark, lake)
    figures.compacting = time.monotonic() - began
    figures.files_compacted = figures.files - done.merged + done.into
    rows = capture.read(spark, lake)
    there, different = rows.count(), rows.select("sequence_number").distinct().count()
    if not seen == there == different == options.count:
        raise LoadFailed(f"{seen:,} messages were captured, {there:,} rows are in the files, {different:,} different")


class _Heard:
    """Collects Spark's progress events."""

    def __init__(self, spark: SparkSession) -> None:
        from pyspark.sql.streaming.listener import StreamingQueryListener

        self._batches: set[int] = set()
        self._sums: dict[str, int] = defaultdict(int)
        self._ended = threading.Event()
        heard = self

        class Listener(StreamingQueryListener):
            def onQueryStarted(self, event: Any) -> None:
                pass

            def onQueryProgress(self, event: Any) -> None:
                heard._batches.add(event.progress.batchId)
                for name, ms in event.progress.durationMs.items():
                    heard._sums[name] += ms

            def onQueryIdle(self, event: Any) -> None:
                pass

            def onQueryTerminated(self, event: Any) -> None:
                heard._ended.set()

        spark.streams.addListener(Listener())

    def sums(self) -> tuple[int, dict[str, int]]:
        """Return the number of micro-batches, and milliseconds by name. Waits for the last events of an ended query."""
        if not self._ended.wait(_PATIENCE_SECONDS):
            raise LoadFailed("Spark did not report the end of the query")
        return len(self._batches), dict(self._sums)


def _print(options: Options, figures: Measured) -> None:
    whole = figures.capturing
    print_table(
        f"Capture of {options.count:,} messages in {figures.batches:,} micro-batches, {options.tasks} tasks",
        ["stage", "seconds", "% of capture", "µs for a message"],
        [
            _stage(name, taken, whole, options.count)
            for name, taken in {**figures.stages(), "capture in all": whole}.items()
        ],
    )
    merged = f"compaction of {figures.files:,} files into {figures.files_compacted:,}"
    print_table(
        "Before and after",
        ["stage", "seconds", "msg/s"],
        [
            ["sending", figure(figures.sending, 1), figure(options.count / figures.sending)],
            ["start of Spark", figure(figures.starting, 1), "-"],
            ["capture", figure(whole, 1), figure(options.count / whole)],
            [merged, figure(figures.compacting, 1), figure(options.count / figures.compacting)],
        ],
    )
    print_table(
        "Highest resident memory in MB, of the largest process of a kind",
        ["process", "MB", "processes"],
        [[kind, megabytes(each.largest_bytes), str(each.number)] for kind, each in figures.memory.items()],
    )


def _stage(name: str, taken: float, whole: float, count: int) -> list[str]:
    return [name, figure(taken, 1), figure(100 * taken / whole, 1), figure(taken / count * 1e6, 1)]
