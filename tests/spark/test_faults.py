"""Streams whose drivers, executors and broker are killed again and again while messages arrive.

Each kill is a SIGKILL at a random moment while the stream runs. Kind and moment follow from a seed that the test
prints; `PEEKLOCK_FAULTS_SEED` repeats it, and `PEEKLOCK_FAULTS` is the number of kills for each stream: a capture and a
stream into Spark's own file sink, each with both claim protocols. With few kills there is one of each: the capture
begins by deferral and continues with claims of the broker, as after an upgrade.
`PEEKLOCK_TABLE_FORMAT` makes it capture into Delta or Iceberg instead, without Spark's file sink.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from clusters import Driver, processes
from formats import FORMAT
from pyspark.sql import DataFrame, SparkSession

from peeklock.client import ClientError, Connection, Message, Properties, connect
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from peeklock.spark.pipelines import capture
from serving import ServedBroker

SEED = "PEEKLOCK_FAULTS_SEED"
KINDS = ("driver", "executor", "broker")
ROUNDS = int(os.environ.get("PEEKLOCK_FAULTS", "20"))
LEAST_OF_A_KIND = ROUNDS // len(KINDS)
MANY = 20
PATIENCE_S = 600
MOMENTS_S = 1.5
"""A kill comes within so long after a batch: somewhere in the next one or two."""
PAUSE_S = 0.2
"""Between two lots of messages, so that a slow machine can follow."""
QUEUE = "orders"


class Sending:
    """Sends numbers until told to stop. What the broker did not acknowledge is sent again, under the same id.

    The queue detects duplicates, so each number below `sent` is accepted once.
    """

    def __init__(self, broker: ServedBroker) -> None:
        self._broker = broker
        self._stopping = threading.Event()
        self.sent = 0
        self.resent = 0
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._run, name="sending")
        self._thread.start()

    @property
    def is_at_it(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Returns when all is acknowledged."""
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def abandon(self) -> None:
        """Whether it is acknowledged or not."""
        self._is_abandoned = True
        self.stop()

    def _run(self) -> None:
        connection: Connection | None = None
        messages: list[Message] = []
        while (messages and not self._is_abandoned) or not self._stopping.is_set():
            if not messages:
                numbers = range(self.sent, self.sent + 10)
                messages = [Message(properties=Properties(message_id=f"{n}"), data=[b"%d" % n]) for n in numbers]
            try:
                if connection is None:
                    connection = connect(self._broker.connection_string)
                    sender = connection.sender(QUEUE)
                sender.send_all(messages)
            except (ClientError, OSError):
                self.resent += 1
                if connection is not None:
                    with suppress(ClientError, OSError):
                        connection.close()
                connection = None
            else:
                self.sent += len(messages)
                messages = []
            time.sleep(PAUSE_S)
        if connection is not None:
            connection.close()


class Stream:
    """A stream of the queue into files on a cluster, and the processes that can be killed."""

    script: str
    more: tuple[str, ...] = ()
    """More arguments of the driver."""
    commits: str
    """The files of Spark's commit logs."""

    def __init__(self, broker: ServedBroker, folder: Path, protocols: tuple[str, str]) -> None:
        """`protocols`: the claim protocol of the first driver, and of those after it."""
        self.target = folder / "target"
        self._broker = broker
        self._folder = folder
        first, self._protocol = protocols
        self.start(first)

    def start(self, protocol: str) -> None:
        arguments = (self._broker.connection_string, QUEUE, str(self.target), protocol)
        self._driver = Driver(self._folder, self.script, *arguments, *self.more)
        self._driver.await_start()

    def read(self, spark: SparkSession) -> DataFrame:
        """Read what the stream has written."""
        raise NotImplementedError

    def await_batch(self) -> None:
        """Until one more is done than now."""
        known = self._batches_done()
        self._await(lambda: self._batches_done() > known)

    def await_empty(self) -> None:
        """All that was sent is written and removed, without another start."""
        with connect(self._broker.connection_string) as connection:
            management = connection.management(QUEUE)
            self._await(lambda: not management.peek(0, 1))

    def stop(self) -> None:
        assert self._driver.stop(PATIENCE_S) == 0, self._driver.log

    def close(self) -> None:
        self._driver.kill()

    def kill_driver(self, chance: random.Random) -> None:
        self._driver.kill()
        self.start(self._protocol)

    def kill_executor(self, chance: random.Random) -> None:
        executor = chance.choice(self._driver.executors())
        os.kill(executor, signal.SIGKILL)
        self._await(lambda: executor not in (each.pid for each in processes()))

    def kill_broker(self, chance: random.Random) -> None:
        assert self._broker.process.poll() is None
        self._broker.kill()
        time.sleep(chance.random())
        self._broker.start()

    def check(self) -> None:
        """A driver that was not killed goes on, whoever else was."""
        assert self._driver.is_alive, self._driver.log

    def _batches_done(self) -> int:
        names = (each.name for each in self.target.glob(self.commits))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _await(self, condition: Callable[[], bool]) -> None:
        """However long it takes, as long as there are batches."""
        done = self._batches_done()
        until = time.monotonic() + PATIENCE_S
        while not condition():
            self.check()
            if self._batches_done() > done:
                done = self._batches_done()
                until = time.monotonic() + PATIENCE_S
            assert time.monotonic() < until, self._driver.log
            time.sleep(0.05)


