"""The speed of the Spark data source, compared with the plain client that it is built on, in the same run.

Spark runs in this process and its workers, on this machine. Starting a query takes it a while, however little there is
to do; so each query is also measured with next to nothing, and the rate is given with that time and without it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import count as counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from peeklock.client import ReceiveMode
from tools.bench.brokers import QUEUE, Peeklock, Target
from tools.bench.interrupts import interrupts
from tools.bench.load import LoadFailed, LoadProcesses
from tools.bench.plain import Plain
from tools.bench.processes import file_system
from tools.bench.report import figure, machine, print_table
from tools.bench.sessions import check_spark, failures_in_short, start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SENDING: Final = ("send", "send in batches")
MODES: Final = {
    "read": ("peek",),
    "claim": ("receive and complete", "the same operations"),
    "receiveAndDelete": ("receive and delete",),
    "write": _SENDING,
    "write-ids": _SENDING,
}
"""The modes of Spark, and the equivalent work of the plain client.

Rows are written that have an id, as the messages of the client, and rows for which the writer makes one of what they
say. Messages go one by one, or in batches that are ready before the time starts: a client cannot do more.

The same operations as a claim: receive and defer all, peek them by number, receive them by number for good.
"""
_FEW: Final = 10
"""Messages of a run that measures the start of a query; with none a stream would have no micro-batch."""
_SETTINGS: Final = {"spark.sql.streaming.numRecentProgressUpdates": "10000"}
"""The messages of a query are counted at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of this benchmark."""

    count: int = 100_000
    """Messages; a quarter of them for sizes above 1 KiB."""
    sizes: tuple[int, ...] = (1024, 10_240)
    tasks: tuple[int, ...] = (1, 2)
    modes: tuple[str, ...] = tuple(MODES)
    rounds: int = 3
    per_trigger: int = 50_000

    def count_of(self, size: int) -> int:
        return self.count if size <= 1024 else max(1, self.count // 4)


@dataclass(slots=True)
class Measured:
    """All rounds of one mode, with messages of one size and a number of tasks. Seconds."""

    mode: str
    size: int
    tasks: int
    count: int
    plain: dict[str, list[float]] = field(default_factory=dict)
    """Seconds by the work of the plain client."""
    spark: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    """Seconds of the same query on very few messages."""

    def plain_rate(self, work: str) -> float:
        return self.count / statistics.median(self.plain[work])

    @property
    def rate(self) -> float:
        return self.count / statistics.median(self.spark)

    @property
    def rate_once_started(self) -> float | None:
        """Return the rate without the start of the query; None if the remaining time is too short."""
        left = statistics.median(self.spark) - statistics.median(self.start)
        return self.count / left if left > 0.05 else None


def run(options: Options, folder: Path, started: ExitStack) -> dict[str, Any]:
    """Measure, print the table, and return all figures."""
    check_spark()
    print(f"Spark: {_counts(options)}; a stream takes {options.per_trigger:,} at a time.")
    print(f"{machine()}; data on {file_system(folder)}.")
    broker = Peeklock(folder, started)
    broker.start()
    with interrupts.held():
        loads = started.enter_context(LoadProcesses(max(2, *options.tasks)))
    target = broker.target()
    session = start_spark(max(options.tasks), folder, started, settings=_SETTINGS)
    queries = Queries(session, target, folder, options.per_trigger)
    plain = Plain(loads, target)
    measured = [
        Measured(mode, size, tasks, options.count_of(size))
        for mode in options.modes
        for size in options.sizes
        for tasks in options.tasks
    ]
    for mode in options.modes:  # the first run is slower
        _spark(mode, _FEW, options.sizes[0], max(options.tasks), plain, queries)
    for _ in range(options.rounds):
        # Alternating within each round, so that other load of the machine affects all of them.
        for each in measured:
            for work in MODES[each.mode]:
                each.plain.setdefault(work, []).append(_plain(work, each, plain))
            each.start.append(_spark(each.mode, _FEW, each.size, each.tasks, plain, queries))
            each.spark.append(_spark(each.mode, each.count, each.size, each.tasks, plain, queries))
    _print(measured, options)
    return {
        "benchmark": "spark",
        "machine": machine(),
        "file_system": file_system(folder),
        "options": asdict(options),
        "rounds": [asdict(each) for each in measured],
    }


def _plain(work: str, each: Measured, plain: Plain) -> float:
    """Measure one round; the queue is empty before and after."""
    count, tasks = each.count, each.tasks
    if work in _SENDING:
        send = plain.send if work == "send" else plain.send_batches
        took = send(count, each.size, tasks)
        plain.empty(count)
        return took
    plain.send(count, each.size)
    if work == "peek":
        took = plain.peek(count, tasks)
        plain.empty(count)
        return took
    if work == "the same operations":
        took = plain.claim(count, tasks)
        plain.check_empty()
        return took
    mode = ReceiveMode.PEEK_LOCK if work == "receive and complete" else ReceiveMode.RECEIVE_AND_DELETE
    return plain.receive(count, tasks, mode)


def _spark(mode: str, count: int, size: int, tasks: int, plain: Plain, queries: Queries) -> float:
    """Measure one round; the queue is empty before and after."""
    if MODES[mode] == _SENDING:
        took = queries.write(count, size, tasks, has_ids=mode == "write")
        plain.empty(count)
        return took
    plain.send(count, size)
    if mode == "read":
        took = queries.read(count, tasks)
        plain.empty(count)
        return took
    took = queries.stream(mode, count, tasks)
    plain.check_empty()
    return took


# --- Spark ---


class Queries:
    """The work of Spark with a number of tasks. Each method returns its seconds."""

    def __init__(self, spark: SparkSession, target: Target, folder: Path, per_trigger: int) -> None:
        self._spark = spark
        self._options = {"connectionString": target.url, "queue": QUEUE}
        self._per_trigger = per_trigger
        self._checkpoints: Iterator[Path] = (folder / f"checkpoint-{number}" for number in counter(1))

    def read(self, count: int, tasks: int) -> float:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        reader = self._spark.read.format("servicebus").options(**self._options, numPartitions=tasks)
        rows = reader.load().observe(seen, F.count("*").alias("rows"))
        took = _timed(lambda: rows.write.format("noop").mode("overwrite").save())
        _check_count(seen.get["rows"], count)
        return took

    def stream(self, mode: str, count: int, tasks: int) -> float:
        """Run until everything is settled: the last micro-batch is settled when Spark finds no more messages."""
        reader = self._spark.readStream.format("servicebus").options(
            **self._options, mode=mode, numPartitions=tasks, maxMessagesPerTrigger=self._per_trigger
        )
        writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(next(self._checkpoints)))
        seen = 0

        def work() -> None:
            nonlocal seen
            query = writer.start()
            try:
                query.processAllAvailable()
            finally:
                query.stop()
            seen = sum(int(progress["numInputRows"]) for progress in query.recentProgress)

        took = _timed(work)
        _check_count(seen, count)
        return took

    def write(self, count: int, size: int, tasks: int, *, has_ids: bool) -> float:
        from pyspark.sql import functions as F

        ids = [F.lit("x" * 16).alias("message_id")] if has_ids else []
        rows = self._spark.range(0, count, 1, tasks).select(F.lit(b"x" * size).alias("body"), *ids)
        writer = rows.write.format("servicebus").options(**self._options).mode("append")
        return _timed(writer.save)


def _timed(work: Callable[[], Any]) -> float:
    began = time.monotonic()
    with failures_in_short():
        work()
    return time.monotonic() - began


def _check_count(seen: int, count: int) -> None:
    if seen != count:
        raise LoadFailed(f"Spark saw {seen:,} messages instead of {count:,}")


# --- the table ---


def _counts(options: Options) -> str:
    return ", ".join(f"{options.count_of(size):,} messages of {size:,} bytes" for size in options.sizes)


def _print(measured: list[Measured], options: Options) -> None:
    print_table(
        f"Messages a second, medians of {options.rounds} (start: seconds that a query takes for {_FEW} messages)",
        [
            "Spark compared with the client",
            "bytes",
            "tasks",
            "plain/s",
            "Spark/s",
            "ratio",
            "start",
            "Spark/s after it",
            "ratio",
        ],
        [_words(each, work) for each in measured for work in MODES[each.mode]],
    )


def _words(each: Measured, work: str) -> list[str]:
    plain, after = each.plain_rate(work), each.rate_once_started
    return [
        f"{each.mode} compared with {work}",
        str(each.size),
        str(each.tasks),
        figure(plain),
        figure(each.rate),
        figure(each.rate / plain, 2),
        figure(statistics.median(each.start), 1),
        figure(after),
        figure(None if after is None else after / plain, 2),
    ]
