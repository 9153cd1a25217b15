"""Entities that are deleted when they were idle for a time (AutoDeleteOnIdle)."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import (
    HOUR,
    MINUTE,
    SECOND,
    AttachedLink,
    FlakyStore,
    Receiver,
    SessionReceiver,
    World,
    session_queue,
    sql,
    subscription,
    topic,
)
from peeklock.entities.definitions import QueueDefinition
from peeklock.store.base import StoreError

IDLE = 10 * MINUTE


def queue(name: str = "q", idle: int | None = IDLE, **settings: Any) -> QueueDefinition:
    return QueueDefinition(name=name, auto_delete_on_idle_ms=idle, **settings)


def is_there(world: World, path: str = "q") -> bool:
    return any(container.path == path for container in world.namespace.entities)


def test_an_unused_queue_is_deleted() -> None:
    world = World(queue(), queue("other", None))
    link = AttachedLink(world.queue("other"))
    world.advance(IDLE - 1)
    assert is_there(world)
    world.advance(1)
    assert not is_there(world)
    assert not is_there(world, "q/$DeadLetterQueue")
    assert is_there(world, "other")
    assert link.failures == []
    world.check()
    assert not is_there(world.restarted())


def test_a_queue_with_sessions_is_deleted_too() -> None:
    world = World(session_queue("q", auto_delete_on_idle_ms=IDLE))
    SessionReceiver(world, "x", path="q").close()
    world.advance(IDLE)
    assert not is_there(world)


def test_sending_receiving_and_updating_reset_the_idle_timer() -> None:
    world = World(queue())
    for use in range(3):
        world.advance(IDLE - 1)
        if use == 0:
            world.send("one")
            Receiver(world, world.queue(), deletes=True)
        elif use == 1:
            link = AttachedLink(world.queue())
            link.leave()
        else:
            change = queue(max_delivery_count=2)
            assert world.administer(world.administration.update_queue, change) is None
    world.advance(IDLE - 1)
    assert is_there(world)
    world.advance(1)
    assert not is_there(world)


def test_reading_metadata_does_not_reset_the_idle_timer() -> None:
    world = World(queue())
    world.advance(IDLE - 1)
    world.runtime()
    world.administration.queue("q")
    world.advance(1)
    assert not is_there(world)


@pytest.mark.parametrize("path", ["q", "q/$DeadLetterQueue", "q/$Transfer/$DeadLetterQueue"])
def test_an_entity_with_an_attached_link_is_in_use(path: str) -> None:
    world = World(queue())
    link = AttachedLink(world.queue(path))
    world.advance(3 * IDLE)
    assert is_there(world)
    link.leave()
    world.advance(2 * IDLE)
    assert not is_there(world)


@pytest.mark.parametrize("later", [None, 5 * HOUR])
def test_a_queue_with_messages_is_in_use(later: int | None) -> None:
    world = World(queue())
    world.send("one", at=None if later is None else world.clock() + later)
    world.advance(3 * IDLE)
    assert is_there(world)
    world.advance(5 * HOUR)
    Receiver(world, world.queue(), deletes=True)
    world.advance(2 * IDLE)
    assert not is_there(world)
    world.check()


def test_the_time_can_be_changed() -> None:
    world = World(queue(idle=None))
    change = world.administration.update_queue
    world.advance(HOUR)
    assert world.administer(change, queue()) is None
    world.advance(IDLE - 1)
    assert world.administer(change, queue(idle=None)) is None
    world.advance(HOUR)
    assert is_there(world)
    assert world.administer(change, queue(idle=2 * IDLE)) is None
    world.advance(2 * IDLE)
    assert not is_there(world)


def test_entities_created_later_are_deleted_on_idleness_too() -> None:
    world = World(QueueDefinition(name="other"))
    world.advance(HOUR)
    assert world.administer(world.administration.create_queue, queue()) is None
    world.advance(IDLE)
    assert not is_there(world)


def test_a_queue_that_was_deleted_and_made_again_has_its_own_time() -> None:
    world = World(queue())
    world.advance(IDLE - 1)
    assert world.administer(world.administration.delete_queue, "q") is None
    assert world.administer(world.administration.create_queue, queue()) is None
    world.advance(IDLE - 1)
    assert is_there(world)
    world.advance(1)
    assert not is_there(world)


def test_the_time_starts_anew_with_the_broker() -> None:
    world = World(queue())
    world.advance(IDLE - 1)
    world = world.restarted()
    world.advance(IDLE - 1)
    assert is_there(world)
    world.advance(1)
    assert not is_there(world)


def test_a_forwarding_entity_is_never_idle() -> None:
    world = World(queue(forward_to="to"), queue("to", None))
    world.advance(3 * IDLE)
    assert is_there(world)
    assert world.administer(world.administration.update_queue, queue()) is None
    world.advance(IDLE)
    assert not is_there(world)


def test_a_deletion_that_fails_is_tried_again() -> None:
    store = FlakyStore()
    world = World(queue(), store=store)
    store.fails = lambda changes: StoreError("not now")
    world.advance(IDLE)
    assert is_there(world)
    store.fails = lambda changes: None
    world.send("one")
    Receiver(world, world.queue(), deletes=True)
    world.advance(2 * IDLE)
    assert not is_there(world)
    world.check()


def test_deletion_on_idleness_waits_for_another_change() -> None:
    store = FlakyStore()
    world = World(queue(), store=store)
    world.advance(IDLE - SECOND)
    store.held = []
    outcomes: list[Any] = []
    world.administration.update_queue(queue(max_delivery_count=2), outcomes.append)
    world.advance(SECOND)
    assert is_there(world)
    store.release_commits()
    world.run()
    assert outcomes == [None]
    world.advance(IDLE)
    assert not is_there(world)


# --- topics and subscriptions ---


def short(name: str, **settings: Any) -> Any:
    return subscription(name, auto_delete_on_idle_ms=IDLE, **settings)


def test_an_idle_subscription_with_messages_is_deleted() -> None:
    world = World(topic("t", short("a"), "b"))
    world.send("one", to="t")
    world.advance(IDLE - 1)
    assert is_there(world, "t/Subscriptions/a")
    world.advance(1)
    assert not is_there(world, "t/Subscriptions/a")
    assert is_there(world, "t/Subscriptions/b")
    assert world.send("two", to="t") == [None]
    world.check()


def test_a_new_message_and_a_new_rule_are_uses_of_a_subscription() -> None:
    world = World(topic("t", short("a"), short("b", rules=(sql("r", "x = 1"),))))
    world.advance(IDLE - 1)
    world.send("one", to="t")
    world.advance(1)
    assert is_there(world, "t/Subscriptions/a")
    assert not is_there(world, "t/Subscriptions/b"), "the message was not for it"
    world.advance(IDLE - 2)
    assert world.administer(world.administration.create_rule, "t", "a", sql("r", "x = 1")) is None
    world.advance(IDLE - 1)
    assert is_there(world, "t/Subscriptions/a")
    world.advance(1)
    assert not is_there(world, "t/Subscriptions/a")


def test_an_attached_receiver_prevents_deletion_of_a_subscription() -> None:
    world = World(topic("t", short("a")))
    link = AttachedLink(world.subscription("a"))
    world.advance(3 * IDLE)
    assert is_there(world, "t/Subscriptions/a")
    link.leave()
    world.advance(2 * IDLE)
    assert not is_there(world, "t/Subscriptions/a")


def test_an_idle_topic_is_deleted_with_its_subscriptions() -> None:
    world = World(topic("t", "a", auto_delete_on_idle_ms=IDLE))
    world.send("one", to="t")
    world.advance(IDLE)
    assert not is_there(world, "t")
    assert not is_there(world, "t/Subscriptions/a")
    world.check()


def test_using_a_subscription_counts_as_using_its_topic() -> None:
    world = World(topic("t", "a", auto_delete_on_idle_ms=IDLE))
    link = AttachedLink(world.subscription("a"))
    world.advance(3 * IDLE)
    assert is_there(world, "t")
    link.leave()
    world.advance(IDLE - 1)
    assert is_there(world, "t")
    world.advance(IDLE)
    assert not is_there(world, "t")


def test_a_visit_to_a_subscription_is_a_use_of_its_topic() -> None:
    world = World(topic("t", "a", auto_delete_on_idle_ms=IDLE))
    world.advance(IDLE - 1)
    AttachedLink(world.subscription("a")).leave()
    world.advance(IDLE - 1)
    assert is_there(world, "t")
    world.advance(1)
    assert not is_there(world, "t")


def test_a_topic_with_messages_for_later_is_in_use() -> None:
    world = World(topic("t", "a", auto_delete_on_idle_ms=IDLE))
    world.send("later", to="t", at=world.clock() + HOUR)
    world.advance(HOUR - 1)
    assert is_there(world, "t")
    world.advance(1)
    assert world.bodies("t/Subscriptions/a") == ["later"]
    world.advance(2 * IDLE)
    assert not is_there(world, "t")
    world.check()
