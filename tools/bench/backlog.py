"""The cost of a long queue: memory, the time of a restart, and the rate of receiving from it."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.bench.brokers import QUEUE, SHORT_QUEUE, Peeklock
from tools.bench.interrupts import interrupts
from tools.bench.load import LoadProcesses, Receive, Send
from tools.bench.processes import file_system, resident_bytes
from tools.bench.report import figure, machine, megabytes, print_table
from tools.bench.throughput import seconds

_SHORT: Final = 8000
"""The most messages in the short queue: few enough that the broker keeps all in memory."""
_SAMPLE: Final = 48_000
"""Messages received from either queue in a round: for the long one many times what is kept in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of this benchmark."""

    count: int = 1_000_000
    size: int = 1024
    rounds: int = 3


@dataclass(slots=True)
class Measured:
    """All figures; rates in messages a second."""

    idle_bytes: int | None = None
    fill_rate: float = 0.0
    filled_bytes: int | None = None
    peak_bytes: int | None = None
    ready_after_stop_seconds: float = 0.0
    ready_after_kill_seconds: float = 0.0
    restarted_bytes: int | None = None
    empty_rate: list[float] = field(default_factory=list)
    """The rate of receiving from a short queue, without a backlog in another queue."""
    short_rate: list[float] = field(default_factory=list)
    """The rate of receiving from a short queue, with a backlog in another queue."""
    backlog_rate: list[float] = field(default_factory=list)
    peak_receiving_bytes: int | None = None


def run(options: Options, folder: Path, started: ExitStack) -> dict[str, Any]:
    """Measure, print the table, and return all figures."""
    print(f"Backlog: {options.count:,} waiting durable messages of {options.size:,} bytes.")
    print(f"{machine()}; data on {file_system(folder)}.")
    broker = Peeklock(folder, started)
    broker.start()
    with interrupts.held():
        loads = started.enter_context(LoadProcesses(1))
    rounds = _Rounds(loads, broker, options)
    figures = Measured(idle_bytes=resident_bytes(broker.pid))
    rounds.short()  # a warm-up, not counted
    figures.empty_rate = [rounds.short() for _ in range(options.rounds)]
    figures.fill_rate = rounds.send(QUEUE, options.count)
    figures.filled_bytes = resident_bytes(broker.pid)
    figures.peak_bytes = resident_bytes(broker.pid, "VmHWM")
    broker.stop()
    figures.ready_after_stop_seconds = broker.start()
    broker.kill()
    figures.ready_after_kill_seconds = broker.start()
    figures.restarted_bytes = resident_bytes(broker.pid)
    rounds.short()
    for _ in range(options.rounds):
        figures.short_rate.append(rounds.short())
        figures.backlog_rate.append(rounds.long())
    figures.peak_receiving_bytes = resident_bytes(broker.pid, "VmHWM")
    _print(options, broker.name, figures)
    return {
        "benchmark": "backlog",
        "machine": machine(),
        "file_system": file_system(folder),
        "options": asdict(options),
        "figures": asdict(figures),
    }


class _Rounds:
    def __init__(self, loads: LoadProcesses, broker: Peeklock, options: Options) -> None:
        self._loads = loads
        self._broker = broker
        self._size = options.size
        self._sample = max(1, min(_SAMPLE, options.count // (options.rounds + 1)))

    def send(self, queue: str, count: int) -> float:
        target = self._broker.target(queue)
        job = Send(url=target.url, address=queue, count=count, size=self._size)
        return count / seconds(self._loads.run([job]))

    def short(self) -> float:
        """Fill the short queue and empty it, repeatedly; returns the rate of receiving."""
        left, spent = self._sample, 0.0
        while left:
            part = min(_SHORT, left)
            self.send(SHORT_QUEUE, part)
            spent += self._receive(SHORT_QUEUE, part)
            left -= part
        return self._sample / spent

    def long(self) -> float:
        return self._sample / self._receive(QUEUE, self._sample)

    def _receive(self, queue: str, count: int) -> float:
        target = self._broker.target(queue)
        return seconds(self._loads.run([Receive(url=target.url, address=queue, count=count)]))


def _print(options: Options, name: str, figures: Measured) -> None:
    empty, short, backlog = map(statistics.median, (figures.empty_rate, figures.short_rate, figures.backlog_rate))
    print_table(
        f"{name} with a backlog of {options.count:,} messages of {options.size:,} bytes",
        ["what", "figure", "unit"],
        [
            ["resident memory, idle", megabytes(figures.idle_bytes), "MB"],
            ["resident memory, backlog just filled", megabytes(figures.filled_bytes), "MB"],
            ["highest while filling", megabytes(figures.peak_bytes), "MB"],
            ["resident memory, restarted with the backlog", megabytes(figures.restarted_bytes), "MB"],
            ["highest while receiving from it", megabytes(figures.peak_receiving_bytes), "MB"],
            ["start to ready after a stop", figure(figures.ready_after_stop_seconds, 2), "s"],
            ["start to ready after a kill", figure(figures.ready_after_kill_seconds, 2), "s"],
            ["send while filling", figure(figures.fill_rate), "msg/s"],
            ["receive from a short queue, while no backlog exists", figure(empty), "msg/s"],
            ["receive from a short queue, while the backlog exists", figure(short), "msg/s"],
            ["receive from the backlog", figure(backlog), "msg/s"],
            ["ratio: backlog to short queue, while the backlog exists", figure(backlog / short, 2), "ratio"],
            ["ratio: backlog to short queue, while no backlog exists", figure(backlog / empty, 2), "ratio"],
        ],
    )
