"""Processes that a benchmark starts, and what the system says about them: CPU time and memory.

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
    """Something that is measured did not start."""


class Child:
    """A process in a session of its own, so that Ctrl-C reaches it only through `stop`. A context manager."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        announces: bool = False,
    ) -> None:
        """With `announces` its output is kept for `first_line`; else it goes to the log, as its errors do."""
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
        """Wait for the first line it prints; StartFailed with the end of its log when it ends without one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise StartFailed(f"{self.process.args!r} did not start: {self.tail()}")
        return line

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-2000:].strip()

    def stop(self) -> None:
        """Ask it to end, and after a while make it."""
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
        """As a power cut would."""
        self.process.kill()
        self.stop()


def end(pid: int) -> None:
    """End a process that a child of ours started, as the child's own end did not."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def cpu_seconds(pid: int | None) -> float | None:
    """User and system time of a process so far; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int | None, which: Literal["VmRSS", "VmHWM"] = "VmRSS") -> int | None:
    """Resident memory of a process, now (VmRSS) or at its highest (VmHWM); None where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024
    return None


def tree(root: int) -> list[int]:
    """A process and all that are below it now."""
    children: dict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # it has ended meanwhile
        children[parent].append(int(path.parent.name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def free_port() -> int:
    """A port of the loopback address that nobody listens on now.

    Below those that the system gives to outgoing connections, as one of these may take it before its turn comes.
    """
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise StartFailed("no port is free")


def file_system(folder: Path) -> str:
    """The kind of file system a folder is on, since what a sync costs depends on it."""
    found, kind = Path(), "unknown"
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, where, name, *_ = line.split()
            point = Path(where)
            if folder.resolve().is_relative_to(point) and len(point.parts) >= len(found.parts):
                found, kind = point, name
    return kind
