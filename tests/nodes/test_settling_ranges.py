"""Dispositions of many deliveries: settled as one change or, if one lock is not held, separately."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from nodes.asking import accept_session, send
from nodes.conftest import LOCK_MS
from peeklock.amqp.types import Array, UByte
from peeklock.client import Connection, ReceivedMessage, Receiver, SettlementFailed
from serving import BrokerThread

KINDS = ["queue", "sessions"]


def fill(connection: Connection, entity: str, count: int = 5) -> Receiver:
    """Send messages to an entity, and attach a receiver with credit for them."""
    session = "s" if entity == "sessions" else None
    for number in range(count):
        send(connection, b"%d" % number, to=entity, session=session)
    if session is not None:
        return accept_session(connection, session)
    return connection.receiver(entity)


def take(receiver: Receiver, count: int = 5) -> list[ReceivedMessage]:
    taken: list[ReceivedMessage] = []
    while len(taken) < count:
        taken += receiver.receive(count - len(taken), timeout=10)
    return taken


def states(connection: Connection, entity: str) -> list[tuple[bytes, int, Any]]:
    found = connection.management(entity).peek()
    return [
        (each.data[0], each.message_annotations["x-opt-message-state"], each.application_properties) for each in found
    ]


@pytest.mark.parametrize("entity", KINDS)
def test_a_range_is_completed(connection: Connection, entity: str) -> None:
    receiver = fill(connection, entity)
    receiver.accept(take(receiver), wait=True)
    assert states(connection, entity) == []


@pytest.mark.parametrize("entity", KINDS)
def test_a_range_is_deferred_with_the_properties_on_each(connection: Connection, entity: str) -> None:
    receiver = fill(connection, entity)
    receiver.modify(take(receiver), undeliverable_here=True, annotations={"mark": "x"}, wait=True)
    assert states(connection, entity) == [(b"%d" % number, 1, {"mark": "x"}) for number in range(5)]


def test_messages_deferred_in_a_range_are_received_by_number(connection: Connection) -> None:
    receiver = fill(connection, "queue")
    receiver.modify(take(receiver), undeliverable_here=True, wait=True)
    found = connection.management("queue").request(
        "receive-by-sequence-number", {"sequence-numbers": Array(range(1, 6), int), "receiver-settle-mode": UByte(0)}
    )
    assert len(found["messages"]) == 5
    assert states(connection, "queue") == []


@pytest.mark.parametrize("is_deferral", [True, False])
def test_a_lost_lock_in_a_range_does_not_affect_other_messages(
    broker: BrokerThread, connection: Connection, is_deferral: bool
) -> None:
    receiver = fill(connection, "queue", 1)
    (old,) = take(receiver, 1)
    broker.advance(LOCK_MS / 1000 - 1)
    for number in range(1, 5):
        send(connection, b"%d" % number)
    others = take(receiver, 4)
    broker.advance(2)
    settle = partial(receiver.modify, undeliverable_here=True) if is_deferral else receiver.accept
    with pytest.raises(SettlementFailed):
        settle([old, *others], wait=True)
    left = [(body, state) for body, state, _ in states(connection, "queue")]
    assert left == [(b"0", 0), *((b"%d" % number, 1) for number in range(1, 5) if is_deferral)]


@pytest.mark.parametrize("way", ["abandon", "defer", "dead-letter", "describe"])
def test_settling_a_range_adds_at_most_16_mib_of_properties(connection: Connection, way: str) -> None:
    receiver = fill(connection, "queue", 600)
    taken = take(receiver, 600)
    added = {"mark": "x" * 30_000}
    settle: dict[str, Callable[[], None]] = {
        "abandon": lambda: receiver.modify(taken, annotations=added, wait=True),
        "defer": lambda: receiver.modify(taken, undeliverable_here=True, annotations=added, wait=True),
        "dead-letter": lambda: receiver.reject(taken, "amqp:not-allowed", info=added, wait=True),
        "describe": lambda: receiver.reject(taken, "amqp:not-allowed", "x" * 30_000, wait=True),
    }
    with pytest.raises(SettlementFailed, match="16 MiB"):
        settle[way]()
    assert {(state, properties is None) for _, state, properties in states(connection, "queue")} == {(0, True)}
    assert states(connection, "queue/$DeadLetterQueue") == []
