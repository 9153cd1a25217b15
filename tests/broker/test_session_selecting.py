"""Holders of a session with selectors: each gets the matching messages of its session, and the others stay active."""

from __future__ import annotations

import pytest

from broker.windows import check_windows
from broker.world import MINUTE, SECOND, BodySelector, FlakyStore, Receiver, SessionReceiver, World, session_queue
from peeklock.broker.errors import SessionLockLost
from peeklock.broker.selecting import TURN_WORK


def even(text: str) -> bool:
    return int(text) % 2 == 0


def numbers(*which: int) -> list[str]:
    return [str(number) for number in which]


def check(world: World) -> None:
    world.check()
    check_windows(world)


def new_world() -> World:
    return World(session_queue(max_delivery_count=3, lock_duration_ms=MINUTE))


@pytest.fixture(params=["in memory", "in the store"])
def either(request: pytest.FixtureRequest) -> World:
    """Return two sessions with five hundred messages each, with even and odd numbers in both."""
    world = new_world()
    for number in range(500):
        world.send(str(number), to="s", session_id="one")
        world.send(str(number), to="s", session_id="two")
    return world if request.param == "in memory" else world.restarted()


def test_a_session_receiver_with_a_selector_gets_matching_messages_in_order(either: World) -> None:
    holder = SessionReceiver(either, "one", selector=BodySelector(even))
    assert holder.bodies == numbers(*range(0, 500, 2))
    assert {message.session_id for message in holder.got} == {"one"}
    for lock in holder.locks:
        either.settle(either.sessions().settlements.complete, lock)
    assert holder.starvations
    holder.close()
    assert SessionReceiver(either, "one").bodies == numbers(*range(1, 500, 2))
    assert SessionReceiver(either, "two").bodies == numbers(*range(500))
    check(either)


def test_a_session_consumer_respects_its_credit_and_evaluates_each_message_once(either: World) -> None:
    selector = BodySelector(even)
    holder = SessionReceiver(either, "one", credit=3, selector=selector)
    assert holder.bodies == numbers(0, 2, 4)
    holder.more(2)
    assert holder.bodies == numbers(0, 2, 4, 6, 8)
    for number in range(500, 520):
        either.send(str(number), to="s", session_id="one")
        either.send(str(number), to="s", session_id="two")
    holder.more(1000)
    assert holder.bodies == numbers(*range(0, 520, 2))
    assert max(selector.looks.values()) <= 2
    assert sum(selector.looks.values()) <= 520 + 2
    check(either)


def test_messages_that_arrive_during_the_session_lock_are_selected(either: World) -> None:
    holder = SessionReceiver(either, "one", selector=BodySelector(lambda text: text == "1000"))
    assert holder.bodies == []
    either.send("999", "1000", "1001", to="s", session_id="one")
    assert holder.bodies == ["1000"]
    check(either)


def test_an_abandoned_message_is_redelivered_to_the_session_and_finally_dead_lettered(either: World) -> None:
    holder = SessionReceiver(either, "one", selector=BodySelector(lambda text: text == "400"))
    for _ in range(3):
        either.settle(either.sessions().settlements.abandon, holder.locks[-1])
    assert holder.bodies == ["400"] * 3
    assert [message.delivery_count for message in holder.got] == [0, 1, 2]
    assert either.bodies("s/$DeadLetterQueue") == ["400"]
    check(either)


def test_messages_locked_at_detach_are_available_to_the_next_session_receiver(either: World) -> None:
    SessionReceiver(either, "one", selector=BodySelector(even)).close()
    assert SessionReceiver(either, "one").bodies == numbers(*range(500))
    check(either)


def test_a_session_consumer_gets_no_message_after_its_lock_expired(either: World) -> None:
    holder = SessionReceiver(either, "one", credit=1, selector=BodySelector(even))
    either.advance(2 * MINUTE)
    assert isinstance(holder.failure, SessionLockLost)
    either.send("1000", to="s", session_id="one")
    assert holder.bodies == ["0"]
    assert SessionReceiver(either, "one").bodies == [*numbers(*range(500)), "1000"]
    check(either)


def test_a_page_read_after_the_session_was_lost_is_not_delivered() -> None:
    store = FlakyStore()
    world = World(session_queue(), store=store)
    world.send(*numbers(*range(10)), to="s", session_id="one")
    world = World(session_queue(), store=store)
    store.held_answers = []
    holder = SessionReceiver(world, "one", selector=BodySelector(even))
    holder.close()
    store.release_answers()
    world.run()
    assert holder.bodies == []
    assert SessionReceiver(world, "one").bodies == numbers(*range(10))
    check(world)


def test_a_failed_read_of_the_session_is_retried() -> None:
    store = FlakyStore()
    world = World(session_queue(), store=store)
    world.send(*numbers(*range(10)), to="s", session_id="one")
    world = World(session_queue(), store=store)
    store.fails_to_read = True
    holder = SessionReceiver(world, "one", selector=BodySelector(even))
    assert holder.bodies == []
    store.fails_to_read = False
    world.advance(2 * SECOND)
    assert holder.bodies == numbers(0, 2, 4, 6, 8)
    check(world)


def test_the_next_free_session_is_held_though_nothing_in_it_matches(either: World) -> None:
    first = SessionReceiver(either, selector=BodySelector(lambda text: False))
    second = SessionReceiver(either, selector=BodySelector(lambda text: text == "7"))
    assert (first.id, first.bodies, second.id, second.bodies) == ("one", [], "two", ["7"])
    check(either)


def test_a_session_receiver_with_receive_and_delete_removes_matching_messages_only(either: World) -> None:
    holder = SessionReceiver(either, "one", deletes=True, selector=BodySelector(even))
    assert holder.bodies == numbers(*range(0, 500, 2))
    holder.close()
    assert SessionReceiver(either, "one").bodies == numbers(*range(1, 500, 2))
    check(either)


def test_expired_messages_are_not_given_out() -> None:
    world = World(session_queue(dead_lettering_on_message_expiration=True))
    holder = SessionReceiver(world, "one", credit=0, selector=BodySelector(even))
    world.send("2", to="s", session_id="one", ttl=SECOND)
    world.send("4", to="s", session_id="one")
    world.clock.advance(2 * SECOND)
    holder.more()
    assert holder.bodies == ["4"]
    assert world.bodies("s/$DeadLetterQueue") == ["2"]
    assert Receiver(world, world.dead_letters("s")).bodies == ["2"]
    check(world)


def test_the_evaluations_in_one_turn_are_limited() -> None:
    world = new_world()
    world.send(*numbers(*range(20)), to="s", session_id="one")
    selector = BodySelector(even, cost=TURN_WORK)
    holder = SessionReceiver(world, "one", credit=0, selector=selector)
    holder.credit = 1000
    assert holder.session is not None
    world.sessions().want(holder.session)
    world._turn.popleft()()
    assert sum(selector.looks.values()) == 1
    world.run()
    assert holder.bodies == numbers(*range(0, 20, 2))
