"""azure-servicebus for Python, the asyncio client, unmodified."""

from __future__ import annotations

import asyncio
import datetime
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
    TransportType,
)
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    ServiceBusAuthenticationError,
)

from peeklock.entities.definitions import QueueDefinition
from serving import BrokerThread, ServedBroker, StartBroker


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an asyncio test as a plain test, with a new loop."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def scenario() -> None:
            await test(*args, **kwargs)

        asyncio.run(scenario())

    return run


def client_for(connection_string: str, **options: Any) -> ServiceBusClient:
    # One try: what a test expects to fail should fail at once.
    return ServiceBusClient.from_connection_string(connection_string, **{"retry_total": 0, **options})


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


TRANSPORTS = [plain, tls, websocket]


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(QueueDefinition(name="queue", max_delivery_count=3, lock_duration_ms=60_000))


async def send(client: ServiceBusClient, *messages: str | ServiceBusMessage, queue: str = "queue") -> None:
    async with client.get_queue_sender(queue) as sender:
        for message in messages:
            await sender.send_messages(
                message if isinstance(message, ServiceBusMessage) else ServiceBusMessage(message)
            )


async def receive(receiver: ServiceBusReceiver, count: int, wait: float = 5) -> list[ServiceBusReceivedMessage]:
    """Exactly that many messages, however the SDK cuts them into batches."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        batch = await receiver.receive_messages(max_message_count=count - len(found), max_wait_time=wait)
        assert batch, f"only {len(found)} of {count} messages came"
        found += batch
    return found


@pytest.mark.parametrize("connect", TRANSPORTS)
@in_a_loop
async def test_messages_are_sent_and_received_over_every_transport(
    served: ServedBroker, connect: Callable[[ServedBroker], ServiceBusClient]
) -> None:
    large = bytes(range(256)) * 1000
    async with connect(served) as client:
        await send(
            client,
            ServiceBusMessage("hello", application_properties={"n": 1}, subject="greeting"),
            ServiceBusMessage(large),
        )
        async with client.get_queue_receiver("queue") as receiver:
            first, second = await receive(receiver, 2)
            assert str(first) == "hello"
            assert first.subject == "greeting"
            assert first.application_properties == {b"n": 1}
            assert b"".join(second.body) == large
            await receiver.complete_message(first)
            await receiver.complete_message(second)
            assert not await receiver.receive_messages(max_wait_time=0.3)


@in_a_loop
async def test_every_property_that_the_sender_sets_arrives(broker: BrokerThread) -> None:
    properties: dict[str, Any] = {
        "message_id": "the-id",
        "session_id": "the-session",
        "correlation_id": "the-correlation",
        "subject": "the-subject",
        "content_type": "text/plain",
        "to": "the-to",
        "reply_to": "the-reply-to",
        "reply_to_session_id": "the-reply-session",
    }
    values: dict[str | bytes, Any] = {"text": "t", "number": 3, "real": 1.5, "yes": True, "bytes": b"b"}
    life = datetime.timedelta(minutes=5)
    async with client_for(broker.connection_string) as client:
        await send(client, ServiceBusMessage("body", application_properties=values, time_to_live=life, **properties))
        async with client.get_queue_receiver("queue") as receiver:
            (message,) = await receive(receiver, 1)
    for name, value in properties.items():
        assert getattr(message, name) == value, name
    assert message.application_properties == {
        str(name).encode(): value.encode() if isinstance(value, str) else value for name, value in values.items()
    }
    now = datetime.datetime.fromtimestamp(broker.clock() / 1000, datetime.UTC)
    assert message.time_to_live == life
    assert message.enqueued_time_utc == now
    assert message.expires_at_utc == now + life
    assert message.locked_until_utc == now + datetime.timedelta(minutes=1)
    assert (message.sequence_number, message.delivery_count) == (1, 0)


@in_a_loop
async def test_a_batch_and_a_list_arrive_as_single_messages_in_order(broker: BrokerThread) -> None:
    async with client_for(broker.connection_string) as client:
        async with client.get_queue_sender("queue") as sender:
            batch = await sender.create_message_batch()
            for number in range(50):
                batch.add_message(ServiceBusMessage(f"m{number}"))
            await sender.send_messages(batch)
            await sender.send_messages([ServiceBusMessage("list-1"), ServiceBusMessage("list-2")])
        async with client.get_queue_receiver("queue") as receiver:
            messages = await receive(receiver, 52)
    assert [str(message) for message in messages] == [*(f"m{n}" for n in range(50)), "list-1", "list-2"]
    assert [message.sequence_number for message in messages] == list(range(1, 53))


@in_a_loop
async def test_a_message_over_the_limit_is_rejected_and_the_link_stays_open(broker: BrokerThread) -> None:
    async with client_for(broker.connection_string) as client, client.get_queue_sender("queue") as sender:
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(b"x" * 300_000))
        await sender.send_messages(ServiceBusMessage("small"))
    assert broker.counters().active == 1


@in_a_loop
async def test_an_abandoned_message_is_redelivered_and_finally_dead_lettered(broker: BrokerThread) -> None:
    async with client_for(broker.connection_string) as client:
        await send(client, "poison")
        async with client.get_queue_receiver("queue") as receiver:
            for delivery_count in range(3):
                (message,) = await receive(receiver, 1)
                assert message.delivery_count == delivery_count
                await receiver.abandon_message(message)
        async with client.get_queue_receiver("queue", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (message,) = await receive(receiver, 1)
            assert str(message) == "poison"
            assert message.dead_letter_reason == "MaxDeliveryCountExceeded"
            await receiver.complete_message(message)
    assert broker.counters().active == 0
    assert broker.counters("queue/$deadletterqueue").active == 0


@in_a_loop
async def test_each_settlement_has_its_effect(broker: BrokerThread) -> None:
    async with client_for(broker.connection_string) as client:
        await send(client, "complete", "abandon", "defer", "dead-letter")
        async with client.get_queue_receiver("queue") as receiver:
            completed, abandoned, deferred, dead = await receive(receiver, 4)
            await receiver.complete_message(completed)
            await receiver.abandon_message(abandoned)
            await receiver.defer_message(deferred)
            await receiver.dead_letter_message(dead, reason="a reason", error_description="a description")
            (again,) = await receive(receiver, 1)
            assert (str(again), again.delivery_count) == ("abandon", 1)
            await receiver.complete_message(again)
        assert (broker.counters().active, broker.counters().deferred) == (0, 1)
        async with client.get_queue_receiver("queue", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (message,) = await receive(receiver, 1)
            assert str(message) == "dead-letter"
            assert message.dead_letter_reason == "a reason"
            assert message.dead_letter_error_description == "a description"
            await receiver.complete_message(message)


@in_a_loop
async def test_settling_after_the_lock_expired_is_a_lost_lock(broker: BrokerThread) -> None:
    async with client_for(broker.connection_string) as client:
        await send(client, "slow")
        async with client.get_queue_receiver("queue") as receiver:
            (message,) = await receive(receiver, 1)
            broker.advance(seconds=61)
            with pytest.raises(MessageLockLostError):
                await receiver.complete_message(message)
            (again,) = await receive(receiver, 1)
            assert again.delivery_count == 1
            assert again.lock_token != message.lock_token
            await receiver.complete_message(again)
    assert broker.counters().active == 0


@in_a_loop
async def test_an_expired_message_is_not_received(broker: BrokerThread) -> None:
    async with client_for(broker.connection_string) as client:
        await send(client, ServiceBusMessage("short", time_to_live=datetime.timedelta(seconds=10)), "long")
        broker.advance(seconds=11)
        async with client.get_queue_receiver("queue") as receiver:
            (message,) = await receive(receiver, 1)
            assert str(message) == "long"


@in_a_loop
async def test_receive_and_delete_removes_the_message(broker: BrokerThread) -> None:
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with client_for(broker.connection_string) as client:
        await send(client, "a", "b")
        async with client.get_queue_receiver("queue", receive_mode=mode) as receiver:
            assert [str(message) for message in await receive(receiver, 2)] == ["a", "b"]
    assert broker.counters().active == 0


@in_a_loop
async def test_prefetched_messages_are_received_and_the_remaining_ones_released_on_close(broker: BrokerThread) -> None:
    async with client_for(broker.connection_string) as client:
        await send(client, *(f"m{number}" for number in range(20)))
        async with client.get_queue_receiver("queue", prefetch_count=20) as receiver:
            for message in await receive(receiver, 5):
                await receiver.complete_message(message)
        async with client.get_queue_receiver("queue") as receiver:
            rest = await receive(receiver, 15)
    assert sorted(int(str(message)[1:]) for message in rest) == list(range(5, 20))
    assert {message.delivery_count for message in rest} == {0}


@in_a_loop
async def test_iterating_over_a_receiver_ends_when_no_message_arrives(broker: BrokerThread) -> None:
    bodies = []
    async with client_for(broker.connection_string) as client:
        await send(client, "a", "b", "c")
        async with client.get_queue_receiver("queue", max_wait_time=0.5) as receiver:
            async for message in receiver:
                bodies.append(str(message))
                await receiver.complete_message(message)
    assert bodies == ["a", "b", "c"]


@in_a_loop
async def test_many_senders_and_receivers_work_concurrently(broker: BrokerThread) -> None:
    async def receive_five(client: ServiceBusClient) -> list[str]:
        async with client.get_queue_receiver("queue") as receiver:
            messages = await receive(receiver, 5)
            await asyncio.gather(*(receiver.complete_message(message) for message in messages))
            return [str(message) for message in messages]

    async with client_for(broker.connection_string) as client:
        first, second, *_ = await asyncio.gather(
            receive_five(client),
            receive_five(client),
            send(client, *(f"a-{number}" for number in range(5))),
            send(client, *(f"b-{number}" for number in range(5))),
        )
    assert sorted(first + second) == sorted(f"{sender}-{number}" for sender in "ab" for number in range(5))
    assert broker.counters().active == 0


@in_a_loop
async def test_client_and_receiver_reconnect_after_a_restart(served: ServedBroker) -> None:
    async with client_for(served.connection_string, retry_total=5) as client:
        async with client.get_queue_sender("queue") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            assert await asyncio.to_thread(served.stop) == 0
            await asyncio.to_thread(served.start)
            await sender.send_messages(ServiceBusMessage("after"))
        async with client.get_queue_receiver("queue") as receiver:
            messages = await receive(receiver, 2)
            assert [str(message) for message in messages] == ["before", "after"]
            await asyncio.to_thread(served.kill)
            await asyncio.to_thread(served.start)
            again = await receive(receiver, 2, wait=20)
            assert [message.sequence_number for message in again] == [1, 2]
            for message in again:
                await receiver.complete_message(message)


@in_a_loop
async def test_an_unknown_queue_and_a_wrong_key_are_authentication_errors(broker: BrokerThread) -> None:
    async with client_for(broker.connection_string) as client:
        with pytest.raises(ServiceBusAuthenticationError):
            await send(client, "a", queue="nowhere")
        with pytest.raises(ServiceBusAuthenticationError):
            async with client.get_queue_receiver("nowhere") as receiver:
                await receiver.receive_messages(max_wait_time=1)
    wrong = broker.connection_string.replace("SAS_KEY_VALUE", "guessed")
    async with client_for(wrong) as client:
        with pytest.raises(ServiceBusAuthenticationError):
            await send(client, "a")
