"""Forwarding: one commit moves a message to another entity, or to the transfer dead-letter queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.world import (
    MINUTE,
    SECOND,
    AttachedLink,
    AwaitedStore,
    FlakyStore,
    Receiver,
    SessionReceiver,
    World,
    body,
    delivered,
    incoming,
    session_queue,
    sql,
    subscription,
    topic,
)
from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.service_bus import DEAD_LETTER_SOURCE, ENQUEUED_SEQUENCE_NUMBER, SEQUENCE_NUMBER
from peeklock.amqp.types import Symbol
from peeklock.broker.annex import Annex
from peeklock.broker.errors import BrokerError, OperationNotAllowed
from peeklock.broker.forwarding import MAX_UNDER_WAY
from peeklock.broker.incoming import Incoming, read_incoming
from peeklock.broker.retries import RETRY_MS
from peeklock.broker.transactions import Scope, Transactions
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.settings import PROFILES, Status
from peeklock.store.base import Changes, StoredMessage, StoreError, StoreFull


def queue(name: str, forward_to: str | None = None, **settings: Any) -> QueueDefinition:
    return QueueDefinition(name=name, forward_to=forward_to, **settings)


def pair(store: Any = None, **settings: Any) -> World:
    """Return a world in which `q` forwards to `to`."""
    return World(queue("q", "to"), queue("to", **settings), store=store)


def annotations(message: StoredMessage) -> dict[Any, Any]:
    return delivered(message).message_annotations or {}


def why(message: StoredMessage) -> tuple[str, str]:
    properties = delivered(message).application_properties or {}
    return properties["DeadLetterReason"], properties["DeadLetterErrorDescription"]


def refuse_forwards(changes: Changes) -> StoreError | None:
    return StoreError("not now") if changes.appends and changes.removals else None


# --- where messages go ---


def test_a_message_is_forwarded_to_another_queue() -> None:
    world = pair()
    assert world.send("one", "two") == [None, None]
    assert (world.bodies("q"), world.bodies("to")) == ([], ["one", "two"])
    world.check()


def test_a_message_is_forwarded_to_a_topic() -> None:
    world = World(queue("q", "t"), topic("t", subscription("reds", sql("r", "colour = 'red'")), "all"))
    world.send("red", application_properties={"colour": "red"})
    world.send("x" * 1000)
    assert world.bodies("t/Subscriptions/reds") == ["red"]
    assert world.bodies("t/Subscriptions/all") == ["red", "x" * 1000]
    assert world.bodies("q") == []
    world.check()


def test_a_forwarded_message_that_the_topic_drops_is_removed() -> None:
    world = World(queue("q", "t"), topic("t"))
    world.send("one")
    assert world.bodies("q") == []
    world.check()


def test_a_message_is_forwarded_from_a_subscription() -> None:
    world = World(topic("t", subscription("sub", forward_to="to"), "kept"), queue("to"))
    world.send("x" * 1000, to="t")
    assert world.bodies("t/Subscriptions/sub") == []
    assert world.bodies("to") == world.bodies("t/Subscriptions/kept") == ["x" * 1000]
    world.check()


def test_a_message_is_forwarded_to_a_queue_with_sessions() -> None:
    world = World(queue("q", "s"), session_queue("s"))
    world.send("one", properties=Properties(message_id="1", group_id="x"))
    assert SessionReceiver(world, "x").bodies == ["one"]
    world.check()


def test_dead_letters_are_forwarded_with_their_source() -> None:
    world = World(queue("q", forward_dead_lettered_messages_to="letters"), queue("letters"))
    world.send("one")
    world.settle(world.queue().settlements.dead_letter, Receiver(world, world.queue()).locks[0], "because", "of this")
    assert world.bodies("q/$DeadLetterQueue") == []
    (letter,) = world.stored("letters")
    assert why(letter) == ("because", "of this")
    assert annotations(letter)[DEAD_LETTER_SOURCE] == "q"
    world.check()


def test_dead_letters_of_a_queue_with_sessions_go_on_too() -> None:
    world = World(session_queue("s", forward_dead_lettered_messages_to="letters"), queue("letters"))
    world.send("one", to="s", session_id="x")
    world.settle(world.sessions().settlements.dead_letter, SessionReceiver(world, "x").locks[0])
    assert world.bodies("letters") == ["one"]
    world.check()


def test_expired_messages_are_forwarded_like_dead_letters() -> None:
    settings = {"dead_lettering_on_message_expiration": True, "forward_dead_lettered_messages_to": "letters"}
    world = World(queue("q", **settings), queue("letters"))
    world.send("one", ttl=SECOND)
    world.advance(SECOND)
    assert [why(letter)[0] for letter in world.stored("letters")] == ["TTLExpiredException"]
    world.check()


def test_a_forwarding_entity_cannot_be_received_from() -> None:
    world = World(queue("q", "to", forward_dead_lettered_messages_to="to"), queue("to"))
    for path in ("q", "q/$DeadLetterQueue"):
        with pytest.raises(OperationNotAllowed, match="forwards its messages to 'to'"):
            world.queue(path).check_receiving()
    world.queue("to").check_receiving()
    world.unforwarded().check_receiving()


# --- what the message says ---


def test_a_forwarded_message_has_a_new_number_and_keeps_its_first_one() -> None:
    world = World(queue("q", "middle"), queue("middle", "to"), queue("to"))
    world.send("before", to="to")
    world.send("between", "too", to="middle")
    world.send("one", "two")
    told = [(of[SEQUENCE_NUMBER], of.get(ENQUEUED_SEQUENCE_NUMBER)) for of in map(annotations, world.stored("to"))]
    assert told == [(1, None), (2, 1), (3, 2), (4, 1), (5, 2)]


def test_other_parts_of_a_forwarded_message_are_unchanged() -> None:
    world = pair()
    sent = Message(
        header=Header(priority=7),
        message_annotations={Symbol("x-opt-partition-key"): "p", Symbol("x-mine"): 1},
        properties=Properties(message_id="m", subject="s"),
        application_properties={"a": 1},
        data=[b"one", b"two"],
        footer={Symbol("f"): 2},
    )
    world.send_together(read_incoming(sent.encode(), reads_session_id=False))
    (message,) = world.stored("to")
    read = delivered(message)
    assert read.header is not None
    assert read.header.priority == 7
    assert (read.message_annotations or {}).items() >= {"x-opt-partition-key": "p", "x-mine": 1}.items()
    assert (
        message.content
        == Message(
            properties=sent.properties, application_properties={"a": 1}, data=sent.data, footer=sent.footer
        ).encode()
    )


def test_the_time_to_live_continues_after_forwarding() -> None:
    store = FlakyStore()
    world = pair(store)
    store.fails = refuse_forwards
    world.send("one", ttl=MINUTE)
    expires_at = world.clock() + MINUTE
    world.advance(20 * SECOND)
    store.fails = lambda changes: None
    world.advance(2 * SECOND)
    (message,) = world.stored("to")
    assert message.expires_at == expires_at
    world.advance(38 * SECOND)
    assert world.stored("to") == []
    world.check()


def test_the_target_may_allow_less_time_to_live() -> None:
    world = pair(default_message_ttl_ms=SECOND)
    world.send("one", ttl=MINUTE)
    world.send("two")
    assert {message.expires_at for message in world.stored("to")} == {world.clock() + SECOND}


def test_a_message_that_expired_before_it_could_go_does_not_go() -> None:
    store = FlakyStore()
    world = pair(store)
    store.fails = refuse_forwards
    world.send("one", ttl=SECOND)
    world.advance(2 * SECOND)
    store.fails = lambda changes: None
    world.advance(5 * SECOND)
    assert (world.stored("q"), world.stored("to")) == ([], [])
    world.check()


# --- hops ---


def chain(length: int, **settings: Any) -> World:
    """Return a world in which `q0` forwards to `q1`, and so on, with that many hops."""
    hops = [queue(f"q{number}", f"q{number + 1}", **settings) for number in range(length)]
    return World(*hops, queue(f"q{length}"))


def test_four_hops_are_allowed() -> None:
    world = chain(4)
    world.send("one", to="q0")
    assert world.bodies("q4") == ["one"]
    world.check()


def test_the_fifth_hop_ends_in_the_transfer_dead_letter_queue() -> None:
    world = chain(5)
    world.send("one", to="q0")
    assert [world.bodies(f"q{number}") for number in range(6)] == [[]] * 6
    (message,) = world.stored("q4/$Transfer/$DeadLetterQueue")
    assert why(message)[0] == "MaxTransferHopCountExceeded"
    assert annotations(message)[DEAD_LETTER_SOURCE] == "q4"
    assert world.runtime("q4").transfer_dead_letter == 1
    world.check()


def test_a_loop_ends() -> None:
    world = World(queue("a", "b"), queue("b", "a"))
    world.send("one", to="a")
    assert why(world.stored("a/$Transfer/$DeadLetterQueue")[0])[0] == "MaxTransferHopCountExceeded"
    assert world.bodies("a") == world.bodies("b") == []
    world.check()


@pytest.mark.parametrize("detects", [False, True])
def test_a_queue_that_forwards_to_itself_is_a_loop(detects: bool) -> None:
    world = World(queue("q", "Q", requires_duplicate_detection=detects))
    assert world.send("one", to="q") == [None]
    assert why(world.stored("q/$Transfer/$DeadLetterQueue")[0])[0] == "MaxTransferHopCountExceeded"
    assert world.bodies("q") == []
    world.check()


@pytest.mark.parametrize("detects", [False, True])
def test_dead_letters_forwarded_to_their_own_queue_return_a_few_times(detects: bool) -> None:
    world = World(queue("q", forward_dead_lettered_messages_to="q", requires_duplicate_detection=detects))
    receiver = Receiver(world, world.queue())
    world.send("one")
    for received in range(1, 6):
        assert len(receiver.locks) == received
        world.settle(world.queue().settlements.dead_letter, receiver.locks[-1], "because")
    assert world.bodies("q") == world.bodies("q/$DeadLetterQueue") == []
    assert world.bodies("q/$Transfer/$DeadLetterQueue") == ["one"]
    world.check()


def test_forward_to_has_no_effect_on_a_queue_with_sessions(caplog: pytest.LogCaptureFixture) -> None:
    world = World(session_queue("s", forward_to="to"), queue("to"))
    assert "'s' has sessions: its ForwardTo has no effect" in caplog.text
    world.send("one", to="s", session_id="x")
    assert world.bodies("to") == []
    assert SessionReceiver(world, "x").bodies == ["one"]
    world.check()


def test_a_loop_that_multiplies_ends_too() -> None:
    """Two subscriptions that forward to their own topic: each hop doubles the messages."""
    world = World(topic("t", subscription("a", forward_to="t"), subscription("b", forward_to="t")))
    world.send("one", to="t")
    ended = [world.bodies(f"t/Subscriptions/{name}/$Transfer/$DeadLetterQueue") for name in ("a", "b")]
    assert [len(each) for each in ended] == [16, 16]
    world.check()


# --- what cannot be forwarded ---


def not_there(world: World) -> None:
    assert world.administer(world.administration.delete_queue, "to") is None


def disabled(world: World) -> None:
    change = queue("to", status=Status.SEND_DISABLED)
    assert world.administer(world.administration.update_queue, change) is None


def small(world: World) -> None:
    change = queue("to", max_message_size_in_kilobytes=1)
    assert world.administer(world.administration.update_queue, change) is None


def full(world: World) -> None:
    world.send("x" * 1_100_000, to="to")


def with_sessions(world: World) -> None:
    not_there(world)
    assert world.administer(world.administration.create_queue, session_queue("to")) is None


@pytest.mark.parametrize(
    ("spoil", "reason", "description"),
    [
        (not_there, "MessagingEntityNotFound", "could not be found"),
        (disabled, "MessagingEntityDisabled", "is disabled for sending"),
        (small, "MessageSizeExceeded", "larger than 1 KB"),
        (full, "QuotaExceeded", "maximum size of 1 MB"),
        (with_sessions, "Session ID is null.", "needs a session id"),
    ],
)
@pytest.mark.parametrize("source", ["queue", "dead letters", "subscription"])
def test_messages_that_the_destination_refuses_go_to_the_transfer_dead_letter_queue(
    spoil: Callable[[World], None], reason: str, description: str, source: str
) -> None:
    target = queue("to", max_size_in_megabytes=1)
    sources = (
        queue("q", "to"),
        queue("letters", forward_dead_lettered_messages_to="to"),
        topic("t", subscription("sub", forward_to="to")),
    )
    world = World(*sources, target, profile=PROFILES["unlimited"])
    spoil(world)
    text = "y" * 2000
    if source == "queue":
        path = "q"
        world.send(text)
    elif source == "subscription":
        path = "t/Subscriptions/sub"
        world.send(text, to="t")
    else:
        path = "letters"
        world.send(text, to=path)
        world.settle(world.queue(path).settlements.dead_letter, Receiver(world, world.queue(path)).locks[0])
    (message,) = world.stored(f"{path}/$Transfer/$DeadLetterQueue")
    assert body(message) == text
    assert why(message)[0] == reason
    assert description in why(message)[1]
    assert world.stored(path) == world.stored(f"{path}/$DeadLetterQueue") == []
    world.check()


def test_transfer_dead_letters_of_one_commit_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = pair()
    not_there(world)
    world.send_together(*map(incoming, ("1", "2", "3")))
    (record,) = [each for each in caplog.records if each.name.endswith("forwarding")]
    fields = record.fields  # type: ignore[attr-defined]
    assert (fields["from"], fields["to"], fields["messages"]) == ("q", "to", 3)
    assert "could not be found" in fields["reason"]


def test_a_message_with_unreadable_properties_is_forwarded() -> None:
    world = World(queue("q", "to"), queue("to", default_message_ttl_ms=MINUTE, requires_duplicate_detection=True))
    malformed = b"\x00\x53\x73\xc0\x05\x01\xa1\x10ab" + b"\x00\x53\x75\xa0\x01x"
    assert world.send_together(Incoming(malformed, None, None, None, None)) == [None]
    assert [message.content for message in world.stored("to")] == [malformed]
    world.check()


def test_transfer_dead_letters_can_be_received_and_settled() -> None:
    world = pair()
    not_there(world)
    world.send("one")
    unforwarded = world.unforwarded()
    receiver = Receiver(world, unforwarded)
    assert receiver.bodies == ["one"]
    world.settle(unforwarded.settlements.complete, receiver.locks[0])
    world.check()


def test_a_destination_that_is_created_again_gets_later_messages() -> None:
    world = pair()
    not_there(world)
    world.send("lost")
    assert world.administer(world.administration.create_queue, queue("to")) is None
    world.send("found")
    assert (world.bodies("to"), world.bodies("q/$Transfer/$DeadLetterQueue")) == (["found"], ["lost"])


# --- changed while it runs ---


def test_messages_from_before_forwarding_was_set_are_forwarded() -> None:
    world = World(queue("q"), queue("to"))
    world.send("one", "two")
    assert world.administer(world.administration.update_queue, queue("q", "to")) is None
    world.send("three")
    assert (world.bodies("q"), world.bodies("to")) == ([], ["one", "two", "three"])
    world.check()


def test_locked_messages_are_forwarded_when_they_are_unlocked() -> None:
    world = World(queue("q"), queue("to"))
    world.send("held", "waits")
    (lock,) = Receiver(world, world.queue(), credit=1).locks
    assert world.administer(world.administration.update_queue, queue("q", "to")) is None
    assert world.bodies("to") == ["waits"]
    world.settle(world.queue().settlements.abandon, lock)
    assert world.bodies("to") == ["waits", "held"]
    world.check()


def test_deferred_messages_are_not_forwarded() -> None:
    world = World(queue("q"), queue("to"))
    world.send("aside")
    world.settle(world.queue().settlements.defer, Receiver(world, world.queue()).locks[0])
    assert world.administer(world.administration.update_queue, queue("q", "to")) is None
    assert (world.bodies("q"), world.bodies("to")) == (["aside"], [])
    world.check()


def test_forwarding_can_be_switched_off_and_on() -> None:
    world = pair()
    change = world.administration.update_queue
    assert world.administer(change, queue("q")) is None
    world.send("stays")
    receiver = Receiver(world, world.queue())
    assert receiver.bodies == ["stays"]
    world.queue().settlements.release(receiver.locks[0])
    world.queue().leave(receiver)
    assert world.administer(change, queue("q", "to")) is None
    world.send("goes")
    assert world.bodies("to") == ["stays", "goes"]
    world.check()


def test_consumers_are_notified_when_forwarding_is_set() -> None:
    world = World(queue("q"), queue("to"))
    refusals: list[str] = []

    class Link(AttachedLink):
        def on_entity_changed(self) -> None:
            with pytest.raises(OperationNotAllowed) as refused:
                self._entity.check_receiving()
            refusals.append(str(refused.value))

    Link(world.queue())
    Link(world.dead_letters())
    change = queue("q", "to", forward_dead_lettered_messages_to="to")
    assert world.administer(world.administration.update_queue, change) is None
    assert len(refusals) == 2


def test_the_destination_can_be_replaced() -> None:
    world = World(queue("q", "to"), queue("to"), queue("other"))
    world.send("one")
    assert world.administer(world.administration.update_queue, queue("q", "OTHER")) is None
    world.send("two")
    assert (world.bodies("to"), world.bodies("other")) == (["one"], ["two"])


def test_messages_for_later_go_when_they_are_due() -> None:
    world = pair()
    world.send("later", at=world.clock() + MINUTE)
    assert world.bodies("to") == []
    world.advance(MINUTE)
    assert world.bodies("to") == ["later"]
    world.check()


# --- a store that fails ---


def test_a_forward_that_fails_loses_and_doubles_nothing_and_is_tried_again() -> None:
    store = FlakyStore()
    world = pair(store)
    store.fails = refuse_forwards
    world.send("one", "two")
    for _ in range(3):
        assert (world.bodies("q"), world.bodies("to")) == (["one", "two"], [])
        world.check()
        world.advance(RETRY_MS)
    store.fails = lambda changes: None
    world.advance(RETRY_MS)
    assert (world.bodies("q"), world.bodies("to")) == ([], ["one", "two"])
    assert {message.delivery_count for message in world.stored("to")} == {0}
    world.check()


def test_a_message_that_could_not_be_dead_lettered_stays_and_is_retried() -> None:
    store = FlakyStore()
    world = pair(store)
    not_there(world)
    store.fails = refuse_forwards
    world.send("one")
    assert world.bodies("q") == ["one"]
    store.fails = lambda changes: None
    world.advance(RETRY_MS)
    assert world.bodies("q/$Transfer/$DeadLetterQueue") == ["one"]
    world.check()


def test_messages_do_not_overtake_each_other_when_the_store_refuses_some() -> None:
    store = FlakyStore()
    world = pair(store)
    store.held = []
    for texts in (("1", "2"), ("3", "4")):
        world.queue().send(list(map(incoming, texts)), lambda error: None)
        world.run()
    for _ in range(2):
        store.held.pop(0)()  # stored in the source; the first two are on their way then
        world.run()
    store.fails = lambda changes: StoreError("not now")
    store.held.pop(0)()
    store.fails = lambda changes: None
    world.run()
    store.release_commits()
    world.run()
    world.advance(RETRY_MS)
    assert world.bodies("to") == ["1", "2", "3", "4"]
    world.check()


def test_many_messages_keep_their_order_through_a_chain_of_entities() -> None:
    world = World(queue("q", "middle"), queue("middle", "to"), queue("to"))
    texts = [str(number) for number in range(2 * MAX_UNDER_WAY + 10)]
    world.send_together(*map(incoming, texts))
    assert world.bodies("to") == texts
    world.check()


def test_a_restart_during_forwarding_loses_and_duplicates_no_message(store: Any) -> None:
    world = World(queue("q", "middle"), queue("middle", "to"), queue("to"), store=store)
    texts = [str(number) for number in range(50)]
    outcomes: list[BrokerError | None] = []
    world.queue().send(list(map(incoming, texts)), outcomes.append)
    # As far as it comes before it is switched off.
    while not outcomes:
        world._turn.popleft()()
        if isinstance(world.store, AwaitedStore) and world.store.pending:
            world.store.answer()
    assert outcomes == [None]
    world = world.restarted()
    assert world.bodies("to") == texts
    assert world.bodies("q") == world.bodies("middle") == []
    world.check()


def test_a_durable_but_unconfirmed_forward_is_not_repeated_after_a_restart() -> None:
    store = FlakyStore()
    world = pair(store)
    store.held_outcomes = []
    world.send("one")
    store.held_outcomes.pop(0)()  # of the send; that of the forward is never told
    world.run()
    assert world.bodies("to") == ["one"]
    store.held_outcomes = None
    world = world.restarted()
    assert (world.bodies("q"), world.bodies("to")) == ([], ["one"])
    world.check()


# --- deleted while messages are under way ---


def held_on_the_way() -> tuple[World, FlakyStore]:
    """Return a world with a message whose forwarding is being committed."""
    store = FlakyStore()
    world = pair(store)
    store.held = []
    world.send("one")
    store.held.pop(0)()
    world.run()
    assert len(store.held) == 1
    return world, store


def test_a_message_being_forwarded_arrives_although_the_source_is_deleted() -> None:
    world, store = held_on_the_way()
    outcomes: list[BrokerError | None] = []
    world.administration.delete_queue("q", outcomes.append)
    world.run()
    store.release_commits()
    world.run()
    assert outcomes == [None]
    assert world.bodies("to") == ["one"]
    world.check()


def test_a_message_whose_forward_fails_is_deleted_with_its_source() -> None:
    world, store = held_on_the_way()
    assert store.held is not None
    outcomes: list[BrokerError | None] = []
    world.administration.delete_queue("q", outcomes.append)
    world.run()
    store.fails = refuse_forwards
    store.release_commits()
    world.advance(10 * RETRY_MS)
    assert outcomes == [None]
    assert world.bodies("to") == []
    world.check()


def test_a_source_whose_deletion_failed_continues_forwarding() -> None:
    world, store = held_on_the_way()
    outcomes: list[BrokerError | None] = []
    world.administration.delete_queue("q", outcomes.append)
    world.run()
    store.fails = lambda changes: StoreError("not now")
    store.release_commits()
    world.run()
    assert [error is not None for error in outcomes] == [True]
    assert (world.bodies("q"), world.bodies("to")) == (["one"], [])
    store.fails = lambda changes: None
    world.advance(RETRY_MS)
    assert (world.bodies("q"), world.bodies("to")) == ([], ["one"])
    world.send("two")
    assert world.bodies("to") == ["one", "two"]
    world.check()


def test_a_message_being_forwarded_is_deleted_with_its_destination() -> None:
    world, store = held_on_the_way()
    outcomes: list[BrokerError | None] = []
    world.administration.delete_queue("to", outcomes.append)
    world.run()
    store.release_commits()
    world.run()
    assert outcomes == [None]
    assert world.bodies("q") == []
    world.send("two")
    assert world.bodies("q/$Transfer/$DeadLetterQueue") == ["two"]
    world.check()


def test_a_message_forwarded_during_the_deletion_of_its_destination_is_dead_lettered() -> None:
    store = FlakyStore()
    world = pair(store)
    store.held = []
    world.administration.delete_queue("to", lambda error: None)
    world.send("one")
    store.release_commits()
    world.run()
    assert world.bodies("q/$Transfer/$DeadLetterQueue") == ["one"]
    world.check()


# --- duplicates, transactions, accounts ---


def test_the_destination_drops_duplicates() -> None:
    world = pair(requires_duplicate_detection=True)
    world.send("one", to="to")
    world.send("one", "two")
    assert (world.bodies("q"), world.bodies("to")) == ([], ["one", "two"])
    world.check()


def test_a_message_is_not_lost_as_the_repetition_of_one_that_was_never_stored() -> None:
    store = FlakyStore()
    world = pair(store, requires_duplicate_detection=True)
    other: list[BrokerError | None] = []
    world.send("one", "two", "three", to="q")
    receiver = Receiver(world, world.queue("to"))
    for lock in receiver.locks:
        world.settle(world.queue("to").settlements.complete, lock)
    world.advance(11 * MINUTE)
    # A client sends the same to the target; while that is on its way the forward comes.
    store.held = []
    world.namespace.entity("q").send([incoming("zero"), incoming("one"), incoming("two")], lambda error: None)
    world.run()
    world.namespace.entity("to").send([incoming("one")], other.append)
    world.run()
    assert len(store.held) == 2
    store.held.pop(0)()  # stored in the source
    world.run()
    store.fails = lambda changes: StoreFull("not now")
    store.held.pop(0)()  # refused by the target
    world.run()
    store.fails = lambda changes: None
    store.release_commits()
    world.run()
    assert [error is None for error in other] == [False]
    world.advance(RETRY_MS)
    assert (world.bodies("q"), world.bodies("to")) == ([], ["zero", "one", "two"])
    world.check()


def test_messages_sent_in_a_transaction_are_forwarded_after_the_commit() -> None:
    world = pair()
    transactions = Transactions(world.namespace.journal, world.namespace.agenda)
    id = transactions.declare()
    transactions.get(id).send(world.queue(), [incoming("one")], Scope("q", None))
    world.run()
    assert world.bodies("to") == []
    transactions.discharge(id, fail=False, done=lambda error: None)
    world.run()
    assert world.bodies("to") == ["one"]
    world.check()


def test_messages_to_be_forwarded_are_counted_separately() -> None:
    store = FlakyStore()
    world = pair(store)
    store.fails = refuse_forwards
    world.send("one")
    assert (world.runtime().active, world.runtime().transfer, world.runtime().total) == (0, 1, 1)


def test_hops_are_counted_over_a_restart() -> None:
    world = World(queue("q", "to"), queue("to"))
    world.send("one")
    world = world.restarted()
    (message,) = world.stored("to")
    assert Annex.decode(message.annex).hops == 1


def test_forwarding_waits_until_the_destination_has_read_its_ids(disk: AwaitedStore) -> None:
    world = World(queue("q"), queue("to", requires_duplicate_detection=True), store=disk)
    world.send("one", to="to")
    world.send("one")
    # Forwarding is set, and the broker stops before anything moves.
    world.administration.update_queue(queue("q", "to"), lambda error: None)
    while world._turn or disk.pending:
        if world._turn:
            world._turn.popleft()()
        else:
            disk.answer()
        if world.queue().forwards:
            break
    world = world.restarted()
    assert (world.bodies("q"), world.bodies("to")) == ([], ["one"])
    world.check()


def test_forwarding_waits_until_the_destination_has_read_its_sessions(disk: AwaitedStore) -> None:
    world = World(queue("q"), session_queue("s"), store=disk)
    world.send("first", to="s", session_id="x")
    world.send("second", properties=Properties(message_id="m", group_id="x"))
    world.administration.update_queue(queue("q", "s"), lambda error: None)
    while not world.queue().forwards:
        if world._turn:
            world._turn.popleft()()
        else:
            disk.answer()
    world = world.restarted()
    assert world.sessions().sessions._by_id["x"].active == 2
    assert SessionReceiver(world, "x").bodies == ["first", "second"]
    world.check()
