"""A broker with a queue of each kind and a topic, and a connection to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodes.asking import SUBSCRIPTION, Management
from peeklock.client import Connection, connect
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from serving import BrokerThread, StartBroker

LOCK_MS = 60_000
NAMESPACE = NamespaceDefinition(
    queues=(
        QueueDefinition(name="queue", lock_duration_ms=LOCK_MS),
        QueueDefinition(name="sessions", requires_session=True, lock_duration_ms=LOCK_MS),
    ),
    topics=(
        TopicDefinition(
            name="topic",
            subscriptions=(
                SubscriptionDefinition(name="sub", lock_duration_ms=LOCK_MS),
                SubscriptionDefinition(name="sessions", requires_session=True, lock_duration_ms=LOCK_MS),
            ),
        ),
    ),
)


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(namespace=NAMESPACE)


@pytest.fixture
def connection(broker: BrokerThread) -> Iterator[Connection]:
    with connect(broker.connection_string, timeout=20) as connected:
        yield connected


@pytest.fixture
def management(connection: Connection) -> Management:
    return Management(connection)


@pytest.fixture
def subscription(connection: Connection) -> Management:
    """Return the management node of the topic's subscription without sessions."""
    return Management(connection, SUBSCRIPTION)
