"""azure-servicebus for Python, the blocking client: requests to `$management` of queues without sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import MessageLockLostError, MessageNotFoundError, MessageSizeExceededError
from happenings import cut_connections

from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from serving import BrokerThread, ServedBroker, StartBroker

ACTIVE, DEFERRED, SCHEDULED = (
    ServiceBusMessageState.ACTIVE,
    ServiceBusMessageState.DEFERRED,
    ServiceBusMessageState.SCHEDULED,
)
DEAD_LETTERS: dict[str, Any] = {"sub_queue": ServiceBusSubQueue.DEAD_LETTER}
DELETES: dict[str, Any] = {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE}


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(QueueDefinition(name="queue", max_delivery_count=3, lock_duration_ms=60_000))


@pytest.fixture
def client(broker: BrokerThread) -> Iterator[ServiceBusClient]:
    # One try: what a test expects to fail should fail at once.
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        yield client


def now(broker: BrokerThread) -> datetime:
    return datetime.fromtimestamp(broker.clock() / 1000, UTC)


def in_minutes(broker: BrokerThread, minutes: float) -> datetime:
    return now(broker) + timedelta(minutes=minutes)


def send(client: ServiceBusClient, *bodies: str) -> None:
    with client.get_queue_sender("queue") as sender:
        sender.send_messages([ServiceBusMessage(body) for body in bodies])


def receive(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    """Exactly that many messages, however the SDK cuts them into batches."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        batch = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=5)
        assert batch, f"only {len(found)} of {count} messages came"
        found += batch
    return found


def texts(messages: list[ServiceBusReceivedMessage]) -> list[str]:
    return [str(message) for message in messages]


def states(receiver: ServiceBusReceiver) -> dict[str, ServiceBusMessageState]:
    """What the queue holds, by body."""
    return {str(message): message.state for message in receiver.peek_messages(100, sequence_number=1)}


# --- locks ---


def test_a_renewed_lock_outlives_its_first_duration(client: ServiceBusClient, broker: BrokerThread) -> None:
    send(client, "slow")
    with client.get_queue_receiver("queue") as receiver:
        (message,) = receive(receiver, 1)
        assert message.locked_until_utc == in_minutes(broker, 1)
        broker.advance(seconds=40)
        assert receiver.renew_message_lock(message) == in_minutes(broker, 1)
        assert message.locked_until_utc == in_minutes(broker, 1)
        broker.advance(seconds=40)
        receiver.complete_message(message)
    assert broker.counters().active == 0


def test_an_expired_lock_is_not_renewed(client: ServiceBusClient, broker: BrokerThread) -> None:
    send(client, "slow")
    with client.get_queue_receiver("queue") as receiver:
        (message,) = receive(receiver, 1)
        broker.advance(seconds=61)
        with pytest.raises(MessageLockLostError):
            receiver.renew_message_lock(message)
        (again,) = receive(receiver, 1)
        assert again.delivery_count == 1
        receiver.complete_message(again)


def test_the_automatic_renewer_keeps_a_message_locked(start_broker: StartBroker) -> None:
    # It renews when ten seconds are left by its own clock: with such a lock, as soon as it knows of it.
    broker = start_broker(QueueDefinition(name="queue", lock_duration_ms=10_000))
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        send(client, "slow")
        with client.get_queue_receiver("queue") as receiver, AutoLockRenewer() as renewer:
            (message,) = receive(receiver, 1)
            before = message.locked_until_utc
            renewer.register(receiver, message)
            broker.advance(seconds=6)
            while message.locked_until_utc == before and message.auto_renew_error is None:
                broker.counters()
            assert message.auto_renew_error is None
            broker.advance(seconds=6)
            receiver.complete_message(message)
    assert broker.counters().active == 0


# --- settlement without the link ---


