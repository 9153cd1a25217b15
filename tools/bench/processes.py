"""Processes that a benchmark starts, and their CPU time and memory.

Knows nothing of brokers. What it started it ends, by process id.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

_STOP_SECONDS: Final = 20.0
_PORTS: Final = range(20_000, 32_000)


class StartFailed(Exception):
    """A measured program did not start."""


class Child:
    """A process in a session of its own, so that Ctrl-C does not reach it. It is stopped with its context."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        announces: bool = False,
    ) -> None:
        """With `announces`, standard output is kept for `first_line`; otherwise it goes to the log."""
        self.log = log
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if announces else sink,
                stderr=sink,
                text=True,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def first_line(self) -> str:
        """Wait for the first line of output. StartFailed with the end of the log if the process ends without one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise StartFailed(f"{self.process.args!r} did not start: {self.tail()}")
        return line

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-2000:].strip()

    def stop(self) -> None:
        """Stop the process with SIGTERM, and after a time-out with SIGKILL."""
        if self.running:
            self.process.terminate()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.kill()
        self.stop()


def end(pid: int) -> None:
    """End a process that a child process has started, and that outlived it."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def cpu_seconds(pid: int | None) -> float | None:
    """Return user and system time of a process in seconds; None on systems without `/proc`."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int | None, which: Literal["VmRSS", "VmHWM"] = "VmRSS") -> int | None:
    """Return the resident memory of a process, current (VmRSS) or peak (VmHWM); None on systems without `/proc`."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024
    return None


def tree(root: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # the process has ended
        children[parent].append(int(path.parent.name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def free_port() -> int:
    """Return a free port of the loopback address.

    Below those that the system gives to outgoing connections, as one of these may take it before its turn comes.
    """
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise StartFailed("no port is free")


def file_system(folder: Path) -> str:
    """Return the type of the file system of a folder; the cost of a sync depends on it."""
    found, kind = Path(), "unknown"
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, where, name, *_ = line.split()
            point = Path(where)
            if folder.resolve().is_relative_to(point) and len(point.parts) >= len(found.parts):
                found, kind = point, name
    return kind
