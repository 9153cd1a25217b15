"""A namespace: what the store has and what the definition wants become the entities that are served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from broker.world import SECOND, FlakyStore, Receiver, World
from peeklock.broker.agenda import ManualClock
from peeklock.broker.definitions import (
    AuthorizationRule,
    NamespaceDefinition,
    QueueDefinition,
    Right,
    TopicDefinition,
)
from peeklock.broker.errors import BrokerError, EntityNotFound, NotSupported, StorageFull
from peeklock.broker.names import DefinitionError
from peeklock.broker.namespace import PROBE_INTERVAL_MS, Namespace
from peeklock.store.base import StoreError, StoreFull
from peeklock.store.memory import MemoryStore


def entities(store: MemoryStore) -> dict[str, int]:
    return {entity.path: entity.id for entity in store.open()}


def test_each_queue_has_its_dead_letter_queue() -> None:
    world = World(QueueDefinition(name="a/queue"))
    queue = world.queue("a/queue")
    assert queue.dead_letters is world.queue("a/queue/$DeadLetterQueue")
    assert world.namespace.queues == [queue]
    assert world.queue("a/queue/$deadletterqueue").is_dead_letter_queue


@pytest.mark.parametrize("spelling", ["Orders", "orders", "ORDERS"])
def test_a_queue_is_found_in_any_case_and_shown_as_it_was_created(spelling: str) -> None:
    world = World(QueueDefinition(name="Orders"))
    assert world.queue(spelling).path == "Orders"


@pytest.mark.parametrize("path", ["nowhere", "", "q/", "q/x", "q/$DeadLetterQueue/$DeadLetterQueue"])
def test_what_is_not_there_is_not_found(path: str) -> None:
    world = World()
    with pytest.raises(EntityNotFound, match="could not be found") as missing:
        world.queue(path)
    assert missing.value.status == 404


def test_a_topic_is_told_from_what_is_not_there() -> None:
    store = FlakyStore()
    turn: deque[Callable[[], None]] = deque()
    definition = NamespaceDefinition(topics=(TopicDefinition(name="news"),))
    namespace = Namespace(definition, store, turn.append, clock=ManualClock())
    namespace.start(lambda error: None)
    for path in ("news", "NEWS/Subscriptions/all"):
        with pytest.raises(NotSupported, match="topic"):
            namespace.queue(path)


# --- over restarts ---


def test_entities_keep_their_numbers_and_messages_over_a_restart() -> None:
    store = FlakyStore()
    first = World(QueueDefinition(name="q"), QueueDefinition(name="r"), store=store)
    first.send("kept", to="r")
    before = entities(store)
    second = World(QueueDefinition(name="r"), QueueDefinition(name="q"), store=store)
    assert entities(store) == before
    assert Receiver(second, second.queue("r")).bodies == ["kept"]


def test_a_start_that_changes_nothing_writes_nothing() -> None:
    store = FlakyStore()
    World(store=store)
    commits: list[object] = []

    def count(changes: object) -> StoreError | None:
        commits.append(changes)
        return None

    store.fails = count
    World(store=store)
    assert commits == []


def test_a_queue_that_the_definition_does_not_name_stays_with_its_settings() -> None:
    store = FlakyStore()
    first = World(QueueDefinition(name="old", max_delivery_count=3), store=store)
    first.send("kept", to="old")
    second = World(QueueDefinition(name="new"), store=store)
    assert {queue.path for queue in second.namespace.queues} == {"old", "new"}
    assert second.queue("old").definition.max_delivery_count == 3
    assert Receiver(second, second.queue("old")).bodies == ["kept"]


def test_a_queue_that_the_definition_names_takes_its_settings() -> None:
    store = FlakyStore()
    World(QueueDefinition(name="q", lock_duration_ms=30 * SECOND), store=store)
    World(QueueDefinition(name="Q", lock_duration_ms=10 * SECOND), store=store)
    third = World(QueueDefinition(name="other"), store=store)
    assert third.queue("q").definition.lock_duration_ms == 10 * SECOND
    assert third.queue("Q").path == "q", "the spelling it was created with"


def test_settings_that_are_fixed_cannot_be_changed() -> None:
    store = FlakyStore()
    World(QueueDefinition(name="q"), store=store)
    with pytest.raises(DefinitionError, match="RequiresSession of 'q' true: cannot be changed"):
        World(QueueDefinition(name="q", requires_session=True), store=store)


def test_sequence_numbers_go_on_where_they_were_though_the_queue_is_empty() -> None:
    store = FlakyStore()
    first = World(store=store)
    first.send("a", "b")
    receiver = Receiver(first, first.queue())
    for lock in receiver.locks:
        first.queue().complete(lock, lambda error: None)
    first.run()
    second = World(store=store)
    second.send("c")
    assert Receiver(second, second.queue()).numbers == [3]


def test_a_store_that_cannot_keep_the_entities_is_told() -> None:
    store = FlakyStore()
    store.fails = lambda changes: StoreError("on fire")
    turn: deque[Callable[[], None]] = deque()
    namespace = Namespace(NamespaceDefinition(queues=(QueueDefinition(name="q"),)), store, turn.append)
    told: list[StoreError | None] = []
    namespace.start(told.append)
    assert str(told[0]) == "on fire"


# --- keys ---


def test_the_keys_of_the_namespace_and_of_its_queues_are_known_also_of_stored_ones() -> None:
    rule = AuthorizationRule(name="sender", primary_key="k", rights=frozenset({Right.SEND}))
    store = FlakyStore()
    World(QueueDefinition(name="Old", authorization_rules=(rule,)), store=store)
    world = World(QueueDefinition(name="new"), store=store)
    assert [claim.path for claim in world.namespace.keys.claims_for("sender", "k")] == ["old"]
    assert world.namespace.keys.claims_for("RootManageSharedAccessKey", "SAS_KEY_VALUE")


# --- a store that fails ---


def fill(world: World, store: FlakyStore) -> None:
    store.fails = lambda changes: StoreFull("no room") if changes.appends else None
    assert [type(outcome) for outcome in world.send("too much")] == [StorageFull]


def test_a_store_that_failed_is_tried_again_until_it_works() -> None:
    store = FlakyStore()
    world = World(store=store)
    fill(world, store)
    for _ in range(3):
        world.advance(PROBE_INTERVAL_MS)
        assert world.namespace.journal.failure is not None
    store.fails = lambda changes: None
    world.advance(PROBE_INTERVAL_MS)
    assert world.namespace.journal.failure is None
    world.advance(10 * PROBE_INTERVAL_MS)
    assert world.namespace.agenda.next_due is None


def test_trying_the_store_leaves_no_message_behind() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("before")
    fill(world, store)
    store.fails = lambda changes: None
    world.advance(PROBE_INTERVAL_MS)
    world.send("after")
    assert Receiver(world, world.queue()).bodies == ["before", "after"]
    again = World(store=store)
    assert Receiver(again, again.queue()).bodies == ["before", "after"]
    assert again.queue().counters.active == 2


def test_a_send_that_works_ends_the_trying() -> None:
    store = FlakyStore()
    world = World(store=store)
    fill(world, store)
    store.fails = lambda changes: None
    outcomes: list[BrokerError | None] = world.send("fits")
    assert outcomes == [None]
    assert world.namespace.journal.failure is None
    world.advance(PROBE_INTERVAL_MS)
    assert Receiver(world, world.queue()).bodies == ["fits"]


def test_a_receiver_that_waits_is_served_after_a_read_that_failed() -> None:
    class Unreadable(FlakyStore):
        broken = False

        def read(self, wanted, done):  # type: ignore[no-untyped-def]
            if self.broken:
                done(StoreError("a bad sector"))
            else:
                super().read(wanted, done)

    store = Unreadable()
    first = World(store=store)
    first.send("a")
    second = World(store=store)
    store.broken = True
    receiver = Receiver(second, second.queue())
    assert receiver.bodies == []
    store.broken = False
    second.advance(SECOND)
    assert receiver.bodies == ["a"]
