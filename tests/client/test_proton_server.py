"""The client against a server on qpid-proton's container."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client.proton_server import ProtonServer
from peeklock.client import (
    Connection,
    ConnectionLost,
    Header,
    LinkClosed,
    Message,
    Properties,
    ReceivedMessage,
    ReceiveMode,
    Receiver,
    SendRejected,
    connect,
)


@pytest.fixture(scope="module")
def proton() -> Iterator[ProtonServer]:
    server = ProtonServer()
    yield server
    server.stop()


@pytest.fixture
def connection(proton: ProtonServer) -> Iterator[Connection]:
    with connect(proton.url, timeout=10) as connected:
        yield connected


def take(receiver: Receiver, count: int) -> list[ReceivedMessage]:
    taken: list[ReceivedMessage] = []
    while len(taken) < count:
        got = receiver.receive(count - len(taken))
        assert got, f"only {len(taken)} of {count} came"
        taken += got
    return taken


def test_a_connection_without_sasl_works_too(proton: ProtonServer) -> None:
    with connect(proton.url, sasl="none") as connection:
        assert connection.is_open


def test_a_mechanism_that_is_not_offered_is_named(proton: ProtonServer) -> None:
    with pytest.raises(ConnectionLost, match=r"PLAIN.*ANONYMOUS"):
        connect(proton.url, user="u", password="p")


def test_a_message_keeps_all_its_parts_on_the_way_there_and_back(connection: Connection) -> None:
    sent = Message(
        header=Header(durable=True, priority=7, ttl=5000),
        properties=Properties(message_id="id", subject="s", content_type="text/plain", group_id="g", group_sequence=3),
        application_properties={"a": 1, "b": "two", "c": True},
        data=[b"body"],
    )
    connection.sender("parts").send(sent)
    (received,) = take(connection.receiver("parts"), 1)
    message = received.message
    assert message.header is not None
    assert (message.header.durable, message.header.priority, message.header.ttl) == (True, 7, 5000)
    assert message.properties == sent.properties
    assert message.application_properties == sent.application_properties
    assert received.body == b"body"


def test_a_rejection_arrives_with_its_condition(connection: Connection) -> None:
    sender = connection.sender("q")
    with pytest.raises(SendRejected, match="not this one") as refused:
        sender.send(Message(data=[b"reject"]))
    assert refused.value.condition == "test:unwanted"


def test_a_refused_link_arrives_with_its_condition(connection: Connection) -> None:
    for attach in (connection.sender, connection.receiver):
        with pytest.raises(LinkClosed, match="no queue 'missing'") as refused:
            attach("missing")
        assert refused.value.condition == "amqp:not-found"


@pytest.mark.parametrize("mode", list(ReceiveMode))
def test_many_messages_go_through_in_order_in_every_mode(connection: Connection, mode: ReceiveMode) -> None:
    address = f"many-{mode}"
    messages = [Message(data=[b"%d" % number]) for number in range(1000)]
    assert connection.sender(address).send_all(messages) == 1000
    receiver = connection.receiver(address, mode=mode, credit=100)
    received: list[ReceivedMessage] = []
    while len(received) < 1000:
        batch = take(receiver, 50)
        if mode is not ReceiveMode.RECEIVE_AND_DELETE:
            receiver.accept(batch)
        received += batch
    receiver.confirm()
    assert [int(message.body) for message in received] == list(range(1000))
    assert all(message.settled for message in received)


def test_pre_settled_messages_arrive(connection: Connection) -> None:
    sender = connection.sender("settled")
    sender.send_all([Message(data=[b"%d" % number]) for number in range(100)], settled=True)
    received = take(connection.receiver("settled"), 100)
    assert [int(message.body) for message in received] == list(range(100))


def test_a_large_message_crosses_in_many_frames(proton: ProtonServer) -> None:
    with connect(proton.url, max_frame_size=4096) as connection:
        body = bytes(range(256)) * 4000
        connection.sender("large").send(Message(data=[body]))
        assert take(connection.receiver("large"), 1)[0].body == body


@pytest.mark.parametrize("mode", [ReceiveMode.PEEK_LOCK, ReceiveMode.SETTLE_FIRST])
def test_outcomes_of_all_kinds_arrive(proton: ProtonServer, connection: Connection, mode: ReceiveMode) -> None:
    address = f"outcomes-{mode}"
    connection.sender(address).send_all([Message(data=[b"%d" % number]) for number in range(4)])
    receiver = connection.receiver(address, mode=mode, credit=4)
    first, second, third, fourth = take(receiver, 4)
    receiver.accept(first, wait=True)
    receiver.reject(second, "test:bad", "very bad", wait=True)
    receiver.release(third, wait=True)
    receiver.modify(fourth, wait=True)
    back = {message.body: message.message.header for message in take(receiver, 2)}
    assert set(back) == {b"2", b"3"}
    assert back[b"3"] is not None
    assert back[b"3"].delivery_count == 1
    assert (b"1", ("test:bad", "very bad")) in proton.rejected


def test_a_receiver_without_credit_of_its_own_drains(connection: Connection) -> None:
    receiver = connection.receiver("on-demand", credit=0)
    assert receiver.receive(5, timeout=0.05) == []
    connection.sender("on-demand").send_all([Message(data=[b"%d" % number]) for number in range(3)])
    assert [int(message.body) for message in take(receiver, 2)] == [0, 1]
    assert [int(message.body) for message in receiver.receive(5)] == [2]


def test_requests_are_answered_through_a_dynamic_node(connection: Connection) -> None:
    with connection.requester("echo", dynamic=True) as requester:
        ids = [requester.submit(Message(value=number)) for number in range(20)]
        assert [requester.response(one).value for one in reversed(ids)] == list(reversed(range(20)))
