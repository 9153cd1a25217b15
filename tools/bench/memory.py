"""The resident memory of a Spark that this process started, and of other processes, by kind of process."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from tools.bench.processes import resident_bytes, tree

JVM: Final = "driver's JVM"
PYTHON: Final = "driver's Python"
STREAM: Final = "stream's Python"
PLANNING: Final = "planning workers"
TASKS: Final = "task workers"
_MARKS: Final = {
    " org.apache.spark.launcher.Main ": None,  # builds the command line of the JVM, and ends
    "/java ": JVM,
    " pyspark.sql.streaming.python_streaming_source_runner": STREAM,
    " pyspark.daemon pyspark.sql.worker.": PLANNING,
    " pyspark.daemon pyspark.worker": TASKS,
}
"""Part of the command line of each kind. The executor of a local Spark is in the driver's JVM."""
_PAUSE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Kind:
    """The processes of one kind."""

    largest_bytes: int
    """The most memory of one process."""
    number: int


def spark_processes() -> Iterator[tuple[str, int]]:
    """Yield kind and process id of this process and of Spark's processes below it."""
    yield PYTHON, os.getpid()
    for pid in tree(os.getpid())[1:]:
        command = _command(pid)
        for mark, kind in _MARKS.items():
            if mark in command:
                if kind is not None:
                    yield kind, pid
                break


def resident_now() -> dict[str, Kind]:
    """Return the resident memory of each kind of process."""
    found: dict[str, list[int]] = defaultdict(list)
    for kind, pid in spark_processes():
        size = resident_bytes(pid)
        if size is not None:
            found[kind].append(size)
    return {kind: Kind(max(sizes), len(sizes)) for kind, sizes in found.items()}


class Peaks:
    """Samples the memory in a thread, within its context."""

    def __init__(self, others: Mapping[str, int]) -> None:
        """`others`: kind and id of processes that are not Spark's."""
        self._others = dict(others)
        self._highest: dict[str, dict[int, int]] = defaultdict(dict)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def highest(self) -> dict[str, Kind]:
        """Stop sampling. Returns the peak memory of a process of each kind, and the number of processes."""
        self._stop()
        self._look()
        return {kind: Kind(max(by_pid.values()), len(by_pid)) for kind, by_pid in self._highest.items()}

    def _stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stopped.wait(_PAUSE_SECONDS):
            self._look()

    def _look(self) -> None:
        for kind, pid in (*self._others.items(), *spark_processes()):
            highest = resident_bytes(pid, "VmHWM")
            if highest is not None:
                self._highest[kind][pid] = highest


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
