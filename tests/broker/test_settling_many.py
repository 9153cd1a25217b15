"""Settlements of many messages: all are settled or, if one lock is lost or the store refuses, none."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import MINUTE, SECOND, FlakyStore, Receiver, SessionReceiver, World, session_queue
from peeklock.broker.errors import BrokerError, InvalidProperty, MessageLockLost, SessionLockLost, StorageFailed
from peeklock.broker.verdicts import Settlement, Verdict
from peeklock.entities.definitions import QueueDefinition
from peeklock.store.base import Changes, StoreError


@pytest.mark.parametrize("verdict", Verdict)
def test_none_is_settled_when_one_lock_has_expired(verdict: Verdict) -> None:
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
        queue.settlements.settle_all(Settlement(verdict), [late, early, later], outcomes.append)
    world.run()
    assert outcomes == []
    assert world.bodies() == ["early", "late", "later"]
    assert queue.locks.find([late.tag, later.tag]) == [late, later]
    world.check()


@pytest.mark.parametrize("verdict", Verdict)
def test_all_are_settled_in_one_commit_with_one_callback(verdict: Verdict) -> None:
    world = World()
    queue = world.queue()
    world.send("a", "b", "c")
    receiver = Receiver(world, queue, credit=3)
    outcomes: list[BrokerError | None] = []
    queue.settlements.settle_all(Settlement(verdict), receiver.locks, outcomes.append)
    world.run()
    assert outcomes == [None]
    assert not queue.locks.by_number
    world.check()


@pytest.mark.parametrize("verdict", Verdict)
def test_none_is_settled_when_the_store_refuses(verdict: Verdict) -> None:
    store = FlakyStore()
    world = World(store=store)
    queue = world.queue()
    world.send("a", "b")
    receiver = Receiver(world, queue, credit=2)
    store.fails = lambda changes: StoreError("not now")
    outcomes: list[BrokerError | None] = []
    queue.settlements.settle_all(Settlement(verdict), receiver.locks, outcomes.append)
    world.run()
    assert [type(outcome) for outcome in outcomes] == [StorageFailed]
    store.fails = lambda changes: None
    assert queue.locks.find([lock.tag for lock in receiver.locks]) == receiver.locks
    world.run()
    world.check()


def test_messages_that_go_back_and_those_that_were_delivered_too_often_share_a_commit() -> None:
    store = FlakyStore()
    world = World(QueueDefinition(name="q", max_delivery_count=2), store=store)
    queue = world.queue()
    world.send("often")
    receiver = Receiver(world, queue, credit=1)
    world.settle(queue.settlements.abandon, receiver.locks[0])
    world.send("once")
    receiver.more(2)
    often, once = receiver.locks[1:]

    def fails(changes: Changes) -> StoreError | None:
        return StoreError("no dead letters") if changes.appends else None

    store.fails = fails
    outcomes: list[BrokerError | None] = []
    queue.settlements.abandon_all([once, often], outcomes.append)
    world.run()
    assert [type(outcome) for outcome in outcomes] == [StorageFailed]
    assert [message.delivery_count for message in world.stored()] == [1, 0]
    assert queue.locks.find([once.tag, often.tag]) == [once, often]


def test_a_settlement_that_cannot_be_staged_changes_no_other_message() -> None:
    world = World()
    queue = world.queue()
    world.send("a", "b")
    receiver = Receiver(world, queue, credit=2)
    outcomes: list[BrokerError | None] = []
    with pytest.raises(InvalidProperty):
        queue.settlements.abandon_all(receiver.locks, outcomes.append, {"bad": object()})
    world.run()
    assert outcomes == []
    assert queue.locks.find([lock.tag for lock in receiver.locks]) == receiver.locks
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
    assert queue.locks.find([early.tag, late.tag]) == [early, late]
    queue.renew([late])
    world.clock.advance(1)
    with pytest.raises(MessageLockLost):
        queue.renew([late, early])
    world.run()
    world.advance(MINUTE - 1)
    with pytest.raises(MessageLockLost):  # it was not renewed with the other
        queue.settlements.complete(late, lambda error: None)


def test_deferred_messages_are_not_fetched_after_the_session_passed_to_another_receiver() -> None:
    store = FlakyStore()
    world = World(session_queue(), store=store)
    queue = world.sessions()
    world.send("a", to="s", session_id="x")
    first = SessionReceiver(world, "x")
    world.settle(queue.settlements.defer, first.locks[0])
    for deletes in (False, True):
        answers: list[Any] = []
        store.held_answers = []

        def check(asking: SessionReceiver = first) -> None:
            if queue.sessions.held("x").holder is not asking:
                raise SessionLockLost

        queue.deferred.receive([1], "x", deletes, answers.append, check)
        first.close()
        second = SessionReceiver(world, "x")
        store.release_answers()
        world.run()
        assert [type(answer) for answer in answers] == [SessionLockLost]
        assert not queue.locks.by_number
        assert world.bodies("s") == ["a"]
        second.close()
        first = SessionReceiver(world, "x")
    world.check()
