"""The size of entities and messages includes states of sessions and added properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.world import FlakyStore, Receiver, SessionReceiver, World, session_queue, subscription, topic
from peeklock.broker.errors import BrokerError, MessageSizeExceeded, QuotaExceeded
from peeklock.broker.locks import Lock
from peeklock.broker.session_states import STATE_BYTES
from peeklock.broker.verdicts import Settlement, Verdict
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.settings import PROFILES
from peeklock.store.base import StoreError

MEGABYTE = 1 << 20
LIMIT = PROFILES["standard"].max_message_bytes
Settle = Callable[[World, list[Lock], dict[str, Any]], None]


def ignore(error: BrokerError | None) -> None: ...


def set_state(world: World, session: str, state: bytes | None) -> BrokerError | None:
    outcomes: list[BrokerError | None] = []
    world.sessions().states.set(session, state, outcomes.append)
    world.run()
    return outcomes[0]


# --- states ---


def test_session_states_count_towards_the_size_of_their_queue_also_after_a_restart() -> None:
    world = World(session_queue())
    for name in ("a", "b"):
        SessionReceiver(world, name)
    assert set_state(world, "a", b"x" * 1000) is None
    assert set_state(world, "b", b"") is None
    assert world.sessions().size_in_bytes == 1000 + 2 * STATE_BYTES
    assert set_state(world, "a", b"x") is None
    assert world.sessions().size_in_bytes == 1 + 2 * STATE_BYTES
    again = World(session_queue(), store=world.store)
    assert again.sessions().size_in_bytes == 1 + 2 * STATE_BYTES
    SessionReceiver(again, "a")
    assert set_state(again, "a", None) is None
    assert again.sessions().size_in_bytes == STATE_BYTES


def test_a_queue_full_of_session_states_refuses_messages_and_longer_states() -> None:
    world = World(session_queue(max_size_in_megabytes=1))
    for name in ("a", "b"):
        SessionReceiver(world, name)
    assert set_state(world, "a", b"x" * MEGABYTE) is None
    with pytest.raises(QuotaExceeded, match="maximum size of 1 MB"):
        set_state(world, "b", b"")
    with pytest.raises(QuotaExceeded):
        world.send("one", to="s", session_id="b")
    assert set_state(world, "a", b"shorter") is None
    assert world.send("one", to="s", session_id="b") == [None]


def test_session_states_being_stored_count() -> None:
    store = FlakyStore()
    world = World(session_queue(max_size_in_megabytes=1), store=store)
    for name in ("a", "b"):
        SessionReceiver(world, name)
    store.held = []
    world.sessions().states.set("a", b"x" * MEGABYTE, ignore)
    world.run()
    with pytest.raises(QuotaExceeded):
        world.sessions().states.set("b", b"", ignore)
    store.fails = lambda changes: StoreError("not now")
    store.release_commits()
    world.run()
    assert world.sessions().size_in_bytes == 0
    store.fails = lambda changes: None
    assert set_state(world, "b", b"") is None


# --- properties that are added ---


def abandon(world: World, locks: list[Lock], properties: dict[str, Any]) -> None:
    world.queue().settlements.abandon(locks[0], ignore, properties)


def abandon_all(world: World, locks: list[Lock], properties: dict[str, Any]) -> None:
    world.queue().settlements.abandon_all(locks, ignore, properties)


def defer(world: World, locks: list[Lock], properties: dict[str, Any]) -> None:
    world.queue().settlements.defer(locks[0], ignore, properties)


def defer_all(world: World, locks: list[Lock], properties: dict[str, Any]) -> None:
    world.queue().settlements.defer_all(locks, ignore, properties)


def dead_letter(world: World, locks: list[Lock], properties: dict[str, Any]) -> None:
    world.queue().settlements.dead_letter(locks[0], ignore, "reason", "description", properties)


ALL = pytest.mark.parametrize("settle", [abandon, abandon_all, defer, defer_all, dead_letter])


@ALL
def test_properties_may_not_make_a_message_exceed_the_entitys_limit(settle: Settle) -> None:
    world = World()
    world.send("x" * (LIMIT // 2), "y" * (LIMIT // 2))
    receiver = Receiver(world, world.queue(), credit=2)
    with pytest.raises(MessageSizeExceeded, match="With these properties"):
        settle(world, receiver.locks, {"p": "z" * (LIMIT // 2)})
    settle(world, receiver.locks, {"p": "z" * (LIMIT // 4)})  # and nothing was changed before
    world.run()
    world.check()


@ALL
def test_added_properties_are_refused_if_the_entity_is_full(settle: Settle) -> None:
    world = World(QueueDefinition(name="q", max_size_in_megabytes=1))
    world.send(*["x" * (LIMIT - 1000)] * 5)
    receiver = Receiver(world, world.queue(), credit=2)
    with pytest.raises(QuotaExceeded):
        settle(world, receiver.locks, {"p": "z"})
    settle(world, receiver.locks, {})
    world.run()
    world.check()


def test_a_message_as_large_as_may_be_can_be_dead_lettered_with_a_reason() -> None:
    world = World()
    world.send("x" * (LIMIT - 100))
    receiver = Receiver(world, world.queue())
    world.queue().settlements.dead_letter(receiver.locks[0], ignore, "r" * 4096, "d" * 4096)
    world.run()
    assert world.queue().counters.active == 0
    world.check()


def test_a_property_that_replaces_a_longer_one_is_accepted() -> None:
    world = World()
    world.send("x")
    receiver = Receiver(world, world.queue())
    for letter in "abc":
        world.queue().settlements.abandon(receiver.locks[-1], ignore, {"p": letter * (LIMIT - 1000)})
        world.run()
    assert len(receiver.locks) == 4


@ALL
def test_properties_count_before_they_are_durable(settle: Settle) -> None:
    store = FlakyStore()
    world = World(QueueDefinition(name="q", max_size_in_megabytes=1), store=store)
    world.send(*["x"] * 10)
    receiver = Receiver(world, world.queue(), credit=10)
    large = {"p": "z" * (LIMIT - 1000)}
    store.held = []
    for lock in receiver.locks[:5]:
        settle(world, [lock], large)
    with pytest.raises(QuotaExceeded):
        settle(world, receiver.locks[5:6], large)
    store.fails = lambda changes: StoreError("not now")
    store.release_commits()
    world.run()
    store.fails = lambda changes: None
    settle(world, receiver.locks[5:6], large)  # what was not stored counts no more
    world.run()
    assert LIMIT - 1000 < world.queue().size_in_bytes < LIMIT + 1000
    world.check()


def abandon_many(world: World, locks: list[Lock], properties: dict[str, Any]) -> None:
    world.queue().settlements.abandon_all(locks, ignore, properties)


def dead_letter_many(world: World, locks: list[Lock], properties: dict[str, Any]) -> None:
    world.queue().settlements.settle_all(Settlement(Verdict.DEAD_LETTER, properties), locks, ignore)


MANY = pytest.mark.parametrize("settle", [abandon_many, defer_all, dead_letter_many])


@MANY
def test_properties_for_many_messages_count_for_each_message(settle: Settle) -> None:
    world = World(QueueDefinition(name="q", max_size_in_megabytes=1))
    world.send(*["x"] * 10)
    receiver = Receiver(world, world.queue(), credit=10)
    with pytest.raises(QuotaExceeded, match="maximum size of 1 MB"):
        settle(world, receiver.locks, {"p": "z" * (LIMIT // 2)})
    settle(world, receiver.locks, {"p": "z" * (LIMIT // 4)})  # and nothing was changed before
    world.run()
    assert world.queue().size_in_bytes > LIMIT * 10 // 4
    world.check()


@MANY
def test_properties_for_many_messages_are_bounded_in_bytes(settle: Settle) -> None:
    world = World()
    world.send(*["x"] * 100)
    receiver = Receiver(world, world.queue(), credit=100)
    with pytest.raises(QuotaExceeded, match="16 MiB"):
        settle(world, receiver.locks, {"p": "z" * (LIMIT - 1000)})
    settle(world, receiver.locks[:50], {"p": "z" * (LIMIT - 1000)})
    world.run()
    world.check()


def test_a_full_entity_accepts_a_limited_size_of_dead_letter_reasons() -> None:
    world = World(QueueDefinition(name="q", max_size_in_megabytes=1))
    world.send(*["x" * (MEGABYTE // 5)] * 4, *["y"] * 200)
    receiver = Receiver(world, world.queue(), credit=204)
    world.send("z" * (MEGABYTE // 5))  # now it is full
    with pytest.raises(QuotaExceeded):
        world.send("one more")
    refused = 0
    for lock in receiver.locks:
        try:
            world.queue().settlements.dead_letter(lock, ignore, "r" * 4096, "d" * 4096)
        except QuotaExceeded:
            refused += 1
            world.queue().settlements.dead_letter(lock, ignore)
    assert 100 < refused < 200
    world.run()
    assert world.queue().counters.active == 1
    assert world.queue().size_in_bytes < MEGABYTE * 3 // 2
    world.check()


# --- what counts in the size of another entity ---


def test_properties_and_session_states_of_a_subscription_count_towards_its_topic() -> None:
    definition = replace(topic("t", "s", subscription("z", requires_session=True)), max_size_in_megabytes=1)
    world = World(definition)
    world.send(*["x"] * 10, to="t", session_id="a")
    receiver = Receiver(world, world.queue("t/Subscriptions/s"), credit=10)
    large = {"p": "z" * (LIMIT - 1000)}
    for lock in receiver.locks[:5]:
        world.queue("t/Subscriptions/s").settlements.abandon(lock, ignore, large)
    with pytest.raises(QuotaExceeded, match="The topic 't' has reached its maximum size of 1 MB"):
        world.queue("t/Subscriptions/s").settlements.abandon(receiver.locks[5], ignore, large)
    sessions = world.sessions("t/Subscriptions/z")
    SessionReceiver(world, "a", path="t/Subscriptions/z")
    with pytest.raises(QuotaExceeded):
        sessions.states.set("a", b"x", ignore)


def test_properties_added_to_dead_letters_count_towards_their_queue() -> None:
    world = World(QueueDefinition(name="q", max_size_in_megabytes=1))
    world.send(*["x" * (LIMIT - 1000)] * 5)
    receiver = Receiver(world, world.queue())
    world.queue().settlements.dead_letter(receiver.locks[0], ignore)
    world.run()
    letters = world.queue("q/$DeadLetterQueue")
    receiver = Receiver(world, letters)
    with pytest.raises(QuotaExceeded):
        letters.settlements.abandon(receiver.locks[0], ignore, {"p": "z"})
