"""azure-servicebus for Python, the blocking client, unmodified."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSubQueue,
    TransportType,
)
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from peeklock.entities.authorization import AuthorizationRule, Right
from peeklock.entities.definitions import QueueDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from serving import BrokerThread, ServedBroker, StartBroker


def client_for(connection_string: str, **options: Any) -> ServiceBusClient:
    # One try: what a test expects to fail should fail at once.
    return ServiceBusClient.from_connection_string(connection_string, retry_total=0, **options)


def plain(broker: ServedBroker) -> ServiceBusClient:
    return client_for(broker.connection_string)


def tls(broker: ServedBroker) -> ServiceBusClient:
    return client_for(
        broker.connection_string.replace("UseDevelopmentEmulator=true;", ""),
        transport_type=TransportType.Amqp,
        custom_endpoint_address=f"sb://127.0.0.1:{broker.port}",
        connection_verify=str(broker.authority),
    )


def websocket(broker: ServedBroker) -> ServiceBusClient:
    return client_for(
        broker.connection_string.replace("UseDevelopmentEmulator=true;", ""),
        transport_type=TransportType.AmqpOverWebsocket,
        custom_endpoint_address=f"https://127.0.0.1:{broker.port}",
        connection_verify=str(broker.authority),
    )


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(QueueDefinition(name="queue", max_delivery_count=3, lock_duration_ms=60_000))


@pytest.fixture
def client(broker: BrokerThread) -> Iterator[ServiceBusClient]:
    with client_for(broker.connection_string) as client:
        yield client


def send(client: ServiceBusClient, *messages: str | ServiceBusMessage, queue: str = "queue") -> None:
    with client.get_queue_sender(queue) as sender:
        for message in messages:
            sender.send_messages(message if isinstance(message, ServiceBusMessage) else ServiceBusMessage(message))


def receive(receiver: ServiceBusReceiver, count: int, wait: float = 5) -> list[ServiceBusReceivedMessage]:
    """Exactly that many messages, however the SDK cuts them into batches."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        batch = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=wait)
        assert batch, f"only {len(found)} of {count} messages came"
        found += batch
    return found


def nothing_left(client: ServiceBusClient, **options: Any) -> bool:
    with client.get_queue_receiver("queue", **options) as receiver:
        return not receiver.receive_messages(max_wait_time=0.3)


@pytest.mark.parametrize("connect", [plain, tls, websocket])
def test_a_message_is_sent_and_received_over_every_transport(
    served: ServedBroker, connect: Callable[[ServedBroker], ServiceBusClient]
) -> None:
    with connect(served) as client:
        send(client, ServiceBusMessage("hello", application_properties={"n": 1}, subject="greeting"))
        with client.get_queue_receiver("queue") as receiver:
            (message,) = receive(receiver, 1)
            assert str(message) == "hello"
            assert message.subject == "greeting"
            assert message.application_properties == {b"n": 1}
            receiver.complete_message(message)
        assert nothing_left(client)


def test_if_tls_is_required_other_clients_get_an_error(tmp_path: Path) -> None:
    strict = ServedBroker(tmp_path, "--require-tls")
    try:
        for connect in (tls, websocket):
            with connect(strict) as client:
                send(client, "hello")
        with plain(strict) as client, pytest.raises(ServiceBusError, match="This broker requires TLS"):
            send(client, "hello")
    finally:
        strict.stop()


@pytest.mark.parametrize("connect", [plain, tls, websocket])
def test_a_large_message_is_sent_and_received_over_every_transport(
    served: ServedBroker, connect: Callable[[ServedBroker], ServiceBusClient]
) -> None:
    body = bytes(range(256)) * 1000
    with connect(served) as client:
        with client.get_queue_sender("queue") as sender:
            sender.send_messages(ServiceBusMessage(body))
        with client.get_queue_receiver("queue") as receiver:
            (message,) = receive(receiver, 1)
            assert b"".join(message.body) == body
            receiver.complete_message(message)


