"""Queues and subscriptions with `OrderByPriority`: higher priorities first, and each priority in order."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.windows import check_windows
from broker.world import (
    MINUTE,
    SECOND,
    AwaitedStore,
    BodySelector,
    FlakyStore,
    Receiver,
    SelectingReceiver,
    SessionReceiver,
    World,
    delivered,
    incoming,
    sql,
    subscription,
    topic,
)
from peeklock.amqp.message import Header, Properties
from peeklock.broker.window_budget import OBJECT_BYTES
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.names import DefinitionError
from peeklock.store.base import DEFERRED, StoredMessage


def queue(name: str = "q", **settings: Any) -> QueueDefinition:
    return QueueDefinition(
        name=name, order_by_priority=True, **{"lock_duration_ms": 30 * SECOND, "max_delivery_count": 3} | settings
    )


@pytest.fixture
def world() -> World:
    return World(queue())


def send(world: World, *texts: str, to: str = "q", ttl: int | None = None, at: int | None = None) -> None:
    """Send messages. Each text begins with its priority."""
    for text in texts:
        message = incoming(text, header=Header(priority=int(text[0]), ttl=ttl), at=at)
        outcomes: list[Any] = []
        world.namespace.entity(to).send([message], outcomes.append)
        world.run()
        assert outcomes == [None]


def check(world: World) -> None:
    world.check()
    check_windows(world)


def test_a_higher_priority_is_delivered_first_and_each_in_order(world: World) -> None:
    send(world, "4a", "0a", "9a", "4b", "9b", "5a", "0b")
    assert Receiver(world, world.queue()).bodies == ["9a", "9b", "5a", "4a", "4b", "0a", "0b"]
    check(world)


def test_a_message_without_a_priority_has_four() -> None:
    world = World(queue())
    send(world, "3a")
    world.send("plain")
    send(world, "4a", "5a")
    assert Receiver(world, world.queue()).bodies == ["5a", "plain", "4a", "3a"]


def test_priorities_above_nine_count_as_nine_and_are_delivered_unchanged(world: World) -> None:
    for priority in (9, 255, 10):
        world.send_together(incoming(str(priority), header=Header(priority=priority)))
    receiver = Receiver(world, world.queue())
    assert receiver.bodies == ["9", "255", "10"]
    headers = [delivered(message).header for message in receiver.got]
    assert [header.priority for header in headers if header is not None] == [9, 255, 10]


def test_a_queue_without_the_setting_delivers_in_order_of_arrival_and_stores_no_lane() -> None:
    world = World(QueueDefinition(name="q"))
    send(world, "4a", "9a", "0a")
    assert Receiver(world, world.queue()).bodies == ["4a", "9a", "0a"]
    assert {message.session_id for message in world.stored()} == {None}
    assert not world.queue().delivers_by_priority


def test_a_message_with_a_higher_priority_overtakes_any_number_of_messages() -> None:
    world = World(queue())
    world.namespace._machinery.budget.limit = 50 * (200 + OBJECT_BYTES)
    send(world, *(f"4-{number}" for number in range(300)))
    receiver = Receiver(world, world.queue(), credit=2)
    assert receiver.bodies == ["4-0", "4-1"]
    send(world, "9", "5")
    receiver.more(3)
    assert receiver.bodies[2:] == ["9", "5", "4-2"]
    receiver.more()
    assert receiver.bodies[5:] == [f"4-{number}" for number in range(3, 300)]
    check(world)


@pytest.fixture(params=["memory", "disk"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Return a world whose messages were stored before a restart."""
    world = World(queue(), store=FlakyStore() if request.param == "memory" else AwaitedStore(tmp_path / "data"))
    send(world, "4a", "9a", "0a", "9b", "4b")
    receiver = Receiver(world, world.queue(), credit=1)
    world.settle(world.queue().settlements.abandon, receiver.locks[0])
    receiver.leave()
    return world.restarted()


def test_the_order_survives_a_restart(stored: World) -> None:
    receiver = Receiver(stored, stored.queue())
    assert receiver.bodies == ["9a", "9b", "4a", "4b", "0a"]
    assert [message.delivery_count for message in receiver.got] == [1, 0, 0, 0, 0]
    for lock in receiver.locks:
        stored.settle(stored.queue().settlements.complete, lock)
    assert stored.bodies() == []
    check(stored)


