"""Rules over AMQP: their effect on messages, their descriptions, and the refusal of invalid ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from nodes.asking import (
    SUBSCRIPTION,
    Management,
    accept_session,
    body_of,
    receive,
    refusal_of,
    request,
    send,
)
from nodes.conftest import NAMESPACE
from peeklock.amqp.codec import encode_value
from peeklock.amqp.message import Message
from peeklock.amqp.types import (
    Array,
    Byte,
    Char,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from peeklock.broker.rules.conversion import DATETIME_OFFSET, TIMESPAN, URI
from peeklock.client import Connection, LinkClosed, connect
from peeklock.entities.authorization import ALL_RIGHTS, AuthorizationRule, Right
from peeklock.entities.definitions import SubscriptionDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.settings import DEFAULT_PROFILE
from peeklock.store.base import StoreError
from server.held_store import HeldStore
from serving import BrokerThread, StartBroker

ARGUMENT_ERROR = (400, "com.microsoft:argument-error")
EXISTS = (409, "com.microsoft:entity-already-exists")
NOT_ALLOWED = (400, "amqp:not-allowed")
NOT_FOUND = (404, "amqp:not-found")
NO_RULES = f"The subscription '{SUBSCRIPTION}' has no rules now and receives no messages until one is added."
TICKS_AT_EPOCH = 621_355_968_000_000_000


def sql(expression: str, action: str | None = None) -> dict[str, Any]:
    description: dict[str, Any] = {"sql-filter": {"expression": expression}}
    return description if action is None else {**description, "sql-rule-action": {"expression": action}}


def correlation(**tested: Any) -> dict[str, Any]:
    return {"correlation-filter": {name.replace("_", "-"): value for name, value in tested.items()}}


def add(subscription: Management, name: str, description: Any) -> None:
    assert subscription.ok("add-rule", {"rule-name": name, "rule-description": description}) == {}


def only(subscription: Management, description: Any) -> None:
    """Replace the rule `$Default` by another."""
    subscription.ok("remove-rule", {"rule-name": "$Default"})
    add(subscription, "only", description)


def refused(subscription: Management, description: Any, name: str = "r") -> str:
    """Add a rule with an invalid description, and return the reason of the refusal."""
    status, condition, text = subscription.refusal("add-rule", {"rule-name": name, "rule-description": description})
    assert (status, condition) == ARGUMENT_ERROR, text
    assert names(subscription) == ["$Default"]
    return text


def names(subscription: Management) -> list[str]:
    return [rule.value[2] for rule in subscription.rules()]


def publish(connection: Connection, body: bytes, **properties: Any) -> None:
    sender = connection.sender("topic")
    sender.send(Message(application_properties=properties, data=[body]))
    sender.close()


def arrived(broker: BrokerThread, connection: Connection) -> list[bytes]:
    """Receive and delete the messages of the subscription."""
    with connection.receiver(SUBSCRIPTION, mode="receive-and-delete", credit=0) as receiver:
        return [message.body for message in receive(receiver, broker.counters(SUBSCRIPTION).active)]


# --- what they do ---


def test_a_rule_applies_to_the_next_message(
    broker: BrokerThread, connection: Connection, subscription: Management
) -> None:
    publish(connection, b"before", color="blue")
    only(subscription, sql("color = 'red'"))
    publish(connection, b"red", color="red")
    publish(connection, b"blue", color="blue")
    add(subscription, "blue too", sql("color = 'blue'"))
    publish(connection, b"blue now", color="blue")
    assert arrived(broker, connection) == [b"before", b"red", b"blue now"]


def test_a_removed_rule_does_not_apply_to_the_next_message(
    broker: BrokerThread, connection: Connection, subscription: Management
) -> None:
    only(subscription, sql("color = 'red'"))
    publish(connection, b"red", color="red")
    subscription.ok("remove-rule", {"rule-name": "ONLY"})
    publish(connection, b"red", color="red")
    assert arrived(broker, connection) == [b"red"]


def test_without_the_default_rule_a_subscription_gets_nothing_until_it_has_a_rule(
    broker: BrokerThread, connection: Connection, subscription: Management
) -> None:
    subscription.ok("remove-rule", {"rule-name": "$Default"})
    publish(connection, b"dropped")
    assert broker.counters(SUBSCRIPTION).active == 0
    add(subscription, "$Default", sql("1=1"))
    publish(connection, b"taken")
    assert arrived(broker, connection) == [b"taken"]


def test_the_rules_of_one_subscription_are_not_those_of_another(
    broker: BrokerThread, connection: Connection, subscription: Management
) -> None:
    other = Management(connection, "topic/Subscriptions/sessions")
    other.ok("remove-rule", {"rule-name": "$Default"})
    add(other, "r", correlation(session_id="mine"))
    send(connection, b"x", to="topic", session="mine")
    send(connection, b"y", to="topic", session="yours")
    assert names(subscription) == ["$Default"]
    assert broker.counters(SUBSCRIPTION).active == 2
    assert broker.counters("topic/Subscriptions/sessions").active == 1
    receiver = accept_session(connection, None, on="topic/Subscriptions/sessions")
    assert receive(receiver, 1)[0].body == b"x"


def test_rules_survive_a_restart(start_broker: StartBroker, tmp_path: Path) -> None:
    before = BrokerThread(namespace=NAMESPACE, data=tmp_path / "data", tls_folder=tmp_path)
    try:
        with connect(before.connection_string) as connection:
            subscription = Management(connection, SUBSCRIPTION)
            only(subscription, sql("color = 'red'", "SET seen = 1"))
            add(subscription, "time", correlation(label="l", properties={"at": Timestamp(5), "for": Int(7)}))
            before.advance(60)
            add(subscription, "later", sql("1=0"))
            listed = subscription.rules()
    finally:
        before.stop()
    broker = start_broker(namespace=NAMESPACE)
    with connect(broker.connection_string) as connection:
        subscription = Management(connection, SUBSCRIPTION)
        assert subscription.rules() == listed
        publish(connection, b"red", color="red")
        publish(connection, b"blue", color="blue")
        assert arrived(broker, connection) == [b"red"]


# --- the way to the store ---


@pytest.fixture
def held(start_broker: StartBroker) -> tuple[BrokerThread, HeldStore]:
    """A broker whose disk hangs when it is told to."""
    store = HeldStore()
    return start_broker(namespace=NAMESPACE, make_store=lambda _: store), store


def test_a_rule_is_confirmed_when_it_is_in_the_store(held: tuple[BrokerThread, HeldStore]) -> None:
    broker, store = held
    with connect(broker.connection_string) as connection:
        subscription = Management(connection, SUBSCRIPTION)
        broker.call(store.hold)
        asked = subscription.requester.submit(request("add-rule", {"rule-name": "r", "rule-description": sql("1=1")}))
        assert names(subscription) == ["$Default"]
        assert not subscription.requester._under_way[asked].is_over
        broker.call(store.let_go)
        assert body_of(subscription.requester.response(asked), 200) == {}
        assert names(subscription) == ["$Default", "r"]


def test_a_rule_that_the_store_refuses_is_not_there(held: tuple[BrokerThread, HeldStore]) -> None:
    broker, store = held
    with connect(broker.connection_string) as connection:
        subscription = Management(connection, SUBSCRIPTION)
        store.fails = lambda changes: StoreError("broken")
        status, _, _ = subscription.refusal("add-rule", {"rule-name": "r", "rule-description": sql("1=1")})
        assert status == 500
        assert subscription.refusal("remove-rule", {"rule-name": "$Default"})[0] == 500
        store.fails = lambda changes: None
        assert names(subscription) == ["$Default"]
        add(subscription, "r", sql("1=1"))


def test_rules_may_be_added_and_removed_concurrently(held: tuple[BrokerThread, HeldStore]) -> None:
    broker, store = held
    with connect(broker.connection_string) as connection:
        subscription = Management(connection, SUBSCRIPTION)
        add(subscription, "old", sql("1=1"))
        broker.call(store.hold)
        requests = [
            request("add-rule", {"rule-name": f"r{number}", "rule-description": sql(f"x = {number}")})
            for number in range(50)
        ]
        requests += [request("remove-rule", {"rule-name": name}) for name in ("$Default", "old")]
        asked = [subscription.requester.submit(each) for each in requests]
        assert names(subscription) == ["$Default", "old"]  # so all of them have been heard
        broker.call(store.let_go)
        for each in asked:
            assert body_of(subscription.requester.response(each), 200) == {}
        assert sorted(names(subscription)) == sorted(f"r{number}" for number in range(50))


def test_of_two_concurrent_rules_of_one_name_the_first_is_stored(held: tuple[BrokerThread, HeldStore]) -> None:
    broker, store = held
    with connect(broker.connection_string) as connection:
        subscription = Management(connection, SUBSCRIPTION)
        broker.call(store.hold)
        bodies = [{"rule-name": "r", "rule-description": sql(f"x = {number}")} for number in range(2)]
        first, second = (subscription.requester.submit(request("add-rule", body)) for body in bodies)
        assert names(subscription) == ["$Default"]
        broker.call(store.let_go)
        assert body_of(subscription.requester.response(first), 200) == {}
        assert refusal_of(subscription.requester.response(second))[:2] == EXISTS
        assert subscription.rules()[1].value[0].value[0] == "x = 0"


# --- how they are listed ---


def test_a_listed_rule_has_its_creation_time(broker: BrokerThread, subscription: Management) -> None:
    broker.advance(60)
    add(subscription, "r", sql("x = 1", "REMOVE x"))
    default, rule = subscription.rules()
    assert [type(item) for item in rule.value] == [Described, Described, str, Timestamp]
    assert rule.value[3] == broker.clock()
    assert default.value[3] == broker.clock() - 60_000
    for part in rule.value[:2]:
        assert [type(item) for item in part.value] == [str, Int]
        assert part.value[1] == 20


def test_the_descriptors_are_numbers_of_64_bits(subscription: Management) -> None:
    encoded = encode_value(subscription.rules()[0])
    assert encoded.startswith(b"\x00\x80\x00\x00\x01\x37\x00\x00\x00\x04")
    assert b"\x00\x80\x00\x00\x00\x13\x70\x00\x00\x07" in encoded
    assert b"\x00\x80\x00\x00\x01\x37\x00\x00\x00\x05" in encoded


def test_a_correlation_filter_without_properties_has_an_empty_map(subscription: Management) -> None:
    add(subscription, "r", correlation(to="t", properties=None))
    assert subscription.rules()[1].value[0].value == [None, None, "t", None, None, None, None, None, {}]


def test_rules_are_listed_in_pages_until_there_are_no_more(subscription: Management) -> None:
    for number in range(4):
        add(subscription, f"r{number}", sql("1=1"))
    found, pages = [], 0
    while page := subscription.rules(top=2, skip=len(found)):
        found += [rule.value[2] for rule in page]
        pages += 1
    assert found == ["$Default", "r0", "r1", "r2", "r3"]
    assert pages == 3
    assert len(subscription.rules(top=2**31 - 1)) == 5
    assert body_of(subscription.ask("enumerate-rules", {"top": Int(1), "skip": Int(2**31 - 1)}), 204) == {}


@pytest.mark.parametrize(("key", "value"), [("top", -1), ("top", 0), ("skip", -1)])
def test_a_page_that_cannot_be_is_refused(key: str, value: int, subscription: Management) -> None:
    status, condition, text = subscription.refusal("enumerate-rules", {"top": Int(5), "skip": Int(0), key: Int(value)})
    assert (status, condition) == ARGUMENT_ERROR
    assert f"'{key}'" in text


# --- how they are described ---

SPELLINGS = {
    "rule": (0x13700000004, 0x1370000004, "com.microsoft:rule-description:list"),
    "sql": (0x1370000006, 0x13700000006, "com.microsoft:sql-filter:list"),
    "true": (0x1370000007, 0x13700000007, "com.microsoft:true-filter:list"),
    "false": (0x1370000008, 0x13700000008, "com.microsoft:false-filter:list"),
    "correlation": (0x1370000009, 0x13700000009, "com.microsoft:correlation-filter:list"),
    "no action": (0x13700000005, 0x1370000005, "com.microsoft:empty-rule-action:list"),
    "action": (0x13700000006, 0x1370000006, "com.microsoft:sql-rule-action:list"),
}


def described(what: str, *items: Any, spelling: int = 0) -> Described:
    descriptor = SPELLINGS[what][spelling]
    return Described(Symbol(descriptor) if isinstance(descriptor, str) else ULong(descriptor), list(items))


@pytest.mark.parametrize("spelling", [0, 1, 2], ids=["code", "other code", "name"])
@pytest.mark.parametrize(
    ("what", "items", "action", "listed"),
    [
        ("sql", ["x = 1", Int(20)], ["SET y = 2", Int(20)], ["x = 1", 20]),
        ("sql", ["x = 1"], ["SET y = 2"], ["x = 1", 20]),
        ("true", [], None, []),
        ("false", [], None, []),
        ("correlation", ["c"], None, ["c", *[None] * 7, {}]),
        ("correlation", [*[None] * 8, {"x": Int(1)}], None, [*[None] * 8, {"x": 1}]),
    ],
)
def test_described_lists_are_accepted_like_maps(
    spelling: int, what: str, items: list[Any], action: list[Any] | None, listed: list[Any], subscription: Management
) -> None:
    filter = described(what, *items, spelling=spelling)
    act = described("no action" if action is None else "action", *(action or ()), spelling=spelling)
    add(subscription, "whole", described("rule", filter, act, "another name", Timestamp(0), spelling=spelling))
    add(subscription, "filter first", described("rule", filter, spelling=spelling))
    key = "correlation-filter" if what == "correlation" else "sql-filter"
    add(subscription, "in a map", {key: filter, "sql-rule-action": act})
    _, whole, first, mapped = subscription.rules()
    assert [rule.value[2] for rule in (whole, first, mapped)] == ["whole", "filter first", "in a map"]
    for rule in (whole, first, mapped):
        assert rule.value[0] == described(what, *listed)
    for rule in (whole, mapped):
        assert rule.value[1] == (described("no action") if action is None else described("action", "SET y = 2", 20))


def test_a_listed_rule_can_be_added_again(connection: Connection, subscription: Management) -> None:
    add(subscription, "sql", sql("x = 1", "SET y = 2"))
    add(subscription, "constant", sql("1=0"))
    add(subscription, "correlation", correlation(message_id="m", properties={"a": 1.5, "b": Timestamp(1)}))
    other = Management(connection, "topic/Subscriptions/sessions")
    other.ok("remove-rule", {"rule-name": "$Default"})
    for rule in subscription.rules():
        add(other, rule.value[2], rule)
    assert [rule.value[:3] for rule in other.rules()] == [rule.value[:3] for rule in subscription.rules()]


@pytest.mark.parametrize(("expression", "code"), [("1=1", 0x1370000007), ("1=0", 0x1370000008)])
def test_the_constant_filters_come_as_sql_and_are_listed_as_such(
    expression: str, code: int, broker: BrokerThread, connection: Connection, subscription: Management
) -> None:
    only(subscription, sql(expression))
    assert subscription.rules()[0].value[0] == Described(code, [])
    publish(connection, b"x")
    assert arrived(broker, connection) == ([b"x"] if expression == "1=1" else [])


def test_sql_that_is_always_true_is_listed_as_it_was_given(subscription: Management) -> None:
    add(subscription, "r", sql("1 = 1"))
    assert subscription.rules()[1].value[0] == described("sql", "1 = 1", 20)


MOMENT = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
MOMENT_MS = int(MOMENT.timestamp() * 1000)
MOMENT_TICKS = TICKS_AT_EPOCH + MOMENT_MS * 10_000


@pytest.mark.parametrize(
    ("given", "listed"),
    [
        ("text", "text"),
        ("", ""),
        (Symbol("text"), "text"),
        (Char("t"), "t"),
        (True, True),
        (UByte(200), Int(200)),
        (UShort(60_000), Int(60_000)),
        (UInt(4_000_000_000), 4_000_000_000),
        (ULong(2**64 - 1), ULong(2**64 - 1)),
        (Byte(-100), Int(-100)),
        (Short(-30_000), Int(-30_000)),
        (Int(-2_000_000_000), Int(-2_000_000_000)),
        (7, Int(7)),
        (-(2**63), -(2**63)),
        (Float(0.5), 0.5),
        (0.1, 0.1),
        (Timestamp(MOMENT_MS), Timestamp(MOMENT_MS)),
        (Described(DATETIME_OFFSET, MOMENT_TICKS), Timestamp(MOMENT_MS)),
        (
            Described(TIMESPAN, 90 * 10_000_000),
            Described(TIMESPAN, timedelta(seconds=90) // timedelta(microseconds=1) * 10),
        ),
        (Described(TIMESPAN, -(2**63)), Described(TIMESPAN, -(2**63) + 8)),
        (Described(URI, "https://example.org/"), "https://example.org/"),
        (UUID(int=1), UUID(int=1)),
    ],
    ids=repr,
)
def test_a_property_is_compared_by_its_value_and_listed_in_its_type(
    given: Any, listed: Any, broker: BrokerThread, connection: Connection, subscription: Management
) -> None:
    only(subscription, correlation(properties={Symbol("x"): given}))
    found = subscription.rules()[0].value[0].value[8]
    assert found == {"x": listed}
    assert type(found["x"]) is type(listed)
    assert all(type(key) is str for key in found)
    publish(connection, b"that", x=given)
    publish(connection, b"another", x="something else")
    publish(connection, b"none")
    assert arrived(broker, connection) == [b"that"]


def test_a_symbol_is_as_good_as_a_string(subscription: Management) -> None:
    add(subscription, "r", {Symbol("sql-filter"): {Symbol("expression"): Symbol("x=1")}})
    add(subscription, "s", {Symbol("correlation-filter"): {Symbol("to"): Symbol("t")}})
    assert [rule.value[0].value[:3] for rule in subscription.rules()[1:]] == [["x=1", 20], [None, None, "t"]]


def test_an_empty_map_as_action_means_no_action(subscription: Management) -> None:
    only(subscription, {**sql("a = 1"), "sql-rule-action": {}})
    (rule,) = subscription.rules()
    assert rule.value[1] == Described(ULong(0x137_0000_0005), [])


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        (sql("a ="), "^"),
        ({}, "either 'sql-filter' or 'correlation-filter'"),
        ("no map", "must be a map"),
        (None, "has no 'rule-description'"),
        (sql("a = 1", "SET"), "^"),
    ],
)
def test_the_error_of_a_refused_rule_says_that_its_subscription_has_no_rule(
    description: Any, reason: str, subscription: Management, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"rule-name": "r", "rule-description": description}
    text = subscription.refusal("add-rule", body)[2]
    assert reason in text
    assert "no rules" not in text
    subscription.ok("remove-rule", {"rule-name": "$Default"})
    assert not caplog.records
    told = subscription.refusal("add-rule", body)
    assert told[:2] == ARGUMENT_ERROR
    assert told[2] in (f"{text}{gap}{NO_RULES}" for gap in " \n")
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"the rule was refused, and subscription '{SUBSCRIPTION}' has no other: it gets no messages"
    ]
    add(subscription, "r", sql("a = 1"))
    assert "no rules" not in subscription.refusal("add-rule", body)[2]


def test_the_error_of_a_rule_that_the_store_refuses_says_that_its_subscription_has_none(
    held: tuple[BrokerThread, HeldStore],
) -> None:
    broker, store = held
    with connect(broker.connection_string) as connection:
        subscription = Management(connection, SUBSCRIPTION)
        subscription.ok("remove-rule", {"rule-name": "$Default"})
        broker.call(lambda: setattr(store, "fails", lambda changes: StoreError("not now")))
        text = subscription.refusal("add-rule", {"rule-name": "r", "rule-description": sql("a = 1")})[2]
        assert text.endswith(NO_RULES)


def test_nulls_and_unknown_keys_change_nothing(subscription: Management) -> None:
    description = {"sql-filter": None, **correlation(to="t", label=None, colour="blue"), "rule-name": "other", "x": 1}
    add(subscription, "r", description)
    rule = subscription.rules()[1]
    assert (rule.value[0].value[2], rule.value[2]) == ("t", "r")


# --- what is refused ---


@pytest.mark.parametrize(
    ("description", "word"),
    [
        ({}, "'sql-filter'"),
        ({"sql-filter": None, "correlation-filter": None}, "'correlation-filter'"),
        ({**sql("x = 1"), **correlation(to="t")}, "'correlation-filter'"),
        ({"sql-filter": "x = 1"}, "'sql-filter'"),
        ({"sql-filter": {}}, "'expression'"),
        ({"sql-filter": {"expression": Int(1)}}, "'expression'"),
        ({"sql-filter": {"expression": ""}}, "SqlFilter"),
        ({"sql-filter": {"expression": "x" * 5000}}, "SqlFilter"),
        ({"correlation-filter": ["c"]}, "'correlation-filter'"),
        (correlation(), "CorrelationFilter"),
        (correlation(properties={}), "CorrelationFilter"),
        (correlation(to=Int(1)), "'to'"),
        (correlation(properties="x"), "'properties'"),
        (correlation(properties={"x": None}), "Properties.x"),
        (correlation(properties={"x": [1]}), "Properties.x"),
        (correlation(properties={"x": b"bytes"}), "Properties.x"),
        (correlation(properties={"x": Array([1], int)}), "Properties.x"),
        (correlation(properties={"x": Described(Symbol("unknown"), 1)}), "Properties.x"),
        (correlation(properties={5: "x"}), "Properties.5"),
        ({**sql("x = 1"), "sql-rule-action": {"text": "x"}}, "'expression'"),
        ({**sql("x = 1"), "sql-rule-action": "SET x = 1"}, "'sql-rule-action'"),
        (sql("x = 1", ""), "Action"),
        ({"sql-filter": Described(ULong(1), [])}, "'sql-filter'"),
        ({"sql-filter": described("no action")}, "'sql-filter'"),
        ({"sql-filter": described("sql")}, "'expression'"),
        ({"sql-filter": Described(ULong(0x1370000006), "x = 1")}, "'sql-filter'"),
        ({"correlation-filter": described("correlation", Int(1))}, "'correlation-id'"),
        ({**sql("x = 1"), "sql-rule-action": described("true")}, "'sql-rule-action'"),
        (described("rule"), "'rule-description'"),
        (described("rule", {"expression": "x = 1"}), "'rule-description'"),
        (described("rule", described("rule")), "'rule-description'"),
        (described("rule", described("true"), "SET x = 1"), "'sql-rule-action'"),
        (described("true"), "'rule-description'"),
        (Described(ULong(0x13700000004), {}), "'rule-description'"),
        (Described([], [described("true")]), "'rule-description'"),
    ],
    ids=repr,
)
def test_a_description_that_is_wrong_is_refused_by_name(
    description: Any, word: str, connection: Connection, subscription: Management
) -> None:
    assert word in refused(subscription, description)


@pytest.mark.parametrize("description", [sql("x = = 1"), sql("x = 1", "SET x = = 1")], ids=["filter", "action"])
def test_invalid_sql_is_shown_with_a_caret_under_the_position(description: Any, subscription: Management) -> None:
    *_, line, caret = refused(subscription, description).split("\n")
    assert line.strip().endswith("x = = 1")
    assert caret.strip() == "^"
    assert line[: caret.index("^")].endswith("x = ")


@pytest.mark.parametrize("name", ["", " ", "x" * 51, "a/b", "a?b"])
def test_a_name_that_no_rule_can_have_is_refused(name: str, subscription: Management) -> None:
    assert "Name" in refused(subscription, sql("1=1"), name)


@pytest.mark.parametrize("name", ["r", "R"])
def test_a_rule_that_is_there_cannot_be_added(name: str, subscription: Management) -> None:
    add(subscription, "r", sql("x = 1"))
    status, condition, text = subscription.refusal("add-rule", {"rule-name": name, "rule-description": sql("x = 2")})
    assert (status, condition) == EXISTS
    assert "topic/Subscriptions/sub" in text
    assert f"|{name}'" in text
    assert subscription.rules()[1].value[0].value[0] == "x = 1"


def test_a_rule_that_is_not_there_cannot_be_removed(subscription: Management) -> None:
    status, condition, text = subscription.refusal("remove-rule", {"rule-name": "nowhere"})
    assert (status, condition) == NOT_FOUND
    assert text.startswith("The messaging entity 'sb://peeklock/topic/Subscriptions/sub/Rules/nowhere' could not be")


def test_more_filters_than_a_topic_may_have_are_refused(start_broker: StartBroker) -> None:
    profile = replace(DEFAULT_PROFILE, max_sql_filters=1)
    with connect(start_broker(namespace=NAMESPACE, profile=profile).connection_string) as connection:
        subscription = Management(connection, SUBSCRIPTION)
        add(subscription, "first", sql("x = 1"))
        body = {"rule-name": "second", "rule-description": sql("x = 2")}
        status, condition, text = subscription.refusal("add-rule", body)
        assert (status, condition) == (403, "amqp:resource-limit-exceeded")
        assert "1 SQL filters" in text
        assert names(subscription) == ["$Default", "first"]


OPERATIONS = [
    ("add-rule", {"rule-name": "r", "rule-description": sql("1=1")}),
    ("remove-rule", {"rule-name": "$Default"}),
    ("enumerate-rules", {"top": Int(100), "skip": Int(0)}),
]


@pytest.mark.parametrize(("operation", "body"), OPERATIONS)
@pytest.mark.parametrize(
    "entity",
    [
        "queue",
        "queue/$DeadLetterQueue",
        "topic",
        "topic/Subscriptions/sub/$DeadLetterQueue",
        "topic/Subscriptions/sub/$Transfer/$DeadLetterQueue",
    ],
)
def test_only_a_subscription_has_rules(
    entity: str, operation: str, body: dict[str, Any], connection: Connection
) -> None:
    status, condition, text = Management(connection, entity).refusal(operation, body)
    assert (status, condition) == NOT_ALLOWED
    assert text == f"The entity '{entity}' has no rules."
    assert names(Management(connection, SUBSCRIPTION)) == ["$Default"]


def test_the_address_may_be_in_any_case(connection: Connection, subscription: Management) -> None:
    add(Management(connection, "TOPIC/subscriptions/SUB"), "r", sql("1=1"))
    assert names(subscription) == ["$Default", "r"]


# --- rights ---


def keys(*rights: Right) -> tuple[AuthorizationRule, ...]:
    return tuple(AuthorizationRule(name=each, primary_key=f"{each}-key", rights=frozenset({each})) for each in rights)


@pytest.fixture
def guarded(start_broker: StartBroker) -> BrokerThread:
    root = AuthorizationRule(name="root", primary_key="root-key", rights=ALL_RIGHTS)
    topics = (
        TopicDefinition(
            name="topic",
            subscriptions=(SubscriptionDefinition(name="sub"),),
            authorization_rules=keys(Right.SEND, Right.LISTEN),
        ),
        TopicDefinition(name="other", subscriptions=(SubscriptionDefinition(name="sub"),)),
    )
    return start_broker(namespace=NamespaceDefinition(topics=topics, authorization_rules=(root,)))


def key_string(broker: BrokerThread, right: Right) -> str:
    return broker.connection_string.replace("root-key", f"{right}-key").replace("=root;", f"={right};")


def test_a_client_with_listen_can_read_and_change_rules(guarded: BrokerThread) -> None:
    with connect(key_string(guarded, Right.LISTEN)) as connection:
        subscription = Management(connection, SUBSCRIPTION)
        for operation, body in OPERATIONS:
            assert subscription.ok(operation, body) is not None


def test_a_sender_without_listen_cannot_read_rules(guarded: BrokerThread) -> None:
    with connect(key_string(guarded, Right.SEND)) as connection:
        subscription = Management(connection, SUBSCRIPTION)
        for operation, body in OPERATIONS:
            status, condition, text = subscription.refusal(operation, body)
            assert (status, condition) == (401, "amqp:unauthorized-access")
            assert "'Listen'" in text


@pytest.mark.parametrize("claimed", ["topic", SUBSCRIPTION, f"{SUBSCRIPTION}/$management"])
def test_a_claim_for_the_topic_or_below_opens_the_rules(claimed: str, guarded: BrokerThread) -> None:
    with connect(key_string(guarded, Right.LISTEN)) as connection:
        connection.authenticate(claimed)
        connection._tokens.put = lambda *_: None  # type: ignore[method-assign]
        assert names(Management(connection, SUBSCRIPTION)) == ["$Default"]
        with pytest.raises(LinkClosed) as closed:
            Management(connection, "other/Subscriptions/sub")
        assert closed.value.condition == "amqp:unauthorized-access"
