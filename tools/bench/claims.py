"""Claims: the broker's CPU time for a message that is claimed, read packed and removed, in large batches.

This process is the load. It reads one page after the other, without decoding them.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

from peeklock.client import Array, Int, Management, connect
from tools.bench.brokers import QUEUE, Peeklock
from tools.bench.load import LoadFailed, encoded_message
from tools.bench.processes import cpu_seconds, file_system
from tools.bench.report import figure, machine, median, print_table

TIME_OUT: Final = 300.0
STEPS: Final = ("claim", "read packed", "remove")
_PROPERTIES: Final[dict[str, Any]] = {"tenant": "north", "kind": "order", "amount": 17}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of this benchmark."""

    count: int = 500_000
    size: int = 1024
    rounds: int = 3
    batch: int = 100_000
    """Messages per claim."""


@dataclass(slots=True)
class Round:
    """The broker's CPU seconds by step, and the elapsed seconds of all steps."""

    cpu: dict[str, float]
    seconds: float = 0.0


def run(options: Options, folder: Path, started: ExitStack) -> dict[str, Any]:
    """Measure, print the table, and return all figures."""
    print(f"Claims: {options.count:,} messages of {options.size:,} bytes, {options.batch:,} in a claim.")
    print(f"{machine()}; data on {file_system(folder)}.")
    broker = Peeklock(folder, started)
    broker.start()
    rounds = [_round(broker, options) for _ in range(options.rounds)]
    _print(rounds, options)
    return {
        "benchmark": "claims",
        "machine": machine(),
        "file_system": file_system(folder),
        "options": asdict(options),
        "rounds": [asdict(each) for each in rounds],
    }


def _round(broker: Peeklock, options: Options) -> Round:
    found = Round(dict.fromkeys(STEPS, 0.0))
    with connect(broker.target().url, timeout=TIME_OUT) as connection:
        sender = connection.sender(QUEUE)
        payload = encoded_message(options.size, **_PROPERTIES)
        sender.send_all((payload for _ in range(options.count)), timeout=TIME_OUT)
        with connection.management(QUEUE) as management:
            # A peek is answered when the index has everything committed before.
            management.peek(1, 1)
            began = time.monotonic()
            owner, left = uuid4(), options.count
            while left:
                left -= _batch(broker.pid, management, owner, min(options.batch, left), found.cpu)
            found.seconds = time.monotonic() - began
    return found


def _batch(pid: int, management: Management, owner: UUID, count: int, cpu: dict[str, float]) -> int:
    """Claim, read and remove messages once; returns their number."""
    named = {"claim-name": "bench", "claim-id": uuid4()}
    before = _cpu(pid)
    claim = management.request(
        "peeklock:claim-messages", {**named, "owner": owner, "message-count": Int(count)}, TIME_OUT
    )
    claimed = _cpu(pid)
    found = _read(management, list(claim["ranges"]))
    read = _cpu(pid)
    removed = management.request("peeklock:remove-claim", named, TIME_OUT)["message-count"]
    management.peek(1, 1)  # waits for the index, as above
    done = _cpu(pid)
    if not found == removed == claim["message-count"]:
        raise LoadFailed(f"of {claim['message-count']} messages {found} were read and {removed} removed")
    for step, seconds in zip(STEPS, (claimed - before, read - claimed, done - read), strict=True):
        cpu[step] += seconds
    return int(removed)


def _read(management: Management, ranges: list[int]) -> int:
    found = 0
    while ranges:
        page = management.request("peeklock:read-packed", {"ranges": Array(ranges, int)}, TIME_OUT)
        found += page["message-count"]
        last, left = page["last"], ranges
        ranges = []
        for first, end in zip(left[::2], left[1::2], strict=True):
            if end > last:
                ranges += (max(first, last + 1), end)
    return found


def _cpu(pid: int) -> float:
    return cpu_seconds(pid) or 0.0


def _print(rounds: list[Round], options: Options) -> None:
    rows = []
    for step in STEPS:
        rows.append([step, figure(median([each.cpu[step] * 1e6 / options.count for each in rounds]), 2)])
    rows.append(["all", figure(median([sum(each.cpu.values()) * 1e6 / options.count for each in rounds]), 2)])
    rate = median([options.count / each.seconds for each in rounds])
    print_table(f"Claimed, read and removed: {figure(rate)} messages a second", ["step", "broker µs a message"], rows)
