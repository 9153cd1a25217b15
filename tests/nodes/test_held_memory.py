"""Limits on the memory of the broker for one client: for locked messages, and for answers."""

from __future__ import annotations

import pytest

from nodes.asking import Management, accept_session, send
from nodes.test_settling_ranges import take
from peeklock.amqp.errors import Condition
from peeklock.amqp.message import Message
from peeklock.amqp.performatives import Transfer
from peeklock.amqp.types import Array, UByte
from peeklock.client import Connection, Receiver, RequestRefused, connect
from peeklock.engine.events import LinkDetached
from peeklock.engine.links import Sender
from peeklock.entities.authorization import DEFAULT_KEY_NAME
from raw_client import RawClient, body_of, dial, eventually
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


@pytest.mark.parametrize("entity", ["queue", "sessions"])
def test_messages_that_are_deleted_for_a_receiver_that_does_not_read_count(
    broker: BrokerThread, connection: Connection, entity: str
) -> None:
    count, size = 400, 100_000
    for _ in range(count):
        send(connection, bytes(size), to=entity, session="s" if entity == "sessions" else None)
    client = RawClient(dial(broker.broker.port, receive_buffer=65536))
    client.open()
    limit_connections(broker, 5_000_000)
    attached = client.receiver(entity, credit=0, deletes=True, session="s" if entity == "sessions" else None)
    attached.grant(count)
    client.write()
    eventually(lambda: held(broker) >= (5_000_000 if entity == "queue" else 1))  # a session has a shorter window
    assert held(broker) < 5_200_000
    with connect(broker.connection_string, timeout=20) as other:
        send(other, b"another's", to="topic")
        assert other.receiver("topic/Subscriptions/sub", mode="receive-and-delete").receive(1)
    active = broker.call(lambda: broker.broker.namespace.queue(entity).counters.active)
    assert active > count // 2  # those are still in the queue
    assert {len(body_of(each)) for each in client.receive(count)} == {size}
    client.close()
    eventually(lambda: held(broker) == 0)


@pytest.mark.parametrize("when", ["at once", "after a part"])
def test_messages_that_were_deleted_for_a_receiver_that_is_gone_do_not_count(
    broker: BrokerThread, connection: Connection, when: str
) -> None:
    for _ in range(200):
        send(connection, bytes(100_000))
    client = RawClient(dial(broker.broker.port, receive_buffer=65536))
    client.open()
    client.receiver("queue", credit=200, deletes=True)
    if when == "after a part":
        client.receive(3)
        eventually(lambda: held(broker) > 0)
    client.close()
    eventually(lambda: not any(shell.peer.unwritten.bytes for shell in broker.call(lambda: [*broker.broker.shells])))
    eventually(lambda: held(broker) == 0)


def test_a_full_account_leaves_one_message_at_a_time_to_a_receiver_that_deletes(
    broker: BrokerThread, connection: Connection
) -> None:
    """Its client has no lock to settle, so the locks of others must not stop it."""
    for _ in range(20):
        send(connection, bytes(1000))
    client = RawClient.opened(broker.broker.port)
    limit_connections(broker, 1)
    client.receiver("queue", credit=20, deletes=True)
    assert len(client.receive(20)) == 20
    client.close()


def test_incomplete_messages_of_all_connections_are_limited_together(broker: BrokerThread) -> None:
    broker.broker.namespace.partial_memory.rule(f"/{DEFAULT_KEY_NAME}").limit = 1_000_000
    greedy, modest = RawClient.opened(broker.broker.port), RawClient.opened(broker.broker.port)
    links = [greedy.sender() for _ in range(6)]
    for link in links:
        begin(link, bytes(200_000))
    greedy.wait(lambda: detached(greedy))
    assert detached(greedy) == [Condition.RESOURCE_LIMIT_EXCEEDED]  # the sixth
    begin(modest.sender(), bytes(1000))
    modest.send(modest.sender(), b"whole")
    assert detached(modest) == []
    assert broker.call(lambda: broker.broker.namespace.partial_memory.used) > 1_000_000
    greedy.close()
    modest.close()
    eventually(lambda: broker.call(lambda: broker.broker.namespace.partial_memory.used) == 0)


def begin(link: Sender, part: bytes) -> None:
    """Send the first part of a message."""
    session = link.session
    tag = session.next_delivery_id.to_bytes(16)
    first = Transfer(handle=link.handle, delivery_id=session.next_delivery_id, delivery_tag=tag, more=True)
    session.next_delivery_id += 1
    session.send_transfer(link, first.encode() + Message(data=[part]).encode())


def detached(client: RawClient) -> list[str]:
    """The conditions with which links of the client were detached."""
    return [event.error.condition for event in client.events if isinstance(event, LinkDetached) and event.error]


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
