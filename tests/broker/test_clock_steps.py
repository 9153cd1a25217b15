"""The system's clock is set, forwards or back: durations are not affected, and points in time follow the clock."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    FlakyStore,
    Receiver,
    SessionReceiver,
    World,
    incoming,
    session_queue,
    subscription,
    topic,
)
from peeklock.broker.agenda import Agenda, ManualClock
from peeklock.broker.errors import BrokerError, MessageLockLost, OperationTimedOut, SessionLockLost, TransactionTimedOut
from peeklock.broker.transactions import Scope, Transactions
from peeklock.entities.definitions import QueueDefinition
from peeklock.limits.broker import TRANSACTION_TIME_LIMIT_MS

STEPS = [10 * DAY, -10 * DAY, HOUR, -HOUR]


def stepped(world: World, milliseconds: int) -> None:
    world.clock.step(milliseconds)
    world.run()


# --- durations ---


@pytest.mark.parametrize("step", STEPS)
def test_setting_the_clock_does_not_change_how_long_a_lock_lasts(step: int) -> None:
    world = World(QueueDefinition(name="q", lock_duration_ms=MINUTE))
    queue = world.queue()
    world.send("kept", "lost")
    receiver = Receiver(world, queue)
    kept, lost = receiver.locks
    stepped(world, step)
    world.advance(MINUTE - 1)
    assert receiver.bodies == ["kept", "lost"]
    world.settle(queue.settlements.complete, kept)
    world.advance(1)
    assert receiver.bodies == ["kept", "lost", "lost"]
    with pytest.raises(MessageLockLost):
        queue.settlements.complete(lost, lambda error: None)
    assert world.bodies() == ["lost"]


@pytest.mark.parametrize("step", STEPS)
def test_the_end_of_a_lock_is_in_unix_time_by_the_present_clock(step: int) -> None:
    world = World(QueueDefinition(name="q", lock_duration_ms=MINUTE))
    world.send("a", "b")
    receiver = Receiver(world, world.queue(), credit=1)
    assert receiver.locks[0].locked_until == world.clock() + MINUTE
    stepped(world, step)
    receiver.more(1)
    assert receiver.locks[1].locked_until == world.clock() + MINUTE
    assert world.queue().renew(receiver.locks) == world.clock() + MINUTE
    assert receiver.locks[0].locked_until == world.clock() + MINUTE


@pytest.mark.parametrize("step", STEPS)
def test_setting_the_clock_does_not_change_how_long_a_session_lock_lasts(step: int) -> None:
    world = World(session_queue(lock_duration_ms=MINUTE))
    queue = world.sessions()
    world.send("a", "b", to="s", session_id="x")
    receiver = SessionReceiver(world, "x")
    assert receiver.session is not None
    assert receiver.session.locked_until == world.clock() + MINUTE
    stepped(world, step)
    world.advance(MINUTE - 1)
    assert receiver.failure is None
    world.settle(queue.settlements.complete, receiver.locks[0])
    assert queue.sessions.renew(receiver.session) == world.clock() + MINUTE
    world.advance(MINUTE - 1)
    assert receiver.failure is None
    world.advance(1)
    assert isinstance(receiver.failure, SessionLockLost)
    assert world.bodies("s") == ["b"]


@pytest.mark.parametrize("step", STEPS)
def test_setting_the_clock_does_not_change_how_long_a_receiver_waits_for_a_session(step: int) -> None:
    world = World(session_queue())
    receiver = SessionReceiver(world, time_out=MINUTE)
    stepped(world, step)
    world.advance(MINUTE - 1)
    assert receiver.failure is None
    world.advance(1)
    assert isinstance(receiver.failure, OperationTimedOut)


@pytest.mark.parametrize("step", STEPS)
def test_setting_the_clock_does_not_change_when_an_idle_entity_is_deleted(step: int) -> None:
    world = World(
        QueueDefinition(name="q", auto_delete_on_idle_ms=HOUR),
        topic("t", subscription("s", auto_delete_on_idle_ms=HOUR)),
    )
    world.send("kept", to="t")
    stepped(world, step)
    world.advance(HOUR - 1)
    assert world.namespace.administration.queue("q")
    assert world.bodies("t/Subscriptions/s") == ["kept"]
    world.advance(1)
    assert [container.path for container in world.namespace.entities] == ["t"]


def test_the_time_of_last_use_follows_the_present_clock() -> None:
    world = World()
    world.send("a")
    world.advance(MINUTE)
    stepped(world, DAY)
    assert world.runtime().accessed_at == world.clock() - MINUTE


@pytest.mark.parametrize("step", STEPS)
def test_setting_the_clock_does_not_change_the_window_for_duplicates(step: int) -> None:
    world = World(
        QueueDefinition(name="q", requires_duplicate_detection=True, duplicate_detection_window_ms=10 * MINUTE)
    )
    world.send("one")
    stepped(world, step)
    world.advance(10 * MINUTE - 1)
    world.send("one")
    assert world.bodies() == ["one"]
    world.advance(1)
    world.send("one")
    assert world.bodies() == ["one", "one"]


def test_an_id_from_before_a_restart_is_not_remembered_longer_because_the_clock_was_set_back() -> None:
    world = World(
        QueueDefinition(name="q", requires_duplicate_detection=True, duplicate_detection_window_ms=10 * MINUTE)
    )
    world.send("one")
    world.clock.step(-DAY)
    world = world.restarted()
    world.send("one")
    assert world.bodies() == ["one"]
    world.advance(10 * MINUTE)
    world.send("one")
    assert world.bodies() == ["one", "one"]


@pytest.mark.parametrize("step", STEPS)
def test_a_transaction_has_its_two_minutes(step: int) -> None:
    world = World()
    transactions = Transactions(world.namespace.journal, world.namespace.agenda)
    outcomes: list[BrokerError | None] = []
    for wait in (TRANSACTION_TIME_LIMIT_MS - 1, TRANSACTION_TIME_LIMIT_MS):
        id = transactions.declare()
        transactions.get(id).send(world.queue(), [incoming("a")], Scope("q", None))
        stepped(world, step)
        world.advance(wait)
        try:
            transactions.discharge(id, fail=False, done=outcomes.append)
        except TransactionTimedOut as failure:
            outcomes.append(failure)
        world.run()
    assert [type(outcome) for outcome in outcomes] == [type(None), TransactionTimedOut]
    assert world.bodies() == ["a"]


@pytest.mark.parametrize("step", STEPS)
def test_setting_the_clock_does_not_change_the_delay_of_a_retry(step: int) -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("soon", ttl=SECOND)
    store.fails_to_read = True
    world.advance(SECOND)
    store.fails_to_read = False
    stepped(world, step)
    world.advance(10 * SECOND)
    if step > 0:
        assert world.bodies() == []
    stepped(world, -step)
    world.advance(10 * SECOND)
    assert world.bodies() == []


# --- moments ---


def test_messages_expire_by_the_system_clock() -> None:
    world = World()
    world.send("a", ttl=HOUR)
    stepped(world, -DAY)
    world.advance(2 * HOUR)
    assert world.bodies() == ["a"]
    stepped(world, DAY)
    assert world.bodies() == []


def test_scheduled_messages_are_enqueued_by_the_system_clock() -> None:
    world = World()
    due = world.clock() + HOUR
    world.send("a", at=due)
    receiver = Receiver(world, world.queue())
    stepped(world, -DAY)
    world.advance(2 * HOUR)
    assert receiver.bodies == []
    stepped(world, DAY)
    assert receiver.bodies == ["a"]
    assert receiver.got[0].enqueued_at == due


def test_a_message_that_expired_while_it_was_locked_may_still_be_completed() -> None:
    world = World()
    world.send("a", ttl=HOUR)
    (lock,) = Receiver(world, world.queue()).locks
    stepped(world, DAY)
    world.settle(world.queue().settlements.complete, lock)
    assert world.bodies() == []
    world.check()


# --- the agenda ---


def test_the_two_clocks_are_read_separately() -> None:
    clock = ManualClock(1000)
    agenda = Agenda(clock)
    done: list[str] = []
    agenda.at(1500, lambda: done.append("moment"))
    agenda.after(500, lambda: done.append("elapsed"))
    clock.step(500)
    agenda.run()
    assert done == ["moment"]
    assert agenda.next_due == 2000
    clock.step(-10_000)
    clock.advance(500)
    agenda.run()
    assert done == ["moment", "elapsed"]
    assert agenda.next_due is None


def test_actions_due_by_either_clock_run_in_the_order_of_time() -> None:
    clock = ManualClock(1000)
    agenda = Agenda(clock)
    done: list[int] = []
    for delay in (40, 10, 30, 20):
        add: Any = agenda.after if delay % 20 else lambda wait, action: agenda.at(1000 + wait, action)
        add(delay, lambda delay=delay: done.append(delay))
    clock.advance(50)
    agenda.run()
    assert done == [10, 20, 30, 40]


def test_the_owner_is_notified_of_an_earlier_action_by_either_clock() -> None:
    clock = ManualClock(1000)
    agenda = Agenda(clock)
    heard: list[int | None] = []
    agenda.on_earlier = lambda: heard.append(agenda.next_due)
    agenda.at(1050, lambda: None)
    agenda.after(40, lambda: None)
    assert heard == [1050, 1040]


def test_an_error_of_the_store_is_read_again_though_the_clock_was_set_back() -> None:
    store = FlakyStore()
    world = World(QueueDefinition(name="q", lock_duration_ms=MINUTE), store=store)
    world.send("a")
    world = World(QueueDefinition(name="q", lock_duration_ms=MINUTE), store=store)
    store.fails_to_read = True
    receiver = Receiver(world, world.queue())
    assert receiver.bodies == []
    store.fails_to_read = False
    stepped(world, -DAY)
    world.advance(10 * SECOND)
    assert receiver.bodies == ["a"]
