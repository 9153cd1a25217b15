"""The measured brokers: Peeklock in a child process, or any running AMQP 1.0 broker."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from peeklock import __version__
from peeklock.client import ReceiveMode, parse_endpoint
from tools.bench.interrupts import interrupts
from tools.bench.processes import Child, resident_bytes

QUEUE: Final = "bench"
SHORT_QUEUE: Final = "bench-short"
LARGEST: Final = {"MaxSizeInMegabytes": 5120}
"""The largest size of the standard profile: a million messages of 1 KiB exceed the default size."""
_TWO_QUEUES: Final[Mapping[str, Mapping[str, Any]]] = {QUEUE: {}, SHORT_QUEUE: {}}
_SOURCE: Final = Path(__file__).parents[2] / "src"
_compiled: Path | None = None


def use_compiled(folder: Path) -> None:
    """Start Peeklock from this folder, which has the output of `make wheel`."""
    global _compiled
    if not any((folder / "peeklock" / "engine").glob("session.*.so")):
        raise ValueError(f"there is no compiled peeklock in {folder}; `make compiled` makes one in build/checkout/src")
    _compiled = folder.resolve()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A queue of a broker that can be measured."""

    name: str
    """The name in the tables."""
    url: str
    """A connection string or an AMQP URL."""
    address: str
    mode: ReceiveMode = ReceiveMode.SETTLE_FIRST
    """Peek-lock if the broker supports it, with confirmed completions; otherwise what the broker supports."""
    pid: int | None = None
    """The process id of the broker, if known."""
    idle_bytes: int | None = None
    """The broker's memory before the first message."""


class Peeklock:
    """`peeklock serve` on a free port, with queues large enough for a benchmark. Created within a context manager.

    Queues are names with further properties, topics are given as they stand in a configuration file.

    `start` may be called again after `stop` or `kill`, on the same data.
    """

    def __init__(
        self,
        folder: Path,
        started: ExitStack,
        *,
        memory: bool = False,
        interpreted: bool = False,
        queues: Mapping[str, Mapping[str, Any]] = _TWO_QUEUES,
        topics: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._folder = folder
        self._memory = memory
        self._compiled = None if interpreted else _compiled
        self._child: Child | None = None
        self._url = ""
        self._config = folder / "config.json"
        self._config.write_text(json.dumps(_config(queues, topics)))
        started.callback(self.stop)

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def name(self) -> str:
        compiled = " compiled" if self._compiled is not None else ""
        return f"Peeklock {__version__}{compiled}{', memory' if self._memory else ''}"

    def start(self) -> float:
        """Start the broker and wait until it accepts connections; returns the seconds it took."""
        command = [sys.executable, "-m", "peeklock", "serve", "--port", "0", "--config", str(self._config)]
        command += ["--log-level", "warning"]
        command += ["--memory"] if self._memory else ["--data", str(self._folder / "data")]
        path = os.pathsep.join(filter(None, (str(self._compiled or _SOURCE), os.environ.get("PYTHONPATH"))))
        before = time.monotonic()
        with interrupts.held():
            self._child = Child(
                command, log=self._folder / "peeklock.log", environment={"PYTHONPATH": path}, announces=True
            )
        self._url = self._child.first_line()
        return time.monotonic() - before

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()

    def kill(self) -> None:
        assert self._child is not None
        self._child.kill()

    def target(self, queue: str = QUEUE) -> Target:
        return Target(
            name=self.name,
            url=self._url,
            address=queue,
            mode=ReceiveMode.PEEK_LOCK,
            pid=self.pid,
            idle_bytes=resident_bytes(self.pid),
        )


def _config(queues: Mapping[str, Mapping[str, Any]], topics: Sequence[dict[str, Any]]) -> dict[str, object]:
    properties = {**LARGEST, "LockDuration": "PT5M"}
    listed = [{"Name": name, "Properties": {**properties, **further}} for name, further in queues.items()]
    namespace = {"Name": "sbemulatorns", "Queues": listed, "Topics": list(topics)}
    return {"UserConfig": {"Namespaces": [namespace]}}


def external_target(url: str, address: str) -> Target:
    """Return a target for a running broker on this machine; ValueError if it is on another machine."""
    host = parse_endpoint(url).host
    if host not in ("localhost", "::1") and not host.startswith("127."):
        raise ValueError(f"the peer must be on this machine, so that both have the same network: not '{host}'")
    return Target(name=f"peer {address}", url=url, address=address)
