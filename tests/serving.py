"""Brokers for tests: one in a process of its own, as a user starts it, and one in a thread whose clock can be moved."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from peeklock.admin.service import administer
from peeklock.broker.agenda import ManualClock
from peeklock.rest.service import serve_messages
from peeklock.server.broker import Broker, Options
from peeklock.store.base import Counters

T = TypeVar("T")
SOURCE = Path(__file__).parents[1] / "src"


class ServedBroker:
    """`peeklock serve` in a process of its own."""

    def __init__(self, folder: Path, *arguments: str, data: bool = True) -> None:
        self.data = folder / "data"
        self._log = folder / "stderr.log"
        self._arguments = [*arguments, *(("--data", str(self.data)) if data else ())]
        self._port = 0
        self.connection_string = ""
        self.start()

    def start(self) -> None:
        """Start, again on the same port if there was one, and wait for the connection string."""
        command = [sys.executable, "-m", "peeklock", "serve", "--port", str(self._port), *self._arguments]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}
            )
        assert self.process.stdout is not None
        self.connection_string = self.process.stdout.readline().strip()
        if not self.connection_string:
            raise AssertionError(f"the broker did not start: {self.log}")
        self._port = int(self.connection_string.split(";")[0].rsplit(":", 1)[1])

    @property
    def port(self) -> int:
        return self._port

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def authority(self) -> Path:
        return self.data / "tls" / "authority.pem"

    def kill(self) -> None:
        """As a power cut would."""
        self.process.kill()
        self._wait()

    def stop(self) -> int:
        """As a user would; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._wait()

    def _wait(self) -> int:
        code = self.process.wait(timeout=30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


class BrokerThread:
    """A broker in a thread of this process, with a clock that stands still until it is moved."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        usual = {"port": 0, "clock": self.clock, "administration": administer, "messaging": serve_messages}
        self._options = Options(**{**usual, **options})
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="broker")
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def connection_string(self) -> str:
        return self.broker.connection_string

    def advance(self, seconds: float) -> None:
        """Move the clock and let everything happen that is due."""

        def move() -> None:
            self.clock.advance(int(seconds * 1000))
            self.broker.run_agenda()

        self.call(move)

    def call(self, function: Callable[[], T]) -> T:
        """Run something on the broker's thread."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(timeout=10)

    def counters(self, path: str = "queue") -> Counters:
        """How many messages a queue holds, once all that the broker has heard so far is in the store."""
        while not self.call(lambda: self.broker.namespace.journal.idle):
            pass
        return self.call(lambda: self.broker.namespace.queue(path).counters)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        uvloop.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.broker = Broker(self._options)
        try:
            await self.broker.start()
        except BaseException as failure:
            self._failure = failure
            return
        finally:
            self._started.set()
        await self._stop.wait()
        await self.broker.stop()


StartBroker = Callable[..., BrokerThread]
"""The fixture `start_broker`: queues, and options of the broker by name."""


@contextmanager
def ticking(broker: BrokerThread) -> Iterator[None]:
    """Time goes by, so that a client that waits for messages is told when there are none."""
    stopped = threading.Event()

    def tick() -> None:
        while not stopped.wait(0.005):
            broker.advance(0.01)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
