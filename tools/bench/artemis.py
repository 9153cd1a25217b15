"""A private ActiveMQ Artemis for comparison: with its own instance and port, on loopback, deleted afterwards.

Artemis's own `create` makes the instance with its defaults: it measures the disk and configures its journal for it.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from peeklock.client import ClientError, connect
from tools.bench.interrupts import interrupts
from tools.bench.packages import run
from tools.bench.processes import Child, StartFailed, free_port

_START_SECONDS: Final = 90.0
_USER: Final = "bench"
_LEFT_OUT: Final = ("web", "stomp-acceptor", "mqtt-acceptor", "hornetq-acceptor", "amqp-acceptor", "autocreate")
"""Features that `create` adds by default and that are disabled: further ports, and automatic creation of queues."""
_SETTINGS: Final = ("journal-type", "journal-datasync", "journal-buffer-timeout", "journal-file-size")


class Artemis:
    """A broker that can be stopped and started again on the same data."""

    def __init__(
        self, home: Path, folder: Path, queues: Sequence[str], started: ExitStack, libraries: Path | None = None
    ) -> None:
        """`libraries`: the folder of libaio, if it is not installed; without libaio the journal is slower."""
        self._instance = folder / "instance"
        self._child: Child | None = None
        self._environment = dict(os.environ)
        if libraries is not None:
            self._environment["LD_LIBRARY_PATH"] = str(libraries)
        self.port = free_port()
        self.user, self.password = _USER, secrets.token_hex(16)
        self.version = home.name.rpartition("-")[2]
        started.callback(self.stop)
        self._create(home, queues)

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def settings(self) -> dict[str, str]:
        """Return the kind of journal that it chose, and its memory."""
        text = (self._instance / "etc/broker.xml").read_text()
        found = {name: re.search(rf"<{name}>(.*?)</{name}>", text) for name in _SETTINGS}
        heap = re.search(r"-Xmx\w+", (self._instance / "etc/artemis.profile").read_text())
        chosen = {name: match.group(1) for name, match in found.items() if match is not None}
        return {**chosen, "heap": heap.group() if heap else "unknown"}

    def start(self) -> float:
        """Start the broker and wait until it accepts connections; returns the seconds it took."""
        before = time.monotonic()
        with interrupts.held():
            self._child = Child(
                [str(self._instance / "bin/artemis"), "run"],
                log=self._instance / "start.log",
                environment=self._environment,
            )
        while not self._answers():
            if not self._child.running or time.monotonic() > before + _START_SECONDS:
                raise StartFailed(f"Artemis did not start: {self._child.tail()}")
            time.sleep(0.05)
        return time.monotonic() - before

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()

    def _create(self, home: Path, queues: Sequence[str]) -> None:
        command = [str(home / "bin/artemis"), "create", str(self._instance), "--silent", "--require-login"]
        command += ["--user", self.user, "--password", self.password, "--host", "127.0.0.1"]
        command += ["--default-port", str(self.port), "--queues", ",".join(queues)]
        command += [f"--no-{name}" for name in _LEFT_OUT]
        run(command, seconds=300, environment=self._environment)

    def _answers(self) -> bool:
        try:
            connect(f"amqp://{self.user}:{self.password}@127.0.0.1:{self.port}", timeout=5).close()
        except ClientError:
            return False
        return True
