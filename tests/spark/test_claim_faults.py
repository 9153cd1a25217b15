"""Exactly once, whatever is killed and when.

Most rounds are with a model of Spark's driver, which calls the reader as Spark does and dies at any step, also in the
middle of a call; it is quick, and each moment has its turn. A few are with the real thing, killed as a whole.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from peeklock.broker.definitions import QueueDefinition
from peeklock.client import Connection, Message, Properties, connect
from peeklock.spark.claiming import ClaimReader
from peeklock.spark.options import Options
from peeklock.spark.rows import SCHEMA
from peeklock.spark.triggers import ReadMaxRows
from serving import SOURCE, BrokerThread, ServedBroker, StartBroker

ROUNDS = 40
DRIVER = Path(__file__).with_name("claim_driver.py")


class Killed(BaseException):
    """What a SIGKILL is to the model: nothing that is not sent yet is sent, and nobody tidies up."""


class Fate:
    """Kills after so many moments; a moment is a step of the model or a turn of a connection."""

    def __init__(self) -> None:
        self.moments: int | None = None
        self.connections: list[Connection] = []

    def moment(self) -> None:
        if self.moments is None:
            return
        self.moments -= 1
        if self.moments < 0:
            for connection in self.connections:
                connection._wire._socket.close()
            raise Killed

    def spare(self) -> None:
        self.moments = None
        self.connections.clear()


class Checkpoint:
    """What is left of a driver: its logs, and a sink that takes each batch once."""

    def __init__(self) -> None:
        self.offsets: list[dict[str, Any]] = []
        self.commits = 0
        self.sink: dict[int, list[int]] = {}

    @property
    def taken(self) -> list[int]:
        return sorted(number for batch in self.sink.values() for number in batch)


class Driver:
    """Calls a reader in the order that Spark was seen to; `is_old` is as before 4.2."""

    def __init__(self, options: Options, checkpoint: Checkpoint, fate: Fate, *, is_old: bool) -> None:
        self._checkpoint = checkpoint
        self._fate = fate
        self._is_old = is_old
        self._reader = ClaimReader(options, SCHEMA)

    def run(self, batches: int) -> None:
        """So many times at most that there is a batch to run; returns when there is none."""
        known, reader = self._checkpoint, self._reader
        if self._is_old and known.offsets:
            assert reader.partitions(known.offsets[-1], known.offsets[-1]) == []
        if known.commits < len(known.offsets):
            self._run_batch()
        for _ in range(batches):
            start = known.offsets[-1] if known.offsets else reader.initialOffset()
            self._fate.moment()
            end = reader.latestOffset() if self._is_old else reader.latestOffset(start, ReadMaxRows(7))
            self._fate.moment()
            if end == start:
                return
            known.offsets.append(end)
            self._fate.moment()
            if known.commits:
                reader.commit(start)
            self._run_batch()

    def _run_batch(self) -> None:
        known, reader = self._checkpoint, self._reader
        start = known.offsets[-2] if len(known.offsets) > 1 else reader.initialOffset()
        rows: list[int] = []
        for partition in reader.partitions(start, known.offsets[-1]):
            self._fate.moment()
            for attempt in range(2):  # a task that fails is run again, from its beginning
                read = [int(body.as_py()) for batch in reader.read(partition) for body in batch.column("body")]
                if attempt:
                    rows += read
        self._fate.moment()
        known.sink[len(known.offsets)] = rows
        self._fate.moment()
        known.commits = len(known.offsets)
        self._fate.moment()


@pytest.fixture
def fate(monkeypatch: pytest.MonkeyPatch) -> Fate:
    fate = Fate()
    turn, connects = Connection.turn, Options.connect

    def turned(connection: Connection, seconds: float) -> None:
        if connection in fate.connections:
            fate.moment()
        turn(connection, seconds)

    def connected(options: Options) -> Connection:
        connection = connects(options)
        fate.connections.append(connection)
        return connection

    monkeypatch.setattr(Connection, "turn", turned)
    monkeypatch.setattr(Options, "connect", connected)
    monkeypatch.setattr("peeklock.spark.intake.RECEIVED_AT_ONCE", 3)
    monkeypatch.setattr("peeklock.spark.claims.SETTLED_AT_ONCE", 3)
    return fate


@contextmanager
def ticking(broker: BrokerThread) -> Iterator[None]:
    """Time goes by, so that who waits for a session is told when there is none."""
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


@pytest.mark.parametrize("is_old", [False, True], ids=["4.2", "4.0"])
@pytest.mark.parametrize("queue", ["queue", "sessions"])
def test_each_message_is_taken_once_whenever_the_driver_dies(
    start_broker: StartBroker, fate: Fate, queue: str, is_old: bool
) -> None:
    broker = start_broker(
        QueueDefinition(name="queue", max_delivery_count=2000),
        QueueDefinition(name="sessions", requires_session=True, max_delivery_count=2000),
    )
    chance = random.Random(f"{queue} {is_old}")
    given = {"connectionString": broker.connection_string, "queue": queue, "maxMessagesPerTrigger": "7"}
    options = Options.parse({**given, "pollInterval": "10ms", "maxWait": "0s"}, use="readStream")
    checkpoint = Checkpoint()
    sent = deaths = 0
    with ticking(broker), connect(broker.connection_string) as connection:
        sender = connection.sender(queue)
        for _ in range(ROUNDS):
            for _ in range(chance.randrange(10)):
                sender.send(Message(properties=Properties(group_id=f"{sent % 3}"), data=[b"%d" % sent]))
                sent += 1
            fate.moments = chance.randrange(120)
            try:
                Driver(options, checkpoint, fate, is_old=is_old).run(3)
            except Killed:
                deaths += 1
            finally:
                fate.spare()
            if chance.random() < 0.2:
                broker.advance(90)  # locks run out
        broker.advance(90)
        Driver(options, checkpoint, fate, is_old=is_old).run(1000)
        fate.spare()
        assert checkpoint.taken == list(range(sent))
        assert deaths > ROUNDS // 4
        assert connection.management(queue).peek(0, 10) == []


def test_of_a_session_the_order_is_kept_whenever_the_driver_dies(start_broker: StartBroker, fate: Fate) -> None:
    broker = start_broker(QueueDefinition(name="sessions", requires_session=True, max_delivery_count=2000))
    chance = random.Random(3)
    given = {"connectionString": broker.connection_string, "queue": "sessions", "maxMessagesPerTrigger": "7"}
    options = Options.parse({**given, "pollInterval": "10ms", "maxWait": "0s"}, use="readStream")
    checkpoint = Checkpoint()
    with ticking(broker), connect(broker.connection_string) as connection:
        sender = connection.sender("sessions")
        for number in range(150):
            sender.send(Message(properties=Properties(group_id="only"), data=[b"%d" % number]))
            if number % 5 == 0:
                fate.moments = chance.randrange(120)
                try:
                    Driver(options, checkpoint, fate, is_old=False).run(2)
                except Killed:
                    broker.advance(90)
                finally:
                    fate.spare()
        broker.advance(90)
        Driver(options, checkpoint, fate, is_old=False).run(1000)
        fate.spare()
    assert [number for batch in checkpoint.sink.values() for number in batch] == list(range(150))


# --- the real thing ---


def start_driver(bus: ServedBroker, queue: str, folder: Path, *how: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYSPARK_PYTHON": sys.executable}
    with (folder / "stderr.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, str(DRIVER), bus.connection_string, queue, str(folder), *how],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,  # so that the JVM can be killed with it; its workers end without it
        )
    assert driver.stdout is not None
    assert driver.stdout.readline().strip() == "started"
    return driver


def kill(driver: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):  # it may have ended by itself
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    assert driver.stdout is not None
    driver.stdout.close()


def offset_files(folder: Path) -> list[Path]:
    return list((folder / "checkpoint" / "offsets").glob("[0-9]*"))


MESSAGES = 400


def test_each_message_is_in_the_files_once_when_the_driver_is_killed_again_and_again(
    spark: SparkSession, bus: ServedBroker, make_queue: Callable[..., str], tmp_path: Path
) -> None:
    queue = make_queue(LockDuration="PT5S", MaxDeliveryCount=2000)
    chance = random.Random()
    rounds = 3
    with connect(bus.connection_string) as connection:
        sender = connection.sender(queue)
        for each in range(rounds):
            share = range(each * MESSAGES // rounds, (each + 1) * MESSAGES // rounds)
            driver = start_driver(bus, queue, tmp_path, "20")
            try:
                sender.send_all(Message(data=[b"%d" % number]) for number in share)
                logged = len(offset_files(tmp_path))
                while len(offset_files(tmp_path)) == logged:  # it is at work
                    assert driver.poll() is None, (tmp_path / "stderr.log").read_text()
                    connection.work(0.05)
                connection.work(2 * chance.random())
            finally:
                kill(driver)
        management = connection.management(queue)
        while management.peek(0, 1):  # locks of the killed have to run out
            driver = start_driver(bus, queue, tmp_path, "1000", "once")
            try:
                assert driver.wait(100) == 0, (tmp_path / "stderr.log").read_text()
            finally:
                kill(driver)
    rows = spark.read.parquet(str(tmp_path / "target")).select("body").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(MESSAGES))
