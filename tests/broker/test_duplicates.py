"""Duplicate detection: a message whose id was accepted within the window is accepted and dropped."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from broker.world import MINUTE, SECOND, FlakyStore, Receiver, World, incoming, settlement, topic
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.service_bus import PARTITION_KEY
from peeklock.amqp.types import Symbol, ULong
from peeklock.broker.duplicates import TIDY_MS
from peeklock.broker.errors import BrokerError, QuotaExceeded, StorageFailed, StorageFull, TransactionRolledBack
from peeklock.broker.incoming import Incoming, read_incoming
from peeklock.broker.transactions import Scope, Transactions
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.settings import PROFILES
from peeklock.store.base import Changes, StoreFull

WINDOW = 10 * MINUTE


def detecting(name: str = "q", **settings: Any) -> QueueDefinition:
    return QueueDefinition(name=name, requires_duplicate_detection=True, **settings)


def remembered(world: World, path: str = "q") -> int:
    """Return how many ids the store has for a queue, including expired ones."""
    found: list[Any] = []
    world.store.read_seen(world.namespace.entity(path).id, 0, found.append)
    world.run()
    return len(found[0])


def message(text: str, id: Any = None, key: str | None = None, session: str | None = None) -> Incoming:
    annotations = {} if key is None else {Symbol(PARTITION_KEY): key}
    whole = Message(
        message_annotations=annotations or None,
        properties=Properties(message_id=id, group_id=session),
        data=[text.encode()],
    )
    return read_incoming(whole.encode(), reads_session_id=False)


def refuse(changes: Changes) -> StoreFull:
    return StoreFull("not now")


# --- the window ---


def test_a_duplicate_is_accepted_and_dropped() -> None:
    world = World(detecting())
    assert world.send("one", "one", "two") == [None, None, None]
    assert world.bodies() == ["one", "two"]
    world.check()


def test_an_entity_at_its_limit_of_ids_refuses_new_ids_and_forgets_none() -> None:
    world = World(detecting(), max_message_ids=3)
    assert world.send("one", "two") == [None, None]
    with pytest.raises(QuotaExceeded, match=r"remembers 2 message ids .* the limit is 3"):
        world.send_together(incoming("three"), incoming("four"))
    assert world.send("three", "one", "three") == [None, None, None]
    with pytest.raises(QuotaExceeded):
        world.send("four")
    assert world.bodies() == ["one", "two", "three"]
    assert remembered(world) == 3
    world.check()


def test_ids_that_have_left_the_window_make_room_at_once() -> None:
    world = World(detecting(), max_message_ids=2)
    world.send("one", "two")
    world.clock.advance(WINDOW)  # and nothing was tidied yet
    assert world.send("three", "four") == [None, None]
    with pytest.raises(QuotaExceeded):
        world.send("five")
    world.advance(WINDOW + TIDY_MS)
    assert world.send("five") == [None]


def test_a_restart_forgets_no_id_though_there_are_more_than_may_be() -> None:
    world = World(detecting())
    world.send("one", "two", "three")
    again = World(detecting(), store=world.store, max_message_ids=1)
    assert again.send("one", "two", "three") == [None, None, None]
    assert again.bodies() == ["one", "two", "three"]
    with pytest.raises(QuotaExceeded):
        again.send("four")


def test_nothing_is_dropped_where_duplicates_are_not_detected() -> None:
    world = World()
    world.send("one", "one")
    assert world.bodies() == ["one", "one"]


def test_an_id_is_remembered_after_its_message_was_received() -> None:
    world = World(detecting())
    world.send("one")
    world.settle(world.queue().settlements.complete, Receiver(world, world.queue(), credit=1).locks[0])
    world.send("one")
    assert world.bodies() == []
    world.check()


def test_an_id_is_forgotten_when_the_window_is_over() -> None:
    world = World(detecting())
    world.send("one")
    world.advance(WINDOW - 1)
    world.send("one")
    assert world.bodies() == ["one"]
    world.advance(1)
    world.send("one")
    assert world.bodies() == ["one", "one"]
    world.advance(WINDOW - 1)
    world.send("one")
    assert world.bodies() == ["one", "one"], "it counts from the last that was taken"


def test_a_repetition_does_not_make_the_window_longer() -> None:
    world = World(detecting())
    world.send("one")
    world.advance(WINDOW // 2)
    world.send("one")
    world.advance(WINDOW // 2)
    world.send("one")
    assert world.bodies() == ["one", "one"]


def test_the_window_is_the_queues_own() -> None:
    world = World(detecting("short", duplicate_detection_window_ms=20 * SECOND), detecting("long"))
    for path in ("short", "long"):
        world.send("one", to=path)
    world.advance(20 * SECOND)
    for path in ("short", "long"):
        world.send("one", to=path)
    assert (world.bodies("short"), world.bodies("long")) == (["one", "one"], ["one"])


def test_the_window_can_be_changed() -> None:
    world = World(detecting())
    world.send("one")
    world.advance(MINUTE)
    shorter = detecting(duplicate_detection_window_ms=MINUTE)
    assert world.administer(world.administration.update_queue, shorter) is None
    world.send("one")
    assert world.bodies() == ["one", "one"]


@pytest.mark.parametrize("after_restart", [False, True])
def test_expired_ids_are_forgotten_in_memory_and_in_the_store(store: Any, after_restart: bool) -> None:
    world = World(detecting(), store=store)
    world.send(*(str(number) for number in range(100)))
    world.advance(MINUTE)
    world.send("young")
    assert remembered(world) == 101
    if after_restart:
        world = world.restarted()
    world.advance(WINDOW - MINUTE + TIDY_MS)
    history = world.queue().history
    assert history is not None
    assert (len(history._taken), remembered(world)) == (1, 1)
    world.advance(MINUTE)
    assert (len(history._taken), remembered(world)) == (0, 0)
    assert world.namespace.agenda.next_due is None, "nothing is left to do"
    world.send("0")
    assert world.bodies()[-1] == "0"


def test_ids_that_the_store_does_not_forget_at_once_are_forgotten_later() -> None:
    store = FlakyStore()
    world = World(detecting(), store=store)
    world.send("one")
    store.fails = refuse
    world.advance(WINDOW + TIDY_MS)
    store.fails = lambda changes: None
    assert remembered(world) == 1
    world.send("one")
    world.advance(WINDOW + TIDY_MS)
    assert remembered(world) == 0


# --- restarts ---


def test_ids_are_remembered_after_a_restart(store: Any) -> None:
    world = World(detecting(), topic("t", "a", requires_duplicate_detection=True), store=store)
    world.send("one")
    world.send("one", to="t")
    world.advance(WINDOW - 1)
    world = world.restarted()
    world.send("one", "two")
    world.send("one", "two", to="t")
    assert world.bodies() == world.bodies("t/Subscriptions/a") == ["one", "two"]
    world.advance(1)
    world.send("one")
    assert world.bodies() == ["one", "two", "one"]
    world.check()


def test_a_window_that_was_over_before_the_start_does_not_count() -> None:
    world = World(detecting())
    world.send("one")
    world.clock.advance(WINDOW)
    world = world.restarted()
    world.send("one")
    assert world.bodies() == ["one", "one"]


def test_a_clock_that_was_set_back_is_no_harm() -> None:
    world = World(detecting())
    world.send("one")
    world.clock.step(-MINUTE)
    world.send("two", "one")
    world = world.restarted()
    world.send("two", "one")
    assert world.bodies() == ["one", "two"]
    world.advance(WINDOW + MINUTE + TIDY_MS)
    assert remembered(world) == 0


# --- while the first is on its way ---


def both_on_their_way(store: FlakyStore) -> tuple[World, list[BrokerError | None], list[BrokerError | None]]:
    """Send a message whose commit is under way, and a duplicate in a second commit."""
    world = World(detecting(), store=store)
    store.held = []
    first = world.send("one")
    second = world.send("one")
    assert (first, second, len(store.held)) == ([], [], 2)
    return world, first, second


def test_a_duplicate_of_a_message_being_stored_is_dropped_once_that_is_durable() -> None:
    store = FlakyStore()
    world, first, second = both_on_their_way(store)
    store.release_commits()
    world.run()
    assert (first, second) == ([None], [None])
    assert world.bodies() == ["one"]
    world.check()


def test_a_duplicate_fails_if_the_first_message_was_not_stored() -> None:
    store = FlakyStore()
    world, first, second = both_on_their_way(store)
    store.fails = refuse
    assert store.held is not None
    store.held.pop(0)()
    store.fails = lambda changes: None
    store.release_commits()
    world.run()
    assert [type(error) for error in first + second] == [StorageFull, StorageFailed]
    assert world.bodies() == []
    assert world.send("one") == [None]
    assert world.bodies() == ["one"]
    world.check()


def test_the_same_in_one_commit() -> None:
    store = FlakyStore()
    world = World(detecting(), store=store)
    store.fails = refuse
    assert [type(error) for error in world.send("one", "one")] == [StorageFull, StorageFull]
    store.fails = lambda changes: None
    assert world.send("one", "one") == [None, None]
    assert world.bodies() == ["one"]


def test_a_retry_is_not_a_duplicate_of_the_failed_attempt() -> None:
    """The first fails while its duplicate is being committed, and a third is stored: only the third counts."""
    store = FlakyStore()
    world, _, second = both_on_their_way(store)
    store.fails = refuse
    assert store.held is not None
    store.held.pop(0)()
    world.run()
    third = world.send("one")
    store.fails = lambda changes: None
    store.held.pop(0)()
    world.run()
    assert [type(error) for error in second] == [StorageFailed]
    store.release_commits()
    world.run()
    assert third == [None]
    assert world.bodies() == ["one"]
    world.check()


def test_a_first_that_fails_after_its_window_does_not_take_the_next_with_it() -> None:
    store = FlakyStore()
    world = World(detecting(duplicate_detection_window_ms=20 * SECOND), store=store)
    store.held = []
    first = world.send("one")
    world.clock.advance(20 * SECOND)
    second = world.send("one")
    store.fails = refuse
    store.held.pop(0)()
    store.fails = lambda changes: None
    store.release_commits()
    world.run()
    assert [type(error) for error in first] == [StorageFull]
    assert second == [None]
    assert world.send("one") == [None]
    assert world.bodies() == ["one"]
    world.check()


def test_a_transaction_does_not_rely_on_a_message_that_is_being_stored() -> None:
    store = FlakyStore()
    world = World(detecting(), QueueDefinition(name="source"), store=store)
    world.send("work", to="source")
    source = world.queue("source")
    (lock,) = Receiver(world, source).locks
    store.held = []
    sent = world.send("one")
    transactions = Transactions(world.namespace.journal, world.namespace.agenda)
    id = transactions.declare()
    transactions.get(id).settle(source.settlements, [lock], settlement("complete"), Scope("source", None))
    transactions.get(id).send(world.queue(), [incoming("one")], Scope("q", None))
    outcomes: list[BrokerError | None] = []
    transactions.discharge(id, fail=False, done=outcomes.append)
    store.fails = refuse
    store.held.pop(0)()
    store.fails = lambda changes: None
    store.release_commits()
    world.run()
    assert [type(error) for error in sent + outcomes] == [StorageFull, TransactionRolledBack]
    assert (world.bodies("source"), world.bodies()) == (["work"], [])
    world.check()


def discharge_and_send(world: World) -> tuple[list[BrokerError | None], list[BrokerError | None]]:
    """Discharge a transaction and then send a message with the same id in one turn. Return both outcomes."""
    transactions = Transactions(world.namespace.journal, world.namespace.agenda)
    id = transactions.declare()
    transactions.get(id).send(world.queue(), [incoming("one")], Scope("q", None))
    discharged: list[BrokerError | None] = []
    transactions.discharge(id, fail=False, done=discharged.append)
    return discharged, world.send("one")


def test_a_duplicate_of_a_transactions_message_in_the_same_turn_is_accepted() -> None:
    world = World(detecting())
    assert discharge_and_send(world) == ([None], [None])
    assert world.bodies() == ["one"]
    world.check()


def test_a_duplicate_of_a_forwarded_message_in_the_same_turn_is_accepted() -> None:
    world = World(detecting(), QueueDefinition(name="source", forward_to="q"))
    sent: list[BrokerError | None] = []
    world.queue("source").send([incoming("one")], lambda error: None)
    journal = world.namespace.journal
    while not journal.moves.waiting:  # up to where it is forwarded, and not yet committed
        world._turn.popleft()()
    world.queue().send([incoming("one"), incoming("two")], sent.append)
    world.run()
    assert sent == [None]
    assert sorted(world.bodies()) == ["one", "two"]
    world.check()


def test_a_duplicate_waits_while_the_first_message_is_retried() -> None:
    """A commit is tried again without its sends: duplicates of the rest must not get an early outcome."""
    store = FlakyStore()
    world = World(detecting(), QueueDefinition(name="full"), store=store)
    store.held = []
    transactions = Transactions(world.namespace.journal, world.namespace.agenda)
    id = transactions.declare()
    transactions.get(id).send(world.queue(), [incoming("one")], Scope("q", None))
    discharged: list[BrokerError | None] = []
    transactions.discharge(id, fail=False, done=discharged.append)
    refused = world.send("x", to="full")
    repeated = world.send("one")
    assert len(store.held) == 2
    store.fails = refuse
    store.held.pop(0)()  # and the transaction alone is held behind the repetition
    store.fails = lambda changes: None
    store.held.pop(0)()
    assert (len(store.held), repeated) == (1, [])
    store.release_commits()
    world.run()
    assert [type(error) for error in refused] == [StorageFull]
    assert (discharged, repeated) == ([None], [None])
    assert world.bodies() == ["one"]
    world.check()


def test_a_send_fails_with_the_transaction_that_it_repeats() -> None:
    store = FlakyStore()
    world = World(detecting(), store=store)
    store.fails = refuse
    discharged, sent = discharge_and_send(world)
    assert [type(error) for error in discharged + sent] == [StorageFull, StorageFull]
    store.fails = lambda changes: None
    assert world.send("one") == [None]
    assert world.bodies() == ["one"]
    world.check()


# --- batches, transactions, messages for later ---


def test_duplicates_within_a_batch_are_dropped() -> None:
    world = World(detecting())
    assert world.send_together(*map(incoming, ("one", "two", "one"))) == [None]
    assert world.send_together(*map(incoming, ("two", "three"))) == [None]
    assert world.bodies() == ["one", "two", "three"]
    world.check()


def test_a_batch_of_duplicates_only_is_accepted() -> None:
    world = World(detecting())
    world.send("one")
    assert world.send_together(incoming("one"), incoming("one")) == [None]
    assert world.bodies() == ["one"]
    world.check()


@pytest.mark.parametrize("fail", [False, True])
def test_an_id_in_a_transaction_counts_from_its_commit(fail: bool) -> None:
    world = World(detecting())
    transactions = Transactions(world.namespace.journal, world.namespace.agenda)
    id = transactions.declare()
    for _ in range(2):
        transactions.get(id).send(world.queue(), [incoming("one")], Scope("q", None))
    transactions.discharge(id, fail=fail, done=lambda error: None)
    world.run()
    assert world.bodies() == ([] if fail else ["one"])
    world.send("one")
    assert world.bodies() == ["one"]
    world.check()


def test_a_scheduled_message_counts_as_sent_for_duplicate_detection() -> None:
    world = World(detecting())
    world.send("later", at=world.clock() + 2 * WINDOW)
    world.send("later")
    assert world.runtime().total == 1
    world.advance(WINDOW)
    world.send("later")
    assert world.runtime().total == 2
    world.advance(WINDOW)
    assert world.bodies() == ["later", "later"], "when it is due nobody asks again"
    world.check()


def test_cancelling_a_scheduled_message_does_not_free_its_id() -> None:
    world = World(detecting())
    queue = world.queue()
    admitted = queue.admit([incoming("later", at=world.clock() + MINUTE)])
    numbers = queue.number(admitted)
    queue.stage_sends(world.namespace.journal.sends, admitted, lambda error: None)
    world.run()
    assert world.administer(queue.scheduled.cancel, numbers) is None
    world.send("later")
    assert world.bodies() == []


# --- what an id is ---


def test_a_message_without_an_id_is_never_a_duplicate() -> None:
    world = World(detecting())
    for _ in range(2):
        world.send_together(message("same"))
    assert world.bodies() == ["same", "same"]


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        (ULong(5), ULong(5), True),
        (ULong(5), ULong(6), False),
        (UUID(int=1), UUID(int=1), True),
        (UUID(int=1), UUID(int=2), False),
        (b"x", b"x", True),
        (b"x", b"y", False),
        ("x", b"x", True),  # the Python SDK sends the id of a message that it received in binary
        (b"\xff", b"\xfe", False),
        ("a", "A", False),
        ("", "", True),
    ],
)
def test_ids_of_every_type_are_compared(first: Any, second: Any, is_same: bool) -> None:
    world = World(detecting())
    world.send_together(message("one", first))
    world.send_together(message("two", second))
    assert world.bodies() == (["one"] if is_same else ["one", "two"])


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ({"key": "a"}, {"key": "a"}, True),
        ({"key": "a"}, {"key": "b"}, False),
        ({"key": "a"}, {}, False),
        ({"session": "a"}, {"session": "b"}, False),
        ({"session": "a"}, {"session": "a"}, True),
        ({"session": "a"}, {"key": "a"}, True),
        ({}, {}, True),
    ],
)
@pytest.mark.parametrize("partitioned", [False, True])
def test_with_partitions_the_partition_key_must_be_equal_too(
    first: dict[str, str], second: dict[str, str], is_same: bool, partitioned: bool
) -> None:
    world = World(detecting(enable_partitioning=partitioned), profile=PROFILES["unlimited"])
    world.send_together(message("one", "id", **first))
    world.send_together(message("two", "id", **second))
    assert world.bodies() == (["one"] if is_same or not partitioned else ["one", "two"])


def test_ids_are_each_entitys_own() -> None:
    world = World(detecting("a"), detecting("b"))
    world.send("one", to="a")
    world.send("one", to="b")
    assert world.bodies("b") == ["one"]


def test_a_queue_that_is_made_again_has_seen_nothing(store: Any) -> None:
    world = World(detecting(), store=store)
    world.send("one")
    assert world.administer(world.administration.delete_queue, "q") is None
    assert world.namespace.agenda.next_due is None
    assert world.administer(world.administration.create_queue, detecting()) is None
    world.send("one")
    world = world.restarted()
    assert world.bodies() == ["one"]
    world.check()
