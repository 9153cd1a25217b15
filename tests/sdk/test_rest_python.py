"""azure-servicebus for Python and HTTP: a message sent with one is received with the other, with all its properties."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from python_client import StartBus

from peeklock.entities.definitions import QueueDefinition
from peeklock.rest.values import format_http_date
from rest.asking import RestClient

QUEUE = QueueDefinition(name="queue")


def test_a_message_sent_over_http_has_its_properties_in_the_sdk(start_bus: StartBus) -> None:
    bus = start_bus(QUEUE)
    rest = RestClient(bus.broker.broker.port)
    rest.send(
        "Hello",
        properties={
            "MessageId": "m",
            "CorrelationId": "c",
            "Label": "l",
            "To": "t",
            "ReplyTo": "r",
            "ReplyToSessionId": "rs",
            "PartitionKey": "p",
            "TimeToLive": 90.5,
        },
        Content_Type="text/plain",
        Priority='"High"',
        Count="5",
        Ratio="0.25",
        Done="true",
        When='"Sun, 06 Nov 1994 08:49:37 GMT"',
    )
    (message,) = bus.queue("queue").receive_messages(max_wait_time=10)
    assert str(message) == "Hello"
    assert (message.message_id, message.correlation_id, message.subject) == ("m", "c", "l")
    assert (message.to, message.reply_to, message.reply_to_session_id) == ("t", "r", "rs")
    assert (message.partition_key, message.content_type) == ("p", "text/plain")
    assert message.time_to_live == timedelta(seconds=90.5)
    properties = message.application_properties or {}
    assert {key.decode() if isinstance(key, bytes) else key: value for key, value in properties.items()} == {
        "Priority": b"High",
        "Count": 5,
        "Ratio": 0.25,
        "Done": True,
        "When": 784_111_777_000,
    }


def test_a_message_sent_by_the_sdk_has_its_properties_over_http(start_bus: StartBus) -> None:
    bus = start_bus(QUEUE)
    rest = RestClient(bus.broker.broker.port)
    bus.send(
        "queue",
        ServiceBusMessage(
            "Hello",
            message_id="m",
            correlation_id="c",
            subject="l",
            to="t",
            reply_to="r",
            reply_to_session_id="rs",
            partition_key="p",
            content_type="text/plain",
            time_to_live=timedelta(seconds=90),
            application_properties={"Priority": "High", "Count": 5, "Ratio": 0.25, "Done": True},
        ),
    )
    answer = rest.take(timeout=10)
    found = answer.broker_properties
    assert (answer.body, answer.headers["Content-Type"]) == (b"Hello", "text/plain")
    assert (found["MessageId"], found["CorrelationId"], found["Label"], found["To"]) == ("m", "c", "l", "t")
    assert (found["ReplyTo"], found["ReplyToSessionId"], found["PartitionKey"]) == ("r", "rs", "p")
    assert found["TimeToLive"] == 90
    shown = {name: answer.headers[name] for name in ("Priority", "Count", "Ratio", "Done")}
    assert shown == {"Priority": '"High"', "Count": "5", "Ratio": "0.25", "Done": "true"}


def test_a_session_message_sent_over_http_is_received_by_the_sdk(start_bus: StartBus) -> None:
    bus = start_bus(QueueDefinition(name="sessions", requires_session=True))
    rest = RestClient(bus.broker.broker.port)
    rest.send("one", "sessions", {"SessionId": "s"})
    assert rest.send_batch([{"Body": "two", "BrokerProperties": {"SessionId": "s"}}], "sessions").status == 201
    receiver = bus.queue("sessions", session_id="s")
    assert [str(message) for message in receiver.receive_messages(2, max_wait_time=10)] == ["one", "two"]


def test_a_message_scheduled_over_http_is_received_by_the_sdk_when_due(start_bus: StartBus) -> None:
    bus = start_bus(QUEUE)
    due = bus.broker.clock.now() // 1000 * 1000 + 60_000
    RestClient(bus.broker.broker.port).send("later", properties={"ScheduledEnqueueTimeUtc": format_http_date(due)})
    receiver = bus.queue("queue", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    (peeked,) = receiver.peek_messages()
    assert peeked.scheduled_enqueue_time_utc == datetime.fromtimestamp(due / 1000, UTC)
    assert receiver.receive_messages(max_wait_time=1) == []
    bus.broker.advance(61)
    (message,) = receiver.receive_messages(max_wait_time=10)
    assert str(message) == "later"


def test_a_message_locked_over_http_is_the_sdks_after_it_was_unlocked(start_bus: StartBus) -> None:
    bus = start_bus(QUEUE)
    rest = RestClient(bus.broker.broker.port)
    bus.send("queue", "one")
    locked = rest.lock(timeout=10)
    receiver = bus.queue("queue")
    assert receiver.receive_messages(max_wait_time=1) == []
    assert rest.ask("PUT", locked.location).status == 200
    (message,) = receiver.receive_messages(max_wait_time=10)
    assert message.delivery_count == 1
    receiver.complete_message(message)
    assert rest.take().status == 204
