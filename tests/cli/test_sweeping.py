"""Resubmission without transactions and with failures: no message is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from peeklock.amqp.message import Message
from peeklock.cli.sweeping import Resubmitter, sweep
from peeklock.client import Connection, ConnectionLost, LinkClosed, Receiver, Sender, SendRejected, connect
from peeklock.entities.definitions import QueueDefinition
from serving import BrokerThread, StartBroker

DEAD = "queue/$DeadLetterQueue"


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(QueueDefinition(name="queue"), QueueDefinition(name="other"))


@pytest.fixture
def connection(broker: BrokerThread) -> Iterator[Connection]:
    with connect(broker.connection_string, timeout=10) as connection:
        sender, receiver = connection.sender("queue"), connection.receiver("queue", credit=0)
        for body in (b"a", b"b", b"c"):
            sender.send(Message(data=[body]))
        receiver.reject(receiver.receive(3, timeout=10), "com.microsoft:dead-letter", wait=True)
        receiver.close()
        yield connection


def bodies(broker: BrokerThread, address: str) -> list[bytes]:
    with connect(broker.connection_string, timeout=10) as other, other.management(address) as management:
        return [message.data[0] for message in management.peek(1, 100)]


def resubmit(connection: Connection, to: str = "queue") -> int:
    act = Resubmitter(connection, DEAD, to, new_ids=False)
    return sum(sweep(connection, DEAD, lambda message: True, 0, act))


def refuse_coordinator(self: Connection, timeout: float | None = None) -> Any:
    raise LinkClosed("amqp:not-implemented", "no transactions here")


def test_without_a_coordinator_each_is_sent_and_then_completed(
    broker: BrokerThread, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "transactions", refuse_coordinator)
    assert resubmit(connection) == 3
    assert (bodies(broker, "queue"), bodies(broker, DEAD)) == ([b"a", b"b", b"c"], [])


def test_a_transaction_that_is_refused_is_done_without(
    broker: BrokerThread, connection: Connection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    post = Sender.post

    def not_within(self: Sender, message: Any, **options: Any) -> Any:
        if options.get("state") is not None:
            raise SendRejected("amqp:not-allowed", "not in a transaction")
        return post(self, message, **options)

    monkeypatch.setattr(Sender, "post", not_within)
    assert resubmit(connection, "other") == 3
    assert "without transactions: not in a transaction" in capsys.readouterr().err
    assert (bodies(broker, "other"), bodies(broker, DEAD)) == ([b"a", b"b", b"c"], [])


def test_a_connection_that_breaks_in_a_transaction_rolls_it_back(
    broker: BrokerThread, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    act = Resubmitter(connection, DEAD, "queue", new_ids=False)

    def break_off(*_: Any) -> None:
        raise ConnectionLost("amqp:connection:forced", "the cable is out")

    monkeypatch.setattr(act._sender, "wait_for", break_off)
    with pytest.raises(ConnectionLost):
        list(sweep(connection, DEAD, lambda message: True, 0, act))
    connection.close()
    assert (bodies(broker, "queue"), sorted(bodies(broker, DEAD))) == ([], [b"a", b"b", b"c"])


def test_without_transactions_a_message_may_be_there_twice_but_is_never_lost(
    broker: BrokerThread, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "transactions", refuse_coordinator)
    accept = Receiver.accept

    def break_off(self: Receiver, messages: Any, **options: Any) -> None:
        if messages.body == b"b":
            raise ConnectionLost("amqp:connection:forced", "the cable is out")
        accept(self, messages, **options)

    monkeypatch.setattr(Receiver, "accept", break_off)
    with pytest.raises(ConnectionLost):
        resubmit(connection)
    connection.close()
    assert (bodies(broker, "queue"), sorted(bodies(broker, DEAD))) == ([b"a", b"b"], [b"b", b"c"])


def test_messages_locked_by_another_receiver_are_reported_as_left(
    broker: BrokerThread, connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect(broker.connection_string, timeout=10) as other:
        holder = other.receiver(DEAD, credit=0)
        assert len(holder.receive(2, timeout=10)) == 2
        assert resubmit(connection) == 1
    assert "2 further messages are locked by other receivers or deferred" in capsys.readouterr().err
    assert bodies(broker, "queue") == [b"c"]


def test_a_message_returned_during_the_sweep_is_left(broker: BrokerThread, connection: Connection) -> None:
    """Otherwise a program that resubmits and one that dead-letters would run forever."""
    act = Resubmitter(connection, DEAD, "queue", new_ids=False)
    consumer = connection.receiver("queue", credit=0)

    def move_and_fail(receiver: Receiver, messages: list[Any]) -> None:
        act(receiver, messages)
        again = consumer.receive(len(messages), timeout=10)
        consumer.reject(again, "com.microsoft:dead-letter", wait=True)

    assert sum(sweep(connection, DEAD, lambda message: True, 0, move_and_fail)) == 3
    assert sorted(bodies(broker, DEAD)) == [b"a", b"b", b"c"]
