"""Temporary queues and topics: created for a link, deleted with it, and received from by its connection only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.world import AwaitedStore, FlakyStore, World
from nodes.wire import Wire, flow, frame
from peeklock.amqp.errors import Condition
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.outcomes import Accepted
from peeklock.amqp.performatives import Attach, Detach, Source, Target
from peeklock.amqp.types import Described, Symbol, ULong
from peeklock.broker.access import Grant
from peeklock.broker.errors import EntityNotFound, OperationNotAllowed
from peeklock.broker.retries import RETRY_MS
from peeklock.entities.authorization import Right
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.settings import PROFILES
from peeklock.limits.broker import MAX_TEMPORARY_OF_CONNECTION
from peeklock.store.base import StoreError

TEXT = Message(properties=Properties(message_id="id"), data=[b"text"]).encode()
POLICY = {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def wire(world: World) -> Wire:
    return Wire(world)


def creator(wire: Wire, *capabilities: str, **fields: Any) -> tuple[int, str]:
    """Attach a link for which a temporary entity is made, as Qpid JMS does. Return its handle and the entity's name."""
    target = Target(
        dynamic=True,
        expiry_policy="link-detach",
        capabilities=[*capabilities] or ["temporary-queue"],
        dynamic_node_properties=POLICY,
        **fields,
    )
    wire.take(Attach)
    handle = wire.attach(role=False, source=Source(), target=target)
    (answer,) = wire.take(Attach)
    assert answer.target.dynamic
    return handle, answer.target.address


def refusal(wire: Wire) -> str:
    """Return the error with which the last attach was refused."""
    wire.take(Attach)
    (detach,) = wire.take(Detach)
    assert detach.error is not None
    return detach.error.condition


def close(wire: Wire, handle: int) -> None:
    wire.send_bytes(frame(Detach(handle=handle, closed=True)))


def names(world: World) -> list[str]:
    return sorted(each.path for each in world.namespace.entities)


def test_a_dynamic_target_is_a_queue_that_others_can_send_to(world: World, wire: Wire) -> None:
    _, name = creator(wire)
    receiver = wire.receiver(name)
    other = Wire(world)
    assert isinstance(other.send(other.sender(name), TEXT), Accepted)
    wire.read_output()
    assert len(list(wire.received(receiver))) == 1


def test_the_brokers_attach_has_the_lifetime_of_the_temporary_entity(wire: Wire) -> None:
    target = Target(dynamic=True, dynamic_node_properties={Symbol("lifetime-policy"): Described(ULong(0x2E), [])})
    wire.attach(role=False, source=Source(), target=target)
    (answer,) = wire.take(Attach)
    assert answer.target.dynamic_node_properties == POLICY


def test_a_dynamic_source_is_received_from_at_once(world: World, wire: Wire) -> None:
    handle = wire.attach(role=True, source=Source(dynamic=True), target=Target(address="here"))
    (answer,) = wire.take(Attach)
    other = Wire(world)
    assert isinstance(other.send(other.sender(answer.source.address), TEXT), Accepted)
    wire.send_bytes(frame(flow(handle, 10)))
    assert len(list(wire.received(handle))) == 1


def test_names_cannot_be_guessed(wire: Wire) -> None:
    first, second = creator(wire)[1], creator(wire)[1]
    assert first != second
    assert len(first) > 32


def test_a_temporary_entity_is_deleted_with_its_link_and_its_messages(world: World, wire: Wire) -> None:
    before = names(world)
    handle, name = creator(wire)
    wire.send(wire.sender(name), TEXT)
    assert names(world) != before
    close(wire, handle)
    world.run()
    assert names(world) == before
    (detach,) = [each for each in wire.take(Detach) if each.error is not None]
    assert detach.error.condition == Condition.NOT_FOUND  # the link of the sender
    assert len(world.namespace.temporary) == 0


def test_entities_go_with_the_connection(world: World, wire: Wire) -> None:
    before = names(world)
    for capability in ("temporary-queue", "temporary-topic"):
        creator(wire, capability)
    wire.peer.on_closed()
    world.run()
    assert names(world) == before


def test_an_entity_whose_link_went_while_it_was_made_is_deleted(world: World, wire: Wire) -> None:
    before = names(world)
    attach = Attach(
        name="gone", handle=0, role=False, initial_delivery_count=0, source=Source(), target=Target(dynamic=True)
    )
    wire.send_bytes(frame(attach) + frame(Detach(handle=0, closed=True)))
    world.run()
    assert names(world) == before
    assert len(world.namespace.temporary) == 0


def test_another_connection_cannot_receive_from_a_temporary_entity(world: World, wire: Wire) -> None:
    _, name = creator(wire)
    other = Wire(world)
    for address in (name, f"{name}/$DeadLetterQueue", name.upper()):
        other.attach(role=True, source=Source(address=address), target=Target(address="here"))
        assert refusal(other) == Condition.NOT_ALLOWED
    other.attach(role=False, source=Source(), target=Target(address=f"{name}/$management"))
    assert refusal(other) == Condition.NOT_ALLOWED


