"""Reloading: the changes that make a namespace match its file, their order, and what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.names import DefinitionError
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.rules import FilterKind, RuleDefinition
from peeklock.server.reload import Live, apply, live, plan
from raw_client import eventually
from serving import BrokerThread

SQL = RuleDefinition(name="cheap", filter_kind=FilterKind.SQL, sql_expression="price < 5")


def queue(name: str, **settings: Any) -> QueueDefinition:
    return QueueDefinition(name=name, **settings)


def topic(name: str, *subscriptions: SubscriptionDefinition, **settings: Any) -> TopicDefinition:
    return TopicDefinition(name=name, subscriptions=subscriptions, **settings)


def subscription(name: str, *rules: RuleDefinition, **settings: Any) -> SubscriptionDefinition:
    return SubscriptionDefinition(name=name, **settings, **({"rules": rules} if rules else {}))


def wanted(*entities: QueueDefinition | TopicDefinition) -> NamespaceDefinition:
    return NamespaceDefinition(
        queues=tuple(each for each in entities if isinstance(each, QueueDefinition)),
        topics=tuple(each for each in entities if isinstance(each, TopicDefinition)),
    )


def there(*entities: QueueDefinition | TopicDefinition) -> Live:
    both = wanted(*entities)
    return Live(both.queues, both.topics)


def steps(now: Live, then: NamespaceDefinition, *, prune: bool = False) -> list[str]:
    return [f"{change.verb} {change.kind} {change.name}" for change in plan(now, then, prune=prune)]


# --- adding and changing ---


def test_equal_definitions_need_no_change() -> None:
    entities = (queue("q"), topic("t", subscription("s", SQL)))
    assert steps(there(*entities), wanted(*entities)) == []


def test_the_creation_time_of_a_rule_is_no_difference() -> None:
    dated = replace(SQL, created_at=5)
    assert steps(there(topic("t", subscription("s", dated))), wanted(topic("t", subscription("s", SQL)))) == []


def test_missing_entities_are_created() -> None:
    assert steps(Live(), wanted(queue("q"), topic("t", subscription("s", SQL)))) == [
        "create topic t",
        "create queue q",
        "create subscription t/s",
    ]


def test_a_new_subscription_has_its_rules_from_the_start() -> None:
    (_, change) = plan(Live(), wanted(topic("t", subscription("s", SQL))))
    assert isinstance(change.subject, SubscriptionDefinition)
    assert change.subject.rules == (SQL,)


def test_different_entities_are_updated() -> None:
    now = there(queue("q"), topic("t", subscription("s")))
    then = wanted(
        queue("q", max_delivery_count=5),
        topic("t", subscription("s", max_delivery_count=5), max_size_in_megabytes=2048),
    )
    assert steps(now, then) == ["update queue q", "update topic t", "update subscription t/s"]


def test_a_name_in_another_spelling_is_the_same_entity_and_keeps_its_spelling() -> None:
    now = there(queue("Orders"), topic("Events", subscription("All")))
    assert steps(now, wanted(queue("ORDERS"), topic("EVENTS", subscription("ALL")))) == []
    then = wanted(queue("ORDERS", max_delivery_count=5), topic("EVENTS", subscription("ALL", max_delivery_count=5)))
    assert steps(now, then) == ["update queue Orders", "update subscription Events/All"]


def test_entities_that_are_not_in_the_file_are_kept() -> None:
    now = there(queue("q"), topic("t", subscription("s", SQL)), topic("u"))
    assert steps(now, wanted(topic("t"))) == []


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (queue("q"), queue("q", requires_session=True), "RequiresSession of 'q'"),
        (topic("t"), topic("t", requires_duplicate_detection=True), "RequiresDuplicateDetection of 't'"),
        (
            topic("t", subscription("s")),
            topic("t", subscription("s", requires_session=True)),
            "RequiresSession of 's'",
        ),
    ],
)
@pytest.mark.parametrize("prune", [False, True])
def test_an_impossible_change_is_refused_before_any_change(before: Any, after: Any, named: str, prune: bool) -> None:
    with pytest.raises(DefinitionError, match=named):
        plan(there(before), wanted(after, queue("new")), prune=prune)


@pytest.mark.parametrize(("before", "after"), [(queue("x"), topic("X")), (topic("x"), queue("X"))])
def test_a_queue_does_not_become_a_topic_unless_by_pruning(before: Any, after: Any) -> None:
    with pytest.raises(DefinitionError, match=r"X: is the name of an existing (queue|topic)"):
        plan(there(before), wanted(after))
    kinds = [change.kind for change in plan(there(before), wanted(after), prune=True)]
    assert steps(there(before), wanted(after), prune=True) == [f"delete {kinds[0]} x", f"create {kinds[1]} X"]


# --- forwarding ---


def test_queues_are_created_before_the_queues_that_forward_to_them() -> None:
    then = wanted(
        queue("a", forward_to="b"),
        queue("b", forward_to="c", forward_dead_lettered_messages_to="t"),
        queue("c"),
        topic("t", subscription("s", forward_to="a")),
    )
    assert steps(Live(), then) == [
        "create topic t",
        "create queue c",
        "create queue b",
        "create queue a",
        "create subscription t/s",
    ]


def test_queues_that_forward_to_each_other_are_updated_after_their_creation() -> None:
    then = wanted(queue("a", forward_to="b"), queue("b", forward_to="a", forward_dead_lettered_messages_to="a"))
    changes = plan(Live(), then)
    assert [f"{change.verb} {change.name}" for change in changes] == ["create a", "create b", "update a"]
    first, second, last = (change.subject for change in changes)
    assert isinstance(first, QueueDefinition)
    assert first.forward_to is None
    assert (second, last) == (then.queues[1], then.queues[0])


def test_forwarding_is_updated_after_creations_and_before_deletions() -> None:
    now = there(queue("a", forward_to="old"), queue("old"))
    then = wanted(queue("a", forward_to="new"), queue("new"))
    assert steps(now, then, prune=True) == ["create queue new", "update queue a", "delete queue old"]


# --- rules ---


def rules(*before: RuleDefinition, then: tuple[RuleDefinition, ...], prune: bool = False) -> list[str]:
    now = there(topic("t", replace(subscription("s"), rules=before)))
    found = steps(now, wanted(topic("t", subscription("s", *then))), prune=prune)
    return [step.replace(" rule t/s/", " ") for step in found]


def test_rules_are_added_and_changed_and_others_kept() -> None:
    other = replace(SQL, name="other")
    new = replace(SQL, name="new")
    changed = replace(SQL, sql_expression="price < 9")
    assert rules(SQL, other, then=(changed, new)) == ["update cheap", "create new"]
    assert rules(SQL, other, then=(changed, new), prune=True) == ["update cheap", "create new", "delete other"]


def test_a_subscription_without_rules_in_the_file_keeps_its_rules() -> None:
    assert rules(SQL, then=()) == []
    assert rules(then=()) == []


def test_pruning_restores_the_default_rule_of_a_subscription_without_rules_in_the_file() -> None:
    assert rules(SQL, then=(), prune=True) == ["create $Default", "delete cheap"]


def test_the_default_rule_is_deleted_when_other_rules_are_added() -> None:
    assert rules(RuleDefinition(), then=(SQL,)) == ["create cheap", "delete $Default"]


def test_a_changed_default_rule_is_kept() -> None:
    assert rules(replace(SQL, name="$Default"), then=(SQL,)) == ["create cheap"]
    assert rules(RuleDefinition(name="all"), then=(SQL,)) == ["create cheap"]


# --- pruning ---


def test_pruning_deletes_entities_that_are_not_in_the_file() -> None:
    now = there(queue("q"), queue("r"), topic("t", subscription("s"), subscription("u")), topic("v", subscription("w")))
    assert steps(now, wanted(queue("q"), topic("t", subscription("s"))), prune=True) == [
        "delete subscription t/u",
        "delete queue r",
        "delete topic v",
    ]


# --- a broker ---

FIRST = wanted(
    queue("kept"),
    queue("a", forward_to="b", max_delivery_count=3),
    queue("b", forward_to="a"),
    topic("t", subscription("s", SQL), subscription("u", forward_to="kept"), max_size_in_megabytes=2048),
)
SECOND = wanted(
    queue("b"),
    queue("c", forward_dead_lettered_messages_to="b"),
    topic("t", subscription("s", replace(SQL, sql_expression="price > 7"), replace(SQL, name="more"))),
    topic("kept", subscription("x")),
)


def follow(broker: BrokerThread, then: NamespaceDefinition, *, prune: bool = False) -> None:
    administration = broker.call(lambda: broker.broker.namespace.administration)
    changes = broker.call(lambda: plan(live(administration), then, prune=prune))
    taking = broker.call(lambda: asyncio.ensure_future(apply(administration, changes)))
    eventually(lambda: broker.call(taking.done))
    broker.call(taking.result)


@contextmanager
def running(folder: Path, *queues: QueueDefinition) -> Iterator[BrokerThread]:
    broker = BrokerThread(namespace=NamespaceDefinition(queues=queues), data=folder, tls_folder=folder)
    try:
        yield broker
    finally:
        broker.stop()


def test_applied_changes_hold_also_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path, queue("first")) as broker:
        for then in (FIRST, SECOND):
            follow(broker, then, prune=True)
            now = broker.call(lambda: live(broker.broker.namespace.administration))
            assert plan(now, then, prune=True) == []
            assert {each.name for each in now.queues} == {each.name for each in then.queues}
            assert {each.name for each in now.topics} == {each.name for each in then.topics}
    with running(tmp_path) as again:
        assert plan(again.call(lambda: live(again.broker.namespace.administration)), SECOND, prune=True) == []
