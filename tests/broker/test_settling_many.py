"""Settlements of many messages: all of them or, when one lock is lost or the store refuses, none."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import MINUTE, SECOND, FlakyStore, Receiver, SessionReceiver, World, session_queue
from peeklock.broker.definitions import QueueDefinition
from peeklock.broker.errors import BrokerError, InvalidProperty, MessageLockLost, SessionLockLost, StorageFailed
from peeklock.store.base import Changes, StoreError

ACTS = ["complete_all", "abandon_all", "defer_all", "dead_letter_all"]


@pytest.mark.parametrize("act", ACTS)
def test_none_is_settled_when_one_lock_has_run_out(act: str) -> None:
    world = World(QueueDefinition(name="q", lock_duration_ms=MINUTE))
    queue = world.queue()
    world.send("early")
    receiver = Receiver(world, queue)
    world.advance(30 * SECOND)
    world.send("late", "later")
    early, late, later = receiver.locks
    world.clock.advance(30 * SECOND)
    outcomes: list[BrokerError | None] = []
    with pytest.raises(MessageLockLost):
        getattr(queue, act)([late, early, later], outcomes.append)
    world.run()
    assert outcomes == []
    assert world.bodies() == ["early", "late", "later"]
    assert queue.find_locks([late.tag, later.tag]) == [late, later]
    world.check()


@pytest.mark.parametrize("act", ACTS)
def test_all_are_settled_at_once_and_told_once(act: str) -> None:
    world = World()
    queue = world.queue()
    world.send("a", "b", "c")
    receiver = Receiver(world, queue, credit=3)
    outcomes: list[BrokerError | None] = []
    getattr(queue, act)(receiver.locks, outcomes.append)
    world.run()
    assert outcomes == [None]
    assert not queue._locks
    world.check()


@pytest.mark.parametrize("act", ACTS)
def test_none_is_settled_when_the_store_refuses(act: str) -> None:
    store = FlakyStore()
    world = World(store=store)
    queue = world.queue()
    world.send("a", "b")
    receiver = Receiver(world, queue, credit=2)
    store.fails = lambda changes: StoreError("not now")
    outcomes: list[BrokerError | None] = []
    getattr(queue, act)(receiver.locks, outcomes.append)
    world.run()
    assert [type(outcome) for outcome in outcomes] == [StorageFailed]
    store.fails = lambda changes: None
    assert queue.find_locks([lock.tag for lock in receiver.locks]) == receiver.locks
    world.run()
    world.check()


def test_messages_that_go_back_and_those_that_were_delivered_too_often_share_a_commit() -> None:
    store = FlakyStore()
    world = World(QueueDefinition(name="q", max_delivery_count=2), store=store)
    queue = world.queue()
    world.send("often")
    receiver = Receiver(world, queue, credit=1)
    world.settle(queue.abandon, receiver.locks[0])
    world.send("once")
    receiver.more(2)
    often, once = receiver.locks[1:]

    def fails(changes: Changes) -> StoreError | None:
        return StoreError("no dead letters") if changes.appends else None

    store.fails = fails
    outcomes: list[BrokerError | None] = []
    queue.abandon_all([once, often], outcomes.append)
    world.run()
    assert [type(outcome) for outcome in outcomes] == [StorageFailed]
    assert [message.delivery_count for message in world.stored()] == [1, 0]
    assert queue.find_locks([once.tag, often.tag]) == [once, often]


def test_what_cannot_be_staged_leaves_the_others_as_they_were() -> None:
    world = World()
    queue = world.queue()
    world.send("a", "b")
    receiver = Receiver(world, queue, credit=2)
    outcomes: list[BrokerError | None] = []
    with pytest.raises(InvalidProperty):
        queue.abandon_all(receiver.locks, outcomes.append, {"bad": object()})
    world.run()
    assert outcomes == []
    assert queue.find_locks([lock.tag for lock in receiver.locks]) == receiver.locks
    world.check()


def test_many_locks_are_renewed_to_one_moment_or_not_at_all() -> None:
    world = World(QueueDefinition(name="q", lock_duration_ms=MINUTE))
    queue = world.queue()
    world.send("early")
    receiver = Receiver(world, queue)
    world.advance(30 * SECOND)
    world.send("late")
    early, late = receiver.locks
    until = queue.renew([late, early])
    assert until == world.clock() + MINUTE
    world.advance(MINUTE - 1)
    assert queue.find_locks([early.tag, late.tag]) == [early, late]
    queue.renew([late])
    world.clock.advance(1)
    with pytest.raises(MessageLockLost):
        queue.renew([late, early])
    world.run()
    world.advance(MINUTE - 1)
    with pytest.raises(MessageLockLost):  # it was not renewed with the other
        queue.complete(late, lambda error: None)


def test_deferred_messages_are_not_fetched_when_the_session_passed_to_another_receiver_meanwhile() -> None:
    store = FlakyStore()
    world = World(session_queue(), store=store)
    queue = world.sessions()
    world.send("a", to="s", session_id="x")
    first = SessionReceiver(world, "x")
    world.settle(queue.defer, first.locks[0])
    for deletes in (False, True):
        answers: list[Any] = []
        store.held_answers = []

        def check(asking: SessionReceiver = first) -> None:
            if queue.held("x").holder is not asking:
                raise SessionLockLost

        queue.receive_deferred([1], "x", deletes, answers.append, check)
        first.close()
        second = SessionReceiver(world, "x")
        store.release_answers()
        world.run()
        assert [type(answer) for answer in answers] == [SessionLockLost]
        assert not queue._locks
        assert world.bodies("s") == ["a"]
        second.close()
        first = SessionReceiver(world, "x")
    world.check()