def test_sending_to_a_temporary_entity_requires_send_on_the_namespace(world: World, wire: Wire) -> None:
    _, name = creator(wire)
    other = Wire(world)
    other.peer.grants.add(Grant("", "", frozenset({Right.LISTEN}), None))
    other.peer.grants.add(Grant("q", "q", frozenset(Right), None))
    other.sender(name)
    assert refusal(other) == Condition.UNAUTHORIZED_ACCESS
    other.peer.grants.add(Grant("", "", frozenset({Right.SEND}), None))
    other.sender(name)
    assert not other.take(Detach)


def test_creating_a_temporary_entity_requires_listen_on_the_namespace(wire: Wire) -> None:
    wire.peer.grants.add(Grant("", "", frozenset({Right.SEND}), None))
    wire.peer.grants.add(Grant("q", "q", frozenset(Right), None))
    wire.attach(role=False, source=Source(), target=Target(dynamic=True))
    assert refusal(wire) == Condition.UNAUTHORIZED_ACCESS
    wire.peer.grants.add(Grant("", "", frozenset({Right.LISTEN}), None))
    creator(wire)


def test_a_connection_can_create_a_limited_number_of_temporary_entities(world: World, wire: Wire) -> None:
    handles = [creator(wire)[0] for _ in range(MAX_TEMPORARY_OF_CONNECTION)]
    wire.attach(role=False, source=Source(), target=Target(dynamic=True))
    assert refusal(wire) == Condition.RESOURCE_LIMIT_EXCEEDED
    close(wire, handles[0])
    world.run()
    wire.take(Detach)
    creator(wire)


def test_administrators_do_not_see_temporary_entities(world: World, wire: Wire) -> None:
    _, queue = creator(wire)
    _, topic = creator(wire, "temporary-topic")
    assert [each.path for each in world.administration.queues] == ["q"]
    assert world.administration.topics == []
    for look, name in ((world.administration.queue, queue), (world.administration.topic, topic)):
        with pytest.raises(EntityNotFound):
            look(name)


def test_temporary_entities_do_not_count_among_those_of_the_profile() -> None:
    profile = PROFILES["emulator"]
    world = World(*(QueueDefinition(name=f"q{each}") for each in range(profile.max_entities - 1)), profile=profile)
    wire = Wire(world)
    for _ in range(5):
        creator(wire)
    last = QueueDefinition(name="last", **profile.defaults_for(QueueDefinition))
    assert world.administer(world.administration.create_queue, last) is None


def test_a_restart_deletes_temporary_entities(world: World, wire: Wire) -> None:
    before = names(world)
    _, name = creator(wire)
    creator(wire, "temporary-topic")
    wire.send(wire.sender(name), TEXT)
    again = world.restarted()
    assert names(again) == before
    assert len(again.namespace.temporary) == 0
    assert names(again.restarted()) == before


def test_nothing_temporary_survives_a_restart_on_disk(tmp_path: Path) -> None:
    store = AwaitedStore(tmp_path / "data")
    world = World(store=store)
    before = names(world)
    wire = Wire(world)
    for capability in ("temporary-queue", "temporary-topic"):
        wire.send(wire.sender(creator(wire, capability)[1]), TEXT)
    again = world.restarted()
    assert names(again) == before
    last = again.restarted()
    assert names(last) == before
    assert isinstance(last.store, AwaitedStore)
    last.store.close()


def test_an_entity_below_the_name_of_a_temporary_one_survives(world: World, wire: Wire) -> None:
    _, name = creator(wire)
    world.administer(world.administration.create_queue, QueueDefinition(name=f"{name}/below"))
    assert f"{name}/below" in names(world.restarted())


def test_an_entity_that_cannot_be_made_is_refused(world: World, wire: Wire) -> None:
    assert isinstance(world.store, FlakyStore)
    world.store.fails = lambda changes: StoreError("the disk is gone")
    wire.attach(role=False, source=Source(), target=Target(dynamic=True))
    assert refusal(wire) == Condition.INTERNAL_ERROR
    assert len(world.namespace.temporary) == 0


def test_a_deletion_that_fails_is_tried_again(world: World, wire: Wire) -> None:
    before = names(world)
    handle, _ = creator(wire)
    assert isinstance(world.store, FlakyStore)
    world.store.fails = lambda changes: StoreError("the disk is gone")
    close(wire, handle)
    world.run()
    assert names(world) != before
    world.store.fails = lambda changes: None
    world.advance(RETRY_MS)
    assert names(world) == before
    assert len(world.namespace.temporary) == 0


def test_without_a_connection_a_temporary_queue_cannot_be_received_from(world: World, wire: Wire) -> None:
    _, name = creator(wire)
    for path in (name, f"{name}/$DeadLetterQueue", f"{name}/$Transfer/$DeadLetterQueue"):
        with pytest.raises(OperationNotAllowed):
            world.namespace.queue(path)
        assert world.namespace.queue(path, wire.peer)
