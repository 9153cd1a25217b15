"""qpid-proton browses with its option Copy, and selects messages with Selector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from proton import Described, Message, symbol
from proton.reactor import AtLeastOnce, AtMostOnce, Copy, Filter, Selector
from proton.utils import BlockingConnection, LinkDetached
from test_proton import connect, receiver_of, send

from peeklock.entities.definitions import QueueDefinition
from raw_client import eventually
from serving import BrokerThread, StartBroker


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(
        QueueDefinition(name="queue", max_delivery_count=3, lock_duration_ms=60_000),
        QueueDefinition(name="sessions", requires_session=True),
    )


@pytest.fixture
def connection(broker: BrokerThread) -> Iterator[BlockingConnection]:
    connection = connect(broker.broker.port)
    yield connection
    connection.close()


def counts(broker: BrokerThread) -> tuple[int, int]:
    queue = broker.broker.namespace.queue("queue")
    return broker.call(lambda: (queue.counters.active, len(queue.locks.by_number)))


def browse(connection: BlockingConnection, count: int, *options: Any) -> list[Message]:
    receiver: Any = connection.create_receiver("queue", credit=10, options=[Copy(), *options])
    assert receiver.link.remote_source.distribution_mode == receiver.link.remote_source.DIST_MODE_COPY
    found = []
    for _ in range(count):
        found.append(receiver.receive(timeout=10))
        if receiver.fetcher.unsettled:
            receiver.accept()
    receiver.link.drain(0)
    connection.wait(lambda: receiver.link.credit == 0, msg="waiting for the answer to a drain")
    assert not receiver.fetcher.has_message
    receiver.close()
    return found


@pytest.mark.parametrize("options", [(), (AtLeastOnce(),), (AtMostOnce(),)], ids=["plain", "unsettled", "settled"])
def test_browsing_returns_all_messages_and_removes_none(
    connection: BlockingConnection, broker: BrokerThread, options: tuple[Any, ...]
) -> None:
    send(connection, "one", "two", "three")
    for _ in range(2):
        shown = browse(connection, 3, *options)
        assert [message.body for message in shown] == ["one", "two", "three"]
        assert [message.annotations[symbol("x-opt-sequence-number")] for message in shown] == [1, 2, 3]
        assert counts(broker) == (3, 0)
    receiver = receiver_of(connection)
    for body in ("one", "two", "three"):
        message = receiver.receive()
        assert (message.body, message.delivery_count) == (body, 0)
        receiver.accept()


def test_a_browser_begins_at_the_requested_sequence_number(
    connection: BlockingConnection, broker: BrokerThread
) -> None:
    send(connection, "one", "two", "three")
    first = Filter({symbol("peeklock:from-sequence-number"): Described(symbol("peeklock:from-sequence-number"), 2)})
    assert [message.body for message in browse(connection, 2, first)] == ["two", "three"]
    assert counts(broker) == (3, 0)


def test_a_browsing_client_with_a_selector_gets_matching_messages(
    connection: BlockingConnection, broker: BrokerThread
) -> None:
    for color in ("red", "blue", "red"):
        send(connection, color, properties={"color": color})
    shown = browse(connection, 2, Selector("color = 'red'"))
    assert [message.body for message in shown] == ["red", "red"]
    assert counts(broker) == (3, 0)


def test_a_receiver_with_a_selector_gets_matching_messages_only(
    connection: BlockingConnection, broker: BrokerThread
) -> None:
    for number, color in enumerate(("red", "blue", "red", "green")):
        send(connection, color, properties={"color": color}, priority=number, subject="paint")
    selecting = receiver_of(connection, options=Selector("color = 'red' AND JMSPriority > 1 AND JMSType = 'paint'"))
    assert selecting.link.remote_source.filter
    message = selecting.receive()
    assert (message.body, message.priority) == ("red", 2)
    selecting.accept()
    selecting.link.drain(0)
    connection.wait(lambda: selecting.link.credit == 0, msg="waiting for the answer to a drain")
    assert not selecting.fetcher.has_message
    eventually(lambda: counts(broker) == (3, 0))
    selecting.close()
    plain = receiver_of(connection)
    for body in ("red", "blue", "green"):
        assert plain.receive().body == body
        plain.accept()


def test_a_receiver_with_a_session_and_a_selector_gets_matching_messages_of_the_session(
    connection: BlockingConnection,
) -> None:
    for number, session in enumerate(("a", "b", "a", "a")):
        send(connection, str(number), to="sessions", group_id=session, properties={"n": number})
    selector = Described(symbol("apache.org:selector-filter:string"), "n <> 2")
    both = {symbol("com.microsoft:session-filter"): "a", symbol("selector"): selector}
    selecting: Any = connection.create_receiver("sessions", credit=10, options=Filter(both))
    for body in ("0", "3"):
        assert selecting.receive(timeout=10).body == body
        selecting.accept()
    selecting.link.drain(0)
    connection.wait(lambda: selecting.link.credit == 0, msg="waiting for the answer to a drain")
    assert not selecting.fetcher.has_message
    selecting.close()
    whole: Any = connection.create_receiver("sessions", credit=10, options=Filter({next(iter(both)): "a"}))
    assert whole.receive(timeout=10).body == "2"


def test_a_message_that_arrives_later_is_selected_too(connection: BlockingConnection) -> None:
    selecting = receiver_of(connection, options=Selector("n BETWEEN 2 AND 3"))
    for number in range(5):
        send(connection, str(number), properties={"n": number})
    for body in ("2", "3"):
        assert selecting.receive().body == body
        selecting.accept()


def test_an_invalid_selector_is_refused_with_its_mistake(connection: BlockingConnection) -> None:
    with pytest.raises(LinkDetached) as error:
        receiver_of(connection, options=Selector("color = 'red"))
    assert error.value.condition == "amqp:invalid-field"
    assert "no closing quote (line 1, column 9)" in str(error.value)
