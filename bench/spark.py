"""How fast the Spark data source reads and writes, beside the plain client that it is built on, in the same run.

Spark runs in this process and its workers, on this machine. Starting a query takes it a while, however little there is
to do; so each query is also measured with next to nothing, and the rate is given with that time and without it.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import count as counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.brokers import QUEUE, Peeklock, Target
from bench.interrupts import interrupts
from bench.load import Job, LoadFailed, LoadProcesses, Peek, Receive, Send
from bench.processes import file_system
from bench.report import figure, machine, print_table
from bench.throughput import seconds
from peeklock.client import ReceiveMode, connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODES: Final = {
    "read": "peek",
    "claim": "receive and complete",
    "receiveAndDelete": "receive and delete",
    "write": "send",
}
"""What Spark does, and what the plain client does for the same end."""
_FEW: Final = 10
"""Messages of a run that measures what starting a query takes; not none, or a stream would have no micro-batch."""
_SECONDS: Final = 120.0
_SOURCE: Final = Path(__file__).parents[1] / "src"
_LOGGING: Final = "peeklock/spark/log4j2.properties"
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={(_SOURCE / _LOGGING).as_uri()}",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure."""

    count: int = 100_000
    """Messages; of those larger than 1 KiB a quarter."""
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
    plain: list[float] = field(default_factory=list)
    spark: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    """Of the same query on next to nothing."""

    @property
    def plain_rate(self) -> float:
        return self.count / statistics.median(self.plain)

    @property
    def rate(self) -> float:
        return self.count / statistics.median(self.spark)

    @property
    def rate_once_started(self) -> float | None:
        """None when the rest is too short to say."""
        left = statistics.median(self.spark) - statistics.median(self.start)
        return self.count / left if left > 0.05 else None


