"""The broker's process under a run's control: clock, disk, kills, damage, and a restart after it has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tools.chaos import damage
from tools.chaos.broker import BrokerProcess
from tools.chaos.client import Client
from tools.chaos.disk import Mode
from tools.chaos.entities import PLAIN, SESSIONS, address
from tools.chaos.history import BrokerFailure, ClockSet, Disposition, History, Outage, Outcome, SessionCall, now

FAR = 1_000_000


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    history = History(tmp_path / "history.jsonl")
    yield history
    history.close()


@pytest.fixture
def broker(tmp_path: Path, history: History) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path, history)
    broker.start()
    yield broker
    broker.close()


def kinds(history: History) -> list[type]:
    return [type(record) for record in history.records]


def end(broker: BrokerProcess) -> None:
    """Kill the process without the knowledge of `BrokerProcess`."""
    process = broker._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_clock_and_disk_of_a_broker_can_be_controlled(broker: BrokerProcess, history: History) -> None:
    client = Client("test", address(broker.port), history)
    broker.set_clock(FAR)
    assert client.send(PLAIN, amount=2).outcome is Outcome.OK
    broker.set_disk(Mode.FULL)
    sent = 2
    while client.send(PLAIN).outcome is Outcome.OK:  # until the allocated space of the log is used
        sent += 1
    (taken,) = client.receive(PLAIN, 1, 1.0)
    assert client.settle(taken, Disposition.COMPLETE).outcome is Outcome.OK
    broker.set_disk(Mode.FAILING)
    assert client.send(PLAIN).outcome is Outcome.NO
    broker.set_disk(Mode.FINE)
    broker.kill()
    broker.tear(Random(1))
    broker.start()
    client.drop()
    left = client.receive(PLAIN, sent, 5.0)
    assert len(left) == sent - 1
    for taken in left:
        assert abs(taken.delivery.enqueued - now() - FAR) < FAR / 10
        assert client.settle(taken, Disposition.COMPLETE).outcome is Outcome.OK
    assert client.send(SESSIONS, session="s").outcome is Outcome.OK
    held = client.accept(SESSIONS, None, 1.0)
    client.call_session(held, "set", "state")
    client.call_session(held, "get")
    assert [call.value for call in history.records if isinstance(call, SessionCall)] == ["state", "state"]
    client.drop()
    assert broker.stop() == 0
    assert broker.tracebacks() == []


def test_a_broker_that_ended_by_itself_is_a_failure_and_is_started_again(
    broker: BrokerProcess, history: History
) -> None:
    broker.check()
    end(broker)
    broker.check()
    assert kinds(history) == [Outage, BrokerFailure, Outage]
    broker.check()
    assert len(history.records) == 3


def test_a_broker_that_ends_when_its_clock_is_set_starts_with_that_clock(
    broker: BrokerProcess, history: History
) -> None:
    end(broker)
    broker.set_clock(FAR)
    assert kinds(history) == [Outage, BrokerFailure, Outage, ClockSet]
    client = Client("test", address(broker.port), history)
    client.send(PLAIN)
    (taken,) = client.receive(PLAIN, 1, 1.0)
    assert abs(taken.delivery.enqueued - now() - FAR) < FAR / 10
    client.drop()


def test_a_refused_start_names_the_file_and_succeeds_when_the_damage_is_undone(
    broker: BrokerProcess, history: History
) -> None:
    client = Client("test", address(broker.port), history)
    client.send(PLAIN)
    client.drop()
    broker.kill()
    log = max(broker.data.glob("log-*"))
    whole, done = damage.contents(broker.data), damage.flip(log, 0, 0)
    refusal = broker.try_start()
    assert refusal is not None
    assert refusal.is_documented
    assert log.name in refusal.log
    done.undo()
    assert damage.contents(broker.data) == whole
    broker.start()
    assert len(client.receive(PLAIN, 1, 5.0)) == 1
    client.drop()
    assert kinds(history).count(BrokerFailure) == 0


def test_a_broker_reports_a_damaged_message(broker: BrokerProcess, history: History) -> None:
    client = Client("test", address(broker.port), history)
    client.send(PLAIN, amount=3)
    client.drop()
    broker.kill()
    (log,) = (file for file in broker.data.glob("log-*") if b"test.2 test.2" in file.read_bytes())
    damage.flip(log, log.read_bytes().index(b"test.2 test.2"), 0)
    broker.start()
    assert [taken.delivery.id for taken in client.receive(PLAIN, 2, 5.0)] == ["test.1", "test.3"]
    client.drop()
    assert broker.damaged() == {(PLAIN, 2)}
    assert PLAIN in broker.health()
    assert not broker.needs_restart()


def test_a_broker_starts_on_a_full_disk(broker: BrokerProcess, history: History) -> None:
    client = Client("test", address(broker.port), history)
    client.send(PLAIN, amount=3)
    client.drop()
    broker.kill()
    broker.start(Mode.FULL)
    (taken,) = client.receive(PLAIN, 1, 5.0)
    assert client.settle(taken, Disposition.COMPLETE).outcome is Outcome.OK
    client.drop()
