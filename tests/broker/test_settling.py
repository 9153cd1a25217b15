"""A request for a message whose settlement is being committed waits for the outcome of the commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.world import MINUTE, FlakyStore, Receiver, World, encoded
from peeklock.amqp.message import Properties
from peeklock.broker.errors import BrokerError, InvalidProperty, SessionCannotBeLocked
from peeklock.broker.incoming import read_incoming
from peeklock.broker.locks import Lock
from peeklock.broker.session import Session
from peeklock.broker.session_queue import SessionQueue
from peeklock.entities.definitions import QueueDefinition
from peeklock.store.base import StoredMessage


class Holder:
    """Holds a session with a credit of 100."""

    deletes = False
    selector = None

    def __init__(self) -> None:
        self.session: Session | BrokerError | None = None
        self.locks: list[Lock] = []

    def accepted(self, outcome: Session | BrokerError) -> None:
        self.session = outcome

    def ready(self) -> bool:
        return len(self.locks) < 100

    def reserve(self, message: StoredMessage) -> None: ...

    def unreserve(self, message: StoredMessage) -> None: ...

    def on_starved(self) -> None: ...

    def on_session_lost(self, failure: BrokerError) -> None:
        self.session = failure

    def deliver(self, message: StoredMessage, lock: Lock | None) -> None:
        assert lock is not None
        self.locks.append(lock)


class SlowStore(FlakyStore):
    """A store whose commits wait from `hold` to `release`."""

    def hold(self) -> None:
        self.held = []

    def release(self, world: World) -> None:
        held, self.held = self.held or [], None
        for commit in held:
            commit()
        world.run()


def world_with_a_session() -> tuple[World, SlowStore, SessionQueue, Holder, Session]:
    """Return a world with a held session, whose one message was delivered."""
    store = SlowStore()
    world = World(QueueDefinition(name="q", requires_session=True, lock_duration_ms=MINUTE), store=store)
    queue = world.queue()
    assert isinstance(queue, SessionQueue)
    send_to_session(world, queue)
    holder = Holder()
    session = queue.sessions.accept("s", holder)
    queue.want(session)
    world.run()
    assert len(holder.locks) == 1
    return world, store, queue, holder, session


def send_to_session(world: World, queue: SessionQueue) -> None:
    outcomes: list[BrokerError | None] = []
    queue.send([read_incoming(encoded("m", properties=Properties(group_id="s")), True)], outcomes.append)
    world.run()
    assert outcomes == [None]


def fetched(world: World, fetch: Callable[[Callable[[Any], None]], None]) -> list[Any]:
    answers: list[Any] = []
    fetch(answers.append)
    world.run()
    return answers


def test_a_deferred_message_is_fetched_while_its_expired_lock_is_being_stored() -> None:
    store = SlowStore()
    world = World(QueueDefinition(name="q", lock_duration_ms=MINUTE), store=store)
    queue = world.queue()
    world.send("m")
    receiver = Receiver(world, queue)
    queue.settlements.defer(receiver.locks[0], lambda error: None)
    world.run()
    (first,) = fetched(world, lambda done: queue.deferred.receive([1], None, False, done))
    store.hold()
    world.advance(MINUTE)
    again = fetched(world, lambda done: queue.deferred.receive([1], None, False, done))
    assert again == []
    store.release(world)
    ((message, lock),) = again[0]
    assert message.sequence_number == 1
    assert lock.tag != first[0][1].tag


def test_a_session_is_accepted_after_its_pending_last_completion() -> None:
    world, store, queue, holder, session = world_with_a_session()
    store.hold()
    queue.settlements.complete(holder.locks[0], lambda error: None)
    world.run()
    queue.sessions.close_session(session, holder)
    following = Holder()
    waiter = queue.sessions.accept_when_settled("s", following, following.accepted)
    world.run()
    assert waiter is not None
    assert following.session is None
    store.release(world)
    assert isinstance(following.session, Session)
    assert queue.sessions.held("s") is following.session


def test_a_client_that_stops_waiting_does_not_get_the_session() -> None:
    world, store, queue, holder, session = world_with_a_session()
    store.hold()
    queue.settlements.complete(holder.locks[0], lambda error: None)
    world.run()
    queue.sessions.close_session(session, holder)
    first, second = Holder(), Holder()
    waiter = queue.sessions.accept_when_settled("s", first, first.accepted)
    assert waiter is not None
    queue.sessions.stop_waiting(waiter)
    store.release(world)
    assert first.session is None
    queue.sessions.accept_when_settled("s", second, second.accepted)
    assert isinstance(second.session, Session)


def test_only_one_of_two_waiting_receivers_gets_the_session() -> None:
    world, store, queue, holder, session = world_with_a_session()
    store.hold()
    queue.settlements.complete(holder.locks[0], lambda error: None)
    world.run()
    queue.sessions.close_session(session, holder)
    first, second = Holder(), Holder()
    for each in (first, second):
        queue.sessions.accept_when_settled("s", each, each.accepted)
    store.release(world)
    assert isinstance(first.session, Session)
    assert isinstance(second.session, SessionCannotBeLocked)


def test_a_session_unlocked_during_a_fetch_is_available() -> None:
    world, store, queue, holder, session = world_with_a_session()
    queue.settlements.defer(holder.locks[0], lambda error: None)
    world.run()
    store.hold()
    fetched(world, lambda done: queue.deferred.receive([1], "s", False, done))
    queue.sessions.close_session(session, holder)
    store.release(world)
    following = Holder()
    queue.sessions.accept_when_settled("s", following, following.accepted)
    assert isinstance(following.session, Session)
    ((message, _),) = fetched(world, lambda done: queue.deferred.receive([1], "s", False, done))[0]
    assert message.sequence_number == 1


def test_a_settlement_that_cannot_be_written_leaves_the_message_settleable() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue())
    lock = receiver.locks[0]
    for act in (world.queue().settlements.abandon, world.queue().settlements.defer):
        with pytest.raises(InvalidProperty):
            act(lock, lambda error: None, {"impossible": object()})
    with pytest.raises(InvalidProperty):
        world.queue().settlements.dead_letter(lock, lambda error: None, properties={"impossible": object()})
    outcomes: list[BrokerError | None] = []
    world.queue().settlements.complete(lock, outcomes.append)
    world.run()
    assert outcomes == [None]
