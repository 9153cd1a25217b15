"""A topic: a message is copied to all subscriptions whose rules match, or to none."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import (
    HOUR,
    MINUTE,
    SECOND,
    FlakyStore,
    Receiver,
    SessionReceiver,
    World,
    bodies_in_the_end,
    body,
    correlation,
    delivered,
    incoming,
    settlement,
    shared_bodies,
    sql,
    subscription,
    topic,
)
from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.service_bus import ENQUEUED_SEQUENCE_NUMBER, SCHEDULED_ENQUEUE_TIME, SEQUENCE_NUMBER
from peeklock.amqp.types import Symbol, Timestamp
from peeklock.broker.errors import (
    BrokerError,
    EntityDisabled,
    MessageNotFound,
    OperationNotAllowed,
    QuotaExceeded,
    StorageFailed,
    TransactionRolledBack,
)
from peeklock.broker.incoming import Incoming, read_incoming
from peeklock.broker.topic import MIN_SHARED_BYTES
from peeklock.broker.transactions import Scope, Transactions
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.rules import RuleDefinition
from peeklock.entities.settings import PROFILES, Status
from peeklock.store.base import ACTIVE, Changes, StoredMessage, StoreError

ALL = "t/Subscriptions/all"
LONG = "x" * 2000
"""A body that is long enough to be shared."""


def colour(name: str) -> dict[str, Any]:
    return {"application_properties": {"colour": name}}


def reason(message: StoredMessage) -> Any:
    return (delivered(message).application_properties or {}).get("DeadLetterReason")


def counts(world: World, *names: str) -> list[int]:
    return [world.subscription(name).counters.active for name in names]


# --- who gets a copy ---


def test_every_subscription_gets_a_copy_of_its_own() -> None:
    world = World(topic("t", "a", "b"))
    assert world.send("one", "two", to="t") == [None, None]
    a, b = (Receiver(world, world.subscription(name)) for name in ("a", "b"))
    assert a.bodies == b.bodies == ["one", "two"]
    world.settle(world.subscription("a").settlements.complete, a.locks[0])
    assert counts(world, "a", "b") == [1, 2]
    world.check()


def test_a_message_to_a_topic_without_subscriptions_is_accepted_and_dropped() -> None:
    world = World(topic("t"))
    assert world.send("one", to="t") == [None]
    assert world.topic().size_in_bytes == 0
    world.check()


def test_a_message_that_matches_no_subscription_is_accepted_and_dropped() -> None:
    world = World(topic("t", subscription("reds", sql("r", "colour = 'red'")), subscription("none", rules=())))
    assert world.send("one", to="t", **colour("blue")) == [None]
    assert counts(world, "reds", "none") == [0, 0]
    world.check()


def test_the_default_rule_matches_every_message() -> None:
    world = World(topic("t", "all"))
    assert [rule.name for rule in world.administration.rules("t", "all")] == ["$Default"]
    world.send("one", to="t", **colour("blue"))
    assert counts(world, "all") == [1]


def test_a_subscription_gets_the_messages_that_its_filters_match() -> None:
    world = World(
        topic(
            "t",
            subscription("reds", sql("r", "colour = 'red'")),
            subscription("labelled", correlation("r", label="news")),
            subscription("all"),
        )
    )
    world.send("red", to="t", **colour("red"))
    world.send("news", to="t", properties=Properties(message_id="n", subject="news"))
    world.send("plain", to="t")
    assert world.bodies("t/Subscriptions/reds") == ["red"]
    assert world.bodies("t/Subscriptions/labelled") == ["news"]
    assert world.bodies(ALL) == ["red", "news", "plain"]


def test_rules_without_an_action_give_one_copy_however_many_match() -> None:
    world = World(topic("t", subscription("all", sql("a", "colour = 'red'"), RuleDefinition(), sql("b", "1=1"))))
    world.send("one", to="t", **colour("red"))
    (message,) = world.stored(ALL)
    assert delivered(message).application_properties == {"colour": "red"}


def test_each_rule_with_an_action_that_matches_gives_a_copy_with_its_name() -> None:
    rules = (
        RuleDefinition(),
        sql("first", "colour = 'red'", "SET size = 1"),
        sql("second", "colour = 'red'", "SET size = 2; REMOVE colour"),
        sql("third", "colour = 'blue'", "SET size = 3"),
    )
    world = World(topic("t", subscription("all", *rules)))
    world.send("one", to="t", **colour("red"))
    copies = world.stored(ALL)
    assert [delivered(copy).application_properties for copy in copies] == [
        {"colour": "red"},
        {"colour": "red", "size": 1, "RuleName": "first"},
        {"size": 2, "RuleName": "second"},
    ]
    assert [body(copy) for copy in copies] == ["one"] * 3
    assert len({copy.sequence_number for copy in copies}) == 3
    world.check()


def test_all_copies_of_a_message_have_its_number_in_the_topic() -> None:
    world = World(topic("t", subscription("all", sql("a", "1=1", "SET x = 1"), sql("b", "1=1", "SET x = 2"))))
    world.send("one", "two", to="t")
    told = [
        (annotations[SEQUENCE_NUMBER], annotations[ENQUEUED_SEQUENCE_NUMBER])
        for annotations in (
            delivered(copy, of=world.queue(ALL)).message_annotations or {} for copy in world.stored(ALL)
        )
    ]
    assert [first for _, first in told] == [1, 1, 2, 2]
    assert [number for number, _ in told] == [1, 2, 3, 4]


def test_copies_in_a_newer_subscription_have_the_number_in_the_topic_too() -> None:
    world = World(topic("t", "early"))
    world.send("one", "two", to="t")
    assert world.administer(world.administration.create_subscription, "t", subscription("late")) is None
    world.send("three", to="t")
    early, late = (world.stored(f"t/Subscriptions/{name}")[-1] for name in ("early", "late"))
    for name, copy in (("early", early), ("late", late)):
        told = delivered(copy, of=world.queue(f"t/Subscriptions/{name}")).message_annotations or {}
        assert told[ENQUEUED_SEQUENCE_NUMBER] == 3
        assert (copy.sequence_number, copy.annex) == (3, None), "which is its own, where that is free"
    assert body(late) == "three", "what was sent before it was there is not for it"


# --- filters that fail ---


def failing(**settings: Any) -> World:
    return World(topic("t", subscription("sub", sql("broken", "1 / size = 1"), **settings), "all"))


def test_a_message_for_which_a_filter_fails_is_dead_lettered_in_the_subscription() -> None:
    world = failing()
    properties = {"colour": "red", "size": 0}
    assert world.send(LONG, to="t", application_properties=properties) == [None]
    assert counts(world, "sub", "all") == [0, 1]
    (letter,) = world.stored("t/Subscriptions/sub/$DeadLetterQueue")
    read = delivered(letter).application_properties or {}
    assert read["DeadLetterReason"] == "FilterException"
    assert "broken" in read["DeadLetterErrorDescription"]
    assert read["colour"] == "red"
    assert body(letter) == LONG
    annotations = delivered(letter).message_annotations or {}
    assert annotations["x-opt-deadletter-source"] == "t/Subscriptions/sub"
    world.check()


def test_a_message_for_which_a_filter_fails_is_dropped_without_dead_lettering() -> None:
    world = failing(dead_lettering_on_filter_evaluation_exceptions=False)
    world.send("one", to="t", application_properties={"size": 0})
    assert counts(world, "sub", "all") == [0, 1]
    assert world.stored("t/Subscriptions/sub/$DeadLetterQueue") == []
    world.check()


def test_a_number_given_to_a_dead_letter_is_not_given_again_after_a_restart(store: Any) -> None:
    broken = [sql(name, f"1 / size = {name}") for name in ("1", "2", "3")]
    world = World(topic("t", subscription("sub", *broken)), store=store)
    world.send("bad", to="t", application_properties={"size": 0})
    world = world.restarted()
    world.send("good", to="t", application_properties={"size": 1})
    letters = [letter.sequence_number for letter in world.stored("t/Subscriptions/sub/$DeadLetterQueue")]
    receiver = Receiver(world, world.subscription("sub"))
    assert receiver.bodies == ["good"]
    assert not set(receiver.numbers) & set(letters)
    world.settle(world.subscription("sub").settlements.dead_letter, receiver.locks[0])
    assert world.bodies("t/Subscriptions/sub/$DeadLetterQueue") == ["bad", "bad", "bad", "good"]
    world.check()


def test_a_message_with_unreadable_properties_is_copied() -> None:
    everything = [
        subscription("acts", sql("r", "1=1", "SET x = 1")),
        subscription("looks", sql("r", "sys.Label = 'x'")),
        subscription("correlates", correlation("r", label="x")),
        subscription("short", default_message_ttl_ms=MINUTE),
        subscription("s", requires_session=True),
        subscription("all"),
    ]
    world = World(topic("t", *everything))
    # One field that says it is longer than the section; such messages are not taken any more, but may be kept.
    malformed = b"\x00\x53\x73\xc0\x05\x01\xa1\x10ab" + b"\x00\x53\x75\xa0\x01x"
    assert world.send_together(Incoming(malformed, None, None, None, None), to="t") == [None]
    assert counts(world, "short", "all") == [1, 1]
    assert world.subscription("short").counters.active == 1
    for name in ("acts", "looks", "correlates", "s"):
        assert world.runtime(f"t/Subscriptions/{name}").total == 1, "a copy or a dead letter"
    world.check()
    world.advance(MINUTE)
    assert counts(world, "short", "all") == [0, 1]


# --- sessions ---


def with_sessions() -> World:
    return World(topic("t", subscription("s", requires_session=True), "all"))


def test_subscriptions_with_and_without_sessions_can_have_one_topic() -> None:
    world = with_sessions()
    world.send("one", to="t", session_id="x")
    world.send("two", to="t", session_id="y")
    holder = SessionReceiver(world, "x", path="t/Subscriptions/s")
    assert holder.bodies == ["one"]
    assert Receiver(world, world.subscription("all")).bodies == ["one", "two"]
    assert [message.session_id for message in world.stored(ALL)] == [None, None]
    world.check()


def test_a_message_without_a_session_id_is_dead_lettered_in_subscriptions_with_sessions() -> None:
    world = with_sessions()
    assert world.send("one", to="t") == [None]
    assert world.bodies(ALL) == ["one"]
    (letter,) = world.stored("t/Subscriptions/s/$DeadLetterQueue")
    assert reason(letter) == "Session ID is null."
    world.check()


def test_a_scheduled_message_has_its_session_in_a_newer_subscription() -> None:
    world = World(topic("t", "all"))
    world.send("later", to="t", properties=Properties(message_id="m", group_id="x"), at=world.clock() + MINUTE)
    made = subscription("s", requires_session=True)
    assert world.administer(world.administration.create_subscription, "t", made) is None
    world.advance(MINUTE)
    assert SessionReceiver(world, "x", path="t/Subscriptions/s").bodies == ["later"]
    world.check()


def test_an_action_may_give_a_message_its_session() -> None:
    rule = sql("r", "1=1", "SET sys.SessionId = colour")
    world = World(topic("t", subscription("s", rule, requires_session=True)))
    world.send("one", to="t", **colour("red"))
    assert SessionReceiver(world, "red", path="t/Subscriptions/s").bodies == ["one"]


# --- time to live ---


@pytest.mark.parametrize(
    ("of_message", "of_topic", "of_subscription", "expected"),
    [
        (10, 20, 30, 10),
        (20, 10, 30, 10),
        (30, 20, 10, 10),
        (None, 20, 10, 10),
        (None, 10, None, 10),
        (10, None, None, 10),
        (None, None, 10, 10),
        (None, None, None, None),
    ],
)
def test_a_copy_has_the_shortest_time_to_live_of_message_topic_and_subscription(
    of_message: int | None, of_topic: int | None, of_subscription: int | None, expected: int | None
) -> None:
    def ms(seconds: int | None) -> int | None:
        return None if seconds is None else seconds * SECOND

    world = World(
        topic("t", subscription("all", default_message_ttl_ms=ms(of_subscription)), default_message_ttl_ms=ms(of_topic))
    )
    world.send(LONG, to="t", ttl=ms(of_message))
    (copy,) = world.stored(ALL)
    assert copy.expires_at == (None if expected is None else world.clock() + expected * SECOND)
    read = delivered(copy)
    assert read.header is not None
    assert read.header.ttl == ms(expected)
    assert read.properties is not None
    assert read.properties.absolute_expiry_time == copy.expires_at


def test_copies_expire_independently() -> None:
    dead = subscription("dead", default_message_ttl_ms=10 * SECOND, dead_lettering_on_message_expiration=True)
    world = World(topic("t", subscription("short", default_message_ttl_ms=5 * SECOND), dead, "long"))
    world.send(LONG, to="t")
    world.advance(5 * SECOND)
    assert counts(world, "short", "dead", "long") == [0, 1, 1]
    world.advance(5 * SECOND)
    assert counts(world, "short", "dead", "long") == [0, 0, 1]
    assert world.bodies("t/Subscriptions/dead/$DeadLetterQueue") == [LONG]
    assert world.bodies("t/Subscriptions/long") == [LONG]
    world.check()


# --- all or nothing ---


def test_all_copies_are_one_commit() -> None:
    store = FlakyStore()
    world = World(topic("t", *(f"s{number}" for number in range(5))), store=store)
    commits: list[int] = []

    def count(changes: Changes) -> None:
        commits.append(len(changes.appends))

    store.fails = count
    world.send("one", to="t")
    assert commits == [5]


def test_a_failed_commit_stores_no_copy_and_the_message_is_rejected() -> None:
    store = FlakyStore()
    world = World(topic("t", "a", "b"), store=store)
    receivers = [Receiver(world, world.subscription(name)) for name in ("a", "b")]
    store.fails = lambda changes: StoreError("not now")
    (outcome,) = world.send(LONG, to="t")
    assert isinstance(outcome, StorageFailed)
    assert [receiver.bodies for receiver in receivers] == [[], []]
    world.check()
    store.fails = lambda changes: None
    assert world.send("again", to="t") == [None]
    assert [receiver.bodies for receiver in receivers] == [["again"], ["again"]]
    world.check()


def test_a_copy_is_not_delivered_before_it_is_stored() -> None:
    store = FlakyStore()
    world = World(topic("t", "a", "b"), store=store)
    receivers = [Receiver(world, world.subscription(name)) for name in ("a", "b")]
    store.held = []
    assert world.send("one", to="t") == []
    assert [receiver.bodies for receiver in receivers] == [[], []]
    store.release_commits()
    world.run()
    assert [receiver.bodies for receiver in receivers] == [["one"], ["one"]]


def test_a_batch_is_accepted_whole_or_not_at_all() -> None:
    store = FlakyStore()
    world = World(topic("t", "a", "b"), store=store)
    store.fails = lambda changes: StoreError("not now") if len(changes.appends) == 6 else None
    (outcome,) = world.send_together(*map(incoming, ("1", "2", "3")), to="t")
    assert isinstance(outcome, StorageFailed)
    assert counts(world, "a", "b") == [0, 0]
    assert world.send_together(*map(incoming, ("1", "2")), to="t") == [None]
    assert world.bodies("t/Subscriptions/a") == world.bodies("t/Subscriptions/b") == ["1", "2"]
    world.check()


# --- for later ---


def test_a_scheduled_message_is_copied_when_it_is_due() -> None:
    world = World(topic("t", subscription("reds", sql("r", "colour = 'red'")), "all"))
    world.send("later", to="t", at=world.clock() + MINUTE, **colour("red"))
    assert counts(world, "reds", "all") == [0, 0]
    assert world.runtime("t").scheduled == 1
    due = world.clock() + MINUTE
    world.advance(MINUTE + 5 * SECOND)
    for name in ("reds", "all"):
        (copy,) = world.stored(f"t/Subscriptions/{name}")
        assert (body(copy), copy.state, copy.enqueued_at) == ("later", ACTIVE, due)
    assert world.runtime("t").scheduled == 0
    world.check()


def test_a_scheduled_message_is_matched_by_the_rules_at_its_due_time() -> None:
    world = World(topic("t", subscription("sub", sql("r", "colour = 'red'"))))
    world.send("later", to="t", at=world.clock() + MINUTE, **colour("blue"))
    change = world.administration.update_rule
    assert world.administer(change, "t", "sub", sql("r", "colour = 'blue'")) is None
    world.advance(MINUTE)
    assert world.bodies("t/Subscriptions/sub") == ["later"]


def test_the_time_to_live_of_a_message_for_later_starts_when_it_is_due() -> None:
    world = World(topic("t", "all"))
    at = world.clock() + MINUTE
    encoded = Message(
        header=Header(ttl=30 * SECOND),
        message_annotations={Symbol(SCHEDULED_ENQUEUE_TIME): Timestamp(at)},
        properties=Properties(message_id="m"),
        data=[b"later"],
    ).encode()
    world.send_together(read_incoming(encoded, reads_session_id=False), to="t")
    world.advance(MINUTE)
    (copy,) = world.stored(ALL)
    assert copy.expires_at == at + 30 * SECOND


def scheduled(world: World, text: str, after: int) -> int:
    """Schedule a message on the topic, and return its sequence number."""
    admitted = world.topic().admit([incoming(text, at=world.clock() + after)])
    (number,) = world.topic().number(admitted)
    outcomes: list[BrokerError | None] = []
    world.topic().stage_sends(world.namespace.journal.sends, admitted, outcomes.append)
    world.run()
    assert outcomes == [None]
    return number


def test_a_message_for_later_can_be_cancelled() -> None:
    world = World(topic("t", "all"))
    number = scheduled(world, "later", MINUTE)
    assert world.administer(world.topic().scheduled.cancel, [number]) is None
    assert isinstance(world.administer(world.topic().scheduled.cancel, [number]), MessageNotFound)
    world.advance(MINUTE)
    assert counts(world, "all") == [0]
    world.check()


def test_a_message_for_later_survives_a_restart(store: Any) -> None:
    world = World(topic("t", "a", "b"), store=store)
    scheduled(world, LONG, MINUTE)
    world = world.restarted()
    assert world.runtime("t").scheduled == 1
    world.advance(MINUTE)
    assert world.bodies("t/Subscriptions/a") == world.bodies("t/Subscriptions/b") == [LONG]
    assert shared_bodies(world.store) == 1
    world.check()


def test_messages_that_became_due_during_a_stop_are_copied_at_the_start() -> None:
    world = World(topic("t", "all"))
    scheduled(world, "later", MINUTE)
    world.clock.advance(HOUR)
    world = world.restarted()
    assert world.bodies(ALL) == ["later"]
    world.check()


def test_a_refused_commit_of_a_due_message_is_retried() -> None:
    store = FlakyStore()
    world = World(topic("t", "a", "b"), store=store)
    scheduled(world, "later", MINUTE)
    store.fails = lambda changes: StoreError("not now")
    world.advance(MINUTE)
    assert counts(world, "a", "b") == [0, 0]
    store.fails = lambda changes: None
    world.advance(2 * SECOND)
    assert counts(world, "a", "b") == [1, 1]
    world.check()


# --- bodies that are shared ---


def test_a_long_body_is_stored_once_and_freed_with_the_last_copy(store: Any) -> None:
    world = World(topic("t", "a", "b", "c"), store=store)
    world.send(LONG, to="t")
    assert shared_bodies(world.store) == 1
    for name, left in (("a", 1), ("b", 1), ("c", 0)):
        receiver = Receiver(world, world.subscription(name))
        assert receiver.bodies == [LONG]
        world.settle(world.subscription(name).settlements.complete, receiver.locks[0])
        assert shared_bodies(world.store) == left
    world.check()


def test_a_body_is_freed_with_the_last_subscription_that_has_it(store: Any) -> None:
    world = World(topic("t", "a", "b"), store=store)
    world.send(LONG, to="t")
    assert world.administer(world.administration.delete_subscription, "t", "a") is None
    assert bodies_in_the_end(world.store) == 1
    world = world.restarted()
    assert world.bodies("t/Subscriptions/b") == [LONG]
    assert world.administer(world.administration.delete_topic, "t") is None
    assert bodies_in_the_end(world.store) == 0


def test_a_body_outlives_the_topic_where_a_copy_was_forwarded(store: Any) -> None:
    world = World(QueueDefinition(name="q"), topic("t", subscription("forwards", forward_to="q"), "b"), store=store)
    world.send(LONG, to="t")
    assert world.bodies("q") == [LONG]
    assert world.administer(world.administration.delete_topic, "t") is None
    world = world.restarted()
    receiver = Receiver(world, world.queue())
    assert receiver.bodies == [LONG]
    world.settle(world.queue().settlements.complete, receiver.locks[0])
    world.check()
    assert bodies_in_the_end(world.store) == 0


def test_a_short_body_or_a_single_copy_is_not_shared() -> None:
    world = World(topic("t", "a", "b"))
    world.send("x" * (MIN_SHARED_BYTES - 20), to="t", application_properties={"long": "y" * 500})
    world.send("short", to="t")
    assert shared_bodies(world.store) == 0
    lonely = World(topic("t", "a", subscription("none", rules=())))
    lonely.send(LONG, to="t")
    assert shared_bodies(lonely.store) == 0
    assert lonely.bodies("t/Subscriptions/a") == [LONG]


def full_message(text: str) -> bytes:
    """Return a message with all sections of a bare message."""
    return Message(
        properties=Properties(message_id="m", subject="s", content_type=Symbol("text/plain")),
        application_properties={"colour": "red", "long": "y" * 500},
        data=[text.encode(), text.encode()],
        footer={Symbol("f"): 1},
    ).encode()


def test_a_delivered_message_is_byte_for_byte_the_sent_one(store: Any) -> None:
    world = World(topic("t", "a", "b", subscription("s", requires_session=True)), store=store)
    sent = full_message(LONG)
    world.send_together(read_incoming(sent, reads_session_id=True), to="t")
    world = world.restarted()
    for name in ("a", "b"):
        assert Receiver(world, world.subscription(name)).got[0].content == sent


def test_copies_with_shared_bodies_are_peeked_deferred_and_dead_lettered_like_any_other(store: Any) -> None:
    world = World(topic("t", "a", "b"), store=store)
    sent = full_message(LONG)
    world.send_together(read_incoming(sent, reads_session_id=False), to="t")
    a = world.subscription("a")
    peeked: list[Any] = []
    a.peek(1, 10, None, peeked.append)
    world.run()
    assert [message.content for message in peeked[0]] == [sent]

    world.settle(a.settlements.defer, Receiver(world, a, credit=1).locks[0], {"note": "aside"})
    world = world.restarted()
    a = world.subscription("a")
    (deferred,) = world.stored("t/Subscriptions/a")
    fetched: list[Any] = []
    a.deferred.receive([deferred.sequence_number], None, False, fetched.append)
    world.run()
    ((message, lock),) = fetched[0]
    read = Message.decode(message.content)
    assert read.data == [LONG.encode()] * 2
    assert read.application_properties == {"colour": "red", "long": "y" * 500, "note": "aside"}

    world.settle(a.settlements.dead_letter, lock, "because", "of this")
    (letter,) = world.stored("t/Subscriptions/a/$DeadLetterQueue")
    read = Message.decode(letter.content)
    assert read.data == [LONG.encode()] * 2
    assert read.footer == {"f": 1}
    assert (read.application_properties or {})["DeadLetterReason"] == "because"
    assert shared_bodies(world.store) == 1
    assert Receiver(world, world.subscription("b")).got[0].content == sent, "the other copy is as it was"
    world.check()


def test_an_action_changes_only_its_own_copy() -> None:
    world = World(topic("t", subscription("acts", sql("r", "1=1", "SET colour = 'blue'")), "all"))
    sent = full_message(LONG)
    world.send_together(read_incoming(sent, reads_session_id=False), to="t")
    assert world.stored(ALL)[0].content == sent
    (changed,) = world.stored("t/Subscriptions/acts")
    read = Message.decode(changed.content)
    assert (read.application_properties or {})["colour"] == "blue"
    assert (read.data, read.footer) == ([LONG.encode()] * 2, {"f": 1})
    assert shared_bodies(world.store) == 1
    world.check()


def test_a_shared_body_is_charged_once_to_the_memory_of_all_windows() -> None:
    world = World(topic("t", *(f"s{number}" for number in range(20))))
    before = world.namespace._machinery.budget.used
    world.send("x" * 100_000, to="t")
    assert world.namespace._machinery.budget.used - before < 120_000


def test_500_subscriptions_get_their_copies_of_one_stored_body(store: Any) -> None:
    world = World(topic("t", *(f"s{number}" for number in range(500))), store=store)
    assert world.send(LONG, "short", to="t") == [None, None]
    assert shared_bodies(world.store) == 1
    world = world.restarted()
    world.check()
    assert {world.subscription(f"s{number}").counters.active for number in range(500)} == {2}
    assert Receiver(world, world.subscription("s499")).bodies == [LONG, "short"]


# --- the size of a topic ---


def small_topic() -> World:
    return World(topic("t", "a", "b", max_size_in_megabytes=1), profile=PROFILES["unlimited"])


def fill(world: World) -> int:
    """Send until a message is refused, and return how many were accepted."""
    for taken in range(100):
        try:
            assert world.send("x" * 100_000, to="t") == [None]
        except QuotaExceeded:
            return taken
    raise AssertionError("it is never full")


def test_a_topic_is_full_when_its_copies_have_its_maximum_size() -> None:
    world = small_topic()
    assert fill(world) == 6, "each copy counts whole: two of 100 000 bytes for each message"
    with pytest.raises(QuotaExceeded, match="'t' has reached its maximum size of 1 MB"):
        world.send("x", to="t")
    world.check()


def test_a_full_topic_accepts_messages_again_after_some_were_received() -> None:
    world = small_topic()
    fill(world)
    for name in ("a", "b"):
        Receiver(world, world.subscription(name), credit=2, deletes=True)
    assert fill(world) == 2
    world.check()


def test_a_full_topic_accepts_messages_again_when_its_maximum_size_grows() -> None:
    world = small_topic()
    fill(world)
    larger = topic("t", max_size_in_megabytes=2)
    assert world.administer(world.administration.update_topic, larger) is None
    assert fill(world) >= 4


def test_a_topic_that_may_only_be_smaller_is_full_at_once() -> None:
    world = World(topic("t", "a", "b", max_size_in_megabytes=5), profile=PROFILES["unlimited"])
    for _ in range(10):
        world.send("x" * 100_000, to="t")
    assert world.administer(world.administration.update_topic, topic("t", max_size_in_megabytes=1)) is None
    with pytest.raises(QuotaExceeded):
        world.send("x", to="t")


def test_messages_for_later_and_dead_letters_count_too() -> None:
    world = World(topic("t", "a", max_size_in_megabytes=1), profile=PROFILES["unlimited"])
    for _ in range(5):
        world.send("x" * 100_000, to="t", at=world.clock() + MINUTE)
        world.send("x" * 100_000, to="t")
    a = world.subscription("a")
    for lock in Receiver(world, a).locks:
        world.settle(a.settlements.dead_letter, lock)
    assert fill(world) == 1


# --- transactions ---


def sending_transaction(world: World, *texts: str) -> tuple[Transactions, bytes]:
    transactions = Transactions(world.namespace.journal, world.namespace.agenda)
    id = transactions.declare()
    for text in texts:
        transactions.get(id).send(world.topic(), [incoming(text)], Scope("t", None))
    return transactions, id


@pytest.mark.parametrize("fail", [False, True])
def test_a_message_sent_in_a_transaction_is_copied_at_the_commit(fail: bool) -> None:
    world = World(topic("t", "a", "b"))
    transactions, id = sending_transaction(world, "one", LONG)
    world.run()
    assert counts(world, "a", "b") == [0, 0]
    outcomes: list[BrokerError | None] = []
    transactions.discharge(id, fail=fail, done=outcomes.append)
    world.run()
    assert outcomes == [None]
    assert counts(world, "a", "b") == ([0, 0] if fail else [2, 2])
    world.check()


def test_a_transaction_is_rolled_back_when_the_topic_refuses_messages() -> None:
    world = World(topic("t", "a"))
    transactions, id = sending_transaction(world, "one")
    disabled = topic("t", status=Status.SEND_DISABLED)
    assert world.administer(world.administration.update_topic, disabled) is None
    outcomes: list[BrokerError | None] = []
    transactions.discharge(id, fail=False, done=outcomes.append)
    world.run()
    assert [type(outcome) for outcome in outcomes] == [TransactionRolledBack]
    assert counts(world, "a") == [0]
    world.check()


def test_a_receive_and_a_send_to_a_topic_are_one() -> None:
    store = FlakyStore()
    world = World(QueueDefinition(name="q"), topic("t", "a", "b"), store=store)
    world.send("first")
    (lock,) = Receiver(world, world.queue()).locks
    transactions = Transactions(world.namespace.journal, world.namespace.agenda)

    def attempt() -> BrokerError | None:
        id = transactions.declare()
        transaction = transactions.get(id)
        transaction.settle(world.queue().settlements, [lock], settlement("complete"), Scope("q", transactions))
        transaction.send(world.topic(), [incoming("second")], Scope("t", transactions))
        outcomes: list[BrokerError | None] = []
        transactions.discharge(id, fail=False, done=outcomes.append)
        world.run()
        return outcomes[0]

    store.fails = lambda changes: StoreError("not now")
    assert isinstance(attempt(), StorageFailed)
    assert (world.queue().counters.active, counts(world, "a", "b")) == (1, [0, 0])
    store.fails = lambda changes: None
    assert attempt() is None
    assert (world.queue().counters.active, counts(world, "a", "b")) == (0, [1, 1])
    world.check()


# --- duplicates ---


def test_a_duplicate_is_dropped_before_it_is_copied() -> None:
    world = World(topic("t", "a", "b", requires_duplicate_detection=True))
    assert world.send("one", "one", to="t") == [None, None]
    assert counts(world, "a", "b") == [1, 1]
    world.check()


def test_the_id_of_a_message_without_a_matching_subscription_is_remembered() -> None:
    world = World(topic("t", subscription("reds", sql("r", "colour = 'red'")), requires_duplicate_detection=True))
    world.send("one", to="t", **colour("blue"))
    world.send("one", to="t", **colour("red"))
    assert counts(world, "reds") == [0]
    world = world.restarted()
    world.send("one", to="t", **colour("red"))
    assert counts(world, "reds") == [0]


# --- rules changed at run time ---


def test_a_rule_applies_to_the_next_message_and_after_a_restart(store: Any) -> None:
    world = World(topic("t", "sub"), store=store)
    administration = world.administration
    world.send("1", to="t", **colour("blue"))
    assert world.administer(administration.create_rule, "t", "sub", sql("r", "colour = 'red'")) is None
    assert world.administer(administration.delete_rule, "t", "sub", "$Default") is None
    world.send("2", to="t", **colour("blue"))
    world.send("3", to="t", **colour("red"))
    assert world.bodies("t/Subscriptions/sub") == ["1", "3"], "what was there before stays"
    world = world.restarted()
    world.send("4", to="t", **colour("blue"))
    world.send("5", to="t", **colour("red"))
    assert world.bodies("t/Subscriptions/sub") == ["1", "3", "5"]
    assert world.administer(world.administration.update_rule, "t", "sub", sql("R", "colour = 'blue'")) is None
    world.send("6", to="t", **colour("blue"))
    assert world.bodies("t/Subscriptions/sub") == ["1", "3", "5", "6"]


def test_a_rule_that_could_not_be_stored_has_no_effect() -> None:
    store = FlakyStore()
    world = World(topic("t", "sub"), store=store)
    store.fails = lambda changes: StoreError("not now")
    change = world.administration.delete_rule
    assert isinstance(world.administer(change, "t", "sub", "$Default"), StorageFailed)
    store.fails = lambda changes: None
    world.send("1", to="t")
    assert counts(world, "sub") == [1]


# --- what it refuses ---


def test_a_disabled_topic_refuses_messages() -> None:
    world = World(topic("t", "a", status=Status.SEND_DISABLED))
    with pytest.raises(EntityDisabled, match="'t'"):
        world.send("1", to="t")


def test_receiving_from_a_topic_is_refused() -> None:
    with pytest.raises(OperationNotAllowed, match="is a topic"):
        World(topic("t", "a")).queue("t")


def test_sending_to_a_subscription_is_refused() -> None:
    world = World(topic("t", "a"))
    with pytest.raises(OperationNotAllowed, match="send to its topic"):
        world.send("1", to="t/Subscriptions/a")


def test_names_of_subscriptions_are_case_insensitive() -> None:
    world = World(topic("News", "All"))
    found = world.queue("nEWS/sUBSCRIPTIONS/aLL")
    assert found.path == "News/Subscriptions/All"
    assert found.dead_letters is world.queue("news/subscriptions/all/$deadletterqueue")
    assert found.transfer_dead_letters is world.queue("news/subscriptions/all/$transfer/$deadletterqueue")


# --- subscriptions that come and go ---


def test_sends_go_on_while_a_subscription_is_being_deleted() -> None:
    store = FlakyStore()
    world = World(topic("t", "a", "b"), store=store)
    store.held = []
    outcomes: list[BrokerError | None] = []
    world.administration.delete_subscription("t", "a", outcomes.append)
    world.run()
    sent = world.send("one", to="t")
    store.release_commits()
    world.run()
    assert (outcomes, sent) == ([None], [None])
    assert world.bodies("t/Subscriptions/b") == ["one"]
    world.check()


def test_the_rules_of_a_deleted_subscription_are_not_evaluated() -> None:
    world = World(topic("t", subscription("a", sql("r", "1 / size = 1")), "b"))
    assert world.administer(world.administration.delete_subscription, "t", "a") is None
    assert not world.topic()._matcher.needs_view
    assert world.send("one", to="t", application_properties={"size": 0}) == [None]
    assert counts(world, "b") == [1]


def test_a_copy_being_stored_is_deleted_with_its_subscription() -> None:
    store = FlakyStore()
    world = World(topic("t", "a", "b"), store=store)
    store.held = []
    sent = world.send(LONG, to="t")
    outcomes: list[BrokerError | None] = []
    world.administration.delete_subscription("t", "a", outcomes.append)
    world.run()
    store.release_commits()
    world.run()
    assert (outcomes, sent) == ([None], [None])
    assert world.bodies("t/Subscriptions/b") == [LONG]
    world.check()


def test_session_ids_are_read_as_long_as_a_subscription_needs_them() -> None:
    world = World(topic("t", "a"))
    assert not world.topic().reads_session_ids
    made = subscription("s", requires_session=True)
    assert world.administer(world.administration.create_subscription, "t", made) is None
    assert world.topic().reads_session_ids
    assert world.administer(world.administration.delete_subscription, "t", "s") is None
    assert not world.topic().reads_session_ids
