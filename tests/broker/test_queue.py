"""Queues: sending, locks, settlement, counters and expiry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.world import MINUTE, SECOND, AwaitedStore, FlakyStore, Receiver, World, delivered, encoded
from peeklock.amqp.message import Header
from peeklock.broker.backlog import WINDOW_MESSAGES
from peeklock.broker.errors import (
    BrokerError,
    EntityDisabled,
    InvalidProperty,
    MessageLockLost,
    OperationNotAllowed,
    QuotaExceeded,
    StorageFull,
)
from peeklock.broker.incoming import read_incoming
from peeklock.broker.paging import PAGE_MESSAGES
from peeklock.broker.queue import TURN_MESSAGES, Lock
from peeklock.entities.definitions import QueueDefinition
from peeklock.store.base import ACTIVE, Changes, StoreError, StoreFull


def ignore(error: BrokerError | None) -> None:
    assert error is None


def test_messages_are_received_in_the_order_they_were_sent() -> None:
    world = World()
    world.send("a", "b", "c")
    receiver = Receiver(world, world.queue())
    assert receiver.bodies == ["a", "b", "c"]
    assert receiver.numbers == [1, 2, 3]


def test_a_send_is_confirmed_only_after_its_commit() -> None:
    store = FlakyStore()
    world = World(store=store)
    store.held = []
    receiver = Receiver(world, world.queue())
    assert world.send("a") == []
    assert receiver.got == []
    commit = store.held.pop()
    store.held = None
    commit()
    world.run()
    assert receiver.bodies == ["a"]


def test_a_batch_is_stored_whole_or_not_at_all() -> None:
    store = FlakyStore()
    world = World(store=store)
    outcomes: list[BrokerError | None] = []
    store.fails = lambda changes: StoreFull("no room")
    world.queue().send([read_incoming(encoded(text), False) for text in "ab"], outcomes.append)
    world.run()
    assert [type(outcome) for outcome in outcomes] == [StorageFull]
    store.fails = lambda changes: None
    world.send("c")
    assert Receiver(world, world.queue()).bodies == ["c"]


def test_on_a_full_disk_sends_are_refused_and_settlements_succeed() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a")
    receiver = Receiver(world, world.queue())

    def full(changes: Changes) -> StoreError | None:
        return StoreFull("no room") if changes.appends else None

    store.fails = full
    sent: list[BrokerError | None] = []
    completed: list[BrokerError | None] = []
    world.queue().send([read_incoming(encoded("b"), False)], sent.append)
    world.queue().settlements.complete(receiver.locks[0], completed.append)
    world.run()
    assert isinstance(sent[0], StorageFull)
    assert completed == [None]
    assert isinstance(world.namespace.journal.failure, StoreFull)
    assert world.queue().counters.active == 0


def test_a_full_disk_refuses_dead_letters_while_settlements_of_the_same_turn_go_through() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a", "b")
    receiver = Receiver(world, world.queue())
    store.fails = lambda changes: StoreFull("no room") if changes.appends else None
    moved: list[BrokerError | None] = []
    completed: list[BrokerError | None] = []
    world.queue().settlements.dead_letter(receiver.locks[0], moved.append)
    world.queue().settlements.complete(receiver.locks[1], completed.append)
    world.run()
    assert isinstance(moved[0], StorageFull)
    assert completed == [None]
    store.fails = lambda changes: None
    world.queue().settlements.dead_letter(receiver.locks[0], moved.append)
    world.run()
    assert moved[1] is None


def test_a_settlement_that_could_not_be_stored_leaves_the_message_locked() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a")
    receiver = Receiver(world, world.queue())
    store.fails = lambda changes: StoreError("the disk is on fire")
    outcomes: list[BrokerError | None] = []
    world.queue().settlements.complete(receiver.locks[0], outcomes.append)
    world.run()
    assert outcomes[0] is not None
    assert world.namespace.journal.failure is not None
    store.fails = lambda changes: None
    world.queue().settlements.complete(receiver.locks[0], outcomes.append)
    world.run()
    assert outcomes[1] is None
    assert world.namespace.journal.failure is None


def test_a_completed_message_is_removed() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue())
    world.queue().settlements.complete(receiver.locks[0], ignore)
    world.advance(10 * MINUTE)
    assert receiver.bodies == ["a"]
    assert world.queue().counters.active == 0
    assert world.queue().counters.size_in_bytes == 0


def test_a_message_is_settled_only_once() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue())
    world.queue().settlements.complete(receiver.locks[0], ignore)
    with pytest.raises(MessageLockLost):
        world.queue().settlements.abandon(receiver.locks[0], ignore)
    world.run()
    with pytest.raises(MessageLockLost):
        world.queue().settlements.complete(receiver.locks[0], ignore)


def test_an_abandoned_message_returns_to_its_place_and_is_counted() -> None:
    world = World()
    world.send("a", "b", "c")
    receiver = Receiver(world, world.queue(), credit=2)
    world.queue().settlements.abandon(receiver.locks[0], ignore)
    world.run()
    receiver.more()
    assert receiver.bodies == ["a", "b", "a", "c"]
    assert [message.delivery_count for message in receiver.got] == [0, 0, 1, 0]


def test_abandoning_can_change_application_properties() -> None:
    world = World()
    world.send("a", application_properties={"kept": 1, "changed": "old"})
    receiver = Receiver(world, world.queue(), credit=1)
    world.queue().settlements.abandon(receiver.locks[0], ignore, {"changed": "new", "added": True})
    world.run()
    receiver.more(1)
    assert delivered(receiver.got[1]).application_properties == {"kept": 1, "changed": "new", "added": True}
    assert receiver.bodies == ["a", "a"]


def test_a_released_message_is_active_at_once_and_not_counted() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue(), credit=1)
    world.queue().settlements.release(receiver.locks[0])
    receiver.more(1)
    assert receiver.bodies == ["a", "a"]
    assert receiver.got[1].delivery_count == 0


def test_each_delivery_has_its_own_lock_token() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue(), credit=1)
    first = receiver.locks[0]
    world.queue().settlements.release(first)
    receiver.more(1)
    second = receiver.locks[1]
    assert first.tag != second.tag
    assert len(first.tag) == 16
    assert world.queue().locks.find([second.tag]) == [second]
    with pytest.raises(MessageLockLost):
        world.queue().locks.find([first.tag])


def test_when_a_lock_expires_the_message_is_active_again_and_counted() -> None:
    world = World(QueueDefinition(name="q", lock_duration_ms=30 * SECOND))
    world.send("a")
    receiver = Receiver(world, world.queue())
    world.advance(30 * SECOND - 1)
    assert receiver.bodies == ["a"]
    world.advance(1)
    assert receiver.bodies == ["a", "a"]
    assert receiver.got[1].delivery_count == 1
    with pytest.raises(MessageLockLost):
        world.queue().settlements.complete(receiver.locks[0], ignore)


def test_an_expired_lock_cannot_be_used_even_before_its_timer_ran() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue())
    world.clock.advance(MINUTE)
    with pytest.raises(MessageLockLost):
        world.queue().settlements.complete(receiver.locks[0], ignore)


def test_a_message_stays_locked_when_its_receiver_closes() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue())
    world.queue().leave(receiver)
    other = Receiver(world, world.queue())
    assert other.got == []
    world.queue().settlements.complete(receiver.locks[0], ignore)
    world.advance(10 * MINUTE)
    assert other.got == []


def test_a_message_that_was_delivered_too_often_is_dead_lettered() -> None:
    world = World(QueueDefinition(name="q", max_delivery_count=3))
    world.send("a")
    receiver = Receiver(world, world.queue())
    for _ in range(3):
        world.advance(MINUTE)
    assert receiver.bodies == ["a", "a", "a"]
    dead = Receiver(world, world.queue("q/$DeadLetterQueue"))
    assert dead.bodies == ["a"]
    properties = delivered(dead.got[0]).application_properties
    assert properties is not None
    assert properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    assert dead.numbers == [1]
    assert world.queue().counters.active == 0
    assert world.queue("q/$deadletterqueue").counters.active == 1


def test_the_maximum_delivery_count_may_be_the_largest_int32(tmp_path: Path) -> None:
    most = 2**31 - 1
    store = AwaitedStore(tmp_path)
    world = World(QueueDefinition(name="q", max_delivery_count=most), store=store)
    world.send("a")
    (message,) = world.stored()
    message.delivery_count = most - 2
    world.namespace.journal.rest.changes.updates.append((world.queue().id, message, ACTIVE))
    world.namespace.journal.rest.then(lambda _, error: ignore(error), None)
    world.run()
    world = world.restarted()
    receiver = Receiver(world, world.queue())
    world.settle(world.queue().settlements.abandon, receiver.locks[0])
    assert [each.delivery_count for each in receiver.got] == [most - 2, most - 1]
    assert world.stored()[0].delivery_count == most - 1
    world.settle(world.queue().settlements.abandon, receiver.locks[1])
    assert world.bodies("q/$DeadLetterQueue") == ["a"]
    assert world.stored("q/$DeadLetterQueue")[0].delivery_count == most
    header = delivered(world.stored("q/$DeadLetterQueue")[0]).header
    assert header is not None
    assert header.delivery_count == most
    world.store.close()


def test_a_dead_lettered_message_keeps_its_bytes_and_has_its_reason() -> None:
    world = World()
    world.send("a", application_properties={"mine": 7})
    receiver = Receiver(world, world.queue())
    world.queue().settlements.dead_letter(receiver.locks[0], ignore, "reason", "description", {"extra": 1})
    world.run()
    dead = Receiver(world, world.queue("Q/$deadletterqueue"))
    message = delivered(dead.got[0])
    assert message.application_properties == {
        "mine": 7,
        "extra": 1,
        "DeadLetterReason": "reason",
        "DeadLetterErrorDescription": "description",
    }
    assert message.data == [b"a"]
    assert message.message_annotations is not None
    assert message.message_annotations["x-opt-deadletter-source"] == "q"


def test_dead_letters_keep_their_order_and_stay_however_often_they_are_abandoned() -> None:
    world = World(QueueDefinition(name="q", max_delivery_count=1))
    world.send("a", "b", "c")
    receiver = Receiver(world, world.queue())
    for lock in reversed(receiver.locks):
        world.queue().settlements.dead_letter(lock, ignore)
        world.run()
    dead = world.queue("q/$deadletterqueue")
    reader = Receiver(world, dead, credit=1)
    for _ in range(4):
        dead.settlements.abandon(reader.locks[-1], ignore)
        world.run()
        reader.more(1)
    assert reader.bodies == ["a"] * 5
    reader.more(2)
    assert reader.bodies[5:] == ["b", "c"]


def test_rejecting_a_dead_letter_leaves_it_where_it_is() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue())
    world.queue().settlements.dead_letter(receiver.locks[0], ignore, "first")
    world.run()
    dead = world.queue("q/$deadletterqueue")
    reader = Receiver(world, dead, credit=1)
    dead.settlements.dead_letter(reader.locks[0], ignore, "second")
    world.run()
    reader.more(1)
    properties = delivered(reader.got[1]).application_properties
    assert properties == {"DeadLetterReason": "second"}


def test_a_dead_letter_reason_has_a_length_limit() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue())
    with pytest.raises(InvalidProperty, match="4096"):
        world.queue().settlements.dead_letter(receiver.locks[0], ignore, "x" * 4097)
    world.queue().settlements.complete(receiver.locks[0], ignore)


def test_a_deferred_message_is_no_longer_delivered() -> None:
    world = World()
    world.send("a", "b")
    receiver = Receiver(world, world.queue(), credit=1)
    world.queue().settlements.defer(receiver.locks[0], ignore, {"why": "later"})
    world.run()
    receiver.more()
    world.advance(10 * MINUTE)
    assert set(receiver.bodies[1:]) == {"b"}
    counters = world.queue().counters
    assert (counters.active, counters.deferred) == (1, 1)


def test_with_receive_and_delete_a_message_is_delivered_after_its_removal() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a")
    store.held = []
    receiver = Receiver(world, world.queue(), deletes=True)
    assert receiver.got == []
    commits, store.held = store.held, None
    for commit in commits:
        commit()
    assert receiver.bodies == ["a"]
    assert world.queue().counters.active == 0


def test_a_message_that_could_not_be_deleted_is_not_delivered() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a")
    store.fails = lambda changes: StoreError("broken")
    receiver = Receiver(world, world.queue(), credit=1, deletes=True)
    assert receiver.got == []
    store.fails = lambda changes: None
    receiver.more(1)
    assert receiver.bodies == ["a"]


@pytest.mark.parametrize("renewed", [False, True])
def test_a_lock_after_a_shortened_lock_duration_expires_by_the_new_duration(renewed: bool) -> None:
    world = World()
    world.send("before", "after")
    Receiver(world, world.queue(), credit=2 if renewed else 1)
    shorter = replace(world.queue().definition, lock_duration_ms=MINUTE // 2)
    world.administer(world.administration.update_queue, shorter)
    if renewed:
        world.queue().renew([list(world.queue().locks.by_number.values())[1]])
    else:
        Receiver(world, world.queue(), credit=1)
    other = Receiver(world, world.queue())
    world.advance(MINUTE // 2 - 1)
    assert other.bodies == []
    world.advance(1)
    assert other.bodies == ["after"]
    world.advance(MINUTE // 2 - 1)
    assert "before" not in other.bodies
    world.advance(1)
    assert "before" in other.bodies


def test_competing_receivers_take_turns() -> None:
    world = World()
    receivers = [Receiver(world, world.queue()) for _ in range(3)]
    world.send(*"abcdefghi")
    assert [len(receiver.got) for receiver in receivers] == [3, 3, 3]
    world.send("x")
    world.send("y")
    assert [len(receiver.got) for receiver in receivers] == [4, 4, 3]


def test_competing_receivers_of_a_long_queue_get_adjacent_messages_in_equal_shares() -> None:
    world = World()
    world.send(*(str(number) for number in range(303)))
    receivers = [Receiver(world, world.queue(), credit=0) for _ in range(3)]
    for receiver in receivers:
        receiver.credit = 1000
        world.queue().want(receiver)
    world.run()
    assert [len(receiver.got) for receiver in receivers] == [101, 101, 101]
    assert receivers[0].bodies[:TURN_MESSAGES] == [str(number) for number in range(TURN_MESSAGES)]
    assert receivers[1].bodies[0] == str(TURN_MESSAGES)


def test_a_receiver_without_credit_does_not_delay_other_receivers() -> None:
    world = World()
    full = Receiver(world, world.queue(), credit=1)
    other = Receiver(world, world.queue())
    world.send(*"abcd")
    assert len(full.got) == 1
    assert len(other.got) == 3


def test_an_expired_message_is_dropped() -> None:
    world = World()
    world.send("short", header=Header(ttl=5000))
    world.send("long")
    world.advance(5000)
    assert world.queue().counters.active == 1
    assert Receiver(world, world.queue()).bodies == ["long"]


def test_an_expired_message_is_dead_lettered_if_the_queue_is_configured_so() -> None:
    world = World(QueueDefinition(name="q", dead_lettering_on_message_expiration=True))
    world.send("a", header=Header(ttl=5000))
    world.advance(5000)
    dead = Receiver(world, world.queue("q/$deadletterqueue"))
    assert dead.bodies == ["a"]
    properties = delivered(dead.got[0]).application_properties
    assert properties is not None
    assert properties["DeadLetterReason"] == "TTLExpiredException"
    world.advance(100 * MINUTE)
    assert len(set(dead.numbers)) == 1
    assert world.queue("q/$deadletterqueue").counters.active == 1


def test_the_entity_limits_the_time_to_live() -> None:
    world = World(QueueDefinition(name="q", default_message_ttl_ms=10 * SECOND))
    world.send("default")
    world.send("longer", header=Header(ttl=60 * SECOND))
    world.send("shorter", header=Header(ttl=5 * SECOND))
    now = world.clock()
    message = delivered(Receiver(world, world.queue(), credit=1).got[0])
    assert message.header is not None
    assert message.header.ttl == 10 * SECOND
    assert message.properties is not None
    assert message.properties.absolute_expiry_time == now + 10 * SECOND
    world.advance(5 * SECOND)
    assert world.queue().counters.active == 2
    world.advance(5 * SECOND)
    assert world.queue().counters.active == 1


def test_a_locked_message_does_not_expire_before_its_lock_ends() -> None:
    world = World()
    world.send("a", "b", header=Header(ttl=5000))
    receiver = Receiver(world, world.queue(), credit=2)
    world.advance(6000)
    world.queue().settlements.complete(receiver.locks[0], ignore)
    world.queue().settlements.abandon(receiver.locks[1], ignore)
    world.run()
    receiver.more()
    assert receiver.bodies == ["a", "b"]
    assert world.queue().counters.active == 0


def test_all_data_survives_a_restart() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a", "b", "c", "d")
    receiver = Receiver(world, world.queue(), credit=3)
    world.queue().settlements.complete(receiver.locks[0], ignore)
    world.queue().settlements.abandon(receiver.locks[1], ignore)
    world.run()
    again = World(store=store)
    again.send("e")
    second = Receiver(again, again.queue())
    assert second.bodies == ["b", "c", "d", "e"]
    assert [message.delivery_count for message in second.got] == [1, 0, 0, 0]
    assert second.numbers == [2, 3, 4, 5]
    with pytest.raises(MessageLockLost):
        again.queue().locks.find([receiver.locks[2].tag])


def test_sequence_numbers_are_never_reused() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a", "b")
    Receiver(world, world.queue(), deletes=True)
    again = World(store=store)
    again.send("c")
    assert Receiver(again, again.queue()).numbers == [3]


def test_expiry_continues_after_a_restart() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a", header=Header(ttl=5000))
    again = World(store=store, now=world.clock() + 4000)
    assert again.queue().counters.active == 1
    again.advance(1000)
    assert again.queue().counters.active == 0


def test_a_backlog_larger_than_the_window_is_delivered_completely_and_in_order() -> None:
    world = World()
    count = WINDOW_MESSAGES + 2 * PAGE_MESSAGES + 17
    queue = world.queue()
    for start in range(0, count, 1000):
        numbers = range(start, min(count, start + 1000))
        queue.send([read_incoming(encoded(str(number)), False) for number in numbers], ignore)
        world.run()
    receiver = Receiver(world, queue, credit=10)
    held: list[Lock] = receiver.locks[:]
    for lock in held[::2]:
        queue.settlements.abandon(lock, ignore)
    world.run()
    receiver.more(count)
    received = receiver.bodies[10:]
    assert received[:5] == ["0", "2", "4", "6", "8"]
    assert received[5:] == [str(number) for number in range(10, count)]


def test_a_full_queue_refuses_messages() -> None:
    world = World(QueueDefinition(name="q", max_size_in_megabytes=1))
    large = "x" * 200_000
    assert world.send(*[large] * 6) == [None] * 6
    with pytest.raises(QuotaExceeded, match="1 MB"):
        world.send("one more")
    receiver = Receiver(world, world.queue(), deletes=True)
    assert len(receiver.got) == 6
    assert world.send("room again") == [None]


def test_a_queue_that_is_disabled_for_sending_refuses_messages() -> None:
    world = World(QueueDefinition(name="q", status="SendDisabled"), QueueDefinition(name="r", status="ReceiveDisabled"))
    with pytest.raises(EntityDisabled):
        world.send("a")
    world.queue("q").check_receiving()
    with pytest.raises(EntityDisabled):
        world.queue("r").check_receiving()


def test_sending_to_a_dead_letter_queue_is_refused() -> None:
    world = World()
    with pytest.raises(OperationNotAllowed):
        world.send("a", to="q/$deadletterqueue")


def test_a_session_queue_refuses_a_message_without_a_session_id() -> None:
    world = World(QueueDefinition(name="q", requires_session=True))
    with pytest.raises(OperationNotAllowed, match="session id"):
        world.send("a")


def test_names_are_case_insensitive_and_keep_their_spelling() -> None:
    world = World(QueueDefinition(name="Orders/In-1.x~y_z"))
    assert world.queue("ORDERS/in-1.X~Y_Z").path == "Orders/In-1.x~y_z"
