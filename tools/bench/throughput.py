"""Throughput, latency, CPU time and memory: send all messages, then receive and complete all."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.bench.brokers import Peeklock, Target, external_target
from tools.bench.interrupts import interrupts
from tools.bench.load import Job, LoadProcesses, Pace, Receive, Result, Send, Watch
from tools.bench.processes import cpu_seconds, file_system, resident_bytes
from tools.bench.rabbitmq import find_rabbitmq, start_rabbitmq
from tools.bench.report import figure, machine, median, megabytes, milliseconds, percentile, print_table

_PACE_SECONDS: Final = 0.002
_WARM_UP: Final = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of this benchmark."""

    count: int = 100_000
    size: int = 1024
    connections: tuple[int, ...] = (1, 8)
    rounds: int = 3
    latency_count: int = 1000
    memory: bool = False
    peers: bool = True
    """Whether to measure RabbitMQ if it is found."""
    rabbitmq: Path | None = None
    """The folder with RabbitMQ's scripts, if not the installed one."""
    peer: str | None = None
    peer_address: str = "/queues/bench"


@dataclass(slots=True)
class Phase:
    """Sending or receiving in one round."""

    per_second: float
    cpu_us: float | None
    """The broker's CPU time for each message."""
    load_us: float
    """The load's CPU time per message: near the time between two messages, the load is the limit."""


@dataclass(slots=True)
class Measured:
    """All rounds of one queue with a number of connections."""

    broker: str
    connections: int
    send: list[Phase] = field(default_factory=list)
    receive: list[Phase] = field(default_factory=list)


@dataclass(slots=True)
class Latency:
    """Latency in seconds, with one message in flight."""

    broker: str
    send: list[float]
    end_to_end: list[float]


def run(options: Options, folder: Path, started: ExitStack) -> dict[str, Any]:
    """Measure, print the tables, and return all figures."""
    print(f"Throughput: {options.count:,} durable messages of {options.size:,} bytes, medians of {options.rounds}.")
    print(f"{machine()}; data on {file_system(folder)}.")
    targets = _targets(options, folder, started)
    with interrupts.held():
        loads = started.enter_context(LoadProcesses(max(2, *options.connections)))
    warm_up = min(_WARM_UP, options.count)
    for target in targets:
        _send(loads, target, 1, warm_up, options.size)
        _receive(loads, target, 1, warm_up)
    latencies = [_latency(loads, target, options) for target in targets]
    measured = [Measured(target.name, number) for number in options.connections for target in targets]
    for _ in range(options.rounds):
        # Alternating within each round, so that other load of the machine affects all of them.
        for number in options.connections:
            for target in targets:
                entry = next(m for m in measured if (m.broker, m.connections) == (target.name, number))
                entry.send.append(_send(loads, target, number, options.count, options.size))
                entry.receive.append(_receive(loads, target, number, options.count))
    after = {target.name: resident_bytes(target.pid) for target in targets}
    _print(options, targets, measured, latencies, after)
    return {
        "benchmark": "throughput",
        "machine": machine(),
        "file_system": file_system(folder),
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in asdict(options).items()},
        "rounds": [asdict(entry) for entry in measured],
        "latency_seconds": [asdict(entry) for entry in latencies],
        "resident_bytes": [{"broker": t.name, "idle": t.idle_bytes, "after": after[t.name]} for t in targets],
    }


def _targets(options: Options, folder: Path, started: ExitStack) -> list[Target]:
    own = Peeklock(folder, started, memory=options.memory)
    own.start()
    targets = [own.target()]
    if options.peer is not None:
        targets.append(external_target(options.peer, options.peer_address))
    elif options.peers:
        scripts = options.rabbitmq or find_rabbitmq()
        if scripts is None:
            print("RabbitMQ is not installed: not measured.")
        else:
            private = folder / "rabbitmq"
            private.mkdir()
            targets += start_rabbitmq(scripts, private, started)
    return targets


# --- phases ---


