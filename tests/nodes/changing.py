"""Changes of the namespace of a running broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from peeklock.broker.administration import Administration
from peeklock.broker.entity import Done
from peeklock.broker.errors import BrokerError
from serving import BrokerThread

Act = Callable[[Administration, Done], None]


def change(broker: BrokerThread, act: Act) -> None:
    """Make a change, and wait until it is applied."""
    outcomes: SimpleQueue[BrokerError | None] = SimpleQueue()
    broker.call(lambda: act(broker.broker.namespace.administration, outcomes.put))
    failure = outcomes.get(timeout=10)
    if failure is not None:
        raise failure


def update_queue(broker: BrokerThread, name: str, **settings: Any) -> None:
    change(
        broker,
        lambda administration, done: administration.update_queue(
            replace(administration.queue(name).definition, **settings), done
        ),
    )


def update_topic(broker: BrokerThread, name: str, **settings: Any) -> None:
    change(
        broker,
        lambda administration, done: administration.update_topic(
            replace(administration.topic(name).definition, **settings), done
        ),
    )


def update_subscription(broker: BrokerThread, topic: str, name: str, **settings: Any) -> None:
    change(
        broker,
        lambda administration, done: administration.update_subscription(
            topic, replace(administration.subscription(topic, name).definition, **settings), done
        ),
    )


def delete_queue(broker: BrokerThread, name: str) -> None:
    change(broker, lambda administration, done: administration.delete_queue(name, done))


def delete_topic(broker: BrokerThread, name: str) -> None:
    change(broker, lambda administration, done: administration.delete_topic(name, done))


def delete_subscription(broker: BrokerThread, topic: str, name: str) -> None:
    change(broker, lambda administration, done: administration.delete_subscription(topic, name, done))
