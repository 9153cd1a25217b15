"""The plain client for comparison with Spark: the same work in load processes, one for each task."""

from __future__ import annotations

from typing import Any

from peeklock.client import ReceiveMode, connect
from tools.bench.brokers import Target
from tools.bench.load import Defer, Job, LoadFailed, LoadProcesses, Peek, Receive, Remove, Send, SendBatches
from tools.bench.throughput import seconds


class Plain:
    """Work on one queue. The measured methods return seconds."""

    def __init__(self, loads: LoadProcesses, target: Target) -> None:
        self._loads = loads
        self._target = target

    def send(self, count: int, size: int, tasks: int = 1) -> float:
        return self._run([Send(**self._job, count=share, size=size) for share in _shares(count, tasks)])

    def send_batches(self, count: int, size: int, tasks: int) -> float:
        return self._run([SendBatches(**self._job, count=share, size=size) for share in _shares(count, tasks)])

    def receive(self, count: int, tasks: int, mode: ReceiveMode) -> float:
        return self._run([Receive(**self._job, count=count, mode=mode)] * tasks)

    def peek(self, count: int, tasks: int) -> float:
        first = self._there()
        jobs: list[Job] = []
        for share in _shares(count, tasks):
            jobs.append(Peek(**self._job, count=share, first=first))
            first += share
        return self._run(jobs)

    def claim(self, count: int, tasks: int) -> float:
        """Do the broker operations of a claiming stream: one process defers, one per task peeks, one removes."""
        first = self._there()
        deferring = self._run([Defer(**self._job, count=count)])
        peeking = self.peek(count, tasks)
        return deferring + peeking + self._run([Remove(**self._job, count=count, first=first)])

    def empty(self, count: int) -> None:
        """Receive all messages; LoadFailed if their number is not the expected one."""
        self.receive(count, 1, ReceiveMode.RECEIVE_AND_DELETE)
        self.check_empty()

    def check_empty(self) -> None:
        if not self.is_empty():
            raise LoadFailed("there are messages left in the queue")

    def is_empty(self) -> bool:
        """Return the number of messages, including deferred ones."""
        return self._first() is None

    @property
    def _job(self) -> dict[str, Any]:
        return {"url": self._target.url, "address": self._target.address}

    def _run(self, jobs: list[Job]) -> float:
        return seconds(self._loads.run(jobs))

    def _there(self) -> int:
        first = self._first()
        if first is None:
            raise LoadFailed("there is no message in the queue")
        return first

    def _first(self) -> int | None:
        with connect(self._target.url) as connection:
            page = connection.management(self._target.address).peek(0, 1)
        annotations = page[0].message_annotations if page else None
        return None if annotations is None else int(annotations["x-opt-sequence-number"])


def _shares(count: int, parts: int) -> list[int]:
    return [count // parts + (i < count % parts) for i in range(parts)]