def _send(loads: LoadProcesses, target: Target, connections: int, count: int, size: int) -> Phase:
    return phase(
        loads,
        target,
        [Send(url=target.url, address=target.address, count=n, size=size) for n in _shares(count, connections)],
    )


def _receive(loads: LoadProcesses, target: Target, connections: int, count: int) -> Phase:
    job = Receive(url=target.url, address=target.address, count=count, mode=target.mode)
    return phase(loads, target, [job] * connections)


def phase(loads: LoadProcesses, target: Target, jobs: list[Job]) -> Phase:
    """Run the jobs at the same time; returns their time and cost."""
    cpu_before: list[float | None] = []
    results = loads.run(jobs, lambda: cpu_before.append(cpu_seconds(target.pid)))
    cpu_after = cpu_seconds(target.pid)
    count = sum(result.count for result in results)
    cpu = None
    if cpu_before[0] is not None and cpu_after is not None:
        cpu = (cpu_after - cpu_before[0]) / count * 1e6
    return Phase(count / seconds(results), cpu, sum(result.cpu_seconds for result in results) / count * 1e6)


def seconds(results: list[Result]) -> float:
    """Return the seconds from the first start to the last end of all load processes."""
    working = [result for result in results if result.count]
    return max(result.ended for result in working) - min(result.began for result in working)


def _shares(count: int, connections: int) -> list[int]:
    return [count // connections + (i < count % connections) for i in range(connections)]


def _latency(loads: LoadProcesses, target: Target, options: Options) -> Latency:
    count, size = options.latency_count, max(8, options.size)
    watch = Watch(url=target.url, address=target.address, count=count, mode=target.mode)
    pace = Pace(url=target.url, address=target.address, count=count, size=size, interval_seconds=_PACE_SECONDS)
    watched, paced = loads.run([watch, pace])
    return Latency(target.name, paced.latencies, watched.latencies)


# --- tables ---


def _print(
    options: Options,
    targets: list[Target],
    measured: list[Measured],
    latencies: list[Latency],
    after: dict[str, int | None],
) -> None:
    print_table(
        "Throughput (µs: the broker's CPU time for each message)",
        ["broker", "connections", "send/s", "MB/s", "µs", "receive/s", "MB/s", "µs"],
        [
            [entry.broker, str(entry.connections), *_words(entry.send, options), *_words(entry.receive, options)]
            for entry in measured
        ],
    )
    own, *peers = targets
    if peers:
        print_table(
            f"{own.name} compared: ratio of the medians, and median of the rounds' ratios",
            ["with", "connections", "send", "by round", "receive", "by round"],
            [
                [peer.name, str(number), *_ratios(measured, number, own.name, peer.name)]
                for number in options.connections
                for peer in peers
            ],
        )
    print_table(
        f"Latency in milliseconds, one message in flight, {options.latency_count:,} messages",
        ["broker", "send p50", "send p99", "end to end p50", "end to end p99"],
        [
            [
                entry.broker,
                *(milliseconds(percentile(v, p)) for v in (entry.send, entry.end_to_end) for p in (50, 99)),
            ]
            for entry in latencies
        ],
    )
    print_table(
        "Resident memory in MB",
        ["broker", "idle", "after"],
        [[target.name, megabytes(target.idle_bytes), megabytes(after[target.name])] for target in targets],
    )


def _words(phases: list[Phase], options: Options) -> list[str]:
    rate = statistics.median(phase.per_second for phase in phases)
    return [figure(rate), megabytes(rate * options.size, 1), figure(median([phase.cpu_us for phase in phases]), 1)]


def _ratios(measured: list[Measured], connections: int, own: str, peer: str) -> list[str]:
    entries = {entry.broker: entry for entry in measured if entry.connections == connections}
    words = []
    for phase in ("send", "receive"):
        mine, other = ([p.per_second for p in getattr(entries[name], phase)] for name in (own, peer))
        words.append(figure(statistics.median(mine) / statistics.median(other), 2))
        words.append(figure(statistics.median(m / o for m, o in zip(mine, other, strict=True)), 2))
    return words
