"""Consumers with selectors: each gets the matching messages once and in order, and evaluates each message once."""

from __future__ import annotations

from typing import Any

import pytest

from broker.windows import check_windows
from broker.world import SECOND, BodySelector, Receiver, SelectingReceiver, World, body
from peeklock.broker.errors import QuotaExceeded
from peeklock.broker.selecting import TURN_WORK
from peeklock.entities.definitions import QueueDefinition
from peeklock.limits.broker import MAX_SELECTIONS
from peeklock.store.base import StoreError


def even(text: str) -> bool:
    return int(text) % 2 == 0


def numbers(*which: int) -> list[str]:
    return [str(number) for number in which]


@pytest.fixture
def world() -> World:
    return World(QueueDefinition(name="q", max_delivery_count=3, lock_duration_ms=30 * SECOND))


@pytest.fixture
def stored() -> World:
    """Return a world with messages that are not in a window, because a start reads none."""
    world = World(QueueDefinition(name="q", max_delivery_count=3, lock_duration_ms=30 * SECOND))
    world.send(*numbers(*range(1000)))
    return world.restarted()


def check(world: World) -> None:
    world.check()
    check_windows(world)


@pytest.fixture(params=["in memory", "in the store"])
def either(request: pytest.FixtureRequest) -> World:
    """Return a queue with a thousand messages, in memory or only in the store."""
    world = World(QueueDefinition(name="q", max_delivery_count=3, lock_duration_ms=30 * SECOND))
    world.send(*numbers(*range(1000)))
    return world if request.param == "in memory" else world.restarted()


def test_a_consumer_gets_matching_messages_and_other_consumers_the_remaining_ones(either: World) -> None:
    selecting = SelectingReceiver(either, either.queue(), BodySelector(even))
    assert selecting.bodies == numbers(*range(0, 1000, 2))
    plain = Receiver(either, either.queue())
    assert plain.bodies == numbers(*range(1, 1000, 2))
    check(either)
    for receiver in (selecting, plain):
        for lock in receiver.locks:
            either.settle(either.queue().settlements.complete, lock)
    assert either.bodies() == []
    check(either)


def test_a_consumer_with_a_selector_respects_its_credit_and_continues_where_it_stopped(either: World) -> None:
    selector = BodySelector(even)
    selecting = SelectingReceiver(either, either.queue(), selector, credit=3)
    assert selecting.bodies == numbers(0, 2, 4)
    assert not any(selector.looks[str(number)] for number in range(8, 1000))
    selecting.more(2)
    assert selecting.bodies == numbers(0, 2, 4, 6, 8)
    assert max(selector.looks.values()) <= 2
    check(either)


def test_a_selector_is_evaluated_once_for_each_message(either: World) -> None:
    selector = BodySelector(lambda text: text in ("1500", "1501"))
    selecting = SelectingReceiver(either, either.queue(), selector)
    for number in range(1000, 1600):
        either.send(str(number))
        selecting.more(1)
    assert selecting.bodies == ["1500", "1501"]
    assert selector.looks == dict.fromkeys(numbers(*range(1600)), 1)
    check(either)


@pytest.mark.parametrize("how", ["abandon", "release", "expire"])
def test_a_selector_is_evaluated_again_for_a_message_that_becomes_active_again(either: World, how: str) -> None:
    queue = either.queue()
    other = Receiver(either, queue, credit=4)
    assert other.bodies == numbers(0, 1, 2, 3)
    selector = BodySelector(even)
    selecting = SelectingReceiver(either, queue, selector)
    assert selecting.bodies == numbers(*range(4, 1000, 2))
    assert selector.looks.keys().isdisjoint(other.bodies)
    for lock in selecting.locks:
        either.settle(queue.settlements.complete, lock)
    for lock in other.locks:
        if how == "abandon":
            either.settle(queue.settlements.abandon, lock)
        elif how == "release":
            queue.settlements.release(lock)
    either.advance(31 * SECOND if how == "expire" else 0)
    assert selecting.bodies[-2:] == numbers(0, 2)
    assert selector.looks == dict.fromkeys(numbers(*range(1000)), 1)
    assert [message.delivery_count for message in selecting.got[-2:]] == [0 if how == "release" else 1] * 2
    check(either)