@pytest.mark.parametrize("settlement", ["complete", "abandon", "defer", "dead_letter"])
def test_a_message_is_settled_by_its_token_when_its_link_is_lost(broker: BrokerThread, settlement: str) -> None:
    # Tries again: only then the SDK settles by management request.
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_backoff_factor=0) as client:
        send(client, "one")
        with client.get_queue_receiver("queue") as receiver:
            (message,) = receive(receiver, 1)
            cut_connections(broker)
            getattr(receiver, f"{settlement}_message")(message)
            left = receiver.peek_messages(sequence_number=1)
            if settlement in ("complete", "dead_letter"):
                assert left == []
            else:
                assert left[0].state == (DEFERRED if settlement == "defer" else ACTIVE)
            if settlement == "abandon":
                assert receive(receiver, 1)[0].delivery_count == 1
    letters = 1 if settlement == "dead_letter" else 0
    assert broker.counters("queue/$deadletterqueue").active == letters


def test_a_message_of_a_lost_link_stays_locked(broker: BrokerThread) -> None:
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_backoff_factor=0) as client:
        send(client, "held", "free")
        with client.get_queue_receiver("queue") as receiver:
            (held,) = receive(receiver, 1)
            cut_connections(broker)
            (free,) = receive(receiver, 1)
            assert str(free) == "free"
            receiver.renew_message_lock(held)
            broker.advance(seconds=61)
            with pytest.raises(MessageLockLostError):
                receiver.renew_message_lock(held)


# --- peeking ---


def test_peeking_continues_where_it_stopped(client: ServiceBusClient, broker: BrokerThread) -> None:
    send(client, *(f"m{number}" for number in range(1, 26)))
    with client.get_queue_receiver("queue") as receiver:
        assert texts(receiver.peek_messages()) == ["m1"]
        pages = []
        while page := receiver.peek_messages(max_message_count=10):
            pages.append(texts(page))
        assert [len(page) for page in pages] == [10, 10, 4]
        assert [body for page in pages for body in page] == [f"m{number}" for number in range(2, 26)]
        assert texts(receiver.peek_messages(3, sequence_number=20)) == ["m20", "m21", "m22"]
        assert receiver.peek_messages(sequence_number=26) == []
        with pytest.raises(ValueError):
            receiver.complete_message(receiver.peek_messages(sequence_number=1)[0])
        # Nothing was locked or counted by looking.
        received = receive(receiver, 25)
        assert {message.delivery_count for message in received} == {0}


def test_peeking_shows_every_message_with_its_state(client: ServiceBusClient, broker: BrokerThread) -> None:
    due = in_minutes(broker, 5)
    with client.get_queue_sender("queue") as sender, client.get_queue_receiver("queue") as receiver:
        sender.send_messages([ServiceBusMessage(body) for body in ("deferred", "locked", "waiting")])
        sender.schedule_messages(ServiceBusMessage("scheduled"), due)
        deferred, _locked = receive(receiver, 2)
        receiver.defer_message(deferred)
        assert states(receiver) == {"deferred": DEFERRED, "locked": ACTIVE, "waiting": ACTIVE, "scheduled": SCHEDULED}
        peeked = receiver.peek_messages(10, sequence_number=1)
        assert [message.sequence_number for message in peeked] == [1, 2, 3, 4]
        assert peeked[3].scheduled_enqueue_time_utc == due
        assert {message.lock_token for message in peeked} == {None}
        assert {message.locked_until_utc for message in peeked} == {None}


def test_dead_letters_are_peeked_with_their_reason(client: ServiceBusClient) -> None:
    send(client, "bad")
    with client.get_queue_receiver("queue") as receiver:
        receiver.dead_letter_message(receive(receiver, 1)[0], reason="a reason", error_description="a description")
    with client.get_queue_receiver("queue", **DEAD_LETTERS) as letters:
        (letter,) = letters.peek_messages()
        assert (str(letter), letter.dead_letter_reason) == ("bad", "a reason")
        assert letter.dead_letter_error_description == "a description"
        assert letter.state == ACTIVE


# --- scheduling ---


