"""azure-servicebus for Python, the blocking client: sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from happenings import await_session_waiter

from peeklock.entities.definitions import QueueDefinition
from serving import BrokerThread, ServedBroker, StartBroker

ACTIVE, DEFERRED, SCHEDULED = (
    ServiceBusMessageState.ACTIVE,
    ServiceBusMessageState.DEFERRED,
    ServiceBusMessageState.SCHEDULED,
)


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(
        QueueDefinition(name="queue", requires_session=True, max_delivery_count=3, lock_duration_ms=60_000)
    )


@pytest.fixture
def client(broker: BrokerThread) -> Iterator[ServiceBusClient]:
    # One try: what a test expects to fail should fail at once.
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        yield client


def in_minutes(broker: BrokerThread, minutes: float) -> datetime:
    return datetime.fromtimestamp(broker.clock() / 1000, UTC) + timedelta(minutes=minutes)


def send(client: ServiceBusClient, *messages: tuple[str, str], queue: str = "queue") -> None:
    """Messages as pairs of a session and a body."""
    with client.get_queue_sender(queue) as sender:
        for session, body in messages:
            sender.send_messages(ServiceBusMessage(body, session_id=session))


def session_of(client: ServiceBusClient, session: Any, **options: Any) -> ServiceBusReceiver:
    return client.get_queue_receiver("queue", session_id=session, **options)


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


@pytest.fixture
def in_background() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


# --- accepting ---


def test_a_receiver_gets_the_messages_of_its_session_in_order(client: ServiceBusClient, broker: BrokerThread) -> None:
    send(client, *((f"s{number % 2}", f"m{number}") for number in range(20)))
    with session_of(client, "s1") as receiver:
        assert receiver.session.session_id == "s1"
        assert receiver.session.locked_until_utc == in_minutes(broker, 1)
        messages = receive(receiver, 10)
        assert texts(messages) == [f"m{number}" for number in range(1, 20, 2)]
        assert {message.session_id for message in messages} == {"s1"}
        for message in messages:
            receiver.complete_message(message)
        assert receiver.receive_messages(max_wait_time=0.3) == []
    assert broker.counters().active == 10


def test_an_abandoned_message_is_redelivered_before_later_ones(client: ServiceBusClient) -> None:
    send(client, ("s", "first"), ("s", "second"))
    with session_of(client, "s") as receiver:
        (first,) = receive(receiver, 1)
        receiver.abandon_message(first)
        again, second = receive(receiver, 2)
        assert texts([again, second]) == ["first", "second"]
        assert (again.delivery_count, second.delivery_count) == (1, 0)


def test_a_third_receiver_cannot_get_the_sessions_that_two_receivers_hold(client: ServiceBusClient) -> None:
    send(client, ("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2"))
    with session_of(client, NEXT_AVAILABLE_SESSION) as one, session_of(client, NEXT_AVAILABLE_SESSION) as two:
        assert (one.session.session_id, two.session.session_id) == ("a", "b")
        assert texts(receive(two, 2)) == ["b1", "b2"]
        assert texts(receive(one, 2)) == ["a1", "a2"]
        for held in ("a", "b"):
            with pytest.raises(SessionCannotBeLockedError), session_of(client, held):
                pass


def test_a_session_that_its_receiver_closed_is_free_at_once(client: ServiceBusClient) -> None:
    send(client, ("s", "m"))
    for _ in range(2):
        with session_of(client, NEXT_AVAILABLE_SESSION) as receiver:
            (message,) = receive(receiver, 1)
            assert message.delivery_count == 0  # closing gives a message back uncounted


def test_a_receiver_waits_for_the_next_session(
    client: ServiceBusClient, broker: BrokerThread, in_background: Callable[..., Future[Any]]
) -> None:
    accepting = in_background(session_of(client, NEXT_AVAILABLE_SESSION, max_wait_time=30).__enter__)
    await_session_waiter(broker, "queue")
    send(client, ("s", "m"))
    with accepting.result(timeout=20) as receiver:
        assert receiver.session.session_id == "s"
        assert texts(receive(receiver, 1)) == ["m"]


def test_waiting_for_the_next_session_ends(
    client: ServiceBusClient, broker: BrokerThread, in_background: Callable[..., Future[Any]]
) -> None:
    accepting = in_background(session_of(client, NEXT_AVAILABLE_SESSION, max_wait_time=30).__enter__)
    await_session_waiter(broker, "queue")
    broker.advance(seconds=31)
    with pytest.raises(OperationTimeoutError):
        accepting.result(timeout=20)


def test_a_message_without_a_session_is_refused(client: ServiceBusClient, broker: BrokerThread) -> None:
    with client.get_queue_sender("queue") as sender:
        with pytest.raises(ServiceBusError, match="session id"):
            sender.send_messages(ServiceBusMessage("lost"))
        with pytest.raises(ServiceBusError, match="session id"):
            sender.schedule_messages(ServiceBusMessage("lost"), in_minutes(broker, 5))


def test_receive_and_delete_removes_messages_of_a_session(client: ServiceBusClient, broker: BrokerThread) -> None:
    send(client, ("s", "a"), ("s", "b"), ("other", "c"))
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with session_of(client, "s", receive_mode=mode) as receiver:
        assert texts(receive(receiver, 2)) == ["a", "b"]
        assert receiver.receive_messages(max_wait_time=0.3) == []
    assert broker.counters().active == 1


# --- the lock ---


def test_a_renewed_session_outlives_its_first_duration(client: ServiceBusClient, broker: BrokerThread) -> None:
    send(client, ("s", "m"))
    with session_of(client, "s") as receiver:
        (message,) = receive(receiver, 1)
        broker.advance(seconds=40)
        assert receiver.session.renew_lock() == in_minutes(broker, 1)
        assert receiver.session.locked_until_utc == in_minutes(broker, 1)
        broker.advance(seconds=40)
        receiver.complete_message(message)
    assert broker.counters().active == 0


def test_a_session_with_an_expired_lock_is_lost(client: ServiceBusClient, broker: BrokerThread) -> None:
    send(client, ("s", "m"))
    with session_of(client, "s") as receiver:
        (message,) = receive(receiver, 1)
        broker.advance(seconds=61)
        with pytest.raises(SessionLockLostError):
            receiver.complete_message(message)
        with pytest.raises(SessionLockLostError):
            receiver.session.renew_lock()
    with session_of(client, NEXT_AVAILABLE_SESSION) as receiver:
        assert receiver.session.session_id == "s"
        (again,) = receive(receiver, 1)
        assert again.delivery_count == 1
        receiver.complete_message(again)


@pytest.mark.parametrize(
    "operation",
    [
        lambda receiver: receiver.session.renew_lock(),
        lambda receiver: receiver.session.get_state(),
        lambda receiver: receiver.session.set_state("late"),
        lambda receiver: receiver.receive_messages(max_wait_time=5),
    ],
    ids=["renew", "get_state", "set_state", "receive"],
)
def test_without_its_lock_a_session_answers_nothing(
    client: ServiceBusClient, broker: BrokerThread, operation: Callable[[ServiceBusReceiver], object]
) -> None:
    with session_of(client, "s") as receiver:
        receiver.session.set_state("before")
        broker.advance(seconds=61)
        with pytest.raises(SessionLockLostError):
            operation(receiver)


def test_the_automatic_renewer_holds_a_session(start_broker: StartBroker) -> None:
    # It renews when ten seconds are left by its own clock: with such a lock, as soon as it knows of it.
    broker = start_broker(QueueDefinition(name="queue", requires_session=True, lock_duration_ms=10_000))
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        send(client, ("s", "slow"))
        with session_of(client, "s") as receiver, AutoLockRenewer() as renewer:
            (message,) = receive(receiver, 1)
            before = receiver.session.locked_until_utc
            renewer.register(receiver, receiver.session)
            broker.advance(seconds=6)
            while receiver.session.locked_until_utc == before and receiver.session.auto_renew_error is None:
                broker.counters()
            assert receiver.session.auto_renew_error is None
            broker.advance(seconds=6)
            receiver.complete_message(message)
    assert broker.counters().active == 0


# --- state ---


def test_the_state_of_a_session_is_kept_until_it_is_cleared(client: ServiceBusClient, broker: BrokerThread) -> None:
    with session_of(client, "s") as receiver:
        session = receiver.session
        assert session.get_state() is None
        session.set_state("written")
        assert session.get_state() == b"written"
        session.set_state(bytes(range(256)))
        assert session.get_state() == bytes(range(256))
        session.set_state(b"")
        assert session.get_state() is None
        session.set_state("kept")
    with session_of(client, "other") as receiver:
        assert receiver.session.get_state() is None
    with session_of(client, "s") as receiver:
        assert receiver.session.get_state() == b"kept"
        receiver.session.set_state(None)
        assert receiver.session.get_state() is None
    assert list(client.list_queue_sessions("queue")) == []


def test_sessions_are_listed(client: ServiceBusClient, broker: BrokerThread) -> None:
    names = [f"s{number:03}" for number in range(250)]
    with client.get_queue_sender("queue") as sender:
        sender.send_messages([ServiceBusMessage("m", session_id=name) for name in names])
    with session_of(client, "with-state") as receiver:
        receiver.session.set_state("one")
        before = in_minutes(broker, 0)
        broker.advance(seconds=30)
    with session_of(client, names[7]) as receiver:
        receiver.session.set_state("two")
    assert sorted(client.list_queue_sessions("queue")) == sorted([*names, "with-state"])
    assert list(client.list_queue_sessions("queue", state_updated_after=before)) == [names[7]]


def test_a_queue_without_sessions_has_none_to_list(start_broker: StartBroker) -> None:
    broker = start_broker()
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        with pytest.raises(ServiceBusError, match="no sessions"):
            list(client.list_queue_sessions("queue"))
        with pytest.raises(ServiceBusError, match="no sessions"), session_of(client, "s"):
            pass


# --- messages of a session ---


def test_peeking_in_a_session_shows_its_messages_only(client: ServiceBusClient, broker: BrokerThread) -> None:
    send(client, ("s", "m1"), ("other", "m2"), ("s", "m3"), ("s", "m4"))
    with client.get_queue_sender("queue") as sender, session_of(client, "s") as receiver:
        sender.schedule_messages(ServiceBusMessage("m5", session_id="s"), in_minutes(broker, 5))
        assert texts(receiver.peek_messages(2)) == ["m1", "m3"]
        assert texts(receiver.peek_messages(2)) == ["m4", "m5"]
        assert receiver.peek_messages(2) == []
        receiver.defer_message(receive(receiver, 1)[0])
        peeked = receiver.peek_messages(10, sequence_number=1)
        assert [(str(message), message.state) for message in peeked] == [
            ("m1", DEFERRED),
            ("m3", ACTIVE),
            ("m4", ACTIVE),
            ("m5", SCHEDULED),
        ]


def test_a_deferred_message_is_fetched_in_its_session_only(client: ServiceBusClient, broker: BrokerThread) -> None:
    send(client, ("s", "m1"), ("s", "m2"), ("s", "m3"), ("s", "m4"))
    with session_of(client, "s") as receiver:
        numbers = []
        for message in receive(receiver, 4):
            receiver.defer_message(message)
            assert message.sequence_number is not None
            numbers.append(message.sequence_number)
        with session_of(client, "other") as other, pytest.raises(MessageNotFoundError):
            other.receive_deferred_messages(numbers)
        one, two, three, four = receiver.receive_deferred_messages(numbers)
        assert texts([one, two, three, four]) == ["m1", "m2", "m3", "m4"]
        assert one.session_id == "s"
        assert one.locked_until_utc is None  # the session is locked, says the SDK
        receiver.complete_message(one)
        receiver.abandon_message(two)
        receiver.defer_message(three)
        receiver.dead_letter_message(four, reason="a reason")
        again = receiver.receive_deferred_messages(numbers[1:3])
        assert texts(again) == ["m2", "m3"]
        broker.advance(seconds=61)
        with pytest.raises(SessionLockLostError):
            receiver.complete_message(again[0])
    with session_of(client, "s") as receiver:
        for message in receiver.receive_deferred_messages(numbers[1:3]):
            receiver.complete_message(message)
    counters = broker.counters()
    assert (counters.active, counters.deferred) == (0, 0)
    assert broker.counters("queue/$deadletterqueue").active == 1


def test_dead_letters_of_sessions_are_read_without_a_session(client: ServiceBusClient, broker: BrokerThread) -> None:
    send(client, ("a", "m1"), ("b", "m2"))
    for session in ("a", "b"):
        with session_of(client, session) as receiver:
            receiver.dead_letter_message(receive(receiver, 1)[0], reason="a reason")
    with client.get_queue_receiver("queue", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as letters:
        messages = receive(letters, 2)
        assert [(str(letter), letter.session_id, letter.dead_letter_reason) for letter in messages] == [
            ("m1", "a", "a reason"),
            ("m2", "b", "a reason"),
        ]
        letters.renew_message_lock(messages[0])
        for letter in messages:
            letters.complete_message(letter)
    assert broker.counters("queue/$deadletterqueue").active == 0


def test_scheduled_messages_arrive_in_their_session(client: ServiceBusClient, broker: BrokerThread) -> None:
    with client.get_queue_sender("queue") as sender:
        messages = [ServiceBusMessage(body, session_id="s") for body in ("first", "cancelled", "second")]
        numbers = sender.schedule_messages(messages, in_minutes(broker, 5))
        sender.cancel_scheduled_messages(numbers[1])
    # Nothing but scheduled messages: it is no session to be had yet.
    assert broker.call(lambda: broker.broker.namespace.queue("queue").counters.scheduled) == 2
    with session_of(client, "s") as receiver:
        assert receiver.receive_messages(max_wait_time=0.3) == []
        receiver.session.renew_lock()
    broker.advance(seconds=300)
    with session_of(client, NEXT_AVAILABLE_SESSION) as receiver:
        assert receiver.session.session_id == "s"
        assert texts(receive(receiver, 2)) == ["first", "second"]


# --- restart ---


@pytest.mark.parametrize("end", [ServedBroker.stop, ServedBroker.kill])
def test_messages_state_and_deferred_messages_of_a_session_survive_a_restart(
    served: ServedBroker, end: Callable[[ServedBroker], object]
) -> None:
    name = "session-queue"
    with ServiceBusClient.from_connection_string(served.connection_string) as client:
        send(client, ("s", "deferred"), ("s", "waiting"), ("t", "elsewhere"), queue=name)
        with client.get_queue_receiver(name, session_id="s") as receiver:
            receiver.session.set_state("the state")
            (deferred,) = receive(receiver, 1)
            receiver.defer_message(deferred)
            assert deferred.sequence_number is not None
            end(served)
    served.start()
    with ServiceBusClient.from_connection_string(served.connection_string) as client:
        assert sorted(client.list_queue_sessions(name)) == ["s", "t"]
        with client.get_queue_receiver(name, session_id="s") as receiver:
            assert receiver.session.get_state() == b"the state"
            assert texts(receive(receiver, 1)) == ["waiting"]
            (again,) = receiver.receive_deferred_messages(deferred.sequence_number)
            assert str(again) == "deferred"
            receiver.complete_message(again)
            with client.get_queue_receiver(name, session_id=NEXT_AVAILABLE_SESSION) as other:
                assert other.session.session_id == "t"
                assert texts(receive(other, 1)) == ["elsewhere"]