def test_messages_after_a_restart_are_ordered_among_stored_messages(stored: World) -> None:
    send(stored, "4c", "9c", "7a")
    assert Receiver(stored, stored.queue()).bodies == ["9a", "9b", "9c", "7a", "4a", "4b", "4c", "0a"]
    check(stored)


def test_lower_priorities_wait_while_a_higher_one_is_read_from_the_store() -> None:
    store = FlakyStore()
    world = World(queue(), store=store)
    send(world, "9a", "4a")
    world = world.restarted()
    store.held_answers = []
    receiver = Receiver(world, world.queue())
    send(world, "4b", "3a")
    assert receiver.bodies == []
    assert not receiver.starvations
    store.release_answers()
    world.run()
    assert receiver.bodies == ["9a", "4a", "4b", "3a"]
    assert receiver.starvations
    check(world)


def test_a_store_that_cannot_be_read_for_a_while_changes_nothing_in_the_order() -> None:
    store = FlakyStore()
    world = World(queue(), store=store)
    send(world, "4a", "9a")
    world = world.restarted()
    store.fails_to_read = True
    receiver = Receiver(world, world.queue())
    assert receiver.bodies == []
    store.fails_to_read = False
    world.advance(2 * SECOND)
    assert receiver.bodies == ["9a", "4a"]


@pytest.mark.parametrize("how", ["abandon", "release", "run out"])
def test_an_unlocked_message_returns_to_its_place_in_its_priority(world: World, how: str) -> None:
    send(world, "4a", "4b", "9a", "4c")
    receiver = Receiver(world, world.queue(), credit=3)
    assert receiver.bodies == ["9a", "4a", "4b"]
    receiver.leave()
    for lock in receiver.locks[:2]:
        if how == "abandon":
            world.settle(world.queue().settlements.abandon, lock)
        elif how == "release":
            world.queue().settlements.release(lock)
    if how == "run out":
        world.settle(world.queue().settlements.complete, receiver.locks[2])
        world.advance(31 * SECOND)
    send(world, "9b", "4d")
    assert Receiver(world, world.queue()).bodies == ["9a", "9b", "4a", "4c", "4d"]
    check(world)


def test_an_expired_message_is_not_delivered_and_becomes_a_dead_letter_in_order_of_arrival() -> None:
    world = World(queue(dead_lettering_on_message_expiration=True))
    send(world, "4a", "9a", "0a", ttl=SECOND)
    send(world, "9b", "4b")
    world.advance(2 * SECOND)
    assert Receiver(world, world.queue()).bodies == ["9b", "4b"]
    assert sorted(world.bodies("q/$DeadLetterQueue")) == ["0a", "4a", "9a"]
    letters = Receiver(world, world.dead_letters())
    assert letters.numbers == sorted(letters.numbers)
    check(world)


def test_dead_letters_are_ordered_by_number_not_by_priority(world: World) -> None:
    send(world, "0a", "9a", "4a")
    for lock in Receiver(world, world.queue()).locks:
        world.settle(world.queue().settlements.dead_letter, lock)
    assert Receiver(world, world.dead_letters()).bodies == ["0a", "9a", "4a"]
    check(world)


def test_a_message_abandoned_too_often_does_not_block_other_messages(world: World) -> None:
    send(world, "9a", "4a")
    receiver = Receiver(world, world.queue(), credit=0)
    for _ in range(3):
        receiver.more(1)
        assert receiver.bodies[-1] == "9a"
        world.settle(world.queue().settlements.abandon, receiver.locks[-1])
    receiver.more(1)
    assert receiver.bodies[-1] == "4a"
    assert world.bodies("q/$DeadLetterQueue") == ["9a"]
    check(world)


def test_a_deferred_message_of_a_priority_is_received_by_its_number_only(world: World) -> None:
    send(world, "4a", "9a", "9b")
    receiver = Receiver(world, world.queue(), credit=1)
    world.settle(world.queue().settlements.defer, receiver.locks[0])
    receiver.more()
    assert receiver.bodies == ["9a", "9b", "4a"]
    fetched: list[Any] = []
    world.queue().deferred.receive([receiver.numbers[0]], None, False, fetched.append)
    world.run()
    ((message, lock),) = fetched[0]
    assert message.state == DEFERRED
    world.settle(world.queue().settlements.complete, lock)
    assert sorted(world.bodies()) == ["4a", "9b"]
    check(world)


