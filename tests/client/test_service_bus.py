"""What Service Bus adds to AMQP, through the client: management requests, batches, sessions, transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodes.changing import change
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.types import Symbol, Timestamp
from peeklock.client import (
    AuthenticationFailed,
    Connection,
    LinkClosed,
    RequestRefused,
    batch_limit,
    connect,
    fill_batches,
)
from peeklock.client.batches import BATCH_FORMAT
from peeklock.entities.definitions import QueueDefinition
from serving import BrokerThread, StartBroker

PARTITION_KEY = Symbol("x-opt-partition-key")


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(QueueDefinition(name="queue"), QueueDefinition(name="sessions", requires_session=True))


@pytest.fixture
def connection(broker: BrokerThread) -> Iterator[Connection]:
    with connect(broker.connection_string, timeout=10) as connected:
        yield connected


def text(body: str, session: str | None = None) -> Message:
    return Message(properties=Properties(message_id=body, group_id=session), data=[body.encode()])


def bodies(connection: Connection, address: str = "queue") -> list[str]:
    with connection.management(address) as management:
        return [message.data[0].decode() for message in management.peek()]


# --- management ---


def test_messages_are_peeked_from_a_number_on(connection: Connection) -> None:
    connection.sender("queue").send_all(text(str(number)) for number in range(1, 6))
    with connection.management("queue") as management:
        assert [message.data for message in management.peek(2, 3)] == [[b"2"], [b"3"], [b"4"]]
        assert management.peek(6) == []


def test_messages_are_scheduled_and_cancelled(connection: Connection, broker: BrokerThread) -> None:
    at = broker.clock() + 60_000
    with connection.management("queue") as management:
        first, second = management.schedule([text("a"), Message(data=[b"b"])], at)
        found = management.peek()
        assert all(
            (message.message_annotations or {})["x-opt-scheduled-enqueue-time"] == Timestamp(at) for message in found
        )
        assert all(message.properties and message.properties.message_id for message in found)
        management.cancel_scheduled([first])
        with pytest.raises(RequestRefused) as refused:
            management.cancel_scheduled([first])
        assert (refused.value.status, refused.value.condition) == (404, "com.microsoft:message-not-found")
    broker.advance(61)
    (message,) = connection.receiver("queue", credit=0).receive()
    assert (message.body, second) == (b"b", first + 1)


def test_messages_are_deleted_many_at_a_time(connection: Connection, broker: BrokerThread) -> None:
    connection.sender("queue").send_all(text(str(number)) for number in range(5))
    with connection.management("queue") as management:
        before = broker.clock() + 1
        assert [management.delete_messages(before, 3) for _ in range(3)] == [3, 2, 0]


def test_messages_are_settled_by_their_tokens(connection: Connection, broker: BrokerThread) -> None:
    connection.sender("queue").send_all(text(body) for body in "ab")
    tokens = [message.lock_token for message in connection.receiver("queue", credit=0).receive(2)]
    with connection.management("queue") as management:
        management.update_disposition([token for token in tokens if token], "completed")
    assert broker.counters().active == 0


def test_a_refused_request_has_the_reason(connection: Connection) -> None:
    with connection.management("queue") as management, pytest.raises(RequestRefused) as refused:
        management.request("dance", {})
    assert (refused.value.status, refused.value.condition) == (501, "amqp:not-implemented")


def test_an_entity_that_is_not_there_gets_no_token_before_it_is_created(
    broker: BrokerThread, connection: Connection
) -> None:
    for attach in (connection.management, connection.sender, connection.receiver):
        with pytest.raises(AuthenticationFailed, match="could not be found") as refused:
            attach("later")
        assert refused.value.condition == "amqp:not-found"
    change(broker, lambda administration, done: administration.create_queue(QueueDefinition(name="later"), done))
    connection.sender("later").send(text("a"))
    assert [message.body for message in connection.receiver("later").receive()] == [b"a"]


# --- batches ---


def test_batches_are_as_few_as_the_messages_fit_in(connection: Connection) -> None:
    sender = connection.sender("queue")
    messages = [Message(data=[bytes([number]) * 30_000]) for number in range(20)]
    batches = list(fill_batches(messages, batch_limit(sender)))
    assert [batch.messages for batch in batches] == [8, 8, 4]
    assert all(len(batch.payload) <= sender.max_message_size for batch in batches)
    assert {batch.message_format for batch in batches} == {BATCH_FORMAT}
    for batch in batches:
        sender.send(batch.payload, message_format=batch.message_format)
    with connection.management("queue") as management:
        assert [message.data for message in management.peek()] == [message.data for message in messages]


def test_a_message_that_is_alone_goes_as_it_is() -> None:
    (batch,) = fill_batches([text("a")], 1000)
    assert (batch.payload, batch.message_format, batch.messages) == (text("a").encode(), 0, 1)
    small, large, last = fill_batches([text("a"), Message(data=[bytes(2000)]), text("b")], 1000)
    assert (small.messages, large.messages, last.messages) == (1, 1, 1)
    assert len(large.payload) > 1000


def test_a_batch_has_no_more_messages_than_allowed() -> None:
    assert [batch.messages for batch in fill_batches([text("a")] * 5, 100_000, 2)] == [2, 2, 1]
    assert list(fill_batches([], 1000)) == []


def test_the_envelope_has_the_keys_of_the_first_message() -> None:
    message = text("a", "session")
    message.message_annotations = {PARTITION_KEY: "key"}
    (batch,) = fill_batches([message, text("b")], 1000)
    envelope = Message.decode(batch.payload)
    assert envelope.properties == Properties(message_id="a", group_id="session")
    assert envelope.message_annotations == {PARTITION_KEY: "key"}
    assert [Message.decode(item).data for item in envelope.data] == [[b"a"], [b"b"]]


# --- sessions ---


def test_a_session_is_received_by_name_or_as_the_next(connection: Connection) -> None:
    connection.sender("sessions").send_all([text("a1", "a"), text("b1", "b"), text("a2", "a")])
    with connection.session_receiver("sessions", "b", credit=0) as receiver:
        assert [message.body for message in receiver.receive(5)] == [b"b1"]
        with connect(connection_string(connection), timeout=10) as other, pytest.raises(LinkClosed) as refused:
            other.session_receiver("sessions", "b")
        assert refused.value.condition == "com.microsoft:session-cannot-be-locked"
        with connection.session_receiver("sessions", credit=0) as next_one:
            assert [message.body for message in next_one.receive(5)] == [b"a1", b"a2"]


def connection_string(connection: Connection) -> str:
    endpoint = connection.endpoint
    return (
        f"Endpoint=sb://{endpoint.host}:{endpoint.port};SharedAccessKeyName={endpoint.key_name};"
        f"SharedAccessKey={endpoint.key};UseDevelopmentEmulator=true"
    )


# --- transactions ---


def test_a_transaction_happens_at_the_end_of_its_block(connection: Connection, broker: BrokerThread) -> None:
    sender, receiver = connection.sender("queue"), connection.receiver("queue", credit=0)
    sender.send(text("old"))
    (message,) = receiver.receive()
    with connection.transactions() as transactions:
        with transactions.transaction() as transaction:
            receiver.settle(message, transaction.outcome(), wait=True)
            sender.send(text("new"), state=transaction.state)
            assert bodies(connection) == ["old"]
        assert bodies(connection) == ["new"]


def test_a_transaction_that_fails_never_happened(connection: Connection) -> None:
    sender = connection.sender("queue")
    with connection.transactions() as transactions:

        def fail_within() -> None:
            with transactions.transaction() as transaction:
                sender.send(text("new"), state=transaction.state)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_within()
        assert bodies(connection) == []
        with transactions.transaction() as transaction:
            sender.send(text("later"), state=transaction.state)
    assert bodies(connection) == ["later"]
