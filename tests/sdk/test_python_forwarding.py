"""azure-servicebus for Python on entities that forward, drop duplicates, are disabled or deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiver, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
)
from python_client import Bus, Client, StartBus, correlation, receive, take, text_properties

from nodes.changing import delete_queue, delete_subscription, delete_topic, update_queue
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.settings import Status
from raw_client import eventually

DEAD_LETTERS: dict[str, Any] = {"sub_queue": ServiceBusSubQueue.DEAD_LETTER}
UNFORWARDED: dict[str, Any] = {"sub_queue": ServiceBusSubQueue.TRANSFER_DEAD_LETTER}


def chain(*names: str) -> list[QueueDefinition]:
    """Queues that forward each to the next."""
    forwarding = [QueueDefinition(name=name, forward_to=to) for name, to in pairwise(names)]
    return [*forwarding, QueueDefinition(name=names[-1])]


# --- forwarding ---


def test_a_message_is_unchanged_after_four_hops(start_bus: StartBus) -> None:
    bus = start_bus(*chain("q0", "q1", "q2", "q3", "q4"))
    sent = ServiceBusMessage(
        "body", message_id="the-id", subject="the-subject", application_properties={"n": 1}, reply_to="me"
    )
    bus.send("q4", "earlier")
    bus.send("q0", sent)
    earlier, message = receive(bus.queue("q4"), 2)
    assert (str(earlier), str(message)) == ("earlier", "body")
    assert (message.message_id, message.subject, message.reply_to) == ("the-id", "the-subject", "me")
    assert text_properties(message) == {"n": 1}
    assert (message.sequence_number, message.enqueued_sequence_number) == (2, 1)
    assert [bus.counts(f"q{number}") for number in range(4)] == [(0, 0)] * 4


def test_a_message_is_dead_lettered_instead_of_a_fifth_hop(start_bus: StartBus) -> None:
    bus = start_bus(*chain("q0", "q1", "q2", "q3", "q4", "q5"))
    bus.send("q0", "too far")
    (letter,) = receive(bus.queue("q4", **UNFORWARDED))
    assert (str(letter), letter.dead_letter_reason) == ("too far", "MaxTransferHopCountExceeded")
    bus.send("q1", "just as far")
    assert take(bus.queue("q5")) == ["just as far"]


def test_a_subscription_forwards_to_a_topic_and_to_a_queue(start_bus: StartBus) -> None:
    all_of_it = SubscriptionDefinition(name="all")
    bus = start_bus(
        QueueDefinition(name="queue"),
        TopicDefinition(name="first", subscriptions=(SubscriptionDefinition(name="on", forward_to="second"),)),
        TopicDefinition(
            name="second",
            subscriptions=(
                all_of_it,
                SubscriptionDefinition(name="on", forward_to="queue", rules=(correlation(label="x"),)),
            ),
        ),
    )
    bus.send("first", "for one", ServiceBusMessage("for both", subject="x"))
    assert take(bus.queue("queue")) == ["for both"]
    assert take(bus.subscription("all", topic="second"), 2) == ["for one", "for both"]
    assert bus.counts("queue") == (0, 0)


def test_messages_from_before_forwarding_was_set_are_forwarded_too(start_bus: StartBus) -> None:
    bus = start_bus(QueueDefinition(name="queue"), QueueDefinition(name="other"))
    bus.send("queue", "a", "b")
    update_queue(bus.broker, "queue", forward_to="other")
    bus.send("queue", "c")
    assert take(bus.queue("other"), 3) == ["a", "b", "c"]


def test_a_queue_that_forwards_cannot_be_received_from(start_bus: StartBus) -> None:
    bus = start_bus(*chain("queue", "other"))
    with pytest.raises(ServiceBusError, match="forwards its messages to 'other'"):
        bus.queue("queue").receive_messages(max_wait_time=1)


def test_forwarded_dead_letters_have_their_source(start_bus: StartBus) -> None:
    bus = start_bus(
        QueueDefinition(name="queue", forward_dead_lettered_messages_to="letters", max_delivery_count=1),
        QueueDefinition(name="letters"),
        TopicDefinition(
            name="topic",
            subscriptions=(SubscriptionDefinition(name="s", forward_dead_lettered_messages_to="letters"),),
        ),
    )
    bus.send("queue", "told", "given up")
    receiver = bus.queue("queue")
    told, given_up = receive(receiver, 2)
    receiver.dead_letter_message(told, reason="why", error_description="because")
    receiver.abandon_message(given_up)
    bus.send("topic", "copied")
    subscriber = bus.subscription("s")
    subscriber.dead_letter_message(receive(subscriber)[0], reason="too")
    letters = [
        (str(each), each.dead_letter_reason, each.dead_letter_source) for each in receive(bus.queue("letters"), 3)
    ]
    assert letters == [
        ("told", "why", "queue"),
        ("given up", "MaxDeliveryCountExceeded", "queue"),
        ("copied", "too", "topic/Subscriptions/s"),
    ]
    assert bus.counts("queue/$DeadLetterQueue") == (0, 0)


def close(bus: Bus) -> None:
    update_queue(bus.broker, "other", status=Status.SEND_DISABLED)


def remove(bus: Bus) -> None:
    delete_queue(bus.broker, "other")


@pytest.mark.parametrize(
    ("end", "reason"), [(close, "MessagingEntityDisabled"), (remove, "MessagingEntityNotFound")], ids=["closed", "gone"]
)
def test_messages_that_cannot_be_forwarded_are_in_the_transfer_dead_letter_queue(
    start_bus: StartBus, end: Callable[[Bus], None], reason: str
) -> None:
    bus = start_bus(*chain("queue", "other"))
    end(bus)
    bus.send("queue", "a", "b")
    receiver = bus.queue("queue", **UNFORWARDED)
    letters = receive(receiver, 2)
    assert [(str(letter), letter.dead_letter_reason) for letter in letters] == [("a", reason), ("b", reason)]
    for letter in letters:
        assert "other'" in (letter.dead_letter_error_description or "")
        receiver.complete_message(letter)
    assert bus.counts("queue/$Transfer/$DeadLetterQueue") == bus.counts("queue") == (0, 0)


def test_messages_without_a_required_session_id_are_in_the_subscriptions_transfer_dead_letter_queue(
    start_bus: StartBus,
) -> None:
    bus = start_bus(
        QueueDefinition(name="talks", requires_session=True),
        TopicDefinition(name="topic", subscriptions=(SubscriptionDefinition(name="s", forward_to="talks"),)),
    )
    bus.send("topic", "without", ServiceBusMessage("with", session_id="x"))
    (letter,) = receive(bus.subscription("s", **UNFORWARDED))
    assert (str(letter), letter.dead_letter_reason) == ("without", "Session ID is null.")
    assert take(bus.queue("talks", session_id="x")) == ["with"]


# --- duplicates ---


def test_duplicates_within_the_window_are_accepted_and_dropped(start_bus: StartBus) -> None:
    settings: dict[str, Any] = {"requires_duplicate_detection": True, "duplicate_detection_window_ms": 60_000}
    bus = start_bus(
        QueueDefinition(name="queue", **settings),
        TopicDefinition(name="topic", subscriptions=(SubscriptionDefinition(name="s"),), **settings),
    )
    for entity in ("queue", "topic"):
        bus.send(entity, *(ServiceBusMessage(body, message_id=id) for id, body in [("1", "a"), ("2", "b"), ("1", "c")]))
        batch = [ServiceBusMessage(body, message_id=id) for id, body in [("2", "d"), ("3", "e"), ("3", "f")]]
        bus.sender(entity).send_messages(batch)
        bus.sender(entity).schedule_messages(ServiceBusMessage("g", message_id="3"), bus.in_minutes(0.5))
    bus.broker.advance(61)
    for entity in ("queue", "topic"):
        bus.send(entity, ServiceBusMessage("h", message_id="1"))
    assert take(bus.queue("queue"), 4) == ["a", "b", "e", "h"]
    assert take(bus.subscription("s"), 4) == ["a", "b", "e", "h"]


# --- status ---


@pytest.mark.parametrize("status", [Status.DISABLED, Status.SEND_DISABLED])
def test_a_queue_that_is_disabled_for_sending_refuses_senders(start_bus: StartBus, status: Status) -> None:
    bus = start_bus(QueueDefinition(name="queue", status=status))
    with pytest.raises(MessagingEntityDisabledError):
        bus.send("queue", "a")


@pytest.mark.parametrize("status", [Status.DISABLED, Status.RECEIVE_DISABLED])
def test_a_queue_that_is_disabled_for_receiving_refuses_receivers(start_bus: StartBus, status: Status) -> None:
    bus = start_bus(QueueDefinition(name="queue", status=status))
    with pytest.raises(MessagingEntityDisabledError):
        bus.queue("queue").receive_messages(max_wait_time=1)


def test_a_queue_that_is_disabled_one_way_is_open_the_other(start_bus: StartBus) -> None:
    bus = start_bus(QueueDefinition(name="queue", status=Status.RECEIVE_DISABLED))
    bus.send("queue", "a")
    update_queue(bus.broker, "queue", status=Status.SEND_DISABLED)
    assert take(bus.queue("queue")) == ["a"]


def test_a_disabled_subscription_is_not_received_from_and_keeps_its_copies(start_bus: StartBus) -> None:
    closed = SubscriptionDefinition(name="closed", status=Status.RECEIVE_DISABLED)
    bus = start_bus(
        TopicDefinition(name="topic", subscriptions=(closed,)), TopicDefinition(name="shut", status=Status.DISABLED)
    )
    bus.send("topic", "a")
    with pytest.raises(MessagingEntityDisabledError):
        bus.subscription("closed").receive_messages(max_wait_time=1)
    assert bus.counts("topic/Subscriptions/closed") == (1, 0)
    with pytest.raises(MessagingEntityDisabledError):
        bus.send("shut", "a")


# --- the end of an entity ---


@pytest.fixture
def in_background() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


ENDS: dict[str, tuple[Callable[[Bus], ServiceBusReceiver], Callable[[Bus], None]]] = {
    "a queue": (lambda bus: bus.queue("queue"), lambda bus: delete_queue(bus.broker, "queue")),
    "a subscription": (lambda bus: bus.subscription("s"), lambda bus: delete_subscription(bus.broker, "topic", "s")),
    "a topic": (lambda bus: bus.subscription("s"), lambda bus: delete_topic(bus.broker, "topic")),
}


@pytest.mark.parametrize(("receive_from", "delete"), ENDS.values(), ids=ENDS)
def test_a_waiting_receiver_gets_an_error_when_its_entity_is_deleted(
    start_bus: StartBus,
    in_background: Callable[..., Future[Any]],
    receive_from: Callable[[Bus], ServiceBusReceiver],
    delete: Callable[[Bus], None],
) -> None:
    topic = TopicDefinition(name="topic", subscriptions=(SubscriptionDefinition(name="s"),))
    bus = start_bus(QueueDefinition(name="queue"), topic)
    receiver = receive_from(bus)
    assert receiver.peek_messages() == []
    waiting = in_background(receiver.receive_messages, max_wait_time=30)
    eventually(waiting.running)
    delete(bus)
    with pytest.raises(MessagingEntityNotFoundError):
        waiting.result(timeout=20)
    # Where there is no queue and no topic any more, there is no token either.
    with pytest.raises((MessagingEntityNotFoundError, ServiceBusAuthenticationError)):
        receive_from(bus).receive_messages(max_wait_time=1)


def test_a_sender_to_a_deleted_topic_gets_an_error(start_bus: StartBus) -> None:
    bus = start_bus(TopicDefinition(name="topic", subscriptions=(SubscriptionDefinition(name="s"),)))
    # A second attempt: at the first the SDK only notices that its link is detached.
    with Client(bus.broker.connection_string, retry_total=1, retry_backoff_factor=0.01) as client:
        client.send("topic", "before")
        delete_topic(bus.broker, "topic")
        with pytest.raises(ServiceBusAuthenticationError):
            client.send("topic", "after")
