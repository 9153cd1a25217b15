"""Scheduled messages are enqueued when they are due, and messages expire."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import (
    MINUTE,
    SECOND,
    FlakyStore,
    Receiver,
    SessionReceiver,
    World,
    delivered,
    encoded,
    incoming,
    session_queue,
)
from peeklock.amqp.message import Header, Properties
from peeklock.broker.errors import BrokerError, MessageNotFound, OperationNotAllowed
from peeklock.broker.incoming import read_incoming
from peeklock.entities.definitions import QueueDefinition
from peeklock.store.base import Changes, StoreError, StoreFull

BATCH = 1000


def ignore(error: BrokerError | None) -> None:
    assert error is None


def schedule(world: World, *bodies: str, after: int = MINUTE, to: str = "q", **fields: Any) -> list[int]:
    """Schedule messages as the management operation does: their numbers are returned before they are stored."""
    queue = world.namespace.queue(to)
    admitted = queue.admit([incoming(body, at=world.clock() + after, **fields) for body in bodies])
    numbers = queue.number(admitted)
    queue.stage_sends(world.namespace.journal.sends, admitted, ignore)
    world.run()
    return numbers


def cancel(world: World, *numbers: int) -> BrokerError | None:
    outcomes: list[BrokerError | None] = []
    world.queue().scheduled.cancel(list(numbers), outcomes.append)
    world.run()
    assert len(outcomes) == 1
    return outcomes[0]


def counts(world: World, path: str = "q") -> tuple[int, int]:
    counters = world.namespace.queue(path).counters
    return counters.active, counters.scheduled


# --- becoming due ---


def test_a_scheduled_message_is_delivered_when_it_is_due_and_not_before() -> None:
    world = World()
    schedule(world, "a", after=MINUTE)
    receiver = Receiver(world, world.queue())
    assert counts(world) == (0, 1)
    world.advance(MINUTE - 1)
    assert receiver.got == []
    world.advance(1)
    assert receiver.bodies == ["a"]
    assert counts(world) == (1, 0)


def test_an_enqueued_message_has_a_new_number_and_its_scheduled_time() -> None:
    world = World()
    due = world.clock() + MINUTE
    (number,) = schedule(world, "a")
    world.send("b")
    world.clock.advance(MINUTE + 10 * SECOND)
    world.run()
    receiver = Receiver(world, world.queue())
    assert receiver.bodies == ["b", "a"]
    assert receiver.numbers == [2, 3]
    assert number == 1
    assert receiver.got[1].enqueued_at == due


def test_messages_become_due_in_the_order_of_their_times_and_then_of_their_numbers() -> None:
    world = World()
    schedule(world, "late", after=3 * MINUTE)
    schedule(world, "b", "c", after=2 * MINUTE)
    schedule(world, "a", after=MINUTE)
    world.advance(5 * MINUTE)
    receiver = Receiver(world, world.queue())
    assert receiver.bodies == ["a", "b", "c", "late"]
    assert receiver.numbers == [5, 6, 7, 8]


def test_a_plain_send_with_the_annotation_schedules() -> None:
    world = World()
    world.send("a", at=world.clock() + MINUTE)
    assert counts(world) == (0, 1)
    world.advance(MINUTE)
    assert Receiver(world, world.queue()).bodies == ["a"]


@pytest.mark.parametrize("after", [-MINUTE, 0])
def test_a_time_that_is_not_in_the_future_enqueues_at_once(after: int) -> None:
    world = World()
    (number,) = schedule(world, "a", after=after)
    receiver = Receiver(world, world.queue())
    assert receiver.numbers == [number]
    assert receiver.got[0].enqueued_at == world.clock()


def test_the_time_to_live_starts_when_a_message_is_enqueued() -> None:
    world = World()
    schedule(world, "a", after=MINUTE, ttl=10 * SECOND)
    world.advance(MINUTE + 9 * SECOND)
    receiver = Receiver(world, world.queue())
    assert receiver.bodies == ["a"]
    header = delivered(receiver.got[0]).header
    assert header is not None
    assert header.ttl == 10 * SECOND


def test_a_message_whose_time_to_live_is_over_when_it_is_enqueued_late_is_not_received() -> None:
    world = World()
    schedule(world, "a", after=MINUTE, ttl=10 * SECOND)
    world.clock.advance(MINUTE + 10 * SECOND)
    receiver = Receiver(world, world.queue())
    world.run()
    assert receiver.got == []
    assert counts(world) == (0, 0)


def test_a_scheduled_message_keeps_the_properties_of_its_sender() -> None:
    world = World()
    at = world.clock() + MINUTE
    message = incoming("a", at=at, header=Header(priority=7), application_properties={"k": 1})
    world.queue().send([message], ignore)
    world.run()
    world.advance(MINUTE)
    got = delivered(Receiver(world, world.queue()).got[0])
    assert got.header is not None
    assert got.header.priority == 7
    assert got.header.ttl is None
    assert got.application_properties == {"k": 1}
    assert got.message_annotations is not None
    assert got.message_annotations["x-opt-scheduled-enqueue-time"] == at


@pytest.mark.parametrize("after", [0, MINUTE])
def test_a_time_to_live_beyond_all_times_lasts_until_the_end_of_time(after: int) -> None:
    world = World()
    forever = Properties(message_id="m", creation_time=0, absolute_expiry_time=(1 << 63) - 1)
    message = read_incoming(encoded("a", header=Header(ttl=0xFFFFFFFF), properties=forever), False)
    message.scheduled_at = world.clock() + after
    world.queue().send([message], ignore)
    world.run()
    world.advance(after)
    assert Receiver(world, world.queue()).bodies == ["a"]


def test_messages_that_became_due_while_the_broker_was_stopped_are_enqueued_in_order() -> None:
    world = World()
    schedule(world, "b", after=2 * MINUTE)
    schedule(world, "a", after=MINUTE)
    schedule(world, "later", after=60 * MINUTE)
    world.clock.advance(10 * MINUTE)
    world = world.restarted()
    assert counts(world) == (2, 1)
    receiver = Receiver(world, world.queue(), deletes=True)
    assert receiver.bodies == ["a", "b"]
    world.advance(50 * MINUTE)
    assert receiver.bodies == ["a", "b", "later"]


def test_thousands_become_due_at_once() -> None:
    world = World()
    many = 2 * BATCH + 500
    bodies = [str(number) for number in range(many)]
    schedule(world, *bodies)
    world.advance(MINUTE)
    assert counts(world) == (many, 0)
    assert Receiver(world, world.queue(), credit=many).bodies == bodies


def test_scheduled_messages_are_delivered_in_their_session() -> None:
    world = World(session_queue())
    schedule(world, "1", to="s", session_id="a")
    schedule(world, "2", to="s", session_id="b", after=2 * MINUTE)
    receiver = SessionReceiver(world, time_out=10 * MINUTE)
    assert receiver.session is None
    world.advance(MINUTE)
    assert (receiver.id, receiver.bodies) == ("a", ["1"])
    assert counts(world, "s") == (1, 1)
    with pytest.raises(OperationNotAllowed):
        schedule(world, "3", to="s")


def test_messages_that_could_not_be_enqueued_are_tried_again() -> None:
    store = FlakyStore()
    world = World(store=store)
    schedule(world, "a", "b")
    tries: list[Changes] = []

    def fail(changes: Changes) -> StoreError | None:
        if changes.removals and changes.appends and changes.appends[0][1].payload[:3] != bytes(3):
            tries.append(changes)
        return StoreError("not now")

    store.fails = fail
    world.advance(MINUTE)
    assert counts(world) == (0, 2)
    assert len(tries) == 1
    store.fails = lambda changes: None
    world.advance(SECOND)
    assert Receiver(world, world.queue()).bodies == ["a", "b"]
    assert counts(world) == (2, 0)


def test_messages_that_could_not_be_read_when_they_were_due_are_read_again() -> None:
    store = FlakyStore()
    world = World(store=store)
    schedule(world, "a")
    store.fails_to_read = True
    world.advance(MINUTE)
    store.fails_to_read = False
    world.advance(SECOND)
    assert Receiver(world, world.queue()).bodies == ["a"]


def test_a_message_that_becomes_due_during_an_enqueue_is_enqueued_too() -> None:
    store = FlakyStore()
    world = World(store=store)
    schedule(world, "a", after=MINUTE)
    world.clock.advance(MINUTE)
    store.held_answers = []
    world.run()
    answers, store.held_answers = store.held_answers, None
    assert len(answers) == 1
    schedule(world, "b", after=SECOND)
    world.advance(SECOND)
    answers[0]()
    world.run()
    assert Receiver(world, world.queue()).bodies == ["a", "b"]


# --- cancelling ---


def test_a_cancelled_message_is_never_delivered() -> None:
    world = World()
    first, second = schedule(world, "a", "b")
    assert cancel(world, first) is None
    assert counts(world) == (0, 1)
    world.advance(MINUTE)
    assert Receiver(world, world.queue()).bodies == ["b"]
    assert world.queue().counters.size_in_bytes > 0
    assert second == 2


def test_several_are_cancelled_at_once_even_when_one_is_named_twice() -> None:
    world = World()
    numbers = schedule(world, "a", "b", "c")
    assert cancel(world, *numbers, numbers[0]) is None
    assert counts(world) == (0, 0)
    assert world.queue().counters.size_in_bytes == 0


def test_cancelling_an_unknown_number_is_an_error_and_cancels_nothing() -> None:
    world = World()
    (scheduled,) = schedule(world, "a")
    world.send("active")
    for wrong in (2, 99):
        assert isinstance(cancel(world, scheduled, wrong), MessageNotFound)
    assert counts(world) == (1, 1)
    assert cancel(world, scheduled) is None
    assert isinstance(cancel(world, scheduled), MessageNotFound)


def test_an_enqueued_message_cannot_be_cancelled_by_either_number() -> None:
    world = World()
    (number,) = schedule(world, "a")
    world.advance(MINUTE)
    assert isinstance(cancel(world, number), MessageNotFound)
    assert isinstance(cancel(world, number + 1), MessageNotFound)
    assert counts(world) == (1, 0)


def test_a_message_that_is_being_enqueued_cannot_be_cancelled() -> None:
    store = FlakyStore()
    world = World(store=store)
    (number,) = schedule(world, "a")
    store.held = []
    world.advance(MINUTE)
    assert isinstance(cancel(world, number), MessageNotFound)
    store.release_commits()
    world.run()
    assert counts(world) == (1, 0)


def test_a_message_that_is_being_cancelled_is_not_enqueued() -> None:
    store = FlakyStore()
    world = World(store=store)
    (number,) = schedule(world, "a")
    store.held = []
    outcomes: list[BrokerError | None] = []
    world.queue().scheduled.cancel([number], outcomes.append)
    world.run()
    world.advance(MINUTE)
    assert isinstance(cancel(world, number), MessageNotFound)
    store.release_commits()
    world.run()
    assert outcomes == [None]
    assert counts(world) == (0, 0)
    assert Receiver(world, world.queue()).got == []


def test_many_messages_that_are_being_cancelled_do_not_stop_the_clock() -> None:
    store = FlakyStore()
    world = World(store=store)
    numbers = schedule(world, *map(str, range(BATCH)))
    schedule(world, "stays", after=2 * MINUTE)
    store.held = []
    world.queue().scheduled.cancel(numbers, ignore)
    world.run()
    world.advance(MINUTE)
    store.release_commits()
    world.advance(2 * MINUTE)
    assert Receiver(world, world.queue()).bodies == ["stays"]


def test_a_cancellation_that_could_not_be_stored_cancels_nothing() -> None:
    store = FlakyStore()
    world = World(store=store)
    (number,) = schedule(world, "a")
    store.fails = lambda changes: StoreError("not now")
    assert cancel(world, number) is not None
    store.fails = lambda changes: None
    assert counts(world) == (0, 1)
    world.advance(MINUTE)
    assert Receiver(world, world.queue()).bodies == ["a"]


def test_a_message_that_became_due_during_a_failed_cancellation_is_enqueued() -> None:
    store = FlakyStore()
    world = World(store=store)
    (number,) = schedule(world, "a")
    store.held = []
    outcomes: list[BrokerError | None] = []
    world.queue().scheduled.cancel([number], outcomes.append)
    world.run()
    world.advance(MINUTE)
    store.fails = lambda changes: StoreFull("not now")
    store.held.pop()()
    store.fails = lambda changes: None
    store.release_commits()
    world.run()
    assert outcomes[0] is not None
    assert Receiver(world, world.queue()).bodies == ["a"]


def test_a_cancellation_that_cannot_be_read_for_is_an_error() -> None:
    store = FlakyStore()
    world = World(store=store)
    (number,) = schedule(world, "a")
    store.fails_to_read = True
    assert cancel(world, number) is not None


def test_a_message_cancelled_while_due_ones_are_read_is_not_enqueued() -> None:
    store = FlakyStore()
    world = World(store=store)
    (number,) = schedule(world, "a")
    world.clock.advance(MINUTE)
    store.held_answers = []
    world.run()
    answers, store.held_answers = store.held_answers, None
    assert cancel(world, number) is None
    answers[0]()
    world.run()
    assert Receiver(world, world.queue()).got == []
    assert counts(world) == (0, 0)


def test_a_message_enqueued_during_its_cancellation_is_not_cancelled() -> None:
    store = FlakyStore()
    world = World(store=store)
    (number,) = schedule(world, "a")
    outcomes: list[BrokerError | None] = []
    store.held_answers = []
    world.queue().scheduled.cancel([number], outcomes.append)
    answers, store.held_answers = store.held_answers, None
    world.advance(MINUTE)
    answers[0]()
    world.run()
    assert isinstance(outcomes[0], MessageNotFound)
    assert counts(world) == (1, 0)


# --- expiry ---


def test_an_expiry_that_could_not_be_stored_is_tried_again_after_a_while() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a", ttl=10 * SECOND)
    receiver = Receiver(world, world.queue(), credit=0)
    commits = 0

    def fail(changes: Changes) -> StoreError | None:
        nonlocal commits
        commits += bool(changes.removals and not changes.appends)
        return StoreError("not now")

    store.fails = fail
    world.advance(10 * SECOND)
    receiver.more()
    assert commits <= 2
    assert counts(world) == (1, 0)
    store.fails = lambda changes: None
    world.advance(SECOND)
    assert counts(world) == (0, 0)
    assert receiver.got == []


def test_a_message_that_is_completed_while_expired_ones_are_read_is_removed_once() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a", ttl=10 * SECOND)
    receiver = Receiver(world, world.queue())
    world.clock.advance(10 * SECOND)
    store.held_answers = []
    world.run()
    assert len(store.held_answers) == 1
    world.queue().settlements.complete(receiver.locks[0], ignore)
    world.run()
    store.release_answers()
    world.run()
    assert counts(world) == (0, 0)
    assert world.queue().counters.size_in_bytes == 0


def test_a_message_that_is_abandoned_while_expired_ones_are_read_expires_once() -> None:
    store = FlakyStore()
    world = World(QueueDefinition(name="q", dead_lettering_on_message_expiration=True), store=store)
    world.send("a", ttl=10 * SECOND)
    receiver = Receiver(world, world.queue(), credit=1)
    world.clock.advance(10 * SECOND)
    store.held_answers = []
    world.run()
    world.queue().settlements.abandon(receiver.locks[0], ignore, {"longer": "than before"})
    world.run()
    store.release_answers()
    world.run()
    world.advance(SECOND)
    assert counts(world) == (0, 0)
    assert world.queue().counters.size_in_bytes == 0
    (letter,) = Receiver(world, world.queue("q/$DeadLetterQueue")).got
    assert letter.delivery_count == 1


def test_a_message_that_is_being_deleted_for_its_receiver_does_not_expire() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a", ttl=10 * SECOND)
    store.held = []
    receiver = Receiver(world, world.queue(), deletes=True)
    world.advance(10 * SECOND)
    store.release_commits()
    world.run()
    assert receiver.bodies == ["a"]
    assert counts(world) == (0, 0)
    assert world.queue().counters.size_in_bytes == 0


def test_a_thousand_expired_messages_that_are_locked_do_not_stop_the_clock() -> None:
    world = World(QueueDefinition(name="q", lock_duration_ms=5 * MINUTE))
    world.send(*map(str, range(BATCH)), ttl=10 * SECOND)
    receiver = Receiver(world, world.queue(), credit=BATCH)
    world.send("behind", ttl=20 * SECOND)
    world.advance(MINUTE)
    assert counts(world) == (BATCH, 0)
    for lock in receiver.locks:
        world.queue().settlements.complete(lock, ignore)
    world.advance(SECOND)
    assert counts(world) == (0, 0)


def test_a_message_that_expires_during_a_sweep_is_swept_too() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a", ttl=10 * SECOND)
    world.clock.advance(10 * SECOND)
    store.held_answers = []
    world.run()
    answers, store.held_answers = store.held_answers, None
    assert len(answers) == 1
    world.send("b", ttl=SECOND)
    world.advance(SECOND)
    answers[0]()
    world.run()
    assert counts(world) == (0, 0)


def test_a_dead_letter_read_before_its_callback_is_delivered_once() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("low", "high")
    receiver = Receiver(world, world.queue())
    world.queue().settlements.dead_letter(receiver.locks[1], ignore)
    world.run()
    world = world.restarted()
    low = Receiver(world, world.queue()).locks[0]
    store.held_outcomes = []
    world.queue().settlements.dead_letter(low, ignore)
    world.run()
    letters = world.queue("q/$DeadLetterQueue")
    first = Receiver(world, letters, credit=1)
    assert first.bodies == ["low"]
    store.release_outcomes()
    world.run()
    second = Receiver(world, letters)
    assert second.bodies == ["high"]
    letters.settlements.complete(first.locks[0], ignore)
    letters.settlements.complete(second.locks[0], ignore)
    world.run()
    assert counts(world, "q/$DeadLetterQueue") == (0, 0)


def test_a_message_swept_before_its_callback_is_not_received() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("first", ttl=SECOND)
    store.held_outcomes = []
    world.send("second", ttl=SECOND)
    world.advance(SECOND)
    store.release_outcomes()
    receiver = Receiver(world, world.queue())
    world.advance(MINUTE)
    assert receiver.got == []
    assert counts(world) == (0, 0)
    assert world.queue().counters.size_in_bytes == 0


def test_a_dead_letter_queue_does_not_block_a_recovered_store() -> None:
    store = FlakyStore()
    world = World(QueueDefinition(name="q", dead_lettering_on_message_expiration=True), store=store)
    world.send("a", "b", ttl=SECOND)
    world.advance(SECOND)
    assert counts(world, "q/$DeadLetterQueue") == (2, 0)
    store.fails = lambda changes: StoreError("not now")
    world.send("c")
    assert world.namespace.journal.failure is not None
    store.fails = lambda changes: None
    world.advance(SECOND)
    assert world.namespace.journal.failure is None