def test_scheduled_messages_arrive_when_they_are_due(client: ServiceBusClient, broker: BrokerThread) -> None:
    with client.get_queue_sender("queue") as sender, client.get_queue_receiver("queue") as receiver:
        (late,) = sender.schedule_messages(ServiceBusMessage("late"), in_minutes(broker, 10))
        numbers = sender.schedule_messages(
            [ServiceBusMessage("soon-1"), ServiceBusMessage("soon-2")], in_minutes(broker, 5)
        )
        assert [late, *numbers] == [1, 2, 3]
        sender.send_messages(ServiceBusMessage("now"))
        (first,) = receive(receiver, 1)
        receiver.complete_message(first)
        assert str(first) == "now"
        assert receiver.receive_messages(max_wait_time=0.3) == []
        due = in_minutes(broker, 5)
        broker.advance(seconds=300)
        soon = receive(receiver, 2)
        assert texts(soon) == ["soon-1", "soon-2"]
        # It gets a new number when it is enqueued.
        assert [message.sequence_number for message in soon] == [5, 6]
        assert [message.enqueued_time_utc for message in soon] == [due, due]
        assert [message.scheduled_enqueue_time_utc for message in soon] == [due, due]
        assert {message.state for message in soon} == {ACTIVE}
        for message in soon:
            receiver.complete_message(message)
        broker.advance(seconds=300)
        assert texts(receive(receiver, 1)) == ["late"]


def test_cancelled_messages_never_appear(client: ServiceBusClient, broker: BrokerThread) -> None:
    with client.get_queue_sender("queue") as sender, client.get_queue_receiver("queue") as receiver:
        messages = [ServiceBusMessage(f"m{number}") for number in range(1, 6)]
        numbers = sender.schedule_messages(messages, in_minutes(broker, 5))
        sender.cancel_scheduled_messages(numbers[0])
        sender.cancel_scheduled_messages(numbers[1:3])
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(numbers[0])
        # All or none: the known one is still there.
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages([numbers[3], 99])
        broker.advance(seconds=300)
        assert texts(receive(receiver, 2)) == ["m4", "m5"]
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(numbers[3])
        assert len(receiver.peek_messages(10, sequence_number=1)) == 2
    counters = broker.counters()
    assert (counters.active, counters.scheduled) == (2, 0)


def test_a_plain_send_with_an_enqueue_time_is_scheduled(client: ServiceBusClient, broker: BrokerThread) -> None:
    due = in_minutes(broker, 5)
    with client.get_queue_sender("queue") as sender, client.get_queue_receiver("queue") as receiver:
        later = ServiceBusMessage("later", scheduled_enqueue_time_utc=due, time_to_live=timedelta(minutes=1))
        past = ServiceBusMessage("past", scheduled_enqueue_time_utc=now(broker) - timedelta(minutes=5))
        batch = sender.create_message_batch()
        batch.add_message(later)
        batch.add_message(past)
        sender.send_messages(batch)
        (first,) = receive(receiver, 1)
        assert str(first) == "past"
        receiver.complete_message(first)
        (peeked,) = receiver.peek_messages(sequence_number=1)
        assert (str(peeked), peeked.state, peeked.scheduled_enqueue_time_utc) == ("later", SCHEDULED, due)
        broker.advance(seconds=300)
        # The time to live starts when the message is enqueued.
        (message,) = receive(receiver, 1)
        assert (str(message), message.enqueued_time_utc) == ("later", due)
        assert message.expires_at_utc == due + timedelta(minutes=1)
        sender.send_messages(ServiceBusMessage("cancelled", scheduled_enqueue_time_utc=in_minutes(broker, 5)))
        cancelled = receiver.peek_messages(10, sequence_number=1)[-1]
        assert cancelled.sequence_number is not None
        sender.cancel_scheduled_messages(cancelled.sequence_number)
    assert broker.counters().scheduled == 0


