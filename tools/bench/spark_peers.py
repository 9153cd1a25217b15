"""Peeklock's data source compared with Kafka and Spark's own source for it: the same messages into Parquet.

Each build of Peeklock has a Spark of its own (`spark_driver`), which differs in nothing else; the first also reads from
Kafka. All have the same number of cores, one works at a time, and rounds go through all of them in turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.bench.brokers import QUEUE, Peeklock
from tools.bench.interrupts import interrupts
from tools.bench.kafka import Kafka, fetch_kafka, fetch_source
from tools.bench.load import LoadFailed, LoadProcesses, SendRows
from tools.bench.packages import Unavailable
from tools.bench.plain import Plain
from tools.bench.processes import StartFailed, cpu_seconds, file_system
from tools.bench.report import figure, machine, print_table
from tools.bench.sessions import ROOT, check_spark

TOPIC: Final = "bench"
KAFKA: Final = "Kafka"
_WARM: Final = 2_000
"""Messages of the warm-up round, which is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of this benchmark."""

    count: int = 500_000
    size: int = 1024
    batches: tuple[int, ...] = (100_000,)
    """Messages of a micro-batch."""
    cores: int = 2
    rounds: int = 3
    compiled: Path | None = None
    cache: Path = Path(".peers")
    peer: bool = True
    """Whether to measure Kafka too."""


@dataclass(slots=True)
class Measured:
    """All rounds of one kind of work on one broker."""

    broker: str
    work: str
    batch: int | None = None
    """Messages of a micro-batch; None for a single batch."""
    seconds: list[float] = field(default_factory=list)
    jvm: list[float] = field(default_factory=list)
    """CPU seconds."""
    python: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)


class Driver:
    """A Spark with one build of Peeklock, in a child process."""

    def __init__(self, package: Path, folder: Path, options: Options, jars: list[Path], started: ExitStack) -> None:
        folder.mkdir()
        package = package.resolve()
        places = os.pathsep.join(filter(None, (str(package), str(ROOT), os.environ.get("PYTHONPATH"))))
        self._log = folder / "spark.log"
        with interrupts.held(), self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tools.bench.spark_driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": places},
                start_new_session=True,
            )
        started.callback(self._stop)
        jars_named = [str(jar) for jar in jars]
        self._tell({"folder": str(folder), "package": str(package), "cores": options.cores, "jars": jars_named})

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self._tell({"do": do, **arguments})
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise LoadFailed(f"Spark ended: {self._log.read_text(errors='replace')[-1000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "failure" in answer:
            raise LoadFailed(f"Spark failed: {answer['failure']}")
        return answer

    def _tell(self, what: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Side(ABC):
    """A broker with the Spark that reads from it, and their measurements."""

    def __init__(self, name: str, driver: Driver, pid: int, options: Options) -> None:
        self.name = name
        self._driver = driver
        self._pid = pid
        self._options = options
        self.measured: dict[tuple[str, int | None], Measured] = {}

    @abstractmethod
    def round(self, count: int, *, counts: bool) -> None:
        """Measure each kind of work once."""

    def _measure(
        self, work: str, do: str, count: int, place: dict[str, Any], batch: int | None = None, *, counts: bool
    ) -> None:
        before = cpu_seconds(self._pid) or 0.0
        told = self._driver.ask(do, **place, **({} if batch is None else {"batch": batch}))
        if told["rows"] != count:
            raise LoadFailed(f"{self.name}: {work} wrote {told['rows']:,} rows instead of {count:,}")
        if not counts:
            return
        each = self.measured.setdefault((work, batch), Measured(self.name, work, batch))
        each.seconds.append(told["seconds"])
        each.jvm.append(told["jvm"])
        each.python.append(told["python"])
        each.server.append((cpu_seconds(self._pid) or 0.0) - before)


class KafkaSide(Side):
    """Kafka, which keeps messages after they are read: every round reads the same messages."""

    def __init__(self, kafka: Kafka, driver: Driver, options: Options) -> None:
        super().__init__(KAFKA, driver, kafka.pid, options)
        self._address = kafka.address

    def round(self, count: int, *, counts: bool) -> None:
        place = {"address": self._address, "topic": TOPIC if counts else f"{TOPIC}-warm"}
        if not self.measured:
            self._driver.ask("fill_kafka", **place, count=count, size=self._options.size, tasks=self._options.cores)
        self._measure("batch read", "kafka_batch", count, place, counts=counts)
        for batch in self._options.batches:
            self._measure("stream", "kafka_stream", count, place, batch, counts=counts)


class PeeklockSide(Side):
    def __init__(self, broker: Peeklock, driver: Driver, options: Options, loads: LoadProcesses) -> None:
        super().__init__(broker.name, driver, broker.pid, options)
        self._target = broker.target()
        self._plain = Plain(loads, self._target)
        self._loads = loads

    def round(self, count: int, *, counts: bool) -> None:
        place = {"url": self._target.url, "queue": QUEUE, "tasks": self._options.cores}
        self._fill(count)
        self._measure("batch read", "read", count, place, counts=counts)
        for number, batch in enumerate(self._options.batches):
            if number:
                self._fill(count)
            self._measure("claim stream", "claim", count, place, batch, counts=counts)
            self._fill(count)
            self._measure("capture", "capture", count, place, batch, counts=counts)

    def _fill(self, count: int) -> None:
        if not self._plain.is_empty():
            raise LoadFailed(f"{self.name}: there are messages left in the queue")
        job = SendRows(url=self._target.url, address=QUEUE, count=count, size=self._options.size)
        self._loads.run([job])
        # A peek waits until the index is written, which is part of the cost of sending, not of reading.
        if self._plain.is_empty():
            raise LoadFailed(f"{self.name}: there are no messages in the queue")


def run(options: Options, folder: Path, started: ExitStack) -> dict[str, Any]:
    """Measure, print the table, and return all figures."""
    check_spark()
    print(f"{options.count:,} messages of {options.size:,} bytes into Parquet, local[{options.cores}].")
    print(f"{machine()}; data on {file_system(folder)}.")
    with interrupts.held():
        loads = started.enter_context(LoadProcesses(1))
    sides, missing = _start(options, folder, started, loads)
    for side in sides:
        side.round(_WARM, counts=False)
    for _ in range(options.rounds):
        for side in sides:
            side.round(options.count, counts=True)
    measured = [each for side in sides for each in side.measured.values()]
    _print(measured, options)
    for name, reason in missing.items():
        print(f"{name} was not measured: {reason}")
    return {
        "benchmark": "spark-peers",
        "machine": machine(),
        "file_system": file_system(folder),
        "options": {**asdict(options), "compiled": options.compiled is not None, "cache": None},
        "rounds": [asdict(each) for each in measured],
        "missing": missing,
    }


def _start(
    options: Options, folder: Path, started: ExitStack, loads: LoadProcesses
) -> tuple[list[Side], dict[str, str]]:
    missing: dict[str, str] = {}
    jars: list[Path] = []
    kafka: Kafka | None = None
    if options.peer:
        try:
            jars = fetch_source(options.cache)
            (folder / "kafka").mkdir()
            kafka = Kafka(fetch_kafka(options.cache), folder / "kafka", started, options.cores)
        except (Unavailable, StartFailed) as failure:
            missing[KAFKA] = str(failure)
    packages = {"interpreted": ROOT / "src"} | ({"compiled": options.compiled} if options.compiled else {})
    sides: list[Side] = []
    for name, package in packages.items():
        place = folder / name
        driver = Driver(package, place, options, jars, started)
        if kafka is not None and not sides:
            sides.append(KafkaSide(kafka, driver, options))
        (place / "broker").mkdir()
        broker = Peeklock(place / "broker", started, interpreted=name == "interpreted")
        broker.start()
        sides.append(PeeklockSide(broker, driver, options, loads))
    return sides, missing


# --- the table ---


def _print(measured: list[Measured], options: Options) -> None:
    beside = [each for each in measured if each.broker == KAFKA]
    print_table(
        f"Messages a second, medians of {options.rounds} rounds; ratios are medians of those within a round",
        ["", "a batch", "msg/s", "to Kafka's best", "same batch", "µs: JVM", "Python", "broker"],
        [_words(each, beside, options.count) for each in measured],
    )


def _words(each: Measured, beside: list[Measured], count: int) -> list[str]:
    best = min(beside, key=lambda kafka: statistics.median(kafka.seconds), default=None)
    same = next((kafka for kafka in beside if kafka.batch == each.batch), None)
    return [
        f"{each.broker}: {each.work}",
        "all" if each.batch is None else figure(each.batch),
        figure(count / statistics.median(each.seconds)),
        figure(_ratio(each, best), 2),
        figure(_ratio(each, same), 2),
        *(figure(statistics.median(spent) / count * 1e6, 1) for spent in (each.jvm, each.python, each.server)),
    ]


def _ratio(each: Measured, beside: Measured | None) -> float | None:
    """Return the ratio of two rates."""
    if beside is None:
        return None
    return statistics.median(theirs / ours for ours, theirs in zip(each.seconds, beside.seconds, strict=True))