def test_every_property_that_the_sender_sets_arrives(client: ServiceBusClient, broker: BrokerThread) -> None:
    properties: dict[str, Any] = {
        "message_id": "the-id",
        "session_id": "the-session",
        "correlation_id": "the-correlation",
        "subject": "the-subject",
        "content_type": "text/plain",
        "to": "the-to",
        "reply_to": "the-reply-to",
        "reply_to_session_id": "the-reply-session",
        "partition_key": "the-session",
    }
    sent = ServiceBusMessage(
        "body",
        application_properties={"text": "t", "number": 3, "real": 1.5, "yes": True, "bytes": b"b"},
        time_to_live=datetime.timedelta(minutes=5),
        **properties,
    )
    send(client, sent)
    with client.get_queue_receiver("queue") as receiver:
        (message,) = receive(receiver, 1)
    for name, value in properties.items():
        assert getattr(message, name) == value, name
    assert message.application_properties == {
        b"text": b"t",
        b"number": 3,
        b"real": 1.5,
        b"yes": True,
        b"bytes": b"b",
    }
    assert message.time_to_live == datetime.timedelta(minutes=5)
    assert message.sequence_number == 1
    assert message.enqueued_sequence_number is None
    assert message.delivery_count == 0
    now = datetime.datetime.fromtimestamp(broker.clock() / 1000, datetime.UTC)
    assert message.enqueued_time_utc == now
    assert message.expires_at_utc == now + datetime.timedelta(minutes=5)
    assert message.locked_until_utc == now + datetime.timedelta(minutes=1)
    assert message.lock_token is not None


def test_a_message_without_an_id_gets_one(client: ServiceBusClient) -> None:
    message = ServiceBusMessage("body")
    message.message_id = None
    send(client, message)
    with client.get_queue_receiver("queue") as receiver:
        (received,) = receive(receiver, 1)
    assert received.message_id is not None
    assert len(received.message_id) == 32


def test_a_batch_arrives_as_single_messages_in_order(client: ServiceBusClient) -> None:
    with client.get_queue_sender("queue") as sender:
        batch = sender.create_message_batch()
        for number in range(50):
            batch.add_message(ServiceBusMessage(f"m{number}"))
        sender.send_messages(batch)
        sender.send_messages([ServiceBusMessage("list-1"), ServiceBusMessage("list-2")])
    with client.get_queue_receiver("queue") as receiver:
        messages = receive(receiver, 52)
        assert [str(message) for message in messages] == [*(f"m{n}" for n in range(50)), "list-1", "list-2"]
        assert [message.sequence_number for message in messages] == list(range(1, 53))


def test_a_message_over_the_limit_is_rejected_and_the_link_stays_open(client: ServiceBusClient) -> None:
    with client.get_queue_sender("queue") as sender:
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * 300_000))
        sender.send_messages(ServiceBusMessage("small"))
    with client.get_queue_receiver("queue") as receiver:
        assert [str(message) for message in receive(receiver, 1)] == ["small"]


