"""The load client of the comparison: a C program with Apache Qpid Proton's engine, one process for each side.

This module starts it and parses its output. `proton_load.c` is the program.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.bench.interrupts import interrupts
from tools.bench.load import LoadFailed

_PATIENCE_SECONDS: Final = 120.0
"""Seconds in addition to a job's limit, for opening and closing connections and links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The queues of the load. With many queues, `-n` is added to the address of the n-th, in three digits."""

    port: int
    address: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    confirmed: bool = False
    """Whether the broker confirms completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The job of one side."""

    side: str
    """`send` or `receive`."""
    count: int
    size: int
    connections: int = 1
    queues: int = 1
    seconds: float = 60.0
    """Seconds after which it ends with the result so far."""
    rate: float = 0.0
    """Messages per second; None for no limit."""
    latency: bool = False
    """For a receiver: record the latency of messages that are sent at a rate."""
    quiet: float = 0.0
    """For a receiver: end when nothing has arrived for so many seconds."""

    def arguments(self, access: Access) -> list[str]:
        # At most 16 MB in flight on a connection; small messages never reach that.
        most = max(16, 16_000_000 // (self.size + 100))
        links = max(1, self.queues // self.connections)
        options: dict[str, object] = {
            "port": access.port,
            "address": access.address,
            "count": self.count,
            "size": self.size,
            "connections": self.connections,
            "queues": self.queues,
            "seconds": self.seconds,
            "rate": self.rate,
            "quiet": self.quiet,
            "window": min(2000, most),
            "credit": max(10, min(1000, most) // links),
        }
        if access.user is not None:
            options |= {"user": access.user, "password": access.password}
        words = [self.side, *(f"--{name}={value}" for name, value in options.items())]
        words += ["--confirmed"] if access.confirmed and self.side == "receive" else []
        words += ["--latency"] if self.latency else []
        return words


@dataclass(frozen=True, slots=True)
class Done:
    """The result of one side."""

    count: int
    refused: int
    began: float
    ended: float
    cpu_seconds: float
    latency: dict[str, float]
    """Seconds: p50, p99, p99.9 and the maximum."""


def apply(
    program: Path, access: Access, loads: Sequence[Load], before: Callable[[], None] = lambda: None
) -> list[Done]:
    """Run all jobs at the same time, each in a process. `before` is called when all are ready to start."""
    with ExitStack() as started:
        with interrupts.held():
            clients = [started.enter_context(_Client(program, access, load)) for load in loads]
        for client in clients:
            client.expect("ready")
        before()
        for client in clients:
            client.go()
        return [client.result() for client in clients]


class Sink:
    """A broker that stores nothing, to measure the limit of the client. A context manager."""

    def __init__(self, program: Path, size: int) -> None:
        self._process = subprocess.Popen(
            [str(program), "sink", f"--size={size}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Access:
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            self.__exit__()
            raise LoadFailed("the load client's sink did not start")
        return Access(port=int(port), address="sink")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class _Client:
    def __init__(self, program: Path, access: Access, load: Load) -> None:
        self._what = f"{load.side} at {access.address}"
        self._process = subprocess.Popen(
            [str(program), *load.arguments(access)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        # A client that hangs is killed, which ends the read of its output.
        self._timer = threading.Timer(load.seconds + _PATIENCE_SECONDS, self._process.kill)
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def expect(self, words: str) -> None:
        if self._line() != words:
            raise self._failure()

    def go(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # the broker has closed its connection
            raise self._failure() from None

    def result(self) -> Done:
        line = self._line()
        if not line:
            raise self._failure()
        said: dict[str, Any] = json.loads(line)
        self._process.wait(_PATIENCE_SECONDS)  # until its connections are closed
        return Done(**{"latency": {}, **said})

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _failure(self) -> LoadFailed:
        assert self._process.stderr is not None
        self._process.kill()
        words = self._process.stderr.read().strip()[-500:] or "the load client did not answer in time"
        return LoadFailed(f"{self._what}: {words}")
