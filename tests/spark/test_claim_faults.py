"""Exactly once, whatever is killed and when.

Here it is a model of Spark's driver that dies: it calls the reader as Spark does, and stops at any step, also in the
middle of a call; it is quick, and each moment has its turn. The real thing is killed in `test_faults` and
`test_cluster`.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from peeklock.amqp.errors import Condition
from peeklock.client import Connection, LinkClosed, Message, Properties, connect
from peeklock.entities.definitions import QueueDefinition
from peeklock.spark.claiming import ClaimReader
from peeklock.spark.claims import Claims
from peeklock.spark.intake import Intake
from peeklock.spark.options import Options
from peeklock.spark.reach import PATIENCE, SourceFailed
from peeklock.spark.rows import SCHEMA
from peeklock.spark.sending import Patience
from peeklock.spark.triggers import ReadMaxRows
from serving import BrokerThread, StartBroker, ticking

ROUNDS = 40


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
        try:
            self._run(batches)
        except Killed:
            claims = self._reader._kept_claims
            if isinstance(claims, Claims):
                claims.disown()  # as the kernel does when a process ends
            raise
        self._reader.stop()

    def _run(self, batches: int) -> None:
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


def run_to_the_end(
    options: Options, checkpoint: Checkpoint, fate: Fate, connection: Connection, *, is_old: bool
) -> None:
    """Spark goes on asking when there was nothing; on a busy machine a session may be slow to give its messages."""
    management = connection.management(options.address)
    for _ in range(20):
        Driver(options, checkpoint, fate, is_old=is_old).run(1000)
        fate.spare()
        if not management.peek(0, 1):
            break


def options_of(broker: BrokerThread, queue: str, protocol: str) -> Options:
    given = {"connectionString": broker.connection_string, "queue": queue, "claimProtocol": protocol}
    given |= {"maxMessagesPerTrigger": "7", "pollInterval": "10ms", "maxWait": "0s"}
    return Options.parse(given, use="readStream")


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
    monkeypatch.setattr("peeklock.spark.packed.FIRST_PAGE", 3)
    monkeypatch.setattr("peeklock.spark.packed.PAGE_BYTES", 500)
    monkeypatch.setattr("peeklock.spark.broker_claims._KEPT_ALIVE_S", 3600)  # no turns besides the driver's
    return fate


@pytest.mark.parametrize("protocol", ["broker", "defer"])
@pytest.mark.parametrize("is_old", [False, True], ids=["4.2", "4.0"])
@pytest.mark.parametrize("queue", ["queue", "sessions"])
def test_each_message_is_received_once_whenever_the_driver_dies(
    start_broker: StartBroker, fate: Fate, queue: str, is_old: bool, protocol: str
) -> None:
    broker = start_broker(
        QueueDefinition(name="queue", max_delivery_count=2000),
        QueueDefinition(name="sessions", requires_session=True, max_delivery_count=2000),
    )
    chance = random.Random(f"{queue} {is_old}")
    options = options_of(broker, queue, protocol)
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
        run_to_the_end(options, checkpoint, fate, connection, is_old=is_old)
        assert connection.management(queue).peek(0, 10) == []
        assert checkpoint.taken == list(range(sent))
        assert deaths > ROUNDS // 4


@pytest.mark.parametrize("protocol", ["broker", "defer"])
def test_a_session_keeps_its_order_whenever_the_driver_dies(
    start_broker: StartBroker, fate: Fate, protocol: str
) -> None:
    broker = start_broker(QueueDefinition(name="sessions", requires_session=True, max_delivery_count=2000))
    chance = random.Random(3)
    options = options_of(broker, "sessions", protocol)
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
        run_to_the_end(options, checkpoint, fate, connection, is_old=False)
    assert [number for batch in checkpoint.sink.values() for number in batch] == list(range(150))


def claiming(broker: BrokerThread, protocol: str) -> ClaimReader:
    return ClaimReader(options_of(broker, "queue", protocol), SCHEMA)


@pytest.mark.parametrize("protocol", ["broker", "defer"])
def test_a_reader_whose_driver_ended_claims_nothing_more(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    broker = start_broker()
    reader = claiming(broker, protocol)
    with connect(broker.connection_string) as connection:
        connection.sender("queue").send(Message(data=[b"message"]))
        monkeypatch.setattr("os.getppid", lambda: 1)  # who has no parent any more is given this one
        with pytest.raises(SourceFailed, match="driver has ended"):
            reader.latestOffset(reader.initialOffset(), ReadMaxRows(7))
        assert broker.counters().active == 1


def test_a_service_that_fails_at_every_claim_fails_the_query(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker()
    reader = claiming(broker, "defer")

    def fail(*_: object) -> None:
        raise LinkClosed(Condition.INTERNAL_ERROR, "broken")

    monkeypatch.setattr(Intake, "fill", fail)
    monkeypatch.setattr(Patience, "delay", lambda *_: 0.0)
    start = reader.initialOffset()
    for _ in range(PATIENCE.retries):
        assert reader.latestOffset(start, ReadMaxRows(7)) == start
    with pytest.raises(SourceFailed, match="claiming messages of 'queue' failed 13 times in a row"):
        reader.latestOffset(start, ReadMaxRows(7))