def test_a_scheduled_message_has_its_place_from_when_it_is_due(world: World) -> None:
    send(world, "9a", at=world.clock() + MINUTE)
    send(world, "4a")
    world = world.restarted()
    assert Receiver(world, world.queue(), credit=0).bodies == []
    world.advance(2 * MINUTE)
    assert Receiver(world, world.queue()).bodies == ["9a", "4a"]
    check(world)


def test_peeking_is_by_number(world: World) -> None:
    send(world, "0a", "9a", "4a")
    peeked: list[Any] = []
    world.queue().peek(0, 10, None, peeked.append)
    world.run()
    assert [message.sequence_number for message in peeked[0]] == [1, 2, 3]


def test_a_batch_is_stored_whole_and_delivered_by_priority(world: World) -> None:
    batch = [incoming(f"{priority}", header=Header(priority=priority)) for priority in (1, 8, 3)]
    assert world.send_together(*batch) == [None]
    assert Receiver(world, world.queue()).bodies == ["8", "3", "1"]


def test_receivers_of_one_queue_take_turns_at_the_highest_priority(world: World) -> None:
    first, second = (Receiver(world, world.queue(), credit=2) for _ in range(2))
    send(world, "4a", "4b", "9a", "9b")
    assert sorted(first.bodies + second.bodies) == ["4a", "4b", "9a", "9b"]
    check(world)


def test_messages_that_are_deleted_by_the_time_of_their_arrival_leave_every_lane(world: World) -> None:
    send(world, "0a", "9a", "4a")
    world.advance(SECOND)
    deleted: list[Any] = []
    world.queue().deletion.delete_before(world.clock(), 2, None, deleted.append)
    world.run()
    assert deleted == [2]
    assert Receiver(world, world.queue()).bodies == ["4a"]
    check(world)


def test_low_priorities_wait_during_a_stream_of_high_ones_and_expire_as_configured() -> None:
    world = World(queue(default_message_ttl_ms=10 * SECOND, dead_lettering_on_message_expiration=True))
    send(world, "0-waits")
    receiver = Receiver(world, world.queue(), credit=0)
    for number in range(10):
        send(world, f"9-{number}", f"9-{number}'")
        receiver.more(1)
        world.advance(SECOND + 1)
    assert all(text.startswith("9") for text in receiver.bodies)
    assert "0-waits" in world.bodies("q/$DeadLetterQueue")


# --- topics ---


def test_all_subscriptions_of_a_topic_with_the_setting_order_by_priority() -> None:
    world = World(topic("t", "a", subscription("b", sql("some", "x IS NULL")), order_by_priority=True))
    send(world, "4a", "9a", "0a", to="t")
    for name in ("a", "b"):
        assert Receiver(world, world.subscription(name)).bodies == ["9a", "4a", "0a"]
    check(world)


def test_a_subscription_that_is_made_later_and_after_a_restart_orders_too() -> None:
    world = World(topic("t", "a", order_by_priority=True)).restarted()
    world.administer(world.administration.create_subscription, "t", subscription("late"))
    send(world, "4a", "9a", to="t", at=world.clock() + SECOND)
    world.advance(2 * SECOND)
    for name in ("a", "late"):
        assert Receiver(world, world.subscription(name)).bodies == ["9a", "4a"]
    check(world)


def test_a_subscription_with_sessions_keeps_the_order_of_each_session() -> None:
    world = World(topic("t", subscription("s", requires_session=True), order_by_priority=True))
    for priority in (4, 9):
        fields = {"header": Header(priority=priority), "properties": Properties(message_id="m", group_id="one")}
        world.send_together(incoming(f"{priority}", "one", **fields), to="t")
    assert SessionReceiver(world, "one", path="t/Subscriptions/s").bodies == ["4", "9"]


def test_messages_are_forwarded_by_priority_and_keep_theirs() -> None:
    world = World(queue("from", forward_to="to"), queue("to"))
    send(world, "4a", "9a", "0a", to="from")
    assert Receiver(world, world.queue("to")).bodies == ["9a", "4a", "0a"]
    check(world)


