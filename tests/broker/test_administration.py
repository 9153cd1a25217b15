"""Changes of a live namespace: what may be created, updated and deleted, and the effects on messages and links."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.world import (
    HOUR,
    MINUTE,
    SECOND,
    AttachedLink,
    AwaitedStore,
    FlakyStore,
    Receiver,
    SessionReceiver,
    World,
    correlation,
    incoming,
    query,
    session_queue,
    settlement,
    sql,
    subscription,
    topic,
)
from peeklock.broker.errors import (
    BrokerError,
    EntityChanging,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    MessageLockLost,
    OperationNotAllowed,
    QuotaExceeded,
    StorageFailed,
    TransactionRolledBack,
)
from peeklock.broker.transactions import Scope, Transactions
from peeklock.entities.authorization import DEFAULT_KEY, AuthorizationRule, Right
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.names import DefinitionError
from peeklock.entities.rules import RuleDefinition
from peeklock.entities.settings import PROFILES, Status
from peeklock.store.base import StoreError
from peeklock.store.disk.index.writer import Writer
from peeklock.store.memory import MemoryStore


def queue(name: str = "q", **settings: Any) -> QueueDefinition:
    return QueueDefinition(name=name, **settings)


def start(*entities: Any, **options: Any) -> World:
    """Start a namespace that has only these entities."""
    return World(*(entities or (queue("other"),)), **options)


def create(world: World, *definitions: QueueDefinition | TopicDefinition) -> None:
    for definition in definitions:
        is_queue = isinstance(definition, QueueDefinition)
        change = world.administration.create_queue if is_queue else world.administration.create_topic
        assert world.administer(change, definition) is None  # type: ignore[arg-type]


def subscribe(world: World, of: str, *definitions: SubscriptionDefinition) -> None:
    for definition in definitions:
        assert world.administer(world.administration.create_subscription, of, definition) is None


def delete(world: World, path: str) -> None:
    """Delete a queue, a topic, or a subscription by its path."""
    of, _, name = path.partition("/Subscriptions/")
    administration = world.administration
    if name:
        outcome = world.administer(administration.delete_subscription, of, name)
    elif any(each.path == of for each in administration.topics):
        outcome = world.administer(administration.delete_topic, of)
    else:
        outcome = world.administer(administration.delete_queue, of)
    assert outcome is None


def begin(change: Callable[..., None], *arguments: Any) -> list[BrokerError | None]:
    """Begin a change without waiting for its commit. Return the list to which its outcome will be added."""
    outcomes: list[BrokerError | None] = []
    change(*arguments, outcomes.append)
    return outcomes


def rows(world: World) -> dict[str, int]:
    """Return the rows of the store by path."""
    if isinstance(world.store, AwaitedStore):
        return dict(query(world.store, "SELECT path, id FROM entity"))
    assert isinstance(world.store, MemoryStore)
    return {entity.path: entity.id for entity in world.store.open()}


# --- creating ---


def test_a_created_entity_exists_at_once_and_after_a_restart(store: Any) -> None:
    world = start(store=store)
    create(world, queue("Orders", max_delivery_count=3), topic("News"))
    subscribe(world, "news", subscription("All", lock_duration_ms=10 * SECOND))
    for _ in range(2):
        assert world.queue("orders").definition.max_delivery_count == 3
        assert world.topic("NEWS").path == "News"
        assert world.subscription("all", "news").path == "News/Subscriptions/All"
        assert world.subscription("All", "News").definition.lock_duration_ms == 10 * SECOND
        world.check()
        world = world.restarted()


def test_a_created_queue_works() -> None:
    world = start()
    create(world, queue(), session_queue("s"))
    world.send("one")
    world.send("two", to="s", session_id="x")
    receiver = Receiver(world, world.queue())
    assert receiver.bodies == ["one"]
    world.settle(world.queue().settlements.dead_letter, receiver.locks[0])
    assert world.bodies("q/$DeadLetterQueue") == ["one"]
    assert SessionReceiver(world).bodies == ["two"]
    world.check()


def test_subscriptions_in_the_definition_of_a_topic_are_not_created_with_it() -> None:
    world = start()
    create(world, topic("t", "a"))
    assert world.administration.subscriptions("t") == []


def test_a_created_entity_does_not_exist_before_it_is_stored() -> None:
    store = FlakyStore()
    world = start(store=store)
    store.held = []
    outcomes = begin(world.administration.create_queue, queue())
    world.run()
    assert outcomes == []
    with pytest.raises(EntityNotFound):
        world.administration.queue("q")
    store.release_commits()
    world.run()
    assert outcomes == [None]
    world.administration.queue("q")


def test_a_change_that_could_not_be_stored_has_no_effect() -> None:
    store = FlakyStore()
    world = start(topic("t"), store=store)
    store.fails = lambda changes: StoreError("not now")
    administration = world.administration
    for change, arguments in (
        (administration.create_queue, (queue(),)),
        (administration.create_topic, (topic("u"),)),
        (administration.create_subscription, ("t", subscription("a"))),
        (administration.create_rule, ("t", "a", sql("r", "1=1"))),
    ):
        if change == administration.create_rule:
            store.fails = lambda changes: None
            subscribe(world, "t", subscription("a"))
            store.fails = lambda changes: StoreError("not now")
        assert isinstance(world.administer(change, *arguments), StorageFailed)
    assert {each.path for each in administration.queues} == set()
    assert {each.path for each in administration.topics} == {"t"}
    assert [rule.name for rule in administration.rules("t", "a")] == ["$Default"]
    store.fails = lambda changes: None
    create(world, queue(), topic("u"))
    world.check()


def test_keys_of_an_entity_are_valid_until_it_is_deleted() -> None:
    world = start()
    rule = AuthorizationRule(name="sender", primary_key="k", rights=frozenset({Right.SEND}))
    create(world, queue(authorization_rules=(rule,)))
    keys = world.namespace.keys
    assert [grant.path for grant in keys.grants_for("sender", "k")] == ["q"]
    change = queue(authorization_rules=(replace(rule, primary_key="other"),))
    assert world.administer(world.administration.update_queue, change) is None
    assert keys.grants_for("sender", "k") == []
    assert [grant.path for grant in keys.grants_for("sender", "other")] == ["q"]
    delete(world, "q")
    assert keys.grants_for("sender", "other") == []


# --- looking ---


def test_lists_are_ordered_by_name_case_insensitively() -> None:
    names = ["b", "C", "a", "D"]
    world = start(*(queue(name) for name in names), *(topic(f"t{name}", *names) for name in names))
    administration = world.administration
    assert [each.path for each in administration.queues] == ["a", "b", "C", "D"]
    assert [each.path for each in administration.topics] == ["ta", "tb", "tC", "tD"]
    assert [each.definition.name for each in administration.subscriptions("TB")] == ["a", "b", "C", "D"]


def test_each_kind_is_only_found_as_what_it_is() -> None:
    world = start(queue(), topic("t", "a"))
    administration = world.administration
    assert administration.entity("Q") is administration.queue("q")
    assert administration.entity("T") is administration.topic("t")
    assert administration.subscription("T", "A").path == "t/Subscriptions/a"
    for look, arguments in (
        (administration.queue, ("t",)),
        (administration.topic, ("q",)),
        (administration.queue, ("t/Subscriptions/a",)),
        (administration.entity, ("t/Subscriptions/a",)),
        (administration.entity, ("q/$DeadLetterQueue",)),
        (administration.queue, ("q/$Transfer/$DeadLetterQueue",)),
        (administration.subscription, ("q", "a")),
        (administration.subscription, ("t", "b")),
        (administration.subscriptions, ("q",)),
        (administration.rules, ("t", "b")),
        (administration.rule, ("t", "a", "r")),
        (administration.entity, ("",)),
    ):
        with pytest.raises(EntityNotFound, match="could not be found"):
            look(*arguments)  # type: ignore[operator]


# --- what is refused ---


@pytest.mark.parametrize("name", ["q", "Q", "t", "T"])
def test_a_name_is_given_once_to_a_queue_or_a_topic(name: str) -> None:
    world = start(queue(), topic("t", "a"))
    for change, definition in (
        (world.administration.create_queue, queue(name)),
        (world.administration.create_topic, topic(name)),
    ):
        with pytest.raises(EntityExists, match=f"'{name}' already exists"):
            change(definition, lambda error: None)  # type: ignore[operator]
    world.check()


def test_a_name_is_given_once_to_a_subscription_and_to_a_rule() -> None:
    world = start(topic("t", "a"), topic("u"))
    with pytest.raises(EntityExists, match="already exists"):
        world.administration.create_subscription("T", subscription("A"), lambda error: None)
    with pytest.raises(EntityExists, match="already exists"):
        world.administration.create_rule("t", "a", RuleDefinition(name="$DEFAULT"), lambda error: None)
    subscribe(world, "u", subscription("a"))


def test_an_unknown_entity_can_neither_be_updated_nor_deleted() -> None:
    world = start(queue(), topic("t", "a"))
    administration = world.administration
    for change, arguments in (
        (administration.update_queue, (queue("x"),)),
        (administration.update_queue, (queue("t"),)),
        (administration.update_topic, (topic("q"),)),
        (administration.update_subscription, ("t", subscription("x"))),
        (administration.update_subscription, ("q", subscription("a"))),
        (administration.update_rule, ("t", "a", sql("x", "1=1"))),
        (administration.delete_queue, ("x",)),
        (administration.delete_queue, ("t",)),
        (administration.delete_queue, ("t/Subscriptions/a",)),
        (administration.delete_queue, ("q/$DeadLetterQueue",)),
        (administration.delete_topic, ("q",)),
        (administration.delete_subscription, ("t", "x")),
        (administration.delete_subscription, ("q", "a")),
        (administration.delete_rule, ("t", "a", "x")),
        (administration.create_subscription, ("x", subscription("a"))),
        (administration.create_subscription, ("q", subscription("a"))),
        (administration.create_rule, ("t", "x", sql("r", "1=1"))),
    ):
        with pytest.raises(EntityNotFound):
            change(*arguments, lambda error: None)  # type: ignore[operator]
    world.check()


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({"requires_session": True}, "RequiresSession"),
        ({"requires_duplicate_detection": True}, "RequiresDuplicateDetection"),
        ({"enable_partitioning": True}, "EnablePartitioning"),
    ],
)
def test_a_fixed_setting_cannot_be_updated(setting: dict[str, Any], name: str) -> None:
    world = start(queue("other"), topic("t", "a"))
    administration = world.administration
    with pytest.raises(DefinitionError, match=f"{name} of 'other' true: cannot be changed"):
        administration.update_queue(queue("other", **setting), lambda error: None)
    if "requires_session" in setting:
        with pytest.raises(DefinitionError, match=name):
            administration.update_subscription("t", subscription("a", **setting), lambda error: None)
    else:
        with pytest.raises(DefinitionError, match=name):
            administration.update_topic(topic("t", **setting), lambda error: None)


def test_the_destination_of_forwarding_must_exist() -> None:
    world = start(queue(), topic("t", "a"))
    administration = world.administration
    for setting in ("forward_to", "forward_dead_lettered_messages_to"):
        for target in ("nowhere", "t/b"):
            with pytest.raises(DefinitionError, match=target):
                administration.update_queue(queue(**{setting: target}), lambda error: None)
        with pytest.raises(DefinitionError, match="must name"):
            administration.create_queue(queue("new", **{setting: "nowhere"}), print)
        assert (
            world.administer(administration.create_queue, queue(f"of-{setting}", **{setting: f"OF-{setting}"})) is None
        )
        with pytest.raises(DefinitionError, match="must name a queue or topic"):
            administration.update_subscription("t", subscription("a", **{setting: "nowhere"}), print)
        with pytest.raises(DefinitionError, match="must name a queue or topic"):
            administration.create_subscription("t", subscription("b", **{setting: "nowhere"}), print)
        assert world.administer(administration.update_queue, queue(**{setting: "T"})) is None
    world.check()


def test_settings_that_the_profile_forbids_are_refused() -> None:
    world = start(queue())
    too_long = queue("new", lock_duration_ms=HOUR)
    for change, definition in (
        (world.administration.create_queue, too_long),
        (world.administration.update_queue, replace(too_long, name="q")),
    ):
        with pytest.raises(DefinitionError, match="LockDuration PT1H"):
            change(definition, lambda error: None)


def test_no_limit_is_the_longest_that_the_profile_allows() -> None:
    world = start(queue(default_message_ttl_ms=MINUTE), profile=PROFILES["emulator"])
    others: dict[str, Any] = {"max_delivery_count": 3, "duplicate_detection_window_ms": 20 * SECOND}
    create(world, queue("new", **others))
    assert world.administer(world.administration.update_queue, queue(**others)) is None
    for path in ("new", "q"):
        assert world.queue(path).definition.default_message_ttl_ms == HOUR


def test_the_well_known_key_is_refused_on_reachable_addresses() -> None:
    world = start(queue())
    rule = AuthorizationRule(name="mine", primary_key="x", secondary_key=DEFAULT_KEY, rights=frozenset({Right.SEND}))
    world.administration.allows_default_key = False
    for change, definition in (
        (world.administration.create_queue, queue("new", authorization_rules=(rule,))),
        (world.administration.update_queue, queue(authorization_rules=(rule,))),
        (world.administration.create_topic, topic("new", authorization_rules=(rule,))),
    ):
        with pytest.raises(DefinitionError, match="well-known"):
            change(definition, lambda error: None)  # type: ignore[operator]
    world.administration.allows_default_key = True
    create(world, queue("new", authorization_rules=(rule,)))


def limited(**limits: int) -> Any:
    return replace(PROFILES["standard"], **limits)


def test_there_are_as_many_queues_and_topics_as_the_profile_allows() -> None:
    world = start(queue(), profile=limited(max_entities=3))
    create(world, topic("t"), queue("r"))
    subscribe(world, "t", subscription("a"))
    for change, definition in (
        (world.administration.create_queue, queue("x")),
        (world.administration.create_topic, topic("x")),
    ):
        with pytest.raises(QuotaExceeded, match="3 queues and topics"):
            change(definition, lambda error: None)  # type: ignore[operator]
    delete(world, "r")
    create(world, queue("x"))


def test_entities_being_stored_count_too() -> None:
    world = start(queue(), profile=limited(max_entities=2))
    outcomes = begin(world.administration.create_queue, queue("r"))
    with pytest.raises(QuotaExceeded):
        world.administration.create_queue(queue("x"), lambda error: None)
    world.run()
    assert outcomes == [None]


def test_there_are_as_many_subscriptions_as_the_profile_allows() -> None:
    world = start(topic("t", "a"), topic("t/b"), profile=limited(max_subscriptions=2))
    elsewhere = begin(world.administration.create_subscription, "t/b", subscription("b"))
    outcomes = begin(world.administration.create_subscription, "t", subscription("b"))
    with pytest.raises(QuotaExceeded, match="2 subscriptions"):
        world.administration.create_subscription("t", subscription("c"), lambda error: None)
    world.run()
    assert elsewhere == outcomes == [None]
    with pytest.raises(QuotaExceeded, match="2 subscriptions"):
        world.administration.create_subscription("t", subscription("c"), lambda error: None)


def test_there_are_as_many_filters_as_the_profile_allows() -> None:
    world = start(
        topic("t", subscription("a", sql("r", "1=1"), correlation("c", label="x")), "b"),
        profile=limited(max_sql_filters=2, max_correlation_filters=2),
    )
    administration = world.administration
    for name, rules in (
        ("SQL", (sql("s1", "x=1"), sql("s2", "x=2"))),
        ("correlation", (correlation("c1", label="y"), correlation("c2", label="z"))),
    ):
        with pytest.raises(QuotaExceeded, match=f"more than 2 {name} filters"):
            administration.create_subscription("t", subscription("new", *rules), lambda error: None)
        assert world.administer(administration.create_rule, "t", "b", rules[0]) is None
        with pytest.raises(QuotaExceeded, match=f"more than 2 {name} filters"):
            administration.create_rule("t", "b", rules[1], lambda error: None)
        assert world.administer(administration.update_rule, "t", "b", replace(rules[0])) is None


@pytest.mark.parametrize("rule", [sql("r", "1 = "), sql("r", "1=1", "SET"), sql("r", "x LIKE 'a' ESCAPE 'bc'")])
def test_a_rule_that_is_not_well_formed_is_refused(rule: RuleDefinition) -> None:
    world = start(topic("t", subscription("a", sql("r", "1=1"))))
    administration = world.administration
    for change, arguments in (
        (administration.create_rule, ("t", "a", replace(rule, name="new"))),
        (administration.update_rule, ("t", "a", rule)),
        (administration.create_subscription, ("t", subscription("b", rule))),
    ):
        with pytest.raises(DefinitionError):
            change(*arguments, lambda error: None)  # type: ignore[operator]
    world.check()


# --- one change at a time ---


def test_an_entity_is_changed_by_one_at_a_time() -> None:
    world = start(queue(), topic("t", "a"))
    administration = world.administration
    changes = (
        (administration.create_queue, (queue("new"),)),
        (administration.update_queue, (queue(max_delivery_count=2),)),
        (administration.create_subscription, ("t", subscription("b"))),
        (administration.update_subscription, ("t", subscription("a", max_delivery_count=2))),
        (administration.update_topic, (topic("t", user_metadata="x"),)),
    )
    outcomes = [begin(change, *arguments) for change, arguments in changes]
    for change, arguments in (
        *changes,
        (administration.create_topic, (topic("NEW"),)),
        (administration.delete_queue, ("q",)),
        (administration.delete_topic, ("t",)),
        (administration.delete_subscription, ("t", "a")),
        (administration.create_rule, ("t", "a", sql("r", "1=1"))),
        (administration.delete_rule, ("t", "a", "$Default")),
    ):
        with pytest.raises(EntityChanging, match="try again"):
            change(*arguments, lambda error: None)  # type: ignore[operator]
    world.run()
    assert outcomes == [[None]] * 5
    world.check()


def test_different_entities_are_changed_at_once() -> None:
    world = start(queue("t/x"), topic("t"))
    administration = world.administration
    outcomes = [begin(administration.create_subscription, "t", subscription(name)) for name in ("a", "b")]
    outcomes += [begin(administration.update_topic, topic("t", user_metadata="x"))]
    outcomes += [begin(administration.create_queue, queue(name)) for name in ("q", "r")]
    world.run()
    assert outcomes == [[None]] * 5
    outcomes = [begin(administration.update_queue, queue("t/x", max_delivery_count=2))]
    outcomes += [begin(administration.delete_topic, "t")]
    world.run()
    assert outcomes == [[None]] * 2
    world.check()


def test_nothing_of_a_topic_that_is_being_deleted_is_changed() -> None:
    store = FlakyStore()
    world = start(queue("q"), topic("t", "a"), store=store)
    administration = world.administration
    store.held = []
    outcomes = begin(administration.delete_topic, "t")
    world.run()
    for change, arguments in (
        (administration.create_subscription, ("t", subscription("b"))),
        (administration.update_subscription, ("t", subscription("a", max_delivery_count=2))),
        (administration.delete_subscription, ("t", "a")),
        (administration.create_rule, ("t", "a", sql("r", "1=1"))),
        (administration.update_topic, (topic("t"),)),
        (administration.create_topic, (topic("t"),)),
    ):
        with pytest.raises((EntityChanging, EntityExists)):
            change(*arguments, lambda error: None)  # type: ignore[operator]
    store.release_commits()
    world.run()
    assert outcomes == [None]
    world.check()
    world = world.restarted()
    assert sorted(rows(world)) == ["", "q", "q/$DeadLetterQueue", "q/$Transfer/$DeadLetterQueue"]


# --- updating ---


def test_an_update_takes_effect_and_survives_a_restart(store: Any) -> None:
    world = start(queue(), topic("t", "a"), store=store)
    administration = world.administration
    assert world.administer(administration.update_queue, queue("Q", max_delivery_count=1)) is None
    assert world.administer(administration.update_topic, topic("T", default_message_ttl_ms=MINUTE)) is None
    change = subscription("A", lock_duration_ms=10 * SECOND)
    assert world.administer(administration.update_subscription, "T", change) is None
    for _ in range(2):
        assert [each.definition.name for each in world.administration.queues] == ["q"], "spelt as it was created"
        assert world.queue().definition.max_delivery_count == 1
        assert world.dead_letters().definition.max_delivery_count == 1
        assert world.topic().definition.default_message_ttl_ms == MINUTE
        assert world.subscription("a").definition.lock_duration_ms == 10 * SECOND
        world.check()
        world = world.restarted()
    world.send("one")
    world.settle(world.queue().settlements.abandon, Receiver(world, world.queue(), credit=1).locks[0])
    assert world.bodies("q/$DeadLetterQueue") == ["one"]


def test_an_update_of_a_topic_or_subscription_keeps_its_subscriptions_and_messages() -> None:
    world = start(topic("t", subscription("a", sql("r", "x=1"))))
    administration = world.administration
    assert world.administer(administration.update_topic, topic("t", user_metadata="x")) is None
    change = subscription("a", sql("other", "x=2"), user_metadata="x")
    assert world.administer(administration.update_subscription, "t", change) is None
    assert [each.path for each in administration.subscriptions("t")] == ["t/Subscriptions/a"]
    assert [rule.name for rule in administration.rules("t", "a")] == ["r"]


def test_an_update_that_could_not_be_stored_has_no_effect() -> None:
    store = FlakyStore()
    world = start(queue(), topic("t", "a"), store=store)
    before = world.runtime().updated_at
    world.advance(SECOND)
    store.fails = lambda changes: StoreError("not now")
    administration = world.administration
    outcomes = [
        world.administer(administration.update_queue, queue(status=Status.DISABLED)),
        world.administer(administration.update_topic, topic("t", status=Status.DISABLED)),
        world.administer(administration.update_subscription, "t", subscription("a", status=Status.DISABLED)),
        world.administer(administration.update_rule, "t", "a", sql("$Default", "1=0")),
    ]
    assert [type(error) for error in outcomes] == [StorageFailed] * 4
    store.fails = lambda changes: None
    assert world.runtime().updated_at == before
    assert world.send("one") == world.send("one", to="t") == [None]
    assert world.bodies("t/Subscriptions/a") == ["one"]
    world.subscription("a").check_receiving()
    world.check()


def test_a_change_of_status_takes_effect_at_once() -> None:
    world = start(queue())
    watching = AttachedLink(world.queue()), AttachedLink(world.dead_letters())
    change = world.administration.update_queue
    assert world.administer(change, queue(status=Status.SEND_DISABLED)) is None
    assert [each.changes for each in watching] == [1, 1]
    with pytest.raises(EntityDisabled):
        world.send("one")
    world.queue().check_receiving()
    assert world.administer(change, queue(status=Status.RECEIVE_DISABLED)) is None
    world.send("one")
    with pytest.raises(EntityDisabled):
        world.queue().check_receiving()
    assert world.administer(change, queue()) is None
    assert Receiver(world, world.queue()).bodies == ["one"]


def test_a_change_of_the_maximum_size_takes_effect_at_once() -> None:
    world = start(queue(max_size_in_megabytes=2), profile=PROFILES["unlimited"])
    world.send("x" * 1_200_000)
    change = world.administration.update_queue
    assert world.administer(change, queue(max_size_in_megabytes=1)) is None
    with pytest.raises(QuotaExceeded, match="1 MB"):
        world.send("one")
    assert world.administer(change, queue(max_size_in_megabytes=2)) is None
    assert world.send("one") == [None]


# --- rules ---


def test_rules_are_created_updated_deleted_and_dated() -> None:
    world = start(topic("t", "a"))
    administration = world.administration
    created_at = world.clock()
    assert [rule.created_at for rule in administration.rules("t", "a")] == [created_at], "those of the start too"
    world.advance(SECOND)
    assert world.administer(administration.create_rule, "t", "a", sql("Mine", "x=1")) is None
    world.advance(SECOND)
    assert world.administer(administration.update_rule, "t", "a", sql("mINE", "x=2", "SET y = 1")) is None
    rule = administration.rule("T", "A", "MINE")
    assert (rule.name, rule.sql_expression, rule.action) == ("Mine", "x=2", "SET y = 1")
    assert rule.created_at == created_at + SECOND
    assert world.administer(administration.delete_rule, "t", "a", "$default") is None
    assert [rule.name for rule in administration.rules("t", "a")] == ["Mine"]
    world = world.restarted()
    (rule,) = world.administration.rules("t", "a")
    assert (rule.name, rule.sql_expression, rule.created_at) == ("Mine", "x=2", created_at + SECOND)
    assert world.administer(world.administration.delete_rule, "t", "a", "mine") is None
    assert world.administration.rules("t", "a") == ()


def test_a_subscription_is_created_with_its_rules() -> None:
    world = start(topic("t"))
    subscribe(world, "t", subscription("none", rules=()), subscription("one", sql("r", "x=1")), subscription("all"))
    rules = world.administration.rules
    assert [[rule.name for rule in rules("t", name)] for name in ("none", "one", "all")] == [[], ["r"], ["$Default"]]
    assert {rule.created_at for name in ("one", "all") for rule in rules("t", name)} == {world.clock()}


# --- runtime properties ---


def test_the_runtime_information_has_the_counts() -> None:
    world = start(queue(max_delivery_count=1), topic("t", "a"))
    world.send("1", "2", "3", "4")
    world.send("later", at=world.clock() + HOUR)
    world.send("later", to="t", at=world.clock() + HOUR)
    world.send("now", to="t")
    receiver = Receiver(world, world.queue(), credit=3)
    world.settle(world.queue().settlements.defer, receiver.locks[0])
    world.settle(world.queue().settlements.dead_letter, receiver.locks[1])
    runtime = world.runtime()
    assert (runtime.active, runtime.deferred, runtime.scheduled, runtime.dead_letter) == (2, 1, 1, 1)
    assert runtime.total == 5
    messages = [*world.stored(), *world.stored("q/$DeadLetterQueue")]
    assert runtime.size_in_bytes == sum(message.size for message in messages)
    of_topic = world.runtime("t")
    assert (of_topic.active, of_topic.scheduled, of_topic.subscription_count) == (0, 1, 1)
    copies = [*world.stored("t"), *world.stored("t/Subscriptions/a")]
    assert of_topic.size_in_bytes == sum(message.size for message in copies)
    assert world.runtime("t/Subscriptions/a").active == 1


def test_the_runtime_information_has_the_times() -> None:
    world = start()
    first = world.clock()
    world.advance(SECOND)
    create(world, queue())
    created = world.clock()
    runtime = world.runtime()
    assert (runtime.created_at, runtime.updated_at, runtime.accessed_at) == (created, created, created)
    world.advance(SECOND)
    assert world.administer(world.administration.update_queue, queue(max_delivery_count=2)) is None
    updated = world.clock()
    world.advance(SECOND)
    world.send("one")
    runtime = world.runtime()
    assert (runtime.created_at, runtime.updated_at, runtime.accessed_at) == (created, updated, world.clock())
    world.advance(SECOND)
    world = world.restarted()
    runtime = world.runtime()
    assert (runtime.created_at, runtime.updated_at) == (created, updated)
    assert world.namespace.created_at == first


def test_attaching_and_not_reading_metadata_changes_the_access_time() -> None:
    world = start(queue())
    begun = world.clock()
    world.advance(SECOND)
    world.administration.queue("q")
    assert world.runtime().accessed_at == begun
    link = AttachedLink(world.queue())
    assert world.runtime().accessed_at == world.clock()
    world.advance(SECOND)
    link.leave()
    assert world.runtime().accessed_at == world.clock()


# --- deleting ---


def test_deleting_an_entity_removes_its_messages_and_sub_queues(store: Any) -> None:
    world = start(queue("other"), queue(), topic("t", "a", "b"), session_queue("s"), store=store)
    world.send("x" * 1000, "y", to="t")
    world.send("x", "y")
    world.send("later", at=world.clock() + MINUTE)
    world.send("later", to="t", at=world.clock() + MINUTE)
    world.send("z", to="s", session_id="x")
    gone = [each.id for each in world.namespace.entities if not each.path.startswith("other")]
    for path in ("q", "t", "s"):
        delete(world, path)
    assert [world.stored_of(entity) for entity in gone] == [[]] * len(gone)
    for path in ("q", "q/$DeadLetterQueue", "q/$Transfer/$DeadLetterQueue", "t", "t/Subscriptions/a", "s"):
        with pytest.raises(EntityNotFound):
            world.namespace.entity(path)
    world.check()
    expected = ["", "other", "other/$DeadLetterQueue", "other/$Transfer/$DeadLetterQueue"]
    assert sorted(rows(world)) == expected
    world = world.restarted()
    assert [each.path for each in world.administration.queues] == ["other"]
    world.check()


def test_deleting_a_subscription_does_not_affect_other_subscriptions(store: Any) -> None:
    world = start(topic("t", "a", "b"), store=store)
    world.send("x" * 1000, to="t")
    delete(world, "t/Subscriptions/a")
    assert [each.path for each in world.administration.subscriptions("t")] == ["t/Subscriptions/b"]
    world.send("after", to="t")
    assert world.bodies("t/Subscriptions/b") == ["x" * 1000, "after"]
    world.check()


def test_attached_links_are_notified_of_the_deletion_of_their_entity() -> None:
    world = start(queue(), topic("t", "a"))
    places = ("q", "q/$DeadLetterQueue", "q/$Transfer/$DeadLetterQueue", "t", "t/Subscriptions/a")
    links = [AttachedLink(world.namespace.entity(path)) for path in places]
    delete(world, "q")
    delete(world, "t")
    for path, link in zip(places, links, strict=True):
        assert [str(failure) for failure in link.failures] == [str(EntityNotFound(path))]
        assert isinstance(link.failures[0], EntityNotFound)


def test_an_entity_created_again_starts_empty(store: Any) -> None:
    world = start(queue("other"), session_queue("q"), topic("t", "a"), store=store)
    world.send("old", session_id="x")
    world.send("later", session_id="x", at=world.clock() + MINUTE)
    world.send("old", to="t")
    holder = SessionReceiver(world, "x", path="q")
    assert world.administer(lambda done: world.sessions("q").states.set("x", b"state", done)) is None
    assert holder.bodies == ["old"]
    before = set(rows(world).values())
    delete(world, "q")
    delete(world, "t")
    create(world, session_queue("q"), topic("t"))
    subscribe(world, "t", subscription("a"))
    for _ in range(2):
        assert world.runtime("q").total == world.runtime("t").total == world.runtime("t/Subscriptions/a").total == 0
        states: list[Any] = []
        holder = SessionReceiver(world, "x", path="q")
        world.sessions("q").states.get("x", states.append)
        world.run()
        assert (holder.bodies, states) == ([], [None])
        holder.close()
        world.advance(MINUTE)
        world.check()
        kept = {number for path, number in rows(world).items() if path.startswith("other") or not path}
        assert before.isdisjoint(set(rows(world).values()) - kept), "numbers are not given twice"
        world = world.restarted()
    world.send("new", session_id="x")
    assert SessionReceiver(world, "x", path="q").numbers == [1]


def test_numbers_are_not_given_again_after_a_restart_in_the_middle_of_the_purge(
    disk: AwaitedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Writer, "needs_purge", property(lambda self: False))
    world = start(queue("other"), store=disk)
    create(world, queue(), topic("t"))
    subscribe(world, "t", subscription("a"), subscription("b"))
    world.send(*("x" * 500 for _ in range(20)))
    world.send("x" * 1000, to="t")
    gone = {number for path, number in rows(world).items() if path and not path.startswith("other")}
    delete(world, "q")
    delete(world, "t")
    world = world.restarted()
    assert {number for (number,) in query(world.store, "SELECT id FROM dropped_entity")} == gone  # type: ignore[arg-type]
    create(world, queue(), topic("t"))
    subscribe(world, "t", subscription("a"), subscription("b"))
    assert gone.isdisjoint(rows(world).values())
    world.send("new")
    world.send("y" * 1000, to="t")
    monkeypatch.undo()
    world = world.restarted()
    world.check()
    assert world.bodies() == ["new"]
    assert world.bodies("t/Subscriptions/a") == world.bodies("t/Subscriptions/b") == ["y" * 1000]


def test_a_deletion_that_could_not_be_stored_changes_nothing() -> None:
    store = FlakyStore()
    world = start(queue(), topic("t", "a"), store=store)
    world.send("one")
    world.send("one", to="t")
    links = [AttachedLink(world.queue()), AttachedLink(world.topic())]
    store.fails = lambda changes: StoreError("not now")
    administration = world.administration
    assert isinstance(world.administer(administration.delete_queue, "q"), StorageFailed)
    assert isinstance(world.administer(administration.delete_topic, "t"), StorageFailed)
    store.fails = lambda changes: None
    assert [link.failures for link in links] == [[], []]
    assert world.send("two") == world.send("two", to="t") == [None]
    assert Receiver(world, world.queue()).bodies == ["one", "two"]
    assert Receiver(world, world.subscription("a")).bodies == ["one", "two"]
    world.check()
    delete(world, "q")
    delete(world, "t")


# --- deleting what is in use ---


def deleting(world: World, path: str = "q") -> list[BrokerError | None]:
    """Begin to delete a queue whose store holds back the commit."""
    outcomes = begin(world.administration.delete_queue, path)
    world.run()
    return outcomes


def test_locks_of_a_deleted_entity_are_lost() -> None:
    world = start(queue("other"), queue())
    world.send("one", "two")
    old = world.queue()
    locks = Receiver(world, old).locks
    delete(world, "q")
    assert world.namespace.agenda.next_due is None, "nothing is left to do"
    for act in (old.settlements.complete, old.settlements.abandon, old.settlements.defer, old.settlements.dead_letter):
        with pytest.raises(MessageLockLost):
            act(locks[0], lambda error: None)
    world.advance(10 * MINUTE)
    assert world.namespace.agenda.next_due is None
    assert world.namespace._machinery.budget.used == 0
    world.check()


def test_what_is_waiting_gives_its_memory_back() -> None:
    world = start(queue("other"), queue(), session_queue("s"))
    SessionReceiver(world, "x", path="s", credit=0)
    for path in ("q", "s"):
        before = world.namespace._machinery.budget.used
        world.send("one", "two", to=path, session_id="x")
        assert world.namespace._machinery.budget.used > before
    delete(world, "q")
    delete(world, "s")
    assert world.namespace._machinery.budget.used == 0
    assert world.namespace.agenda.next_due is None


def test_a_deleted_entity_leaves_no_timer() -> None:
    world = start(queue("other"), queue(auto_delete_on_idle_ms=HOUR), topic("t", "a"))
    for path in ("q", "t"):
        world.send("expires", to=path, ttl=MINUTE)
        world.send("later", to=path, at=world.clock() + MINUTE)
    delete(world, "q")
    delete(world, "t")
    assert world.namespace.agenda.next_due is None


@pytest.mark.parametrize("how", ["complete", "abandon", "defer", "dead_letter"])
@pytest.mark.parametrize("first", ["settlement", "deletion"])
def test_a_pending_settlement_does_not_prevent_a_deletion(how: str, first: str) -> None:
    store = FlakyStore()
    world = start(queue("other"), queue(), store=store)
    world.send("one", "two")
    old = world.queue()
    lock = Receiver(world, old, credit=1).locks[0]
    store.held = []
    settled: list[BrokerError | None] = []
    if first == "settlement":
        getattr(old.settlements, how)(lock, settled.append)
        world.run()
    outcomes = deleting(world)
    if first == "deletion":
        try:
            getattr(old.settlements, how)(lock, settled.append)
        except EntityNotFound:
            settled.append(None)
    world.run()
    store.release_commits()
    world.advance(MINUTE)
    assert (outcomes, settled) == ([None], [None])
    assert world.namespace._machinery.budget.used == 0
    assert world.send("still works", to="other") == [None]
    world.advance(10 * MINUTE)
    assert world.namespace.agenda.next_due is None
    world.check()


def test_a_pending_send_does_not_prevent_a_deletion() -> None:
    store = FlakyStore()
    world = start(queue("other"), queue(), store=store)
    old = world.queue()
    store.held = []
    sent = world.send("before")
    outcomes = deleting(world)
    with pytest.raises(EntityNotFound):
        old.send([incoming("after")], lambda error: None)
    store.release_commits()
    world.run()
    assert (sent, outcomes) == ([None], [None])
    with pytest.raises(EntityNotFound):
        old.send([incoming("after")], lambda error: None)
    assert world.namespace._machinery.budget.used == 0
    world.check()


def test_messages_for_later_are_not_enqueued_while_it_is_being_deleted() -> None:
    store = FlakyStore()
    world = start(queue("other"), queue(), topic("t", "a"), store=store)
    for path in ("q", "t"):
        world.send("later", to=path, at=world.clock() + MINUTE)
    store.held = []
    outcomes = deleting(world), begin(world.administration.delete_topic, "t")
    world.advance(MINUTE)
    store.release_commits()
    world.advance(MINUTE)
    assert world.send("still works", to="other") == [None]
    assert outcomes == ([None], [None])
    world.check()
    assert world.namespace.agenda.next_due is None


def test_messages_do_not_expire_while_it_is_being_deleted() -> None:
    store = FlakyStore()
    world = start(queue("other"), queue(dead_lettering_on_message_expiration=True), store=store)
    world.send("one", "two", ttl=SECOND)
    store.held = []
    outcomes = deleting(world)
    world.advance(MINUTE)
    store.release_commits()
    world.advance(MINUTE)
    assert outcomes == [None]
    assert world.send("still works", to="other") == [None]
    assert world.namespace.agenda.next_due is None
    world.check()


def test_locks_do_not_expire_during_the_deletion_of_their_entity() -> None:
    store = FlakyStore()
    world = start(queue("other"), queue(max_delivery_count=1), store=store)
    world.send("one")
    Receiver(world, world.queue())
    store.held = []
    outcomes = deleting(world)
    world.advance(10 * MINUTE)
    store.release_commits()
    world.advance(10 * MINUTE)
    assert outcomes == [None]
    assert world.send("still works", to="other") == [None]
    assert world.namespace.agenda.next_due is None
    world.check()


def fail_deletion(world: World, store: FlakyStore, outcomes: list[BrokerError | None]) -> None:
    """Make the deletion fail."""
    store.fails = lambda changes: StoreError("not now")
    store.release_commits()
    store.fails = lambda changes: None
    world.run()
    assert [type(error) for error in outcomes] == [StorageFailed]


def test_expiry_and_scheduling_continue_when_the_deletion_fails() -> None:
    store = FlakyStore()
    world = start(queue(dead_lettering_on_message_expiration=True), store=store)
    world.send("locked")
    Receiver(world, world.queue(), credit=1)
    world.send("expires", ttl=SECOND)
    world.send("later", at=world.clock() + SECOND)
    waiting = Receiver(world, world.queue())
    waiting.got.clear()
    for lock in waiting.locks:
        world.queue().settlements.release(lock)
    world.queue().leave(waiting)
    store.held = []
    outcomes = deleting(world)
    receiver = Receiver(world, world.queue())
    world.advance(2 * MINUTE)
    assert receiver.bodies == []
    fail_deletion(world, store, outcomes)
    world.advance(2 * SECOND)
    assert sorted(receiver.bodies) == ["later", "locked"]
    assert world.bodies("q/$DeadLetterQueue") == ["expires"]
    world.check()


def test_waiting_receivers_are_served_when_the_deletion_fails() -> None:
    store = FlakyStore()
    world = start(queue(), store=store)
    world.send("one")
    store.held = []
    outcomes = deleting(world)
    receiver = Receiver(world, world.queue())
    assert receiver.bodies == []
    fail_deletion(world, store, outcomes)
    assert receiver.bodies == ["one"]


def test_locks_expire_again_when_the_deletion_fails() -> None:
    store = FlakyStore()
    world = start(queue(), store=store)
    world.send("ran out", "runs out")
    Receiver(world, world.queue(), credit=1)
    world.advance(30 * SECOND)
    Receiver(world, world.queue(), credit=1)
    store.held = []
    outcomes = deleting(world)
    world.advance(30 * SECOND)
    fail_deletion(world, store, outcomes)
    assert [message.delivery_count for message in world.stored()] == [1, 0]
    world.advance(30 * SECOND)
    assert [message.delivery_count for message in world.stored()] == [1, 1]
    world.check()


def test_sessions_are_delivered_again_when_the_deletion_fails() -> None:
    store = FlakyStore()
    world = start(session_queue("q"), store=store)
    world.send("1", session_id="x")
    world.send("2", session_id="y")
    expires = SessionReceiver(world, "x", path="q")
    stays = SessionReceiver(world, "y", path="q", credit=0)
    store.held = []
    outcomes = deleting(world)
    stays.more()
    world.advance(30 * SECOND)
    world.sessions("q").sessions.renew(world.sessions("q").sessions.held("y"))
    world.advance(45 * SECOND)
    assert (expires.failure, stays.bodies) == (None, [])
    fail_deletion(world, store, outcomes)
    assert expires.failure is not None
    assert stays.bodies == ["2"]
    assert SessionReceiver(world, "x", path="q").bodies == ["1"]
    world.check()


def test_a_session_is_lost_with_its_queue() -> None:
    world = start(queue("other"), session_queue("q"))
    world.send("1", session_id="x")
    old = world.sessions("q")
    holder = SessionReceiver(world, "x", path="q")
    waiter = SessionReceiver(world, path="q")
    session = holder.session
    assert session is not None
    delete(world, "q")
    assert isinstance(waiter.failure, EntityNotFound), "whoever waits for a session hears"
    with pytest.raises(BrokerError):
        old.settlements.complete(holder.locks[0], lambda error: None)
    with pytest.raises(BrokerError):
        old.sessions.held("x")
    for accept in (
        lambda: old.sessions.accept("x", holder),
        lambda: old.sessions.accept_next(holder, SECOND, lambda outcome: None),
    ):
        with pytest.raises(EntityNotFound):
            accept()
    old.sessions.close_session(session, holder)
    world.advance(10 * MINUTE)
    assert world.namespace.agenda.next_due is None
    assert world.namespace._machinery.budget.used == 0
    world.check()


def test_a_pending_session_settlement_fails_when_the_queue_is_deleted() -> None:
    store = FlakyStore()
    world = start(queue("other"), session_queue("q"), store=store)
    world.send("1", session_id="x")
    holder = SessionReceiver(world, "x", path="q")
    store.held = []
    world.sessions("q").settlements.complete(holder.locks[0], lambda error: None)
    holder.close()
    waiter = SessionReceiver(world, "x", path="q")
    outcomes = deleting(world)
    store.release_commits()
    world.run()
    assert outcomes == [None]
    assert isinstance(waiter.failure, EntityNotFound)
    assert world.namespace._machinery.budget.used == 0


def test_pending_reads_do_not_prevent_a_deletion() -> None:
    store = FlakyStore()
    world = start(queue("other"), queue(), store=store)
    world.send("1", "2", "3")
    world.send("later", at=world.clock() + MINUTE)
    world.settle(world.queue().settlements.defer, Receiver(world, world.queue(), credit=1).locks[0])
    world = world.restarted()
    old = world.queue()
    numbers = [message.sequence_number for message in world.stored()]
    store.held_answers = []
    receiver = Receiver(world, old)
    answers: list[Any] = []
    old.peek(1, 10, None, lambda answer: answers.append("peeked"))
    old.deferred.receive(numbers[:1], None, False, answers.append)
    old.scheduled.cancel(numbers[-1:], answers.append)
    old.deletion.delete_before(world.clock() + 1, 10, None, answers.append)
    world.run()
    delete(world, "q")
    store.release_answers()
    world.advance(MINUTE)
    assert receiver.bodies == []
    assert [answer if answer == "peeked" else type(answer) for answer in answers] == [
        "peeked",
        EntityNotFound,
        EntityNotFound,
        EntityNotFound,
    ]
    assert world.namespace._machinery.budget.used == 0
    assert world.namespace.agenda.next_due is None
    world.check()


def test_an_expired_deferred_message_is_not_fetched_during_a_deletion() -> None:
    store = FlakyStore()
    world = start(queue("other"), queue(dead_lettering_on_message_expiration=True), store=store)
    world.send("one", ttl=SECOND)
    world.settle(world.queue().settlements.defer, Receiver(world, world.queue()).locks[0])
    world.advance(SECOND)
    store.held = []
    outcomes = deleting(world)
    answers: list[Any] = []
    world.queue().deferred.receive([1], None, False, answers.append)
    world.run()
    assert [type(answer) for answer in answers] == [EntityNotFound]
    fail_deletion(world, store, outcomes)
    world.queue().deferred.receive([1], None, False, answers.append)
    world.run()
    assert world.bodies("q/$DeadLetterQueue") == ["one"]
    world.check()


def test_a_transaction_with_a_deleted_entity_is_rolled_back() -> None:
    world = start(queue("other"), queue())
    world.send("one")
    transactions = Transactions(world.namespace.journal, world.namespace.agenda)
    (lock,) = Receiver(world, world.queue()).locks

    def sends(transaction: Any) -> None:
        transaction.send(world.queue(), [incoming("two")], Scope("q", None))

    def settles(transaction: Any) -> None:
        transaction.settle(world.queue().settlements, [lock], settlement("complete"), Scope("q", None))

    def schedules(transaction: Any) -> None:
        transaction.schedule(world.queue(), [incoming("two", at=world.clock() + MINUTE)], Scope("q", None))

    ids = []
    for work in (sends, settles, schedules):
        ids.append(transactions.declare())
        work(transactions.get(ids[-1]))
    delete(world, "q")
    outcomes: list[BrokerError | None] = []
    for id in ids:
        transactions.discharge(id, fail=False, done=outcomes.append)
    world.run()
    assert [type(error) for error in outcomes] == [TransactionRolledBack] * 3
    world.check()


def test_receive_and_delete_continues_during_a_deletion() -> None:
    store = FlakyStore()
    world = start(queue("other"), queue(), store=store)
    world.send("one", "two")
    store.held = []
    receiver = Receiver(world, world.queue(), credit=1, deletes=True)
    outcomes = deleting(world)
    store.release_commits()
    world.run()
    assert (receiver.bodies, outcomes) == (["one"], [None])
    assert world.namespace._machinery.budget.used == 0
    world.check()


# --- many ---


def test_a_thousand_entities_are_created_found_and_deleted() -> None:
    world = start(topic("t"))
    for number in range(400):
        create(world, session_queue(f"s{number}"))
        create(world, queue(f"q{number}", requires_duplicate_detection=True))
        subscribe(world, "t", subscription(f"a{number}", requires_session=True))
    world = world.restarted()
    assert len(world.administration.queues) == 800
    assert len(world.administration.subscriptions("t")) == 400
    for number in range(400):
        delete(world, f"q{number}")
        delete(world, f"s{number}")
    delete(world, "t")
    assert list(rows(world)) == [""]
    world.check()


def test_a_topic_cannot_be_received_from_and_a_subscription_cannot_be_sent_to() -> None:
    world = start(topic("t", "a"))
    with pytest.raises(OperationNotAllowed):
        world.namespace.queue("t")
    with pytest.raises(OperationNotAllowed):
        world.namespace.entity("t/Subscriptions/a").check_sending()
