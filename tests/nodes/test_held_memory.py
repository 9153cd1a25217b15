"""Limits on the memory of the broker for one client: for locked messages, and for answers."""

from __future__ import annotations

import pytest

from nodes.asking import Management, accept_session, send
from nodes.test_settling_ranges import take
from peeklock.amqp.types import Array, UByte
from peeklock.client import Connection, Receiver, RequestRefused, connect
from raw_client import eventually
from serving import BrokerThread


def limit_connections(broker: BrokerThread, limit: int) -> None:
    def set_limit() -> None:
        for shell in broker.broker.shells:
            shell.peer.held.limit = limit

    broker.call(set_limit)


def held(broker: BrokerThread) -> int:
    return broker.call(lambda: broker.broker.namespace.held_memory.used)


def receiver_of(connection: Connection, entity: str) -> Receiver:
    return accept_session(connection, "s") if entity == "sessions" else connection.receiver(entity)


@pytest.mark.parametrize("entity", ["queue", "sessions"])
def test_a_receiver_at_its_limit_of_locked_bytes_gets_more_after_it_settles(
    broker: BrokerThread, connection: Connection, entity: str
) -> None:
    for _ in range(10):
        send(connection, b"x" * 10_000, to=entity, session="s" if entity == "sessions" else None)
    limit_connections(broker, 35_000)
    receiver = receiver_of(connection, entity)
    first = take(receiver, 4)
    assert receiver.receive(1, timeout=0.2) == []
    with connect(broker.connection_string, timeout=20) as other:
        send(other, b"another's", to="topic")
        others = other.receiver("topic/Subscriptions/sub")
        (message,) = take(others, 1)
        assert message.body == b"another's"
        others.accept(message, wait=True)
    receiver.accept(first, wait=True)
    rest = take(receiver, 4)
    receiver.accept(rest, wait=True)
    receiver.accept(take(receiver, 2), wait=True)
    assert held(broker) == 0


def test_deferred_messages_that_are_fetched_count(broker: BrokerThread, connection: Connection) -> None:
    for _ in range(4):
        send(connection, b"x" * 10_000)
    receiver = connection.receiver("queue")
    receiver.modify(take(receiver, 4), undeliverable_here=True, wait=True)
    limit_connections(broker, 25_000)
    management = connection.management("queue")

    def fetch(*numbers: int) -> int:
        wanted = {"sequence-numbers": Array(numbers, int), "receiver-settle-mode": UByte(1)}
        return len(management.request("receive-by-sequence-number", wanted)["messages"])

    assert fetch(1, 2, 3) == 3
    with pytest.raises(RequestRefused, match="no more until memory is released"):
        fetch(4)
    broker.advance(61)  # their locks run out
    eventually(lambda: held(broker) == 0)
    assert fetch(4) == 1


def test_locks_of_a_closed_connection_count_until_they_expire(broker: BrokerThread) -> None:
    with connect(broker.connection_string, timeout=20) as connection:
        send(connection, b"x" * 10_000)
        take(connection.receiver("queue"), 1)
    assert held(broker) > 10_000
    broker.advance(61)
    eventually(lambda: held(broker) == 0)


def test_many_long_answers_requested_at_once_all_arrive(connection: Connection, management: Management) -> None:
    for _ in range(3):
        send(connection, b"x" * 10_000)
    requests = connection.management("queue")
    for _ in range(50):
        assert len(requests.peek()) == 3
