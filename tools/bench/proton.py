"""The load client of the comparison: a program of ours on Apache Qpid Proton's engine, one process for each side.

Knows how it is started and what it says; `proton_load.c` says what it does.
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
"""Beyond what a job may take: for connections and links before it, outcomes and closing after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the load goes. A queue has the address; of many the n-th has `-n` after it, in three digits."""

    port: int
    address: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    confirmed: bool = False
    """Whether the broker confirms what a receiver accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one side shall do."""

    side: str
    """`send` or `receive`."""
    count: int
    size: int
    connections: int = 1
    queues: int = 1
    seconds: float = 60.0
    """After that it ends with what it has."""
    rate: float = 0.0
    """Messages a second, or as many as there can be."""
    latency: bool = False
    """Of a receiver: note how long messages were under way that were sent at a rate."""
    quiet: float = 0.0
    """Of a receiver: end when nothing came for so many seconds."""

    def arguments(self, access: Access) -> list[str]:
        # In flight and on their way together no more than 16 MB on a connection, as small messages never are.
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
    """What one side has to say."""

    count: int
    refused: int
    began: float
    ended: float
    cpu_seconds: float
    latency: dict[str, float]
    """Seconds: p50, p99, p99.9, most."""


def apply(
    program: Path, access: Access, loads: Sequence[Load], before: Callable[[], None] = lambda: None
) -> list[Done]:
    """Do all at the same time, each in a process; `before` is called when all are ready to start."""
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
    """A broker that keeps nothing: what the client does against it is what it can do at most. A context manager."""

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
        # A client that hangs is ended, and what waits for its words gets none.
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
        except BrokenPipeError:  # the broker ended its connection meanwhile
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
