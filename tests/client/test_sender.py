"""Sending one and many."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client.engine_server import EngineServer
from peeklock.amqp.errors import Condition
from peeklock.amqp.outcomes import Accepted
from peeklock.client import (
    Connection,
    LinkClosed,
    Message,
    Properties,
    Sender,
    SendRejected,
    Timeout,
    connect,
)


def body(text: str) -> Message:
    return Message(data=[text.encode()])


@pytest.fixture
def connection(server: EngineServer) -> Iterator[Connection]:
    with connect(server.url, timeout=10) as connected:
        yield connected


@pytest.fixture
def sender(connection: Connection) -> Sender:
    return connection.sender("q")


def bodies(server: EngineServer, address: str = "q") -> list[bytes]:
    return [Message.decode(payload).data[0] for payload in server.queues[address]]


def test_a_message_is_sent_and_its_outcome_returned(server: EngineServer, sender: Sender) -> None:
    message = Message(properties=Properties(message_id="m1"), data=[b"hello"])
    assert sender.send(message) == Accepted()
    assert sender.in_flight == 0
    assert Message.decode(server.queues["q"][0]) == message


def test_bytes_are_an_encoded_message(server: EngineServer, sender: Sender) -> None:
    encoded = body("ready").encode()
    sender.send(encoded)
    assert list(server.queues["q"]) == [encoded]


def test_a_rejected_message_raises_the_peers_condition(sender: Sender) -> None:
    with pytest.raises(SendRejected) as refused:
        sender.send(body("please reject this"))
    assert (refused.value.condition, refused.value.description) == (Condition.NOT_ALLOWED, "we do not like it")
    assert str(refused.value) == "amqp:not-allowed: we do not like it"
    sender.send(body("fine"))


def test_a_released_message_was_not_sent_either(sender: Sender) -> None:
    with pytest.raises(SendRejected, match="released"):
        sender.send(body("release"))


def test_a_settled_message_has_no_outcome(server: EngineServer, sender: Sender) -> None:
    assert sender.send(body("one"), settled=True) is None
    sender.send(body("two"))
    assert bodies(server) == [b"one", b"two"]


def test_no_outcome_in_time_is_a_timeout(sender: Sender) -> None:
    with pytest.raises(Timeout, match="the outcome of the message"):
        sender.send(body("ignore"), timeout=0.05)


def test_no_credit_in_time_is_a_timeout(server: EngineServer, connection: Connection) -> None:
    server.pause_credit = True
    with pytest.raises(Timeout, match="credit to send"):
        connection.sender("q").send(body("x"), timeout=0.05)


def test_a_message_above_the_peers_limit_is_not_even_sent(server: EngineServer, connection: Connection) -> None:
    server.max_message_size = 100
    sender = connection.sender("q")
    assert sender.max_message_size == 100
    with pytest.raises(SendRejected, match="the peer accepts 100") as refused:
        sender.send(body("x" * 200))
    assert refused.value.condition == Condition.MESSAGE_SIZE_EXCEEDED


@pytest.mark.parametrize("in_flight", [1, 2, 100, 5000])
@pytest.mark.parametrize("settled", [False, True])
def test_many_messages_arrive_in_order(server: EngineServer, sender: Sender, in_flight: int, settled: bool) -> None:
    texts = [f"{number}" for number in range(3000)]
    assert sender.send_all(map(body, texts), in_flight=in_flight, settled=settled) == 3000
    sender.send(body("last"))
    assert bodies(server) == [text.encode() for text in [*texts, "last"]]


def test_no_more_than_so_many_are_in_flight(sender: Sender) -> None:
    seen = 0

    def watched() -> Iterator[Message]:
        nonlocal seen
        for _ in range(1000):
            seen = max(seen, sender.in_flight)
            yield body("x")

    sender.send_all(watched(), in_flight=50)
    assert seen == 50


def test_large_messages_do_not_pile_up_in_front_of_the_socket(server: EngineServer, sender: Sender) -> None:
    big = Message(data=[bytes(500_000)]).encode()
    assert sender.send_all([big] * 100) == 100
    assert len(server.queues["q"]) == 100


def test_a_refused_message_among_many_is_raised_after_all_outcomes(server: EngineServer, sender: Sender) -> None:
    texts = ["a", "reject", "b"]
    with pytest.raises(SendRejected, match="we do not like it"):
        sender.send_all(map(body, texts))
    assert sender.in_flight == 0
    assert bodies(server) == [b"a", b"b"]
    assert sender.send_all([body("c")]) == 1


def test_nothing_is_taken_from_the_iterable_after_a_refusal_is_known(sender: Sender) -> None:
    endless = iter(lambda: body("reject"), None)
    with pytest.raises(SendRejected):
        sender.send_all(endless, in_flight=10)


def test_sending_nothing_is_sending_none(sender: Sender) -> None:
    assert sender.send_all([]) == 0


def test_missing_outcomes_of_many_are_a_timeout(sender: Sender) -> None:
    with pytest.raises(Timeout, match="the outcomes of 3 messages"):
        sender.send_all([body("ignore")] * 3, timeout=0.05)


def test_posted_messages_show_their_outcome_when_it_has_come(sender: Sender) -> None:
    good, bad = sender.post(body("x")), sender.post(body("reject"))
    sender.wait_for(lambda: good.done and bad.done, 10, "both")
    assert good.refused is None
    assert bad.refused is not None
    assert bad.refused.condition == Condition.NOT_ALLOWED


def test_a_link_that_the_peer_closes_raises_its_reason(connection: Connection) -> None:
    sender = connection.sender("fragile")
    with pytest.raises(LinkClosed, match="it broke"):
        sender.send(body("x"))
    assert sender.closed
    with pytest.raises(LinkClosed, match="it broke"):
        sender.send_all([body("y")])
    connection.sender("q").send(body("others live on"))


def test_a_link_closed_here_sends_no_more(sender: Sender) -> None:
    with sender:
        sender.send(body("x"))
    sender.close()
    with pytest.raises(LinkClosed, match="closed here"):
        sender.send(body("y"))