def run(options: Options, folder: Path, started: ExitStack) -> dict[str, Any]:
    """Measure, print the table, and return all figures."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise ValueError("PySpark is not installed here: pip install 'peeklock[spark]'")
    print(f"Spark: {_counts(options)}; a stream takes {options.per_trigger:,} at a time.")
    print(f"{machine()}; data on {file_system(folder)}.")
    broker = Peeklock(folder, started)
    broker.start()
    with interrupts.held():
        loads = started.enter_context(LoadProcesses(max(2, *options.tasks)))
    target = broker.target()
    queries = Queries(_start_spark(max(options.tasks), folder, started), target, folder, options.per_trigger)
    plain = Plain(loads, target)
    measured = [
        Measured(mode, size, tasks, options.count_of(size))
        for mode in options.modes
        for size in options.sizes
        for tasks in options.tasks
    ]
    for mode in options.modes:  # what is done for the first time takes longer
        _spark(mode, _FEW, options.sizes[0], max(options.tasks), plain, queries)
    for _ in range(options.rounds):
        # One after the other within each round, so that what else the machine does falls on all alike.
        for each in measured:
            each.plain.append(_plain(each, plain))
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


def _plain(each: Measured, plain: Plain) -> float:
    if each.mode == "write":
        took = plain.send(each.count, each.size, each.tasks)
        plain.empty(each.count)
        return took
    plain.send(each.count, each.size)
    if each.mode == "read":
        took = plain.peek(each.count, each.tasks)
        plain.empty(each.count)
        return took
    mode = ReceiveMode.PEEK_LOCK if each.mode == "claim" else ReceiveMode.RECEIVE_AND_DELETE
    return plain.receive(each.count, each.tasks, mode)


def _spark(mode: str, count: int, size: int, tasks: int, plain: Plain, queries: Queries) -> float:
    """The queue is empty before and after."""
    if mode == "write":
        took = queries.write(count, size, tasks)
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


# --- the plain client ---


class Plain:
    """What the client does in processes of its own, one a task. Each returns the seconds it took."""

    def __init__(self, loads: LoadProcesses, target: Target) -> None:
        self._loads = loads
        self._target = target

    def send(self, count: int, size: int, tasks: int = 1) -> float:
        return self._run([Send(**self._job, count=share, size=size) for share in _shares(count, tasks)])

    def receive(self, count: int, tasks: int, mode: ReceiveMode) -> float:
        return self._run([Receive(**self._job, count=count, mode=mode)] * tasks)

    def peek(self, count: int, tasks: int) -> float:
        first = self._first()
        if first is None:
            raise LoadFailed("there is nothing to peek at")
        jobs: list[Job] = []
        for share in _shares(count, tasks):
            jobs.append(Peek(**self._job, count=share, first=first))
            first += share
        return self._run(jobs)

    def empty(self, count: int) -> None:
        """Take what there must be; LoadFailed when there is another number of messages."""
        self.receive(count, 1, ReceiveMode.RECEIVE_AND_DELETE)
        self.check_empty()

    def check_empty(self) -> None:
        if self._first() is not None:
            raise LoadFailed("there are messages left in the queue")

    @property
    def _job(self) -> dict[str, Any]:
        return {"url": self._target.url, "address": self._target.address, "seconds": _SECONDS}

    def _run(self, jobs: list[Job]) -> float:
        return seconds(self._loads.run(jobs))

    def _first(self) -> int | None:
        with connect(self._target.url) as connection:
            page = connection.management(self._target.address).peek(0, 1)
        annotations = page[0].message_annotations if page else None
        return None if annotations is None else int(annotations["x-opt-sequence-number"])


# --- Spark ---


class Queries:
    """What Spark does with as many tasks. Each returns the seconds from asking for it to its end."""

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
        """Until all is done with: also the last micro-batch is settled when Spark sees that there is nothing more."""
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

    def write(self, count: int, size: int, tasks: int) -> float:
        from pyspark.sql import functions as F

        rows = self._spark.range(0, count, 1, tasks).select(F.lit(b"x" * size).alias("body"))
        writer = rows.write.format("servicebus").options(**self._options).mode("append")
        return _timed(writer.save)


def _start_spark(cores: int, folder: Path, started: ExitStack) -> SparkSession:
    from pyspark.sql import SparkSession

    # Workers find the data source by these, also where Peeklock is not installed.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_SOURCE), os.environ.get("PYTHONPATH"))))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: SparkSession.Builder = SparkSession.builder.master(f"local[{cores}]").appName("bench")
    for name, value in {**_SETTINGS, "spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder)}.items():
        builder = builder.config(name, value)
    ours = signal.getsignal(signal.SIGINT)
    with interrupts.held():
        session = builder.getOrCreate()
        started.callback(_stop_spark, session)
        signal.signal(signal.SIGINT, ours)  # Spark puts its own in place of it
    return session


def _stop_spark(session: SparkSession) -> None:
    with suppress(Exception):  # it ends with this process at the latest
        session.stop()


def _timed(work: Callable[[], Any]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _check_count(seen: int, count: int) -> None:
    if seen != count:
        raise LoadFailed(f"Spark saw {seen:,} messages instead of {count:,}")


def _shares(count: int, parts: int) -> list[int]:
    return [count // parts + (i < count % parts) for i in range(parts)]


# --- the table ---


def _counts(options: Options) -> str:
    return ", ".join(f"{options.count_of(size):,} messages of {size:,} bytes" for size in options.sizes)


def _print(measured: list[Measured], options: Options) -> None:
    print_table(
        f"Messages a second, medians of {options.rounds} (start: seconds that a query takes for {_FEW} messages)",
        ["mode", "bytes", "tasks", "plain/s", "Spark/s", "ratio", "start", "Spark/s after it", "ratio"],
        [_words(each) for each in measured],
    )
    print("The plain client: " + ", ".join(f"{MODES[mode]} for {mode}" for mode in options.modes) + ".")


def _words(each: Measured) -> list[str]:
    after = each.rate_once_started
    return [
        each.mode,
        str(each.size),
        str(each.tasks),
        figure(each.plain_rate),
        figure(each.rate),
        figure(each.rate / each.plain_rate, 2),
        figure(statistics.median(each.start), 1),
        figure(after),
        figure(None if after is None else after / each.plain_rate, 2),
    ]