def test_an_abandoned_message_is_redelivered_and_finally_dead_lettered(client: ServiceBusClient) -> None:
    send(client, "poison")
    with client.get_queue_receiver("queue") as receiver:
        for delivery_count in range(3):
            (message,) = receive(receiver, 1)
            assert message.delivery_count == delivery_count
            receiver.abandon_message(message)
    assert nothing_left(client)
    with client.get_queue_receiver("queue", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (message,) = receive(receiver, 1)
        assert message.dead_letter_reason == "MaxDeliveryCountExceeded"
        receiver.complete_message(message)


def test_a_dead_lettered_message_has_its_reason(client: ServiceBusClient) -> None:
    send(client, "bad")
    with client.get_queue_receiver("queue") as receiver:
        (message,) = receive(receiver, 1)
        receiver.dead_letter_message(message, reason="a reason", error_description="a description")
    with client.get_queue_receiver("queue", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (message,) = receive(receiver, 1)
        assert str(message) == "bad"
        assert message.dead_letter_reason == "a reason"
        assert message.dead_letter_error_description == "a description"
        assert message.dead_letter_source == "queue"
        receiver.complete_message(message)
    assert nothing_left(client, sub_queue=ServiceBusSubQueue.DEAD_LETTER)


def test_a_deferred_message_is_no_longer_received_and_counts_as_deferred(
    client: ServiceBusClient, broker: BrokerThread
) -> None:
    send(client, "later", "now")
    with client.get_queue_receiver("queue") as receiver:
        later, now = receive(receiver, 2)
        receiver.defer_message(later)
        receiver.complete_message(now)
    assert nothing_left(client)
    counters = broker.call(lambda: broker.broker.namespace.queue("queue").counters)
    assert (counters.active, counters.deferred) == (0, 1)


def test_settling_after_the_lock_expired_is_a_lost_lock(client: ServiceBusClient, broker: BrokerThread) -> None:
    send(client, "slow")
    with client.get_queue_receiver("queue") as receiver:
        (message,) = receive(receiver, 1)
        broker.advance(seconds=61)
        # The SDK looks at its own clock first, and must be asked to ask the broker.
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)
        (again,) = receive(receiver, 1)
        assert again.delivery_count == 1
        receiver.complete_message(again)


def test_an_expired_message_is_not_received(client: ServiceBusClient, broker: BrokerThread) -> None:
    send(client, ServiceBusMessage("short", time_to_live=datetime.timedelta(seconds=10)), "long")
    broker.advance(seconds=11)
    with client.get_queue_receiver("queue") as receiver:
        (message,) = receive(receiver, 1)
        assert str(message) == "long"


def test_receive_and_delete_removes_the_message(client: ServiceBusClient) -> None:
    send(client, "a", "b")
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client.get_queue_receiver("queue", receive_mode=mode) as receiver:
        assert [str(message) for message in receive(receiver, 2)] == ["a", "b"]
    assert nothing_left(client)


def test_prefetched_messages_are_received_and_the_remaining_ones_released_on_close(client: ServiceBusClient) -> None:
    send(client, *(f"m{number}" for number in range(20)))
    with client.get_queue_receiver("queue", prefetch_count=20) as receiver:
        for message in receive(receiver, 5):
            receiver.complete_message(message)
    with client.get_queue_receiver("queue") as receiver:
        rest = receive(receiver, 15)
        assert sorted(int(str(message)[1:]) for message in rest) == list(range(5, 20))
        assert {message.delivery_count for message in rest} == {0}


def test_iterating_over_a_receiver_ends_when_no_message_arrives(client: ServiceBusClient) -> None:
    send(client, "a", "b", "c")
    with client.get_queue_receiver("queue", max_wait_time=0.5) as receiver:
        bodies = []
        for message in receiver:
            bodies.append(str(message))
            receiver.complete_message(message)
    assert bodies == ["a", "b", "c"]


def test_two_receivers_share_the_messages(client: ServiceBusClient) -> None:
    with client.get_queue_receiver("queue") as one, client.get_queue_receiver("queue") as two:
        send(client, *(f"m{number}" for number in range(10)))
        first = receive(one, 5)
        second = receive(two, 5)
        assert len({message.sequence_number for message in first + second}) == 10


def test_messages_sent_before_a_restart_are_received_after_it(served: ServedBroker) -> None:
    with ServiceBusClient.from_connection_string(served.connection_string) as client:
        with client.get_queue_sender("queue") as sender:
            sender.send_messages(ServiceBusMessage("before"))
            assert served.stop() == 0
            served.start()
            sender.send_messages(ServiceBusMessage("after"))
        with client.get_queue_receiver("queue") as receiver:
            messages = receive(receiver, 2)
            assert [str(message) for message in messages] == ["before", "after"]
            served.kill()
            served.start()
            again = receive(receiver, 2, wait=20)
            assert [message.sequence_number for message in again] == [1, 2]
            for message in again:
                receiver.complete_message(message)


def test_a_received_message_is_sent_again_with_its_ids_and_keys(start_broker: StartBroker) -> None:
    detecting = QueueDefinition(name="queue", requires_duplicate_detection=True, enable_partitioning=True)
    broker = start_broker(detecting, QueueDefinition(name="sessions", requires_session=True))
    with client_for(broker.connection_string) as client:
        with client.get_queue_sender("queue") as sender:
            sender.send_messages(ServiceBusMessage("a", message_id="id", partition_key="schlüssel"))
        with client.get_queue_receiver("queue") as receiver:
            (first,) = receive(receiver, 1)
            assert first.partition_key == "schlüssel"
            receiver.complete_message(first)
        assert first.raw_amqp_message.annotations is not None
        assert first.raw_amqp_message.annotations[b"x-opt-partition-key"] == "schlüssel".encode()  # so it is sent
        with client.get_queue_sender("queue") as sender:
            sender.send_messages(first)  # its id and key are known
            first.message_id = "another"
            sender.send_messages(first)
        assert broker.counters().active == 1
        with client.get_queue_receiver("queue") as receiver:
            (second,) = receive(receiver, 1)
            assert (second.message_id, second.partition_key) == ("another", "schlüssel")
        with client.get_queue_sender("sessions") as sender:
            sender.send_messages(ServiceBusMessage("b", session_id="s", partition_key="s"))
        for _ in range(2):
            with client.get_queue_receiver("sessions", session_id="s") as receiver:
                (message,) = receive(receiver, 1)
                receiver.complete_message(message)
            assert (message.session_id, message.partition_key) == ("s", "s")
            with client.get_queue_sender("sessions") as sender:
                sender.send_messages(message)


def test_a_message_with_a_uuid_for_an_id_is_scheduled(client: ServiceBusClient, broker: BrokerThread) -> None:
    later = ServiceBusMessage("a", message_id=uuid4())  # type: ignore[arg-type]
    due = datetime.datetime.fromtimestamp(broker.clock() / 1000 + 60, datetime.UTC)
    with client.get_queue_sender("queue") as sender:
        (number,) = sender.schedule_messages(later, due)
        assert number == 1
        broker.advance(60)
        with client.get_queue_receiver("queue") as receiver:
            (message,) = receive(receiver, 1)
            assert message.message_id == later.message_id
            receiver.complete_message(message)
        sender.schedule_messages(message, due + datetime.timedelta(hours=1))  # with what is binary now
    assert broker.counters().scheduled == 1


def test_an_unknown_queue_is_an_authentication_error_as_with_the_service(client: ServiceBusClient) -> None:
    with pytest.raises(ServiceBusAuthenticationError):
        send(client, "a", queue="nowhere")
    with pytest.raises(ServiceBusAuthenticationError), client.get_queue_receiver("nowhere") as receiver:
        receiver.receive_messages(max_wait_time=1)


def test_an_unknown_subscription_is_not_found(start_broker: StartBroker) -> None:
    broker = start_broker(namespace=NamespaceDefinition(topics=(TopicDefinition(name="topic"),)))
    with (
        client_for(broker.connection_string) as client,
        pytest.raises(MessagingEntityNotFoundError),
        client.get_subscription_receiver("topic", "nobody") as receiver,
    ):
        receiver.receive_messages(max_wait_time=1)


def test_queue_names_are_case_insensitive_and_may_contain_slashes(start_broker: StartBroker) -> None:
    broker = start_broker(QueueDefinition(name="Orders/in.a-b_c~d"))
    with client_for(broker.connection_string) as client:
        send(client, "a", queue="ORDERS/IN.A-B_C~D")
        with client.get_queue_receiver("orders/in.a-b_c~d") as receiver:
            assert str(receive(receiver, 1)[0]) == "a"


def test_a_wrong_key_is_an_authentication_error(broker: BrokerThread) -> None:
    wrong = broker.connection_string.replace("SAS_KEY_VALUE", "guessed")
    with client_for(wrong) as client, pytest.raises(ServiceBusAuthenticationError):
        send(client, "a")


def test_a_key_without_the_right_is_an_authorization_error(start_broker: StartBroker) -> None:
    rules = (
        AuthorizationRule(name="sender", primary_key="sender-key", rights=frozenset({Right.SEND})),
        AuthorizationRule(name="listener", primary_key="listener-key", rights=frozenset({Right.LISTEN})),
    )
    queues = (QueueDefinition(name="queue", authorization_rules=rules), QueueDefinition(name="other"))
    broker = start_broker(namespace=NamespaceDefinition(queues=queues))

    def as_rule(name: str) -> ServiceBusClient:
        return client_for(
            broker.connection_string.replace("RootManageSharedAccessKey", name).replace("SAS_KEY_VALUE", f"{name}-key")
        )

    with as_rule("sender") as client:
        send(client, "a")
        with pytest.raises(ServiceBusAuthorizationError), client.get_queue_receiver("queue") as receiver:
            receiver.receive_messages(max_wait_time=1)
        with pytest.raises(ServiceBusAuthenticationError):
            send(client, "a", queue="other")
    with as_rule("listener") as client:
        with client.get_queue_receiver("queue") as receiver:
            assert str(receive(receiver, 1)[0]) == "a"
        with pytest.raises(ServiceBusAuthorizationError):
            send(client, "b")


def test_a_session_queue_refuses_a_receiver_without_a_session(start_broker: StartBroker) -> None:
    broker = start_broker(QueueDefinition(name="queue", requires_session=True))
    with client_for(broker.connection_string) as client:
        with pytest.raises(ServiceBusError, match="session"), client.get_queue_receiver("queue") as receiver:
            receiver.receive_messages(max_wait_time=1)
        with pytest.raises(ServiceBusError, match="session id"):
            send(client, "no session")
