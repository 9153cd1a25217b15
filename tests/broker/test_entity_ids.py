"""Ids of entities are used again, and no entity has anything of the one that had its id before."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import (
    AwaitedStore,
    FlakyStore,
    World,
    subscription,
    topic,
)
from peeklock.broker.definitions import QueueDefinition, SubscriptionDefinition
from peeklock.broker.entity_ids import EntityIds
from peeklock.broker.errors import BrokerError, QuotaExceeded, StorageFailed
from peeklock.broker.journal import Journal
from peeklock.store.base import MAX_ENTITY, StoreError

FEW = 16
"""So many ids that all of them are used again and again."""


def queue(name: str = "q", **settings: Any) -> QueueDefinition:
    return QueueDefinition(name=name, **settings)


def create(world: World, definition: QueueDefinition) -> None:
    assert world.administer(world.administration.create_queue, definition) is None


def delete(world: World, name: str) -> None:
    assert world.administer(world.administration.delete_queue, name) is None


def ids_of(world: World, path: str) -> list[int]:
    container = world.namespace.container(path)
    parts = [container, container.dead_letters, container.transfer_dead_letters]
    return [part.entity for part in parts if part is not None]


# --- which id is next ---


class Ids:
    """Ids without a namespace, whose store answers when told to."""

    def __init__(self, highest: int) -> None:
        self.store = FlakyStore()
        self.store.open()
        self.turn: list[Any] = []
        self.journal = Journal(self.store, self.turn.append)
        self.ids = EntityIds(highest, self.journal, self.store)


def test_an_id_comes_again_only_after_all_others() -> None:
    ids = Ids(7).ids
    assert ids.take(3) == [1, 2, 3]
    ids.retire([1, 2, 3])
    assert ids.take(3) == [4, 5, 6]
    assert ids.take(3) == [7, 1, 2]
    ids.retire([5])
    assert ids.take(2) == [3, 5]
    assert ids.last == 5


def test_without_free_ids_none_is_taken() -> None:
    ids = Ids(7).ids
    ids.take(3)
    ids.take(3)
    for _ in range(2):
        with pytest.raises(QuotaExceeded, match=r"has 6 entities.*at most 7 can exist at once"):
            ids.take(3)
    assert ids.take(1) == [7]
    ids.release([2])
    assert ids.take(1) == [2]


def test_the_search_goes_on_after_a_restart_where_it_was() -> None:
    ids = Ids(10).ids
    ids.resume([1, 2, 6, 7], 5)
    assert ids.take(3) == [8, 9, 10]
    assert ids.take(3) == [3, 4, 5]
    ids.resume([1, 4], 0)  # from before that was written down
    assert ids.take(1) == [5]


def test_an_id_is_free_when_what_is_on_its_way_to_the_store_has_arrived() -> None:
    world = Ids(2)
    world.store.held = []
    world.ids.take(2)
    world.journal.rest.waiting.append((lambda _, error: None, None))
    world.journal.wake()
    world.turn.pop()()
    world.journal.rest.waiting.append((lambda _, error: None, None))
    world.ids.retire([1])
    for _ in range(2):
        with pytest.raises(QuotaExceeded):
            world.ids.take(1)
        world.store.release_commits()
        world.store.held = []
        world.journal.flush()
    assert not world.store.held
    assert world.ids.take(1) == [1]


def test_an_id_is_free_when_reads_that_were_asked_before_are_answered() -> None:
    world = Ids(3)
    world.ids.take(3)
    world.store.held_answers = []
    world.ids.retire([1])
    world.ids.retire([2])
    with pytest.raises(QuotaExceeded):
        world.ids.take(1)
    world.store.held_answers.pop(0)()
    assert world.ids.take(1) == [1]
    with pytest.raises(QuotaExceeded):
        world.ids.take(1)
    world.store.held_answers.pop(0)()
    assert world.ids.take(1) == [2]


# --- in a namespace ---


def test_creating_and_deleting_goes_on_for_ever(store: FlakyStore | AwaitedStore) -> None:
    """Whoever may manage one topic cannot keep others from creating entities."""
    world = World(queue("other"), topic("t"), store=store, highest_entity_id=FEW)
    given: set[int] = set()
    for turn in range(3 * FEW):
        name = f"s{turn}"
        assert world.administer(world.administration.create_subscription, "t", subscription(name)) is None
        given.update(ids_of(world, f"t/Subscriptions/{name}"))
        assert world.administer(world.administration.delete_subscription, "t", name) is None
        if turn % 10 == 9:
            world = world.restarted()
            create(world, queue("new"))
            assert world.send("hello", to="new") == [None]
            delete(world, "new")
    assert len(given) == FEW - 5, "the namespace, the queue and the topic keep theirs"
    world.check()


def test_as_many_entities_as_there_are_ids_can_exist_at_once() -> None:
    world = World(queue("first"), highest_entity_id=FEW)
    for number in range(4):
        create(world, queue(f"q{number}"))
    for _ in range(2):
        with pytest.raises(QuotaExceeded, match="Delete entities"):
            world.administration.create_queue(queue("one-too-many"), lambda error: None)
    assert world.send("hello", to="q3") == [None]
    delete(world, "q3")
    create(world, queue("one-too-many"))  # and its name is not taken by the attempts
    world.check()


def test_a_creation_that_failed_gives_its_ids_back() -> None:
    store = FlakyStore()
    world = World(queue("first"), store=store, highest_entity_id=7)
    store.fails = lambda changes: StoreError("not now")
    for _ in range(5):
        outcome = world.administer(world.administration.create_queue, queue())
        assert isinstance(outcome, StorageFailed)
    store.fails = lambda changes: None
    create(world, queue())


def test_two_creations_at_once_have_ids_of_their_own() -> None:
    world = World(queue("first"), highest_entity_id=FEW)
    outcomes: list[BrokerError | None] = []
    for number in range(4):
        world.administration.create_queue(queue(f"q{number}"), outcomes.append)
    world.run()
    assert outcomes == [None] * 4
    world.check()
    ids = [id for path in ("first", "q0", "q1", "q2", "q3") for id in ids_of(world, path)]
    assert len(set(ids)) == 15


def test_by_default_there_are_half_a_million() -> None:
    world = World()
    assert world.namespace._catalogue._ids._highest == MAX_ENTITY == 524_287


def reuse(world: World, id: int, definition: QueueDefinition) -> None:
    """Create it until its own id is that one."""
    for _ in range(MAX_ENTITY):
        create(world, definition)
        if world.namespace.container(definition.name).entity == id:
            return
        delete(world, definition.name)


def test_a_body_that_outlives_its_topic_is_not_taken_for_that_of_another_message(
    store: FlakyStore | AwaitedStore,
) -> None:
    """The topic that comes after has the id of the first, and starts its numbers again."""
    forwarding = SubscriptionDefinition(name="forwarding", forward_to="kept")
    world = World(queue("kept"), topic("t", "a", forwarding), store=store, highest_entity_id=FEW)
    first = world.topic().entity
    for turn in range(3):
        old, new = f"{turn} old" * 100, f"{turn} new" * 100
        assert world.send(old, to="t") == [None]
        assert world.administer(world.administration.delete_topic, "t") is None
        while True:
            assert world.administer(world.administration.create_topic, topic()) is None
            if world.topic().entity == first:
                break
            assert world.administer(world.administration.delete_topic, "t") is None
        for each in (SubscriptionDefinition(name="a"), forwarding):
            assert world.administer(world.administration.create_subscription, "t", each) is None
        assert world.send(new, to="t") == [None]
        assert world.bodies("t/Subscriptions/a") == [new]
        assert world.bodies("kept")[-2:] == [old, new]
        world.check()
        if turn:
            world = world.restarted()
        assert world.bodies("t/Subscriptions/a") == [new]
        assert world.bodies("kept")[-2:] == [old, new]
        assert len({each.body.key for each in world.stored("kept") if each.body is not None}) == 2 * (turn + 1)
