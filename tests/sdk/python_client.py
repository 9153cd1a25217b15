"""Short helpers around the blocking client of azure-servicebus for Python, with and without a broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
)

from peeklock.entities.definitions import QueueDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.rules import CorrelationFilter, FilterKind, RuleDefinition
from serving import BrokerThread


class Client:
    """A context manager: a client that does not retry by default, so that expected errors are immediate.

    Senders and receivers stay open until the end, when all are closed side by side: the SDK takes a second for each.
    """

    def __init__(self, connection_string: str, **options: Any) -> None:
        self.client = ServiceBusClient.from_connection_string(connection_string, **{"retry_total": 0, **options})
        self._senders: dict[str, ServiceBusSender] = {}
        self._receivers: list[ServiceBusReceiver] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, entity: str, *messages: str | ServiceBusMessage) -> None:
        """Send to a queue or a topic, one message at a time."""
        for message in messages:
            sent = ServiceBusMessage(message) if isinstance(message, str) else message
            self.sender(entity).send_messages(sent)

    def sender(self, entity: str) -> ServiceBusSender:
        if entity not in self._senders:
            self._senders[entity] = self.client.get_topic_sender(entity)
        return self._senders[entity]

    def queue(self, name: str, **options: Any) -> ServiceBusReceiver:
        self._receivers.append(self.client.get_queue_receiver(name, **options))
        return self._receivers[-1]

    def subscription(self, name: str, topic: str = "topic", **options: Any) -> ServiceBusReceiver:
        self._receivers.append(self.client.get_subscription_receiver(topic, name, **options))
        return self._receivers[-1]

    def close(self) -> None:
        # They are off the line at once; what takes its time is a thread of theirs that sleeps.
        for handler in (*self._senders.values(), *self._receivers):
            threading.Thread(target=handler.close).start()


class Bus(Client):
    """A broker in this process, and a client of it."""

    def __init__(self, broker: BrokerThread) -> None:
        super().__init__(broker.connection_string)
        self.broker = broker

    def counts(self, path: str) -> tuple[int, int]:
        """Active and deferred messages."""
        found = self.broker.counters(path)
        return found.active, found.deferred

    def in_minutes(self, minutes: float) -> datetime:
        return datetime.fromtimestamp(self.broker.clock() / 1000, UTC) + timedelta(minutes=minutes)


StartBus = Callable[..., Bus]
"""The fixture `start_bus`: queues and topics."""


def namespace_of(*entities: QueueDefinition | TopicDefinition) -> NamespaceDefinition:
    return NamespaceDefinition(
        queues=tuple(each for each in entities if isinstance(each, QueueDefinition)),
        topics=tuple(each for each in entities if isinstance(each, TopicDefinition)),
    )


def sql(expression: str, action: str | None = None, name: str = "rule") -> RuleDefinition:
    return RuleDefinition(name=name, filter_kind=FilterKind.SQL, sql_expression=expression, action=action)


def correlation(name: str = "rule", **tested: Any) -> RuleDefinition:
    return RuleDefinition(name=name, filter_kind=FilterKind.CORRELATION, correlation=CorrelationFilter(**tested))


def receive(receiver: ServiceBusReceiver, count: int = 1) -> list[ServiceBusReceivedMessage]:
    """Exactly that many messages, however the SDK cuts them into batches."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        batch = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=5)
        assert batch, f"only {len(found)} of {count} messages came"
        found += batch
    return found


def take(receiver: ServiceBusReceiver, count: int = 1) -> list[str]:
    """Receive and complete exactly that many; their bodies."""
    messages = receive(receiver, count)
    for message in messages:
        receiver.complete_message(message)
    return [str(message) for message in messages]


def text_properties(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """The application properties; the SDK leaves text in them as bytes."""

    def text(value: Any) -> Any:
        return value.decode() if isinstance(value, bytes) else value

    return {text(name): text(value) for name, value in (message.application_properties or {}).items()}
