"""Links without a target: each message is sent to its `to`, and only the invalid messages are refused."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import World
from nodes.wire import Wire
from peeklock.amqp.errors import Condition
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.outcomes import Accepted, Rejected
from peeklock.amqp.performatives import Attach, Detach, Flow, Source, Target
from peeklock.amqp.transactions import Coordinator, Declare, Declared, Discharge, TransactionalState
from peeklock.broker.access import Grant
from peeklock.entities.authorization import Right
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.settings import Status

ENTITIES = (
    QueueDefinition(name="q"),
    QueueDefinition(name="other", max_message_size_in_kilobytes=1),
    QueueDefinition(name="closed", status=Status.SEND_DISABLED),
    QueueDefinition(name="s", requires_session=True),
    TopicDefinition(name="t", subscriptions=(SubscriptionDefinition(name="all"),)),
)


def message(to: Any, body: str = "body") -> bytes:
    return Message(properties=Properties(message_id="id", to=to), data=[body.encode()]).encode()


@pytest.fixture
def world() -> World:
    return World(*ENTITIES)


@pytest.fixture
def wire(world: World) -> Wire:
    return Wire(world)


@pytest.fixture
def relay(wire: Wire) -> int:
    return wire.attach(role=False, source=Source(address="here"), target=Target())


def active(world: World, *paths: str) -> list[int]:
    return [world.queue(path).counters.active for path in paths]


def condition(outcome: Any) -> str:
    assert isinstance(outcome, Rejected)
    assert outcome.error is not None
    return outcome.error.condition


def test_each_message_is_sent_to_the_entity_in_its_to(wire: Wire, world: World, relay: int) -> None:
    for to in ("q", "t", "amqps://host:5671/q", "Q"):
        assert isinstance(wire.send(relay, message(to)), Accepted)
    assert active(world, "q", "t/Subscriptions/all") == [3, 1]


@pytest.mark.parametrize("target", [None, Target()])
def test_the_answer_has_a_target_without_an_address(wire: Wire, target: Target | None) -> None:
    wire.attach(role=False, source=Source(address="here"), target=target)
    (answer,) = wire.take(Attach)
    assert answer.target == Target()
    assert wire.take(Flow)[0].link_credit
    assert not wire.take(Detach)


def test_messages_of_one_turn_for_an_entity_are_one_commit_in_order(wire: Wire, world: World, relay: int) -> None:
    sent = [("q", "1"), ("other", "2"), ("q", "3"), ("nowhere", "4"), ("q", "5")]
    transfers = [wire.transfer(relay, message(to, body)) for to, body in sent]
    wire.send_bytes(b"".join(data for _, data in transfers))
    outcomes = wire.outcomes()
    assert [type(outcomes[id]) for id, _ in transfers] == [Accepted, Accepted, Accepted, Rejected, Accepted]
    assert [Message.decode(each.payload).body for each in world.stored()] == [b"1", b"3", b"5"]
    assert active(world, "q", "other") == [3, 1]


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        (None, Condition.INVALID_FIELD),
        ("", Condition.INVALID_FIELD),
        ("nowhere", Condition.NOT_FOUND),
        ("$cbs", Condition.NOT_FOUND),
        ("q/$management", Condition.NOT_FOUND),
        ("t/Subscriptions/all", Condition.NOT_ALLOWED),
        ("q/$DeadLetterQueue", Condition.NOT_ALLOWED),
        ("closed", Condition.ENTITY_DISABLED),
        ("s", Condition.NOT_ALLOWED),
    ],
)
def test_messages_of_the_relay_are_refused_one_by_one(
    wire: Wire, world: World, relay: int, to: str | None, expected: str
) -> None:
    good, first = wire.transfer(relay, message("q"))
    bad, second = wire.transfer(relay, message(to))
    wire.send_bytes(first + second)
    outcomes = wire.outcomes()
    assert isinstance(outcomes[good], Accepted)
    assert condition(outcomes[bad]) == expected
    assert isinstance(wire.send(relay, message("q")), Accepted)
    assert active(world, "q") == [2]


def test_an_unreadable_message_is_refused_alone(wire: Wire, world: World, relay: int) -> None:
    assert condition(wire.send(relay, b"noise")) == Condition.DECODE_ERROR
    assert isinstance(wire.send(relay, message("q")), Accepted)


def test_the_size_limit_of_the_destination_applies(wire: Wire, world: World, relay: int) -> None:
    large = message("other", "x" * 2000)
    assert condition(wire.send(relay, large)) == Condition.MESSAGE_SIZE_EXCEEDED
    assert isinstance(wire.send(relay, message("q", "x" * 2000)), Accepted)


def test_rights_are_checked_for_each_message(wire: Wire, world: World, relay: int) -> None:
    wire.peer.grants.add(Grant("", "", frozenset({Right.LISTEN}), None))
    wire.peer.grants.add(Grant("other", "", frozenset({Right.SEND}), None))
    good, first = wire.transfer(relay, message("other"))
    bad, second = wire.transfer(relay, message("q"))
    wire.send_bytes(first + second)
    outcomes = wire.outcomes()
    assert isinstance(outcomes[good], Accepted)
    assert condition(outcomes[bad]) == Condition.UNAUTHORIZED_ACCESS
    wire.peer.grants.add(Grant("q", "", frozenset({Right.SEND}), None))
    assert isinstance(wire.send(relay, message("q")), Accepted)
    assert active(world, "q", "other") == [1, 1]


def test_the_relay_requires_a_right_to_send(wire: Wire) -> None:
    wire.peer.grants.add(Grant("", "", frozenset({Right.LISTEN}), None))
    wire.attach(role=False, source=Source(address="here"), target=Target())
    (detach,) = wire.take(Detach)
    assert detach.error is not None
    assert detach.error.condition == Condition.UNAUTHORIZED_ACCESS


def test_an_entity_that_is_deleted_does_not_end_the_link(wire: Wire, world: World, relay: int) -> None:
    assert isinstance(wire.send(relay, message("other")), Accepted)
    world.administer(world.administration.delete_queue, "other")
    assert condition(wire.send(relay, message("other"))) == Condition.NOT_FOUND
    assert not wire.take(Detach)


def test_a_transaction_may_send_to_several_entities(wire: Wire, world: World, relay: int) -> None:
    coordinator = wire.attach(role=False, source=Source(address="here"), target=Coordinator())
    declared = wire.send(coordinator, Message(value=Declare()).encode())
    assert isinstance(declared, Declared)
    state = TransactionalState(declared.txn_id)
    for to in ("q", "other", "t"):
        assert isinstance(wire.send(relay, message(to), state=state), TransactionalState)
    assert active(world, "q", "other") == [0, 0]
    discharge = Message(value=Discharge(declared.txn_id, False)).encode()
    assert isinstance(wire.send(coordinator, discharge), Accepted)
    assert active(world, "q", "other", "t/Subscriptions/all") == [1, 1, 1]


def test_a_refused_message_makes_its_transaction_fail(wire: Wire, world: World, relay: int) -> None:
    coordinator = wire.attach(role=False, source=Source(address="here"), target=Coordinator())
    declared = wire.send(coordinator, Message(value=Declare()).encode())
    state = TransactionalState(declared.txn_id)
    wire.send(relay, message("q"), state=state)
    assert condition(wire.send(relay, message("nowhere"), state=state)) == Condition.NOT_FOUND
    discharge = Message(value=Discharge(declared.txn_id, False)).encode()
    assert condition(wire.send(coordinator, discharge)) == Condition.TRANSACTION_ROLLBACK
    assert active(world, "q") == [0]


def test_the_relay_does_not_keep_an_idle_entity(world: World, wire: Wire, relay: int) -> None:
    assert isinstance(wire.send(relay, message("q")), Accepted)
    assert not world.queue().watchers
