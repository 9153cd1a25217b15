"""qpid-proton browses: its option Copy asks for messages to be shown, and Selector for some of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from proton import Message, symbol
from proton.reactor import AtLeastOnce, AtMostOnce, Copy, Selector
from proton.utils import BlockingConnection
from test_proton import connect, receiver_of, send

from peeklock.broker.definitions import QueueDefinition
from serving import BrokerThread, StartBroker


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(QueueDefinition(name="queue", max_delivery_count=3, lock_duration_ms=60_000))


@pytest.fixture
def connection(broker: BrokerThread) -> Iterator[BlockingConnection]:
    connection = connect(broker.broker.port)
    yield connection
    connection.close()


def counts(broker: BrokerThread) -> tuple[int, int]:
    queue = broker.broker.namespace.queue("queue")
    return broker.call(lambda: (queue.counters.active, len(queue._locks)))


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
def test_browsing_shows_all_messages_and_takes_none(
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


def test_a_browser_is_shown_what_it_selects(connection: BlockingConnection, broker: BrokerThread) -> None:
    for color in ("red", "blue", "red"):
        send(connection, color, properties={"color": color})
    shown = browse(connection, 2, Selector("color = 'red'"))
    assert [message.body for message in shown] == ["red", "red"]
    assert counts(broker) == (3, 0)
