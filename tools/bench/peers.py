"""Peeklock compared with other AMQP 1.0 brokers, with one load client that is independent of all of them.

Every broker is started before the first round and runs to the end. Each round measures all cells, and each cell all
brokers, so that other load of the machine affects all of them. After each cell all figures are written to a file, from
which an interrupted run can continue, and from which the page is generated.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

from tools.bench.interrupts import interrupts
from tools.bench.load import LoadFailed
from tools.bench.packages import ARTEMIS, PROTON, build_load_client
from tools.bench.peer_brokers import MANY, NAMES, Places, Running, start_all
from tools.bench.peer_tables import print_tables
from tools.bench.processes import file_system
from tools.bench.proton import Access, Done, Load, Sink, apply
from tools.bench.report import machine

FORMAT: Final = 1
PACED_SIZE: Final = 1024
_WARM_UP: Final = 20_000
_DRAIN_SECONDS: Final = 60.0
_QUIET_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of this benchmark."""

    brokers: tuple[str, ...] = NAMES
    sizes: tuple[int, ...] = (100, 1024, 65_536)
    connections: tuple[int, ...] = (1, 16)
    queues: tuple[int, ...] = (1, MANY)
    rounds: int = 3
    count: int = 60_000
    """Messages of a cell, for small messages."""
    bytes: int = 200_000_000
    """The most bytes of bodies in a cell; with larger messages a cell has fewer messages."""
    cell_seconds: float = 15.0
    """The most seconds for sending, for receiving, or for both at the same time."""
    rates: tuple[int, ...] = (1000, 5000)
    rate_seconds: float = 5.0
    starts: int = 3
    minutes: float = 40.0
    """Minutes after which no new cell is started."""

    def quick(self) -> Options:
        """Return options for a few cells, which take some minutes."""
        return replace(
            self, sizes=(1024,), queues=(1,), rounds=1, count=30_000, rates=(1000,), rate_seconds=3.0, starts=1
        )

    def messages(self, size: int) -> int:
        return max(1, min(self.count, self.bytes // size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A measurement of one broker in one round."""

    connections: int
    queues: int
    size: int


class Results:
    """All figures of a run, in a file that is replaced atomically."""

    def __init__(self, file: Path, options: Options, folder: Path, goes_on: bool) -> None:
        self.file = file
        self.data: dict[str, Any] = {
            "format": FORMAT,
            "when": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": _hardware(),
            "file_system": file_system(folder),
            "load_client": PROTON,
            "artemis": ARTEMIS,
            "options": asdict(options),
            "missing": {},
            "brokers": [],
            "cells": [],
            "latency": [],
            "ceiling": [],
        }
        if goes_on and file.exists():
            earlier = json.loads(file.read_text())
            if earlier.get("format") != FORMAT:
                raise ValueError(f"{file} has figures of another kind; give another --results")
            self.data |= {name: earlier[name] for name in ("when", "cells", "latency", "ceiling", "brokers")}

    def has(self, part: str, **keys: Any) -> bool:
        return any(all(row[key] == value for key, value in keys.items()) for row in self.data[part])

    def add(self, part: str, row: dict[str, Any]) -> None:
        self.data[part].append(row)
        self.save()

    def set_broker(self, row: dict[str, Any]) -> None:
        brokers = {one["name"]: one for one in self.data["brokers"]}
        self.data["brokers"] = list((brokers | {row["name"]: row}).values())
        self.save()

    def save(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.file.with_suffix(".partial")
        unfinished.write_text(json.dumps(self.data, indent=1) + "\n")
        unfinished.replace(self.file)


def run(
    options: Options, places: Places, results_file: Path, started: ExitStack, goes_on: bool = False
) -> dict[str, Any]:
    """Measure, print the tables, write the file, and return all figures."""
    print(f"Peers: {', '.join(options.brokers)}; {options.rounds} rounds, at most {options.minutes:g} minutes.")
    print(f"{machine()}; data on {file_system(places.data)}.", flush=True)
    program = build_load_client(places.cache)
    results = Results(results_file, options, places.data, goes_on)
    measuring = _Measuring(program, options, results)
    measuring.ceiling()
    running, missing = start_all(options.brokers, places, options.starts, started)
    results.data["missing"] = missing
    results.save()
    measuring.all(running)
    print_tables(results.data)
    print(f"\nAll figures are in {results_file}.")
    return results.data


class _Measuring:
    def __init__(self, program: Path, options: Options, results: Results) -> None:
        self._program = program
        self._options = options
        self._results = results
        self._until = time.monotonic() + options.minutes * 60

    # --- the limit of the client ---

    def ceiling(self) -> None:
        """Measure the client with a broker that stores nothing."""
        for size, connections in product(self._options.sizes, self._options.connections):
            if self._results.has("ceiling", size=size, connections=connections):
                continue
            count = self._options.messages(size) * 3
            with ExitStack() as started:
                with interrupts.held():
                    access = started.enter_context(Sink(self._program, size))
                loads = [
                    Load(side=side, count=count, size=size, connections=connections, seconds=10.0)
                    for side in ("send", "receive")
                ]
                done = {load.side: apply(self._program, access, [load])[0] for load in loads}
            row = {"size": size, "connections": connections}
            self._results.add("ceiling", row | {side: _rate([one]) for side, one in done.items()})

    # --- the brokers ---

    def all(self, running: list[Running]) -> None:
        targets = [(one, kind, access) for one in running for kind, access in one.access().items()]
        for one, _, access in targets:
            self._describe(one)
            self._warm_up(one, access)
        for number in range(self._options.rounds):
            for work in self._works():
                for one, kind, access in targets:
                    if time.monotonic() > self._until:
                        print("\nThe time limit was reached; --continue measures the other cells.")
                        return
                    work(one, f"{one.name} {kind}".strip(), access, number)
                    self._describe(one)
            print(f"Round {number + 1} of {self._options.rounds} is done.", flush=True)

    def _works(self) -> Iterator[Callable[[Running, str, Access, int], None]]:
        options = self._options
        for rate in options.rates:
            yield partial(self._paced, rate)
        for queues, size, connections in product(options.queues, options.sizes, options.connections):
            cell = Cell(connections=connections, queues=queues, size=size)
            yield partial(self._cell, cell)

    def _describe(self, one: Running) -> None:
        self._results.set_broker(
            {
                "name": one.name,
                "kinds": list(one.access()),
                "settings": one.settings,
                "starts": one.starts,
                "idle_bytes": one.idle_bytes,
                "bytes": one.resident_bytes(),
                "highest_bytes": one.highest_bytes(),
            }
        )

    def _warm_up(self, one: Running, access: Access) -> None:
        count = min(_WARM_UP, self._options.count)
        print(f"Warming up {one.name} ...", flush=True)
        for side in ("send", "receive"):
            try:
                apply(self._program, access, [Load(side=side, count=count, size=1024, seconds=30.0)])
            except LoadFailed as failure:
                print(f"  {failure}")
        self._drain(access, 1)

    def _cell(self, cell: Cell, one: Running, name: str, access: Access, number: int) -> None:
        """Send all messages, receive all; then send and receive at the same time."""
        about = {"broker": name, "round": number, **asdict(cell)}
        count = self._options.messages(cell.size)
        sides = {
            side: Load(side=side, count=count, seconds=self._options.cell_seconds, **asdict(cell))
            for side in ("send", "receive")
        }
        filled = False
        for phase, loads in {"send": ["send"], "receive": ["receive"], "both": ["send", "receive"]}.items():
            if self._results.has("cells", **about, phase=phase):
                continue
            if phase == "receive" and not filled:
                # Not all messages were sent, or an earlier run sent them to a former broker.
                self._fill(access, sides["send"])
            row = about | {"phase": phase} | self._measure(one, access, [sides[side] for side in loads])
            self._results.add("cells", row)
            filled = phase == "send" and row["complete"]
            if phase != "send" and not row["complete"]:
                self._drain(access, cell.queues)

    def _measure(self, one: Running, access: Access, loads: list[Load]) -> dict[str, Any]:
        spent: list[float] = []
        try:
            done = apply(self._program, access, loads, lambda: spent.append(one.cpu_seconds()))
        except LoadFailed as failure:
            return {"complete": False, "failed": str(failure)}
        cpu = one.cpu_seconds() - spent[0]
        count = done[-1].count
        return {
            "complete": count >= loads[-1].count and not any(each.refused for each in done),
            **_rate(done),
            "cpu_us": cpu / count * 1e6 if count else None,
            "bytes": one.resident_bytes(),
        }

    def _paced(self, rate: int, one: Running, name: str, access: Access, number: int) -> None:
        about = {"broker": name, "round": number, "rate": rate}
        if self._results.has("latency", **about):
            return
        count = max(1, int(rate * self._options.rate_seconds))
        patience = self._options.rate_seconds + self._options.cell_seconds
        watch = Load(side="receive", count=count, size=PACED_SIZE, seconds=patience, latency=True)
        pace = Load(side="send", count=count, size=PACED_SIZE, seconds=patience, rate=rate)
        try:
            watched, paced = apply(self._program, access, [watch, pace])
        except LoadFailed as failure:
            self._results.add("latency", about | {"complete": False, "failed": str(failure)})
            self._drain(access, 1)
            return
        complete = min(watched.count, paced.count) >= count
        latency = {"send": paced.latency, "end_to_end": watched.latency}
        self._results.add("latency", about | {"complete": complete, **latency})
        if not complete:
            self._drain(access, 1)

    def _fill(self, access: Access, load: Load) -> None:
        self._drain(access, load.queues)
        try:
            apply(self._program, access, [replace(load, seconds=_DRAIN_SECONDS)])
        except LoadFailed as failure:
            print(f"  {failure}")

    def _drain(self, access: Access, queues: int) -> None:
        """Receive the messages that an unfinished cell left."""
        load = Load(side="receive", count=2**40, size=8, queues=queues, seconds=_DRAIN_SECONDS, quiet=_QUIET_SECONDS)
        try:
            apply(self._program, access, [load])
        except LoadFailed as failure:
            print(f"  {failure}")


def _rate(done: list[Done]) -> dict[str, Any]:
    """Return the rate of received messages, from the first start to the last end."""
    seconds = max(one.ended for one in done) - min(one.began for one in done)
    count = done[-1].count
    return {
        "count": count,
        "seconds": seconds,
        "per_second": count / seconds,
        "client_us": sum(one.cpu_seconds for one in done) / count * 1e6 if count else None,
    }


def _hardware() -> dict[str, Any]:
    model = "unknown"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        memory = 0
    return {
        "cpus": os.cpu_count(),
        "model": model,
        "memory_bytes": memory,
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        "python": platform.python_version(),
    }
