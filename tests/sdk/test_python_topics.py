"""azure-servicebus for Python on topics and subscriptions: copies, rules, and the operations of queues."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusError
from python_client import Bus, Client, StartBus, correlation, receive, sql, take, text_properties

from peeklock.client import connect
from peeklock.entities.definitions import SubscriptionDefinition, TopicDefinition
from peeklock.entities.rules import RuleDefinition
from peeklock.entities.settings import DEFAULT_PROFILE
from peeklock.server.config import load_config
from serving import ServedBroker, StartBroker

DEAD_LETTERS: dict[str, Any] = {"sub_queue": ServiceBusSubQueue.DEAD_LETTER}
DELETES: dict[str, Any] = {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE}


def topic(*subscriptions: SubscriptionDefinition, **settings: Any) -> TopicDefinition:
    return TopicDefinition(name="topic", subscriptions=subscriptions, **settings)


def subscription(name: str, *rules: RuleDefinition, **settings: Any) -> SubscriptionDefinition:
    """Without rules it gets everything."""
    return SubscriptionDefinition(name=name, rules=rules or (RuleDefinition(),), **settings)


def colored(body: str, color: str, **properties: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body, application_properties={"color": color}, **properties)


@pytest.fixture
def colors(start_bus: StartBus) -> Bus:
    """A topic with a subscription for all messages, and two for those of a color."""
    return start_bus(
        topic(
            subscription("all"),
            subscription("red", sql("color = 'red'")),
            subscription("blue", correlation(properties={"color": "blue"})),
        )
    )


# --- copies ---


def test_a_message_is_copied_to_every_matching_subscription(colors: Bus) -> None:
    sent = ServiceBusMessage(
        b"body" * 100,
        application_properties={"color": "red", "number": 7},
        message_id="the-id",
        subject="the-subject",
        correlation_id="the-correlation",
        content_type="text/plain",
    )
    colors.send("topic", sent)
    for name in ("all", "red"):
        receiver = colors.subscription(name)
        (message,) = receive(receiver)
        assert b"".join(message.body) == b"body" * 100
        assert text_properties(message) == {"color": "red", "number": 7}
        assert (message.message_id, message.subject) == ("the-id", "the-subject")
        assert (message.correlation_id, message.content_type) == ("the-correlation", "text/plain")
        assert message.sequence_number == 1
        receiver.complete_message(message)
    assert [colors.counts(f"topic/Subscriptions/{name}") for name in ("all", "red", "blue")] == [(0, 0)] * 3


def test_a_copy_has_the_topics_sequence_number_in_every_receive_mode(colors: Bus) -> None:
    colors.send("topic", *(colored(str(number), "red") for number in range(1, 4)))
    red = colors.subscription("red")
    first, second = receive(red, 2)
    red.defer_message(first)
    red.dead_letter_message(second)
    (deferred,) = red.receive_deferred_messages(first.sequence_number)
    (peeked,) = red.peek_messages(1, sequence_number=3)
    (letter,) = receive(colors.subscription("red", **DEAD_LETTERS))
    (deleted,) = receive(colors.subscription("red", **DELETES))
    for message in (first, second, deferred, peeked, letter, deleted):
        assert message.enqueued_sequence_number == int(str(message))


def test_a_message_that_no_rule_matches_is_accepted_and_dropped(start_bus: StartBus) -> None:
    bus = start_bus(topic(subscription("red", sql("color = 'red'"))), TopicDefinition(name="deserted"))
    bus.send("topic", colored("unwanted", "blue"), colored("wanted", "red"))
    bus.send("deserted", "unheard")
    assert take(bus.subscription("red")) == ["wanted"]


def test_a_batch_reaches_each_subscription_in_order(colors: Bus) -> None:
    batch = colors.sender("topic").create_message_batch()
    for number in range(20):
        batch.add_message(colored(str(number), "blue" if number % 2 else "red"))
    colors.sender("topic").send_messages(batch)
    assert take(colors.subscription("all"), 20) == [str(number) for number in range(20)]
    assert take(colors.subscription("red"), 10) == [str(number) for number in range(0, 20, 2)]
    assert take(colors.subscription("blue"), 10) == [str(number) for number in range(1, 20, 2)]


def test_scheduled_messages_are_copied_when_they_are_due_unless_they_are_cancelled(colors: Bus) -> None:
    due = colors.in_minutes(10)
    messages = [colored(body, "red") for body in ("first", "cancelled", "second")]
    numbers = colors.sender("topic").schedule_messages(messages, due)
    colors.sender("topic").cancel_scheduled_messages(numbers[1])
    assert colors.counts("topic/Subscriptions/all") == (0, 0)
    colors.broker.advance(601)
    found = receive(colors.subscription("red"), 2)
    assert [str(message) for message in found] == ["first", "second"]
    assert {message.enqueued_time_utc for message in found} == {due}
    assert colors.counts("topic/Subscriptions/all") == (2, 0)
    assert colors.counts("topic/Subscriptions/blue") == (0, 0)


def test_names_are_found_in_any_letter_case(colors: Bus) -> None:
    colors.send("TOPIC", "a")
    assert take(colors.subscription("ALL", topic="Topic")) == ["a"]


def test_a_topic_cannot_be_received_from_and_a_subscription_not_sent_to(colors: Bus) -> None:
    with pytest.raises(ServiceBusError, match="topic"):
        colors.queue("topic").receive_messages(max_wait_time=1)
    with pytest.raises(ServiceBusError, match="ubscription"):
        colors.send("topic/Subscriptions/all", "a")
    with pytest.raises(MessagingEntityNotFoundError):
        colors.subscription("nobody").receive_messages(max_wait_time=1)


def test_500_subscriptions_get_their_copy_of_one_send(start_broker: StartBroker, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    rules = [
        {"Name": "wanted", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "number >= 0"}}},
        {
            "Name": "own",
            "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"CorrelationId": "250"}},
        },
    ]
    subscriptions: list[dict[str, Any]] = [{"Name": f"s{number}", "Rules": rules[:1]} for number in range(499)]
    subscriptions.append({"Name": "s499", "Rules": rules[1:]})
    topics = [{"Name": "topic", "Subscriptions": subscriptions}]
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Topics": topics}]}}))
    with Bus(start_broker(namespace=load_config(config, DEFAULT_PROFILE))) as bus:
        body = "x" * 10_000
        bus.send("topic", ServiceBusMessage(body, application_properties={"number": 0}, correlation_id="250"))
        assert {bus.counts(f"topic/Subscriptions/s{number}") for number in range(500)} == {(1, 0)}
        for number in (0, 250, 498, 499):
            assert take(bus.subscription(f"s{number}")) == [body]


# --- rules ---

CHOOSING: dict[str, tuple[RuleDefinition, dict[str, Any]]] = {
    "text": (sql("color = 'red'"), {"application_properties": {"color": "red"}}),
    "number": (sql("n > 3 AND n <= 5.5"), {"application_properties": {"n": 5}}),
    "several": (sql("size IN ('s', 'm')"), {"application_properties": {"size": "m"}}),
    "presence": (sql('EXISTS("a name")'), {"application_properties": {"a name": False}}),
    "system": (sql("sys.Label LIKE 'ord%'"), {"subject": "order"}),
    "id": (correlation(message_id="1"), {"message_id": "1"}),
    "session": (correlation(session_id="s"), {"session_id": "s"}),
    "both": (correlation(label="l", properties={"n": 1}), {"subject": "l", "application_properties": {"n": 1}}),
}
"""Rules, and what a message has that passes."""


def test_each_subscription_gets_messages_that_match_its_rule(start_bus: StartBus) -> None:
    bus = start_bus(topic(*(subscription(name, rule) for name, (rule, _) in CHOOSING.items())))
    bus.send("topic", *(ServiceBusMessage(name, **wanted) for name, (_, wanted) in CHOOSING.items()))
    bus.send("topic", ServiceBusMessage("unwanted", subject="l", application_properties={"n": 3, "size": "l"}))
    with connect(bus.broker.connection_string) as connection:
        for name in CHOOSING:
            with connection.management(f"topic/Subscriptions/{name}") as management:
                assert [message.body for message in management.peek()] == [name.encode()]


def test_an_action_changes_the_copy_of_its_subscription_only(start_bus: StartBus) -> None:
    changing = sql("n > 1", "SET sys.Label = 'many'; SET twice = n * 2; SET color = 'none'; REMOVE secret")
    bus = start_bus(topic(subscription("changed", changing), subscription("unchanged")))
    properties = {"n": 4, "color": "red", "secret": "s"}
    bus.send("topic", ServiceBusMessage("body", application_properties=properties, subject="few"))
    (changed,) = receive(bus.subscription("changed"))
    assert (str(changed), changed.subject) == ("body", "many")
    assert text_properties(changed) == {"n": 4, "color": "none", "twice": 8, "RuleName": "rule"}
    (unchanged,) = receive(bus.subscription("unchanged"))
    assert (str(unchanged), unchanged.subject) == ("body", "few")
    assert text_properties(unchanged) == properties


def test_there_is_a_copy_for_each_rule_with_an_action_and_one_for_all_without(start_bus: StartBus) -> None:
    rules = (
        sql("n > 0", name="plain"),
        sql("n > 1", name="plain-too"),
        sql("n > 2", "SET by = 'a'", name="a"),
        sql("n > 3", "SET by = 'b'", name="b"),
        sql("n > 9", "SET by = 'c'", name="c"),
    )
    bus = start_bus(topic(subscription("s", *rules)))
    bus.send("topic", ServiceBusMessage("body", application_properties={"n": 5}))
    copies = [text_properties(message) for message in receive(bus.subscription("s", **DELETES), 3)]
    assert sorted((copy.get("RuleName"), copy.get("by")) for copy in copies if "by" in copy) == [("a", "a"), ("b", "b")]
    assert {"n": 5} in copies
    assert bus.counts("topic/Subscriptions/s") == (0, 0)


def test_rules_added_and_removed_over_amqp_decide_on_the_next_message(colors: Bus) -> None:
    with (
        connect(colors.broker.connection_string) as connection,
        connection.management("topic/Subscriptions/all") as management,
    ):
        colors.send("topic", "before")
        management.request("remove-rule", {"rule-name": "$Default"})
        colors.send("topic", "for nobody")
        description = {
            "sql-filter": {"expression": "sys.Label = 'x'"},
            "sql-rule-action": {"expression": "SET seen = TRUE"},
        }
        management.request("add-rule", {"rule-name": "new", "rule-description": description})
        colors.send("topic", "not this", ServiceBusMessage("after", subject="x"))
    before, after = receive(colors.subscription("all", **DELETES), 2)
    assert (str(before), text_properties(before)) == ("before", {})
    assert (str(after), text_properties(after)) == ("after", {"seen": True, "RuleName": "new"})
    assert colors.counts("topic/Subscriptions/all") == (0, 0)


def test_a_rule_that_fails_puts_the_message_among_the_dead_letters_where_that_is_wanted(start_bus: StartBus) -> None:
    failing = sql("10 / n > 1")
    quiet = subscription("quiet", failing, dead_lettering_on_filter_evaluation_exceptions=False)
    bus = start_bus(topic(subscription("loud", failing), quiet))
    bus.send("topic", ServiceBusMessage("body", application_properties={"n": 0}))
    (letter,) = receive(bus.subscription("loud", **DEAD_LETTERS))
    assert str(letter) == "body"
    assert letter.dead_letter_reason == "FilterException"
    assert "'rule'" in (letter.dead_letter_error_description or "")
    assert bus.counts("topic/Subscriptions/loud") == (0, 0)
    for path in ("quiet", "quiet/$DeadLetterQueue"):
        assert bus.counts(f"topic/Subscriptions/{path}") == (0, 0)


# --- a subscription is a queue ---


def test_a_subscription_with_sessions(start_bus: StartBus) -> None:
    bus = start_bus(topic(subscription("talks", requires_session=True), subscription("all")))
    pairs = [("a", "a1"), ("b", "b1"), ("a", "a2")]
    bus.send("topic", *(ServiceBusMessage(body, session_id=session) for session, body in pairs))
    with bus.subscription("talks", session_id="a") as receiver:
        found = receive(receiver, 2)
        receiver.session.set_state("half-way")
        assert [str(message) for message in found] == ["a1", "a2"]
        receiver.complete_message(found[0])
    again = bus.subscription("talks", session_id="a")
    assert take(again) == ["a2"]
    assert again.session.get_state() == b"half-way"
    following = bus.subscription("talks", session_id=NEXT_AVAILABLE_SESSION)
    assert take(following) == ["b1"]
    assert following.session.session_id == "b"
    assert take(bus.subscription("all"), 3) == ["a1", "b1", "a2"]


def test_a_subscription_with_sessions_dead_letters_messages_without_one(start_bus: StartBus) -> None:
    bus = start_bus(topic(subscription("talks", requires_session=True)))
    bus.send("topic", "for no session")
    (letter,) = receive(bus.subscription("talks", **DEAD_LETTERS))
    assert (str(letter), letter.dead_letter_reason) == ("for no session", "Session ID is null.")


def test_settling_one_copy_does_not_affect_other_copies(start_bus: StartBus) -> None:
    bus = start_bus(topic(subscription("one", max_delivery_count=2), subscription("other")))
    bus.send("topic", "deferred", "dead-lettered", "abandoned")
    receiver = bus.subscription("one")
    deferred, dead_lettered, abandoned = receive(receiver, 3)
    receiver.defer_message(deferred)
    receiver.dead_letter_message(dead_lettered, reason="why", error_description="because")
    receiver.abandon_message(abandoned)
    (again,) = receive(receiver)
    assert (str(again), again.delivery_count) == ("abandoned", 1)
    receiver.abandon_message(again)
    assert bus.counts("topic/Subscriptions/one") == (0, 1)
    peeked = receiver.peek_messages(10, sequence_number=1)
    assert [(str(each), each.state) for each in peeked] == [("deferred", ServiceBusMessageState.DEFERRED)]
    assert deferred.sequence_number is not None
    (fetched,) = receiver.receive_deferred_messages(deferred.sequence_number)
    assert str(fetched) == "deferred"
    receiver.complete_message(fetched)
    letters = receive(bus.subscription("one", **DEAD_LETTERS), 2)
    reasons = {str(letter): letter.dead_letter_reason for letter in letters}
    assert reasons == {"dead-lettered": "why", "abandoned": "MaxDeliveryCountExceeded"}
    assert take(bus.subscription("other"), 3) == ["deferred", "dead-lettered", "abandoned"]


def test_each_subscription_has_a_time_to_live_of_its_own(start_bus: StartBus) -> None:
    short = subscription("short", default_message_ttl_ms=60_000, dead_lettering_on_message_expiration=True)
    bus = start_bus(topic(short, subscription("long")))
    bus.send("topic", ServiceBusMessage("body", time_to_live=timedelta(minutes=5)))
    bus.broker.advance(61)
    (letter,) = receive(bus.subscription("short", **DEAD_LETTERS))
    assert letter.dead_letter_reason == "TTLExpiredException"
    assert take(bus.subscription("long")) == ["body"]


def test_a_large_body_is_complete_in_every_copy(start_bus: StartBus) -> None:
    bus = start_bus(topic(*(subscription(f"s{number}") for number in range(3))))
    body = bytes(range(256)) * 800
    bus.send("topic", ServiceBusMessage(body))
    for number in range(3):
        (message,) = receive(bus.subscription(f"s{number}", **DELETES))
        assert b"".join(message.body) == body


# --- a restart, and asyncio ---


def test_rules_and_copies_and_known_ids_survive_a_restart(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    rule = {
        "Name": "red",
        "Properties": {
            "FilterType": "Sql",
            "SqlFilter": {"SqlExpression": "color = 'red'"},
            "Action": {"SqlExpression": "SET seen = TRUE"},
        },
    }
    entities = {
        "Name": "topic",
        "Properties": {"RequiresDuplicateDetection": True},
        "Subscriptions": [{"Name": "red", "Rules": [rule]}, {"Name": "all"}],
    }
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Topics": [entities]}]}}))

    broker = ServedBroker(tmp_path, "--config", str(config))
    try:
        with Client(broker.connection_string) as client:
            client.send("topic", colored("before", "red", message_id="1"))
        with connect(broker.connection_string) as connection, connection.management("topic/Subscriptions/all") as asked:
            description = {"correlation-filter": {"properties": {"color": "blue"}}}
            asked.request("add-rule", {"rule-name": "blue", "rule-description": description})
            asked.request("remove-rule", {"rule-name": "$Default"})
        assert broker.stop() == 0
        broker.start()
        with Client(broker.connection_string) as client:
            client.send("topic", colored("again", "red", message_id="1"), colored("after", "red", message_id="2"))
            client.send("topic", colored("blue", "blue", message_id="3"))
            found = receive(client.subscription("red"), 2)
            assert [str(message) for message in found] == ["before", "after"]
            assert [text_properties(message)["seen"] for message in found] == [True, True]
            assert take(client.subscription("all"), 2) == ["before", "blue"]
    finally:
        broker.stop()


def test_the_asyncio_client_sends_to_a_topic_and_receives_from_its_subscriptions(start_bus: StartBus) -> None:
    bus = start_bus(topic(subscription("talks", requires_session=True), subscription("red", sql("color = 'red'"))))

    async def scenario() -> None:
        async with AsyncServiceBusClient.from_connection_string(bus.broker.connection_string) as client:
            async with client.get_topic_sender("topic") as sender:
                red = {"color": "red"}
                await sender.send_messages(
                    [
                        ServiceBusMessage("a", session_id="s"),
                        ServiceBusMessage("b", session_id="s", application_properties=red),
                    ]
                )
                number = await sender.schedule_messages(ServiceBusMessage("never"), bus.in_minutes(1))
                await sender.cancel_scheduled_messages(number)
            async with client.get_subscription_receiver("topic", "red") as receiver:
                (message,) = await receiver.receive_messages(max_wait_time=5)
                assert str(message) == "b"
                await receiver.dead_letter_message(message, reason="why")
            async with client.get_subscription_receiver("topic", "red", **DEAD_LETTERS) as receiver:
                (letter,) = await receiver.receive_messages(max_wait_time=5)
                assert letter.dead_letter_reason == "why"
                await receiver.complete_message(letter)
            async with client.get_subscription_receiver("topic", "talks", session_id="s") as receiver:
                found = []
                while len(found) < 2:
                    found += await receiver.receive_messages(max_message_count=2, max_wait_time=5)
                assert [str(message) for message in found] == ["a", "b"]
                for message in found:
                    await receiver.complete_message(message)

    asyncio.run(scenario())
    assert bus.counts("topic/Subscriptions/talks") == bus.counts("topic/Subscriptions/red") == (0, 0)