class Capture(Stream):
    """`capture`, which has its own list of files."""

    script = "capture_driver.py"
    more = (FORMAT,)
    commits = "_peeklock/checkpoints/*/commits/*"

    def read(self, spark: SparkSession) -> DataFrame:
        rows = capture.read(spark, str(self.target), FORMAT)
        if FORMAT == "parquet":
            assert spark.read.parquet(str(self.target)).count() == rows.count()  # as any reader sees it
        return rows


class FileSink(Stream):
    """Spark's own file sink."""

    script = "sink_driver.py"
    commits = "checkpoint/commits/*"

    def read(self, spark: SparkSession) -> DataFrame:
        return spark.read.parquet(str(self.target / "messages"))


PROTOCOLS = [("broker", "broker"), ("defer", "defer")]
STREAMS: list[tuple[type[Stream], tuple[str, str]]] = (
    [(kind, protocols) for kind in (Capture, FileSink) for protocols in PROTOCOLS]
    if ROUNDS >= MANY
    else [(Capture, ("defer", "auto")), (FileSink, ("auto", "auto"))]
)
OF_FORMAT = [each for each in STREAMS if FORMAT == "parquet" or each[0] is Capture]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    broker = ServedBroker(tmp_path)
    try:
        with AdministrationClient.from_connection_string(broker.connection_string) as administration:
            administration.create(Kind.QUEUE, QUEUE, {"LockDuration": "PT5S", "RequiresDuplicateDetection": True})
        yield broker
    finally:
        broker.stop()


@pytest.fixture(params=OF_FORMAT, ids=lambda param: "-".join((param[0].__name__, *param[1])))
def stream(broker: ServedBroker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stream]:
    kind, protocols = request.param
    stream = kind(broker, tmp_path, protocols)
    yield stream
    stream.close()


@pytest.fixture
def sending(broker: ServedBroker) -> Iterator[Sending]:
    sending = Sending(broker)
    yield sending
    sending.abandon()


def plan(chance: random.Random) -> list[str]:
    """Kinds at random, of each enough."""
    kinds = [*KINDS * LEAST_OF_A_KIND, *chance.choices(KINDS, k=ROUNDS - len(KINDS) * LEAST_OF_A_KIND)]
    chance.shuffle(kinds)
    return kinds


def test_files_have_each_message_once_despite_kills(
    stream: Stream, sending: Sending, broker: ServedBroker, spark: SparkSession
) -> None:
    seed = os.environ.get(SEED) or str(random.SystemRandom().randrange(10**6))
    print(f"{SEED}={seed}")
    chance = random.Random(seed)
    killed: Counter[str] = Counter()
    for kind in plan(chance):
        assert sending.is_at_it
        stream.await_batch()
        time.sleep(MOMENTS_S * chance.random())
        stream.check()
        getattr(stream, f"kill_{kind}")(chance)
        killed[kind] += 1
        print(f"{time.strftime('%X')} killed {kind}, {sending.sent} sent")
    sending.stop()
    assert sending.resent  # the broker was killed while it was sent to
    stream.await_empty()
    stream.stop()

    assert sum(killed.values()) == ROUNDS
    assert min(killed[kind] for kind in KINDS) >= LEAST_OF_A_KIND
    rows = stream.read(spark).select("body", "message_id").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(sending.sent))
    assert all(row.message_id == bytes(row.body).decode() for row in rows)
    with connect(broker.connection_string) as connection:
        for place in (QUEUE, f"{QUEUE}/$DeadLetterQueue"):  # what is claimed would be seen too
            assert connection.management(place).peek(0, 10) == []
