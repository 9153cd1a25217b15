"""The start of a namespace: stored entities are merged with those of the definition."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from broker.world import (
    SECOND,
    FlakyStore,
    Receiver,
    World,
    correlation,
    encoded,
    sql,
    subscription,
    topic,
)
from peeklock.broker.errors import BrokerError, EntityNotFound, OperationNotAllowed, StorageFull
from peeklock.broker.namespace import Namespace
from peeklock.broker.retries import RETRY_MS
from peeklock.entities.authorization import AuthorizationRule, Right
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.names import DefinitionError
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.store.base import Changes, StoredEntity, StoredMessage, StoreError, StoreFull
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
def test_queue_names_are_case_insensitive_and_keep_their_spelling(spelling: str) -> None:
    world = World(QueueDefinition(name="Orders"))
    assert world.queue(spelling).path == "Orders"


@pytest.mark.parametrize("path", ["nowhere", "", "q/", "q/x", "q/$DeadLetterQueue/$DeadLetterQueue"])
def test_an_unknown_entity_is_not_found(path: str) -> None:
    world = World()
    with pytest.raises(EntityNotFound, match="could not be found") as missing:
        world.queue(path)
    assert missing.value.status == 404


def test_the_errors_for_a_topic_and_an_unknown_entity_differ() -> None:
    world = World(topic("news", "all"))
    assert world.namespace.entity("NEWS") is world.topic("news")
    with pytest.raises(OperationNotAllowed, match="'news' is a topic"):
        world.queue("news")
    for path in ("news/Subscriptions/none", "news/Subscriptions", "news/$DeadLetterQueue", "other"):
        with pytest.raises(EntityNotFound):
            world.namespace.entity(path)
    assert world.namespace.queues == []


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


def test_a_defined_queue_gets_the_settings_of_its_definition() -> None:
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
        first.queue().settlements.complete(lock, lambda error: None)
    first.run()
    second = World(store=store)
    second.send("c")
    assert Receiver(second, second.queue()).numbers == [3]


def test_a_failure_to_store_the_entities_is_reported() -> None:
    store = FlakyStore()
    store.fails = lambda changes: StoreError("on fire")
    turn: deque[Callable[[], None]] = deque()
    namespace = Namespace(NamespaceDefinition(queues=(QueueDefinition(name="q"),)), store, turn.append)
    told: list[StoreError | None] = []
    namespace.start(told.append)
    assert str(told[0]) == "on fire"


# --- what the store has and what the file says ---


def again(world: World, *entities: Any, only_if_empty: bool = False) -> World:
    """Restart the broker with another configuration file."""
    return World(*entities, store=world.store, now=world.clock(), only_if_empty=only_if_empty)


def rules(world: World, name: str = "a") -> dict[str, str | None]:
    return {rule.name: rule.sql_expression for rule in world.administration.rules("t", name)}


def test_a_file_that_is_only_a_start_changes_nothing_that_is_there() -> None:
    first = World(QueueDefinition(name="q"), topic("t", "a"))
    administration = first.administration
    assert first.administer(administration.update_queue, QueueDefinition(name="q", max_delivery_count=2)) is None
    assert first.administer(administration.create_queue, QueueDefinition(name="r")) is None
    assert first.administer(administration.delete_topic, "t") is None
    second = again(first, QueueDefinition(name="q"), topic("t", "a"), only_if_empty=True)
    assert second.queue().definition.max_delivery_count == 2
    assert sorted(each.path for each in second.namespace.queues) == ["q", "r"]
    with pytest.raises(EntityNotFound):
        second.topic()


def test_a_file_that_is_only_a_start_fills_a_store_that_has_nothing() -> None:
    world = World(QueueDefinition(name="q"), topic("t", "a"), only_if_empty=True)
    assert world.queue().path == "q"
    assert world.subscription("a").path == "t/Subscriptions/a"


def test_the_configuration_file_creates_its_deleted_entities_again() -> None:
    first = World(QueueDefinition(name="q"), topic("t", "a"))
    first.send("kept", to="t")
    assert first.administer(first.administration.delete_queue, "q") is None
    second = again(first, QueueDefinition(name="q"), topic("T", "A", subscription("b", requires_session=True)))
    assert second.queue().counters.active == 0
    assert second.bodies("t/Subscriptions/a") == ["kept"]
    assert second.subscription("b").path == "t/Subscriptions/b", "under the topic as it was spelt"
    second.check()


def test_topics_and_subscriptions_take_the_settings_of_the_file() -> None:
    first = World(topic("t", "a"))
    created_at = first.clock()
    first.advance(SECOND)
    changed = topic("t", subscription("a", max_delivery_count=2), default_message_ttl_ms=SECOND)
    second = again(first, changed)
    for path in ("t", "t/Subscriptions/a"):
        told = second.runtime(path)
        assert (told.created_at, told.updated_at) == (created_at, second.clock())
    third = again(second, QueueDefinition(name="other"))
    assert third.topic().definition.default_message_ttl_ms == SECOND
    assert third.subscription("a").definition.max_delivery_count == 2


def test_a_file_cannot_make_a_queue_of_a_topic() -> None:
    first = World(topic("name", "a"), QueueDefinition(name="q"))
    with pytest.raises(DefinitionError, match="name of a topic"):
        again(first, QueueDefinition(name="NAME"))
    with pytest.raises(DefinitionError, match="name of a queue"):
        again(first, topic("Q"))
    with pytest.raises(DefinitionError, match="RequiresSession of 'a' true"):
        again(first, topic("name", subscription("a", requires_session=True)))


def test_rules_of_the_file_are_added_and_changed_and_none_is_removed() -> None:
    first = World(topic("t", subscription("a", sql("mine", "x = 1"), sql("kept", "x = 2"))))
    dated = first.administration.rule("t", "a", "mine").created_at
    assert first.administer(first.administration.create_rule, "t", "a", sql("live", "x = 3")) is None
    first.advance(SECOND)
    second = again(first, topic("t", subscription("a", sql("MINE", "x = 4"), sql("new", "x = 5"))))
    assert rules(second) == {"mine": "x = 4", "kept": "x = 2", "live": "x = 3", "new": "x = 5"}
    assert second.administration.rule("t", "a", "mine").created_at == dated
    assert second.administration.rule("t", "a", "new").created_at == second.clock()


def test_the_default_rule_is_removed_if_the_file_has_rules() -> None:
    first = World(topic("t", "a"))
    second = again(first, topic("t", subscription("a", sql("r", "x = 1"))))
    assert rules(second) == {"r": "x = 1"}
    third = again(second, topic("t", "a"))
    assert rules(third) == {"r": "x = 1"}, "a file that says nothing of rules leaves them"


def test_a_default_rule_that_was_deleted_stays_deleted() -> None:
    first = World(topic("t", "a"))
    assert first.administer(first.administration.create_rule, "t", "a", sql("r", "x = 1")) is None
    assert first.administer(first.administration.delete_rule, "t", "a", "$Default") is None
    second = again(first, topic("t", "a"))
    assert rules(second) == {"r": "x = 1"}
    second.send("one", to="t")
    assert second.bodies("t/Subscriptions/a") == []


def test_a_rule_of_the_file_that_is_not_well_formed_is_refused_before_anything_is_stored() -> None:
    store = FlakyStore()
    with pytest.raises(DefinitionError, match="SqlFilter"):
        World(QueueDefinition(name="q"), topic("t", subscription("a", sql("r", "x = "))), store=store)
    assert store.open() == []
    world = World(topic("t", "a"), store=store)
    with pytest.raises(DefinitionError, match="Action"):
        again(world, topic("t", subscription("a", sql("r", "x = 1", "SET"))))
    assert rules(again(world, topic("t", "a"))) == {"$Default": None}


def test_a_start_with_topics_that_changes_nothing_writes_nothing() -> None:
    store = FlakyStore()
    definition = topic("t", subscription("a", sql("r", "x = 1"), correlation("c", label="x")), "b")
    World(definition, QueueDefinition(name="q", forward_to="t"), store=store)
    commits: list[object] = []
    store.fails = lambda changes: commits.append(changes)
    World(definition, QueueDefinition(name="q", forward_to="t"), store=store)
    assert commits == []


def test_missing_data_is_added_to_a_store_of_an_earlier_version() -> None:
    store = FlakyStore()
    queue = QueueDefinition(name="q").to_json()
    rows = [StoredEntity(1, "q/$DeadLetterQueue", "dead-letter-queue", {}), StoredEntity(2, "q", "queue", queue)]
    store.open()
    store.commit(
        Changes(entities={row.id: row for row in rows}, appends=[(2, StoredMessage(1, encoded("old"), 5))]),
        lambda error: None,
    )
    store.close()
    world = World(QueueDefinition(name="q"), store=store)
    assert world.unforwarded().counters.active == 0
    assert Receiver(world, world.queue()).bodies == ["old"]
    assert (world.queue().id, world.dead_letters().id) == (2, 1)
    world.check()
    assert entities(store) == entities(world.restarted().store)  # type: ignore[arg-type]


# --- keys ---


def test_the_keys_of_the_namespace_and_of_its_queues_are_known_also_of_stored_ones() -> None:
    rule = AuthorizationRule(name="sender", primary_key="k", rights=frozenset({Right.SEND}))
    store = FlakyStore()
    World(QueueDefinition(name="Old", authorization_rules=(rule,)), store=store)
    world = World(QueueDefinition(name="new"), store=store)
    assert [grant.path for grant in world.namespace.keys.grants_for("sender", "k")] == ["old"]
    assert world.namespace.keys.grants_for("RootManageSharedAccessKey", "SAS_KEY_VALUE")


# --- a store that fails ---


def fill(world: World, store: FlakyStore) -> None:
    store.fails = lambda changes: StoreFull("no room") if changes.appends else None
    assert [type(outcome) for outcome in world.send("too much")] == [StorageFull]


def test_a_store_that_failed_is_tried_again_until_it_works() -> None:
    store = FlakyStore()
    world = World(store=store)
    fill(world, store)
    for _ in range(3):
        world.advance(RETRY_MS)
        assert world.namespace.journal.failure is not None
    store.fails = lambda changes: None
    world.advance(RETRY_MS)
    assert world.namespace.journal.failure is None
    world.advance(10 * RETRY_MS)
    assert world.namespace.agenda.next_due is None


def test_trying_the_store_leaves_no_message_behind() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("before")
    fill(world, store)
    store.fails = lambda changes: None
    world.advance(RETRY_MS)
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
    world.advance(RETRY_MS)
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
