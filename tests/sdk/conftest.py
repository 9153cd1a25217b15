"""Fixtures of the tests through the SDKs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from python_client import Bus, StartBus, namespace_of

from peeklock.entities.definitions import QueueDefinition, TopicDefinition
from serving import StartBroker


@pytest.fixture
def start_bus(start_broker: StartBroker) -> Iterator[StartBus]:
    """Starts brokers with queues and topics, each with a client of azure-servicebus for Python."""
    started: list[Bus] = []

    def start(*entities: QueueDefinition | TopicDefinition) -> Bus:
        started.append(Bus(start_broker(namespace=namespace_of(*entities))))
        return started[-1]

    yield start
    for bus in started:
        bus.close()
