"""azure-servicebus for Python, unmodified, while its rights and the broker's clock change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError

from nodes.changing import update_queue
from peeklock.entities.authorization import ALL_RIGHTS, AuthorizationRule
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from serving import BrokerThread, StartBroker

HALF_AN_HOUR = 30 * 60 * 1000
"""Longer than locks last, and shorter than tokens."""


def rule(name: str, key: str) -> AuthorizationRule:
    return AuthorizationRule(name=name, primary_key=key, rights=ALL_RIGHTS)


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    queues = (
        QueueDefinition(name="queue", authorization_rules=(rule("own", "own-key"),)),
        QueueDefinition(name="sessions", requires_session=True),
    )
    return start_broker(namespace=NamespaceDefinition(queues=queues, authorization_rules=(rule("root", "root-key"),)))


@pytest.fixture
def owner(broker: BrokerThread) -> Iterator[ServiceBusClient]:
    """By the queue's own rule. It tries again: only then the SDK attaches anew, and hears why it may not."""
    own = broker.connection_string.replace("=root-key", "=own-key").replace("=root;", "=own;")
    with ServiceBusClient.from_connection_string(own, retry_total=1, retry_backoff_factor=0) as client:
        yield client


def step(broker: BrokerThread, milliseconds: int) -> None:
    """Set the broker's clock."""

    def move() -> None:
        broker.clock.step(milliseconds)
        broker.broker.run_agenda()

    broker.call(move)


def test_a_client_whose_key_is_replaced_gets_an_authorization_error(
    broker: BrokerThread, owner: ServiceBusClient
) -> None:
    with owner.get_queue_sender("queue") as sender, owner.get_queue_receiver("queue", max_wait_time=5) as receiver:
        sender.send_messages(ServiceBusMessage("before"))
        assert [str(message) for message in receiver.receive_messages()] == ["before"]
        update_queue(broker, "queue", authorization_rules=(rule("own", "new-key"),))
        with pytest.raises((ServiceBusAuthorizationError, ServiceBusAuthenticationError)):
            sender.send_messages(ServiceBusMessage("after"))
        with pytest.raises((ServiceBusAuthorizationError, ServiceBusAuthenticationError)):
            receiver.receive_messages()
    assert broker.counters().active == 1


@pytest.mark.parametrize("ahead", [HALF_AN_HOUR, -HALF_AN_HOUR])
def test_messages_stay_locked_when_the_clock_is_set(broker: BrokerThread, ahead: int) -> None:
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        with client.get_queue_sender("queue") as sender:
            sender.send_messages(ServiceBusMessage("one"))
        with client.get_queue_sender("sessions") as sender:
            sender.send_messages(ServiceBusMessage("two", session_id="s"))
        with (
            client.get_queue_receiver("queue") as receiver,
            client.get_queue_receiver("sessions", session_id="s") as session,
        ):
            (one,) = receiver.receive_messages(max_wait_time=10)
            (two,) = session.receive_messages(max_wait_time=10)
            step(broker, ahead)
            receiver.complete_message(one)
            session.complete_message(two)
    assert broker.counters().active == 0
    assert broker.counters("sessions").active == 0
