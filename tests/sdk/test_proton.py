"""qpid-proton for Python: a plain AMQP 1.0 client that logs in with the name of a key and the key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from proton import ConnectionException, Delivery, Link, Message, symbol
from proton.reactor import AtMostOnce, LinkOption
from proton.utils import BlockingConnection, BlockingSender, LinkDetached, SendException

from peeklock.entities.authorization import DEFAULT_KEY, DEFAULT_KEY_NAME
from peeklock.entities.definitions import QueueDefinition
from serving import BrokerThread, ServedBroker, StartBroker

WAIT = 10


class SettlesSecond(LinkOption):
    """The receiver settles after the broker has (rcv-settle-mode second)."""

    def apply(self, link: Link) -> None:
        link.rcv_settle_mode = Link.RCV_SECOND


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(QueueDefinition(name="queue", max_delivery_count=3, lock_duration_ms=60_000))


def connect(
    port: int, *, user: str | None = DEFAULT_KEY_NAME, password: str | None = DEFAULT_KEY, **options: Any
) -> Any:
    plain = {"user": user, "password": password, "allowed_mechs": "PLAIN", "allow_insecure_mechs": True}
    return BlockingConnection(f"amqp://127.0.0.1:{port}", timeout=WAIT, **{**plain, **options})


@pytest.fixture
def connection(broker: BrokerThread) -> Iterator[BlockingConnection]:
    connection = connect(broker.broker.port)
    yield connection
    connection.close()


def send(connection: BlockingConnection, *bodies: Any, to: str = "queue", **properties: Any) -> None:
    sender: Any = connection.create_sender(to)
    for body in bodies:
        delivery = sender.send(Message(body=body, durable=True, **properties))
        assert delivery.remote_state == Delivery.ACCEPTED
        assert delivery.settled
    sender.close()


def receiver_of(
    connection: BlockingConnection, address: str = "queue", *, credit: int = 10, **kind: Any
) -> Any:  # a BlockingReceiver, whose annotations say less than it does
    return connection.create_receiver(address, credit=credit, **kind)


def settled_by_broker(connection: BlockingConnection, delivery: Delivery) -> bool:
    connection.wait(lambda: delivery.settled, msg="waiting for the broker to settle")
    return bool(delivery.settled)


def test_durable_messages_are_sent_and_received(connection: BlockingConnection, broker: BrokerThread) -> None:
    sent = Message(
        body={"list": [1, "two", None], "yes": True},
        durable=True,
        id="the-id",
        subject="the-subject",
        reply_to="the-reply-to",
        correlation_id=7,
        content_type=symbol("text/plain"),
        properties={"number": 1, "text": "t"},
        annotations={symbol("mine"): "kept"},
    )
    sender = connection.create_sender("queue")
    assert sender.send(sent).remote_state == Delivery.ACCEPTED
    receiver = receiver_of(connection)
    message = receiver.receive(WAIT)
    receiver.accept()
    for name in ("body", "durable", "id", "subject", "reply_to", "correlation_id", "content_type", "properties"):
        assert getattr(message, name) == getattr(sent, name), name
    annotations = message.annotations
    assert annotations["mine"] == "kept"
    assert annotations["x-opt-sequence-number"] == 1
    assert annotations["x-opt-enqueued-time"] == broker.clock()
    assert message.delivery_count == 0
    receiver.close()
    assert broker.counters().active == 0


def test_each_outcome_has_its_effect(connection: BlockingConnection, broker: BrokerThread) -> None:
    send(connection, "accept", "release", "modify", "reject")
    receiver = receiver_of(connection, credit=4, options=SettlesSecond())
    outcomes = {
        "accept": Delivery.ACCEPTED,
        "release": Delivery.RELEASED,
        "modify": Delivery.MODIFIED,
        "reject": Delivery.REJECTED,
    }
    for body, outcome in outcomes.items():
        message = receiver.receive(WAIT)
        assert message.body == body
        delivery = receiver.fetcher.unsettled.popleft()
        if outcome == Delivery.MODIFIED:
            delivery.local.failed = True
        delivery.update(outcome)
        assert settled_by_broker(connection, delivery)
        assert delivery.remote_state == outcome
        delivery.settle()
    receiver.flow(4)
    back = [receiver.receive(WAIT) for _ in range(2)]
    assert [(message.body, message.delivery_count) for message in back] == [("release", 0), ("modify", 1)]
    assert broker.counters().active == 2
    assert broker.counters("queue/$deadletterqueue").active == 1


def test_a_receiver_that_settles_first_needs_no_confirmation(
    connection: BlockingConnection, broker: BrokerThread
) -> None:
    send(connection, "accept", "release", "reject")
    receiver = receiver_of(connection, credit=3)
    for settle in (receiver.accept, lambda: receiver.release(delivered=False), receiver.reject):
        receiver.receive(WAIT)
        settle()
    receiver.flow(1)
    message = receiver.receive(WAIT)
    assert (message.body, message.delivery_count) == ("release", 0)
    receiver.accept()
    send(connection, "last")  # when this is answered, all of the above has been heard
    assert broker.counters().active == 1
    assert broker.counters("queue/$deadletterqueue").active == 1


def test_a_rejected_message_is_dead_lettered_with_the_reason(connection: BlockingConnection) -> None:
    send(connection, "bad")
    receiver = receiver_of(connection)
    receiver.receive(WAIT)
    receiver.reject()
    letters = receiver_of(connection, "queue/$DeadLetterQueue")
    message = letters.receive(WAIT)
    assert message.body == "bad"
    assert message.annotations["x-opt-deadletter-source"] == "queue"
    letters.accept()


def test_a_message_modified_too_often_is_dead_lettered(connection: BlockingConnection) -> None:
    send(connection, "poison")
    receiver = receiver_of(connection, credit=10)
    for count in range(3):
        assert receiver.receive(WAIT).delivery_count == count
        receiver.release(delivered=True)  # modified, delivery-failed
    letters = receiver_of(connection, "queue/$deadletterqueue")
    assert letters.receive(WAIT).properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"


def test_a_presettled_send_arrives(connection: BlockingConnection) -> None:
    sender = connection.create_sender("queue", options=AtMostOnce())
    assert sender.link.snd_settle_mode == Link.SND_SETTLED
    sender.send(Message(body="fire and forget", durable=True))
    receiver = receiver_of(connection)
    assert receiver.receive(WAIT).body == "fire and forget"


def test_a_presettled_receive_leaves_nothing(connection: BlockingConnection, broker: BrokerThread) -> None:
    send(connection, "a", "b")
    receiver = receiver_of(connection, options=AtMostOnce())
    assert [receiver.receive(WAIT).body for _ in range(2)] == ["a", "b"]
    assert not receiver.fetcher.unsettled
    assert broker.counters().active == 0


def test_unsettled_messages_stay_locked_when_the_link_closes(
    connection: BlockingConnection, broker: BrokerThread
) -> None:
    send(connection, "held", "free")
    first = receiver_of(connection, credit=0)  # what is received asks for one; more could bring both
    assert first.receive(WAIT).body == "held"
    first.close()
    second = receiver_of(connection, credit=2)
    assert second.receive(WAIT).body == "free"
    second.accept()
    broker.advance(seconds=61)
    message = second.receive(WAIT)
    assert (message.body, message.delivery_count) == ("held", 1)


def test_a_large_message_is_split_into_many_frames(broker: BrokerThread) -> None:
    body = bytes(range(256)) * 800
    connection = connect(broker.broker.port, max_frame_size=1024)
    send(connection, body)
    receiver = receiver_of(connection, credit=1)
    assert bytes(receiver.receive(WAIT).body) == body
    receiver.accept()
    connection.close()


def test_a_message_sent_in_pieces_arrives_whole(connection: BlockingConnection) -> None:
    encoded = Message(body=b"x" * 50_000, durable=True).encode()
    sender: BlockingSender = connection.create_sender("queue")
    delivery = sender.link.delivery("pieces")
    for at in range(0, len(encoded), 7_000):
        sender.link.stream(encoded[at : at + 7_000])
        connection.wait(lambda: not sender.link.session.outgoing_bytes, msg="waiting for the piece to leave")
    sender.link.advance()
    assert settled_by_broker(connection, delivery)
    assert delivery.remote_state == Delivery.ACCEPTED
    assert receiver_of(connection, credit=1).receive(WAIT).body == b"x" * 50_000


def test_a_message_over_the_size_limit_is_rejected_and_the_link_stays_open(connection: BlockingConnection) -> None:
    sender = connection.create_sender("queue")
    assert sender.link.remote_max_message_size == 262144
    with pytest.raises(SendException) as refusal:
        sender.send(Message(body=b"x" * 300_000, durable=True))
    assert refusal.value.state == Delivery.REJECTED
    assert sender.send(Message(body="small", durable=True)).remote_state == Delivery.ACCEPTED


def arrived(connection: BlockingConnection, receiver: Any, count: int) -> list[Any]:
    """The bodies that have come to the receiver without asking for more, once there are that many."""
    connection.wait(lambda: receiver.fetcher.has_message >= count, msg=f"waiting for {count} messages")
    return [message.body for message, _ in receiver.fetcher.incoming]


def test_a_drain_uses_up_the_credit(connection: BlockingConnection) -> None:
    send(connection, "only")
    receiver = receiver_of(connection, credit=0)
    receiver.link.drain(10)
    connection.wait(lambda: not receiver.link.draining(), msg="waiting for the drain")
    assert receiver.link.credit == 0
    assert arrived(connection, receiver, 1) == ["only"]
    send(connection, "more")
    assert arrived(connection, receiver, 1) == ["only"]
    receiver.flow(1)
    assert arrived(connection, receiver, 2) == ["only", "more"]


def test_received_messages_respect_the_credit(connection: BlockingConnection) -> None:
    send(connection, *range(10))
    receiver = receiver_of(connection, credit=0)
    receiver.flow(3)
    assert arrived(connection, receiver, 3) == [0, 1, 2]
    send(connection, "the answer to this comes after whatever else was sent")
    assert arrived(connection, receiver, 3) == [0, 1, 2]
    receiver.flow(4)
    assert arrived(connection, receiver, 7) == list(range(7))


def test_a_window_of_credit_that_is_topped_up_brings_everything_in_order(connection: BlockingConnection) -> None:
    send(connection, *range(40))
    receiver = receiver_of(connection, credit=5)  # which proton keeps at five
    assert arrived(connection, receiver, 40) == list(range(40))


def test_two_connections_share_the_messages(connection: BlockingConnection, broker: BrokerThread) -> None:
    other = connect(broker.broker.port)
    one, two = receiver_of(connection, credit=5), receiver_of(other, credit=5)
    send(connection, *range(10))
    bodies = [receiver.receive(WAIT).body for receiver in (one, two) for _ in range(5)]
    assert sorted(bodies) == list(range(10))
    other.close()


def test_an_unknown_queue_is_not_found(connection: BlockingConnection) -> None:
    for create in (connection.create_sender, connection.create_receiver):
        with pytest.raises(LinkDetached) as refusal:
            create("nowhere")
        assert refusal.value.condition == "amqp:not-found"
        assert "could not be found" in str(refusal.value)
    send(connection, "the connection lives on")


def test_an_anonymous_client_without_a_token_is_refused_at_attach(broker: BrokerThread) -> None:
    anonymous = connect(broker.broker.port, user=None, password=None, allowed_mechs="ANONYMOUS")
    for create in (anonymous.create_sender, anonymous.create_receiver):
        with pytest.raises(LinkDetached) as refusal:
            create("queue")
        assert refusal.value.condition == "amqp:unauthorized-access"
    anonymous.close()


@pytest.mark.parametrize("wrong", [{"password": "guessed"}, {"user": "nobody"}])
def test_a_wrong_name_or_key_is_refused(broker: BrokerThread, wrong: dict[str, str]) -> None:
    with pytest.raises(ConnectionException, match="amqp:unauthorized-access"):
        connect(broker.broker.port, **wrong)


def test_accepted_messages_survive_a_power_cut(served: ServedBroker) -> None:
    connection = connect(served.port)
    send(connection, "kept")
    served.kill()
    served.start()
    again = connect(served.port)
    receiver = receiver_of(again)
    message = receiver.receive(WAIT)
    assert (message.body, message.annotations["x-opt-sequence-number"]) == ("kept", 1)
    receiver.accept()
    again.close()