def test_a_message_over_the_limit_is_not_scheduled(client: ServiceBusClient, broker: BrokerThread) -> None:
    with client.get_queue_sender("queue") as sender:
        with pytest.raises(MessageSizeExceededError):
            sender.schedule_messages(ServiceBusMessage(b"x" * 300_000), in_minutes(broker, 5))
        assert sender.schedule_messages(ServiceBusMessage(b"x" * 200_000), in_minutes(broker, 5)) == [1]


# --- deferral ---


def defer(receiver: ServiceBusReceiver, count: int) -> list[int]:
    """Receive that many messages and set them aside; their numbers."""
    messages = receive(receiver, count)
    for message in messages:
        receiver.defer_message(message)
    return [message.sequence_number for message in messages if message.sequence_number is not None]


def test_deferred_messages_are_fetched_by_number_and_settled(client: ServiceBusClient, broker: BrokerThread) -> None:
    send(client, "complete", "abandon", "defer", "dead-letter")
    with client.get_queue_receiver("queue") as receiver:
        numbers = defer(receiver, 4)
        fetched = receiver.receive_deferred_messages(numbers[::-1])
        assert texts(fetched) == ["dead-letter", "defer", "abandon", "complete"]
        assert {message.state for message in fetched} == {DEFERRED}
        assert {message.locked_until_utc for message in fetched} == {in_minutes(broker, 1)}
        assert len({message.lock_token for message in fetched}) == 4
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(numbers[0])  # it is locked
        broker.advance(seconds=40)
        receiver.renew_message_lock(fetched[1])
        receiver.dead_letter_message(fetched[0], reason="a reason", error_description="a description")
        receiver.abandon_message(fetched[2])
        receiver.complete_message(fetched[3])
        broker.advance(seconds=40)
        receiver.defer_message(fetched[1])
        # Given back or not: a deferred message is deferred until it is completed or dead-lettered.
        assert states(receiver) == {"abandon": DEFERRED, "defer": DEFERRED}
        again = receiver.receive_deferred_messages(numbers[1:3])
        assert texts(again) == ["abandon", "defer"]
        assert [message.delivery_count for message in again] == [(m.delivery_count or 0) + 1 for m in fetched[2:0:-1]]
        for message in again:
            receiver.complete_message(message)
    with client.get_queue_receiver("queue", **DEAD_LETTERS) as letters:
        (letter,) = receive(letters, 1)
        assert (str(letter), letter.dead_letter_reason) == ("dead-letter", "a reason")
        assert letter.dead_letter_error_description == "a description"
        letters.complete_message(letter)
    counters = broker.counters()
    assert (counters.active, counters.deferred) == (0, 0)


def test_a_deferred_message_is_deferred_again_after_its_lock_expired(
    client: ServiceBusClient, broker: BrokerThread
) -> None:
    send(client, "later")
    with client.get_queue_receiver("queue") as receiver:
        (number,) = defer(receiver, 1)
        (fetched,) = receiver.receive_deferred_messages(number)
        broker.advance(seconds=61)
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(fetched)
        assert states(receiver) == {"later": DEFERRED}
        (again,) = receiver.receive_deferred_messages([number])
        receiver.complete_message(again)
    assert broker.counters().deferred == 0


def test_deferred_messages_are_fetched_and_deleted(client: ServiceBusClient, broker: BrokerThread) -> None:
    send(client, "a", "b", "waiting")
    with client.get_queue_receiver("queue") as receiver:
        numbers = defer(receiver, 2)
    with client.get_queue_receiver("queue", **DELETES) as receiver:
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages([*numbers, 3])  # that one is not deferred: all or none
        assert texts(receiver.receive_deferred_messages(numbers)) == ["a", "b"]
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(numbers)
    counters = broker.counters()
    assert (counters.active, counters.deferred) == (1, 0)