def test_dead_letters_can_be_forwarded_to_a_queue_with_sessions_whose_lane_is_no_session() -> None:
    world = World(queue(forward_dead_lettered_messages_to="s"), QueueDefinition(name="s", requires_session=True))
    send(world, "9a")
    world.settle(world.queue().settlements.dead_letter, Receiver(world, world.queue()).locks[0])
    assert world.bodies("s") == []
    assert world.bodies("q/$Transfer/$DeadLetterQueue") == ["9a"]


# --- selectors ---


def test_a_consumer_with_a_selector_gets_matching_messages_by_priority(stored: World) -> None:
    receiver = SelectingReceiver(stored, stored.queue(), BodySelector(lambda text: text[1] == "a"), credit=2)
    assert receiver.bodies == ["9a", "4a"]
    send(stored, "5a", "5b")
    receiver.more()
    assert receiver.bodies == ["9a", "4a", "5a", "0a"]
    assert Receiver(stored, stored.queue()).bodies == ["9b", "5b", "4b"]
    check(stored)


def test_a_selector_is_evaluated_once_and_again_for_a_returned_message(world: World) -> None:
    selector = BodySelector(lambda text: text == "0-last")
    selecting = SelectingReceiver(world, world.queue(), selector, credit=1)
    send(world, *(f"{number % 10}-{number}" for number in range(40)))
    assert set(selector.looks.values()) == {1}
    other = Receiver(world, world.queue(), credit=5)
    other.leave()
    for lock in other.locks:
        world.queue().settlements.release(lock)
    send(world, "0-last")
    assert selecting.bodies == ["0-last"]
    assert sum(selector.looks.values()) == 46
    check(world)


# --- the setting ---


def test_sessions_and_the_setting_exclude_each_other() -> None:
    with pytest.raises(DefinitionError, match="OrderByPriority true: must be false with RequiresSession"):
        queue(requires_session=True)


def test_the_setting_is_fixed_once_the_entity_exists(world: World) -> None:
    definition = world.queue().definition
    assert isinstance(definition, QueueDefinition)
    with pytest.raises(DefinitionError, match="cannot be changed once the entity exists"):
        world.administration.update_queue(replace(definition, order_by_priority=False), lambda error: None)


@pytest.mark.parametrize("seed", range(10))
def test_after_random_operations_the_highest_priority_is_delivered_first(
    seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {"paging.PAGE_MESSAGES": 8, "paging.LOW_MESSAGES": 12, "backlog.WINDOW_MESSAGES": 20}.items():
        monkeypatch.setattr(f"peeklock.broker.{name}", value)
    chance = random.Random(seed)
    world = World(queue(max_delivery_count=1000))
    world.namespace._machinery.budget.limit = chance.choice([10, 1000]) * OBJECT_BYTES
    waiting: set[tuple[int, int]] = set()
    last = 0
    receiver = Receiver(world, world.queue(), credit=0)
    held: dict[int, tuple[StoredMessage, Any]] = {}
    for step in range(150):
        what = chance.random()
        if what < 0.5:
            priority = chance.choice([0, 4, 4, 9])
            send(world, f"{priority}-{step}")
            last = world.queue().counters.last_sequence_number
            waiting.add((-priority, last))
        elif what < 0.8 and waiting:
            receiver.more(1)
            message = receiver.got[-1]
            found = (-int(receiver.bodies[-1][0]), message.sequence_number)
            assert found == min(waiting)
            waiting.discard(found)
            held[message.sequence_number] = (message, receiver.locks[-1])
        elif held:
            number = chance.choice(list(held))
            message, lock = held.pop(number)
            if what < 0.9:
                world.queue().settlements.release(lock)
                world.run()
                waiting.add((-int(receiver.bodies[receiver.numbers.index(number)][0]), number))
            else:
                world.settle(world.queue().settlements.complete, lock)
        if step == 100:
            for number in held:
                waiting.add((-int(receiver.bodies[receiver.numbers.index(number)][0]), number))
            held.clear()
            world = world.restarted()
            receiver = Receiver(world, world.queue(), credit=0)
    receiver.more()
    rest = receiver.numbers[len(receiver.numbers) - len(waiting) :]
    assert rest == [number for _, number in sorted(waiting)]
    check(world)