def test_a_message_abandoned_by_a_selecting_consumer_is_redelivered_to_it(either: World) -> None:
    queue = either.queue()
    selecting = SelectingReceiver(either, queue, BodySelector(lambda text: text in ("7", "700")))
    assert selecting.bodies == ["7", "700"]
    for lock in selecting.locks[:]:
        either.settle(queue.settlements.abandon, lock)
    assert selecting.bodies == ["7", "700", "7", "700"]
    assert [message.delivery_count for message in selecting.got] == [0, 0, 1, 1]
    for lock in selecting.locks[2:]:
        either.settle(queue.settlements.abandon, lock)
    for lock in selecting.locks[4:]:
        either.settle(queue.settlements.abandon, lock)
    assert [body(letter) for letter in either.stored("q/$DeadLetterQueue")] == ["7", "700"]
    check(either)


def test_a_message_returned_without_a_consumer_is_found_later(either: World) -> None:
    queue = either.queue()
    other = Receiver(either, queue, credit=10)
    selecting = SelectingReceiver(either, queue, BodySelector(even), credit=495)
    assert len(selecting.got) == 495
    for lock in other.locks:
        queue.settlements.release(lock)
    other.leave()
    either.run()
    selecting.more(10)
    assert sorted(map(int, selecting.bodies)) == list(range(0, 1000, 2))
    check(either)


