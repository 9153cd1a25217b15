"""A message on which the broker fails is dead-lettered, and later messages are handled."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import (
    MINUTE,
    SECOND,
    AwaitedStore,
    FlakyStore,
    Receiver,
    World,
    body,
    delivered,
    encoded,
    incoming,
    sql,
    subscription,
    topic,
)
from peeklock.amqp.codec import encode_value
from peeklock.amqp.sections import APPLICATION_PROPERTIES, map_section
from peeklock.amqp.service_bus import PARTITION_KEY, VIA_PARTITION_KEY
from peeklock.amqp.types import Symbol
from peeklock.broker.annex import Annex
from peeklock.broker.errors import BrokerError, ChangeRefused
from peeklock.broker.incoming import Incoming, read_incoming
from peeklock.entities.definitions import QueueDefinition
from peeklock.store.base import Changes, StoredMessage, StoreError

NO_CHAR = b"\x73\x00\x00\xd8\x00"
"""A value of the AMQP type char that is not a character."""
NO_ANNEX = b"\xff"
GUILTY = b"guilty"


def refuse_marked_messages(changes: Changes) -> StoreError | None:
    """Refuse commits with a marked message, like a store that cannot hold it."""
    held = [message for _, message in changes.appends]
    return StoreError("cannot hold it") if any(GUILTY in message.content for message in held) else None


def unread(text: str, annex: bytes | None, at: int | None = None, ttl: int | None = None) -> Incoming:
    """Return a message whose annex was not checked, as an older broker may have stored it."""
    return Incoming(read_incoming(encoded(text), False).bare, annex, ttl, None, at)


def reason(message: StoredMessage) -> tuple[str, str]:
    properties = delivered(message).application_properties or {}
    return properties["DeadLetterReason"], properties["DeadLetterErrorDescription"]


# --- what the store does not take ---


def test_a_message_that_the_store_refuses_affects_only_its_sender() -> None:
    store = FlakyStore()
    world = World(QueueDefinition(name="q"), QueueDefinition(name="other", max_delivery_count=1), store=store)
    world.send("to be dead-lettered", to="other")
    receiver = Receiver(world, world.queue("other"))
    store.fails = refuse_marked_messages
    outcomes: dict[str, list[BrokerError | None]] = {"q": [], "other": [], "settled": []}
    for _ in range(3):
        world.queue("other").send([incoming("innocent")], outcomes["other"].append)
        world.queue("q").send([incoming("guilty")], outcomes["q"].append)
    world.queue("other").settlements.abandon(receiver.locks[0], outcomes["settled"].append)
    world.run()
    assert [type(error) for error in outcomes["q"]] == [ChangeRefused] * 3
    assert outcomes["other"] + outcomes["settled"] == [None] * 4
    assert world.bodies("q") == []
    assert world.bodies("other") == ["innocent"] * 3
    assert world.bodies("other/$DeadLetterQueue") == ["to be dead-lettered"]
    assert world.namespace.journal.failure is None, "which is what /health tells"
    world.check()


def test_a_number_out_of_the_stores_range_affects_only_its_message(tmp_path: Any) -> None:
    store = AwaitedStore(tmp_path)
    world = World(store=store)
    outcomes: list[BrokerError | None] = []
    bare = read_incoming(encoded("huge"), False).bare
    for message in (incoming("one"), Incoming(bare, None, None, None, 1 << 63), incoming("two")):
        world.queue().send([message], outcomes.append)
    world.run()
    assert [type(error) for error in outcomes] == [type(None), ChangeRefused, type(None)]
    assert world.bodies() == ["one", "two"]
    assert world.namespace.journal.failure is None
    world.check()
    store.close()


# --- forwarding ---


def forwarding(store: FlakyStore | None = None, **settings: Any) -> World:
    return World(QueueDefinition(name="q", forward_to="to"), QueueDefinition(name="to", **settings), store=store)


def test_an_annotation_that_cannot_be_decoded_does_not_keep_a_message_from_being_forwarded() -> None:
    world = forwarding(requires_duplicate_detection=True, enable_partitioning=True)
    for name in (VIA_PARTITION_KEY, "x-other", PARTITION_KEY):
        annotations = encode_value(Symbol(name)) + NO_CHAR
        world.send_together(unread(name, Annex(None, annotations, 2).encode()))
    world.send("behind them")
    assert world.bodies("q") == []
    assert len(world.stored("to")) == 4
    world.check()


def test_a_message_that_cannot_be_forwarded_is_dead_lettered_and_other_messages_are_forwarded() -> None:
    world = forwarding()
    for text, annex in (("one", None), ("poison", NO_ANNEX), ("two", None)):
        world.queue("q").send([unread(text, annex)], lambda error: None)
    world.run()
    assert (world.bodies("q"), world.bodies("to")) == ([], ["one", "two"])
    (letter,) = world.stored("q/$Transfer/$DeadLetterQueue")
    assert body(letter) == "poison"
    assert reason(letter)[0] == "TransferFailed"
    world.check()


def test_a_message_that_the_store_refuses_is_dead_lettered_and_other_messages_are_forwarded() -> None:
    store = FlakyStore()
    world = forwarding(store)
    target = world.queue("to").id
    store.fails = lambda changes: (
        refuse_marked_messages(changes) if any(entity == target for entity, _ in changes.appends) else None
    )
    world.send("one", "guilty", "two", "three")
    assert world.bodies("q") == []
    assert world.bodies("to") == ["one", "two", "three"]
    (letter,) = world.stored("q/$Transfer/$DeadLetterQueue")
    assert (body(letter), reason(letter)[0]) == ("guilty", "TransferFailed")
    world.send("four", "five")
    assert world.bodies("to")[3:] == ["four", "five"]
    world.check()


def test_a_message_that_the_store_refuses_everywhere_stays_and_other_messages_are_forwarded() -> None:
    store = FlakyStore()
    world = forwarding(store)
    store.held = []
    for text in ("one", "guilty", "two"):
        world.queue("q").send([incoming(text)], lambda error: None)
    world.run()
    store.release_commits()
    store.fails = refuse_marked_messages
    for _ in range(10):
        world.advance(SECOND)
    assert world.bodies("q") == ["guilty"]
    assert world.bodies("to") == ["one", "two"]
    store.fails = lambda changes: None
    world.advance(MINUTE)
    assert world.bodies("q") == []
    world.check()


# --- expiry ---


def test_an_expired_message_that_cannot_be_read_is_dead_lettered_like_other_messages() -> None:
    world = World(QueueDefinition(name="q", dead_lettering_on_message_expiration=True))
    for text, annex in (("one", None), ("poison", NO_ANNEX), ("two", None)):
        world.queue("q").send([unread(text, annex, ttl=10 * SECOND)], lambda error: None)
    world.advance(10 * SECOND)
    assert world.bodies("q") == []
    letters = world.stored("q/$DeadLetterQueue")
    assert [body(letter) for letter in letters] == ["one", "poison", "two"]
    assert {reason(letter)[0] for letter in letters} == {"TTLExpiredException"}
    world.check()


def test_an_expiry_that_the_store_refuses_does_not_prevent_other_expiries() -> None:
    store = FlakyStore()
    world = World(QueueDefinition(name="q", dead_lettering_on_message_expiration=True), store=store)
    world.send("one", "guilty", "two", ttl=10 * SECOND)
    store.fails = refuse_marked_messages
    world.advance(10 * SECOND)
    assert world.bodies("q") == ["guilty"]
    assert world.bodies("q/$DeadLetterQueue") == ["one", "two"]
    reads = store.reads
    world.run()
    assert store.reads == reads, "it is not looked at all the time"
    store.fails = lambda changes: None
    world.advance(SECOND)
    assert world.bodies("q/$DeadLetterQueue") == ["one", "guilty", "two"]
    world.check()


# --- scheduled messages ---


def test_a_due_message_that_cannot_be_enqueued_is_dead_lettered_and_other_messages_are_enqueued() -> None:
    world = World()
    due = world.clock() + MINUTE
    for text, annex in (("one", None), ("poison", NO_ANNEX), ("two", None)):
        world.queue("q").send([unread(text, annex, at=due)], lambda error: None)
    world.run()
    world.advance(MINUTE)
    assert world.bodies("q") == ["one", "two"]
    (letter,) = world.stored("q/$DeadLetterQueue")
    assert (body(letter), reason(letter)[0]) == ("poison", "EnqueueFailed")
    world.check()


def test_a_due_message_that_the_store_does_not_take_is_a_dead_letter() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("one", "guilty", "two", at=world.clock() + MINUTE)
    queue = world.queue("q").id
    store.fails = lambda changes: (
        refuse_marked_messages(changes) if any(entity == queue for entity, _ in changes.appends) else None
    )
    world.advance(MINUTE)
    assert world.bodies("q") == ["one", "two"]
    assert world.bodies("q/$DeadLetterQueue") == ["guilty"]
    world.send("later", at=world.clock() + MINUTE)
    world.advance(MINUTE)
    assert world.bodies("q") == ["one", "two", "later"]
    world.check()


# --- rules ---


def troubled() -> bytes:
    """Return a message whose application properties can be decoded together, but not one by one."""
    value = b"\x00\x53\x01" * 9 + b"\x40"
    section = map_section(APPLICATION_PROPERTIES, [encode_value("odd"), value])
    plain = encoded("troubled")
    at = plain.index(b"\x00\x53\x75")
    return plain[:at] + section + plain[at:]


@pytest.mark.parametrize("later", [False, True])
def test_an_unexpected_failure_of_a_rule_affects_one_copy_only(later: bool) -> None:
    world = World(topic("t", subscription("acting", sql("act", "1=1", "SET new = 1")), "all"))
    message = read_incoming(troubled(), False)
    if later:
        message.scheduled_at = world.clock() + MINUTE
    assert world.send_together(message, to="t") == [None]
    world.send("behind", to="t", **({"at": world.clock() + MINUTE} if later else {}))
    world.advance(MINUTE)
    assert world.bodies("t/Subscriptions/all") == ["troubled", "behind"]
    assert world.bodies("t/Subscriptions/acting") == ["behind"]
    (letter,) = world.stored("t/Subscriptions/acting/$DeadLetterQueue")
    assert reason(letter)[0] == "FilterException"
    assert "'act'" in reason(letter)[1]
    world.check()


# --- receiving ---


def test_an_undeliverable_message_is_finally_dead_lettered_and_other_messages_are_received() -> None:
    class Picky(Receiver):
        def deliver(self, message: StoredMessage, lock: Any) -> None:
            if b"poison" in message.content:
                raise ValueError("a mistake of ours")
            super().deliver(message, lock)

    world = World(QueueDefinition(name="q", lock_duration_ms=MINUTE, max_delivery_count=2))
    world.send("one", "poison", "two")
    receiver = Picky(world, world.queue("q"))
    assert receiver.bodies == ["one", "two"]
    for lock in receiver.locks:
        world.settle(world.queue("q").settlements.complete, lock)
    world.advance(MINUTE)
    world.advance(MINUTE)
    assert world.bodies("q") == []
    assert world.bodies("q/$DeadLetterQueue") == ["poison"]
    world.check()