def test_a_deferred_message_expires_when_it_is_requested(client: ServiceBusClient, broker: BrokerThread) -> None:
    with client.get_queue_sender("queue") as sender, client.get_queue_receiver("queue") as receiver:
        sender.send_messages(ServiceBusMessage("short", time_to_live=timedelta(seconds=30)))
        (number,) = defer(receiver, 1)
        broker.advance(seconds=31)
        assert broker.counters().deferred == 1
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(number)
    assert broker.counters().deferred == 0


# --- restart ---


@contextmanager
def sender_and_receiver(
    broker: ServedBroker | BrokerThread,
) -> Iterator[tuple[ServiceBusSender, ServiceBusReceiver]]:
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("queue") as sender,
        client.get_queue_receiver("queue") as receiver,
    ):
        yield sender, receiver


@pytest.mark.parametrize("end", [ServedBroker.stop, ServedBroker.kill])
def test_scheduled_deferred_and_cancelled_messages_survive_a_restart(
    served: ServedBroker, end: Callable[[ServedBroker], object]
) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    with sender_and_receiver(served) as (sender, receiver):
        sender.send_messages(ServiceBusMessage("deferred"))
        (number,) = defer(receiver, 1)
        messages = [ServiceBusMessage("kept"), ServiceBusMessage("cancelled")]
        kept, cancelled = sender.schedule_messages(messages, due)
        sender.cancel_scheduled_messages(cancelled)
        end(served)
    served.start()
    with sender_and_receiver(served) as (sender, receiver):
        assert states(receiver) == {"deferred": DEFERRED, "kept": SCHEDULED}
        (fetched,) = receiver.receive_deferred_messages(number)
        receiver.complete_message(fetched)
        sender.cancel_scheduled_messages(kept)
        assert states(receiver) == {}


def test_messages_that_became_due_during_a_stop_are_enqueued_in_order(tmp_path: Path) -> None:
    namespace = NamespaceDefinition(queues=(QueueDefinition(name="queue"),))
    before = BrokerThread(namespace=namespace, data=tmp_path)
    before.clock.step(-3_600_000)  # the next one starts an hour later
    dues = {body: in_minutes(before, minutes) for body, minutes in (("second", 20), ("third", 30), ("first", 10))}
    with sender_and_receiver(before) as (sender, _):
        for body, due in dues.items():
            sender.schedule_messages(ServiceBusMessage(body), due)
    before.stop()
    after = BrokerThread(namespace=namespace, data=tmp_path)
    with sender_and_receiver(after) as (_, receiver):
        messages = receive(receiver, 3)
        assert texts(messages) == ["first", "second", "third"]
        assert [message.enqueued_time_utc for message in messages] == sorted(dues.values())
    after.stop()


# --- delivery annotations ---


@pytest.mark.parametrize("options", [{}, DELETES], ids=["locked", "deleted"])
def test_delivery_annotations_arrive_as_they_were_sent(client: ServiceBusClient, options: dict[str, Any]) -> None:
    message = ServiceBusMessage("body")
    message.raw_amqp_message.delivery_annotations = {"mine": 3}
    with client.get_queue_sender("queue") as sender:
        sender.send_messages(message)
        batch = sender.create_message_batch()
        batch.add_message(message)
        sender.send_messages(batch)
    with client.get_queue_receiver("queue", max_wait_time=5, **options) as receiver:
        received = receiver.receive_messages(max_message_count=2)
        received += receiver.receive_messages() if len(received) < 2 else []
        for each in received:
            annotations = dict(each.raw_amqp_message.delivery_annotations or {})
            token = annotations.pop(b"x-opt-lock-token", None)  # type: ignore[call-overload]
            assert annotations == {b"mine": 3}
            assert (token is None) == bool(options)
            if not options:
                assert str(token) == str(each.lock_token)
        assert len(received) == 2


def test_a_message_that_is_received_and_deleted_has_empty_delivery_annotations(client: ServiceBusClient) -> None:
    send(client, "one")
    with client.get_queue_receiver("queue", max_wait_time=5, **DELETES) as receiver:
        (received,) = receiver.receive_messages()
        assert received.raw_amqp_message.delivery_annotations == {}