def test_returned_messages_beyond_the_limit_are_searched_for(either: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peeklock.broker.return_log.MAX_RETURNS", 3)
    queue = either.queue()
    other = Receiver(either, queue, credit=100)
    selector = BodySelector(lambda text: int(text) in (50, 51, 999))
    selecting = SelectingReceiver(either, queue, selector, credit=1)
    assert selecting.bodies == ["999"]
    for lock in reversed(other.locks):
        queue.settlements.release(lock)
    selecting.more(5)
    assert selecting.bodies == ["999", "50", "51"]
    check(either)


def test_consumers_with_different_selectors_share_a_queue(either: World) -> None:
    queue = either.queue()
    thirds = [
        SelectingReceiver(either, queue, BodySelector(lambda text, third=third: int(text) % 3 == third))  # type: ignore[misc]
        for third in range(3)
    ]
    for third, receiver in enumerate(thirds):
        assert receiver.bodies == numbers(*range(third, 1000, 3))
    check(either)


def test_two_with_the_same_selector_take_turns(world: World) -> None:
    queue = world.queue()
    first, second = (SelectingReceiver(world, queue, BodySelector(even), credit=10) for _ in range(2))
    world.send(*numbers(*range(30)))
    assert sorted(map(int, first.bodies + second.bodies)) == list(range(0, 30, 2))
    check(world)


def test_receive_and_delete_with_a_selector_removes_matching_messages_only(either: World) -> None:
    selecting = SelectingReceiver(either, either.queue(), BodySelector(even), deletes=True)
    assert selecting.bodies == numbers(*range(0, 1000, 2))
    assert either.bodies() == numbers(*range(1, 1000, 2))
    check(either)


def test_a_message_whose_time_is_over_is_not_delivered(world: World) -> None:
    store: Any = world.store
    world.send("2", ttl=10 * SECOND)
    world.send("4")
    store.held = []
    world.advance(20 * SECOND)
    selecting = SelectingReceiver(world, world.queue(), BodySelector(even))
    store.release_commits()
    world.run()
    assert selecting.bodies == ["4"]
    assert world.bodies() == ["4"]
    check(world)


def test_a_window_that_grows_while_a_page_is_read_gives_no_message_twice(stored: World) -> None:
    store: Any = stored.store
    store.held_answers = []
    queue = stored.queue()
    plain = Receiver(stored, queue, credit=5)
    selecting = SelectingReceiver(stored, queue, BodySelector(even))
    plain.more(5)
    while store.held_answers:
        store.held_answers.pop(0)()
        stored.run()
    store.release_answers()
    stored.run()
    assert len(plain.bodies) == 10
    assert sorted(map(int, selecting.bodies)) == [n for n in range(0, 1000, 2) if str(n) not in plain.bodies]
    check(stored)


def test_messages_are_selected_while_others_are_deleted(stored: World) -> None:
    store: Any = stored.store
    queue = stored.queue()
    deleted: list[Any] = []
    store.held_answers = []
    selecting = SelectingReceiver(stored, queue, BodySelector(even), credit=50)
    queue.deletion.delete_before(stored.clock() + 1, 500, None, deleted.append)
    for _ in range(1000):
        if store.held_answers:
            store.held_answers.pop()()
        stored.run()
    store.release_answers()
    stored.run()
    assert deleted == [500]
    assert len(selecting.got) == 50
    assert len(stored.bodies()) == 500
    check(stored)


def test_a_drain_is_answered_after_every_message_was_evaluated(either: World) -> None:
    selecting = SelectingReceiver(either, either.queue(), BodySelector(lambda text: text == "999", cost=TURN_WORK))
    assert selecting.bodies == ["999"]
    assert selecting.starvations > 0


def test_the_evaluations_in_one_turn_are_limited(world: World) -> None:
    world.send(*numbers(*range(100)))
    turns: list[int] = []
    selector = BodySelector(lambda text: False, cost=TURN_WORK // 8)
    queue = world.queue()
    receiver = Receiver(world, queue, credit=0)
    selection = queue.select(receiver, selector)
    receiver.credit = 1
    queue.want_selected(selection)
    while world._turn:
        before = sum(selector.looks.values())
        world._turn.popleft()()
        turns.append(sum(selector.looks.values()) - before)
    assert sum(turns) == 100
    assert max(turns) == 8


def test_an_innocent_consumer_is_served_between_the_turns_of_an_expensive_selector(world: World) -> None:
    world.send(*numbers(*range(100)))
    queue = world.queue()
    selector = BodySelector(lambda text: False, cost=TURN_WORK)
    expensive, innocent = (Receiver(world, queue, credit=0) for _ in range(2))
    selection = queue.select(expensive, selector)
    expensive.credit, innocent.credit = 1, 50
    queue.want_selected(selection)
    queue.want(innocent)
    for _ in range(3):
        world._turn.popleft()()
    assert len(innocent.got) == 50
    assert sum(selector.looks.values()) <= 3


def test_a_failed_read_of_the_store_is_retried(stored: World) -> None:
    store: Any = stored.store
    store.fails_to_read = True
    selecting = SelectingReceiver(stored, stored.queue(), BodySelector(even), credit=5)
    assert selecting.bodies == []
    store.fails_to_read = False
    stored.advance(2 * SECOND)
    assert selecting.bodies == numbers(0, 2, 4, 6, 8)
    check(stored)


def test_a_detached_consumer_gets_no_message_and_costs_no_evaluation(either: World) -> None:
    queue = either.queue()
    store: Any = either.store
    store.held_answers = []
    selector = BodySelector(even)
    selecting = SelectingReceiver(either, queue, selector)
    looks = sum(selector.looks.values())
    selecting.leave()
    store.release_answers()
    either.send("2000")
    assert sum(selector.looks.values()) == looks
    assert queue._selecting is None
    assert queue._waiting._returns is None
    check(either)


def test_deleting_a_queue_ends_its_consumers(either: World) -> None:
    store: Any = either.store
    store.held_answers = []
    selecting = SelectingReceiver(either, either.queue(), BodySelector(lambda text: False))
    either.administer(either.administration.delete_queue, "q")
    store.release_answers()
    either.run()
    selecting.leave()
    assert selecting.got == []


def test_a_queue_that_is_about_to_go_gives_nothing_out(stored: World) -> None:
    store: Any = stored.store
    store.held_answers = []
    selecting = SelectingReceiver(stored, stored.queue(), BodySelector())
    store.held = []
    outcomes: list[Any] = []
    stored.administration.delete_queue("q", outcomes.append)
    store.release_answers()
    stored.run()
    assert selecting.got == []
    store.fails = lambda changes: StoreError("not now")
    store.release_commits()
    stored.run()
    assert outcomes[0] is not None
    assert len(selecting.got) == 1000, "it stays, and so does the receiver"


def test_there_are_not_too_many(world: World) -> None:
    queue = world.queue()
    consumer: Any = Receiver(world, queue, credit=0)
    selections = [queue.select(consumer, BodySelector()) for _ in range(MAX_SELECTIONS)]
    with pytest.raises(QuotaExceeded, match="receivers with message selectors"):
        queue.select(consumer, BodySelector())
    queue.stop_selecting(selections[0])
    queue.select(consumer, BodySelector())
