"""Messages by their sequence numbers: peeking, receiving deferred messages, batch deletion."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import MINUTE, SECOND, FlakyStore, Receiver, SessionReceiver, World, body, incoming, session_queue
from peeklock.broker.backlog import WINDOW_MESSAGES
from peeklock.broker.errors import BrokerError, MessageLockLost, MessageNotFound, QuotaExceeded
from peeklock.broker.locks import Lock
from peeklock.entities.definitions import QueueDefinition
from peeklock.limits.amqp import MAX_NUMBERED_BYTES, MAX_PEEKED_BYTES
from peeklock.store.base import ACTIVE, DEFERRED, SCHEDULED, StoredMessage, StoreError


def ignore(error: BrokerError | None) -> None:
    assert error is None


def counts(world: World, path: str = "q") -> tuple[int, int, int]:
    counters = world.namespace.queue(path).counters
    return counters.active, counters.deferred, counters.scheduled


# --- peeking ---


def peek(world: World, first: int = 0, limit: int = 100, session_id: str | None = None, path: str = "q") -> Any:
    answers: list[Any] = []
    world.namespace.queue(path).peek(first, limit, session_id, answers.append)
    world.run()
    assert len(answers) == 1
    return answers[0]


def test_peeking_shows_messages_from_a_number_on_and_changes_nothing() -> None:
    world = World()
    world.send("a", "b", "c", "d")
    assert [body(message) for message in peek(world, first=2, limit=2)] == ["b", "c"]
    assert [body(message) for message in peek(world, first=4)] == ["d"]
    assert peek(world, first=5) == []
    receiver = Receiver(world, world.queue())
    assert receiver.bodies == ["a", "b", "c", "d"]
    assert {message.delivery_count for message in receiver.got} == {0}


@pytest.mark.parametrize("first", [0, -5, -(1 << 63)])
def test_peeking_from_before_the_first_number_starts_with_the_first(first: int) -> None:
    world = World()
    world.send("a")
    assert [body(message) for message in peek(world, first=first)] == ["a"]


def test_peeking_shows_locked_deferred_and_scheduled_messages_with_their_state() -> None:
    world = World()
    world.send("locked", "deferred")
    receiver = Receiver(world, world.queue())
    world.queue().settlements.defer(receiver.locks[1], ignore)
    world.send("later", at=world.clock() + MINUTE)
    world.send("waiting")
    receiver.credit = 0
    assert [(body(message), message.state) for message in peek(world)] == [
        ("locked", ACTIVE),
        ("deferred", DEFERRED),
        ("later", SCHEDULED),
        ("waiting", ACTIVE),
    ]


def test_peeking_in_a_session_shows_its_messages_only() -> None:
    world = World(session_queue())
    for id in ("a", "b", "a"):
        world.send(id, to="s", session_id=id)
    assert [message.sequence_number for message in peek(world, session_id="a", path="s")] == [1, 3]
    assert len(peek(world, path="s")) == 3
    assert peek(world, session_id="c", path="s") == []


def test_messages_being_removed_are_not_peeked_and_later_ones_are() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("gone", ttl=SECOND)
    world.send("there")
    store.held = []
    world.advance(SECOND)
    assert [body(message) for message in peek(world, limit=1)] == ["there"]
    store.release_commits()
    world.run()


def test_peeking_ends_with_the_message_that_makes_it_large() -> None:
    world = World()
    world.send(*["x" * (MAX_PEEKED_BYTES // 2)] * 3)
    assert len(peek(world)) == 2


def test_peeking_in_a_store_that_cannot_be_read_is_an_error() -> None:
    store = FlakyStore()
    world = World(store=store)
    store.fails_to_read = True
    assert isinstance(peek(world), BrokerError)


# --- deferred messages ---


def deferring(world: World, *bodies: str) -> list[int]:
    """Send and defer messages, and return their sequence numbers."""
    queue = world.queue()
    world.send(*bodies)
    receiver = Receiver(world, queue)
    for lock in receiver.locks:
        queue.settlements.defer(lock, ignore)
    queue.leave(receiver)
    world.run()
    return receiver.numbers


def fetch(world: World, *numbers: int, deletes: bool = False) -> Any:
    answers: list[Any] = []
    world.queue().deferred.receive(list(numbers), None, deletes, answers.append)
    world.run()
    assert len(answers) == 1
    return answers[0]


def fetch_one(world: World, number: int) -> tuple[StoredMessage, Lock]:
    ((message, lock),) = fetch(world, number)
    return message, lock


def test_a_deferred_message_is_received_by_its_number_only_and_counted() -> None:
    world = World()
    (number,) = deferring(world, "a")
    assert counts(world) == (0, 1, 0)
    assert Receiver(world, world.queue()).got == []
    message, lock = fetch_one(world, number)
    assert (body(message), message.delivery_count, message.state) == ("a", 1, DEFERRED)
    world.queue().settlements.complete(lock, ignore)
    world.run()
    assert counts(world) == (0, 0, 0)
    assert world.queue().counters.size_in_bytes == 0


def test_deferred_messages_are_fetched_in_the_requested_order_each_once() -> None:
    world = World()
    first, second, third = deferring(world, "a", "b", "c")
    fetched = fetch(world, third, first, third, second)
    assert [body(message) for message, _ in fetched] == ["c", "a", "b"]
    assert len({lock.tag for _, lock in fetched}) == 3


def test_a_deferred_message_can_be_received_and_deleted() -> None:
    world = World()
    numbers = deferring(world, "a", "b")
    fetched = fetch(world, *numbers, deletes=True)
    assert [(body(message), lock) for message, lock in fetched] == [("a", None), ("b", None)]
    assert counts(world) == (0, 0, 0)
    assert isinstance(fetch(world, numbers[0]), MessageNotFound)


def test_one_number_that_is_not_deferred_means_that_nothing_is_fetched() -> None:
    world = World()
    (deferred,) = deferring(world, "a")
    world.send("active")
    world.send("scheduled", at=world.clock() + MINUTE)
    for wrong in (deferred + 1, deferred + 2, 99, 0, -1):
        for deletes in (False, True):
            assert isinstance(fetch(world, deferred, wrong, deletes=deletes), MessageNotFound)
    assert counts(world) == (1, 1, 1)
    assert fetch_one(world, deferred)[0].delivery_count == 1


@pytest.mark.parametrize("deletes", [False, True])
def test_more_bytes_than_one_request_may_ask_for_are_refused_and_nothing_is_fetched(deletes: bool) -> None:
    world = World(QueueDefinition(name="q"))
    numbers = deferring(world, *("x" * (MAX_NUMBERED_BYTES // 3 + 1) for _ in range(4)))
    refused = fetch(world, *numbers, deletes=deletes)
    assert isinstance(refused, QuotaExceeded)
    assert "fewer in one request" in str(refused)
    assert len(fetch(world, *numbers[1:], deletes=deletes)) == 3  # the last of them reaches the limit
    assert len(fetch(world, numbers[0], deletes=deletes)) == 1


def test_a_fetched_message_cannot_be_fetched_again_before_it_is_unlocked() -> None:
    world = World()
    (number,) = deferring(world, "a")
    _, lock = fetch_one(world, number)
    assert isinstance(fetch(world, number), MessageNotFound)
    assert isinstance(fetch(world, number, deletes=True), MessageNotFound)
    world.queue().settlements.abandon(lock, ignore)
    world.run()
    assert fetch_one(world, number)[0].delivery_count == 2


def test_of_two_fetches_at_once_one_gets_the_message() -> None:
    store = FlakyStore()
    world = World(store=store)
    (number,) = deferring(world, "a")
    answers: list[Any] = []
    store.held_answers = []
    for _ in range(2):
        world.queue().deferred.receive([number], None, False, answers.append)
    store.release_answers()
    world.run()
    assert [type(answer) for answer in answers] == [list, MessageNotFound]


def test_of_two_fetches_that_delete_one_gets_the_message() -> None:
    store = FlakyStore()
    world = World(store=store)
    (number,) = deferring(world, "a")
    answers: list[Any] = []
    store.held_answers = []
    for _ in range(2):
        world.queue().deferred.receive([number], None, True, answers.append)
    first, second = store.held_answers
    store.held_answers = None
    first()
    world.run()
    second()
    world.run()
    assert [type(answer) for answer in answers] == [list, MessageNotFound]
    assert counts(world) == (0, 0, 0)


def test_a_message_completed_during_a_fetch_is_not_fetched() -> None:
    store = FlakyStore()
    world = World(store=store)
    (number,) = deferring(world, "a")
    _, lock = fetch_one(world, number)
    answers: list[Any] = []
    store.held_answers = []
    world.queue().deferred.receive([number], None, False, answers.append)
    late, store.held_answers = store.held_answers, None
    world.queue().settlements.complete(lock, ignore)
    world.run()
    late[0]()
    world.run()
    assert isinstance(answers[0], MessageNotFound)
    assert counts(world) == (0, 0, 0)


def test_a_message_unlocked_during_a_fetch_is_fetched_in_its_present_state() -> None:
    store = FlakyStore()
    world = World(store=store)
    (number,) = deferring(world, "a")
    _, lock = fetch_one(world, number)
    answers: list[Any] = []
    store.held_answers = []
    world.queue().deferred.receive([number], None, False, answers.append)
    late, store.held_answers = store.held_answers, None
    world.queue().settlements.abandon(lock, ignore, {"new": 1})
    world.run()
    late[0]()
    world.run()
    ((message, _),) = answers[0]
    assert message.delivery_count == 2
    assert b"new" in message.payload


def test_abandoning_puts_a_message_back_to_the_deferred_ones_counted_once() -> None:
    world = World()
    (number,) = deferring(world, "a")
    _, lock = fetch_one(world, number)
    world.queue().settlements.abandon(lock, ignore, {"k": "v"})
    world.run()
    assert counts(world) == (0, 1, 0)
    assert Receiver(world, world.queue()).got == []
    (stored,) = peek(world)
    assert (stored.delivery_count, stored.state) == (1, DEFERRED)


def test_a_message_is_deferred_again_when_its_lock_expires() -> None:
    world = World(QueueDefinition(name="q", lock_duration_ms=30 * SECOND))
    (number,) = deferring(world, "a")
    _, lock = fetch_one(world, number)
    world.advance(30 * SECOND)
    with pytest.raises(MessageLockLost):
        world.queue().settlements.complete(lock, ignore)
    assert counts(world) == (0, 1, 0)
    (stored,) = peek(world)
    assert stored.delivery_count == 1
    assert fetch_one(world, number)[0].delivery_count == 2


def test_a_fetched_message_is_held_longer_when_it_is_renewed() -> None:
    world = World(QueueDefinition(name="q", lock_duration_ms=30 * SECOND))
    (number,) = deferring(world, "a")
    _, lock = fetch_one(world, number)
    world.advance(20 * SECOND)
    assert world.queue().renew([lock]) == world.clock() + 30 * SECOND
    world.advance(20 * SECOND)
    world.queue().settlements.complete(lock, ignore)
    world.run()
    assert counts(world) == (0, 0, 0)


def test_a_fetched_message_can_be_deferred_again() -> None:
    world = World()
    (number,) = deferring(world, "a")
    _, lock = fetch_one(world, number)
    world.queue().settlements.defer(lock, ignore, {"again": True})
    world.run()
    assert counts(world) == (0, 1, 0)
    message, _ = fetch_one(world, number)
    assert message.delivery_count == 2
    assert b"again" in message.payload


def test_a_fetched_message_can_be_dead_lettered() -> None:
    world = World()
    (number,) = deferring(world, "a")
    _, lock = fetch_one(world, number)
    world.queue().settlements.dead_letter(lock, ignore, "because")
    world.run()
    assert counts(world) == (0, 0, 0)
    letters = Receiver(world, world.queue("q/$DeadLetterQueue"))
    assert letters.bodies == ["a"]
    assert (letters.got[0].state, letters.got[0].delivery_count) == (ACTIVE, 1)


def test_a_message_fetched_too_often_is_dead_lettered() -> None:
    world = World(QueueDefinition(name="q", max_delivery_count=2))
    (number,) = deferring(world, "a")
    for _ in range(2):
        _, lock = fetch_one(world, number)
        world.queue().settlements.abandon(lock, ignore)
        world.run()
    assert counts(world) == (0, 0, 0)
    assert counts(world, "q/$DeadLetterQueue") == (1, 0, 0)


def test_a_deferred_message_can_be_deferred_in_the_dead_letter_queue() -> None:
    world = World()
    world.send("a")
    receiver = Receiver(world, world.queue())
    world.queue().settlements.dead_letter(receiver.locks[0], ignore)
    world.run()
    letters = world.queue("q/$DeadLetterQueue")
    letters.settlements.defer(Receiver(world, letters).locks[0], ignore)
    world.run()
    assert counts(world, "q/$DeadLetterQueue") == (0, 1, 0)
    answers: list[Any] = []
    letters.deferred.receive([1], None, False, answers.append)
    world.run()
    assert body(answers[0][0][0]) == "a"


def test_an_expired_deferred_message_stays_until_it_is_requested() -> None:
    world = World(QueueDefinition(name="q", dead_lettering_on_message_expiration=True))
    queue = world.queue()
    world.send("a", ttl=10 * SECOND)
    receiver = Receiver(world, queue)
    queue.settlements.defer(receiver.locks[0], ignore)
    world.run()
    world.advance(MINUTE)
    assert counts(world) == (0, 1, 0)
    assert isinstance(fetch(world, 1), MessageNotFound)
    assert counts(world) == (0, 0, 0)
    assert counts(world, "q/$DeadLetterQueue") == (1, 0, 0)


def test_a_deferred_message_whose_expiry_could_not_be_stored_is_still_deferred() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a", ttl=10 * SECOND)
    world.queue().settlements.defer(Receiver(world, world.queue()).locks[0], ignore)
    world.advance(10 * SECOND)
    store.fails = lambda changes: StoreError("not now")
    assert isinstance(fetch(world, 1), MessageNotFound)
    store.fails = lambda changes: None
    assert counts(world) == (0, 1, 0)
    assert isinstance(fetch(world, 1), MessageNotFound)
    assert counts(world) == (0, 0, 0)


def test_deferred_messages_are_deferred_after_a_restart() -> None:
    world = World()
    (number,) = deferring(world, "a")
    world = world.restarted()
    assert counts(world) == (0, 1, 0)
    assert Receiver(world, world.queue()).got == []
    assert body(fetch_one(world, number)[0]) == "a"


def test_a_failed_deletion_of_deferred_messages_is_reported_and_they_stay() -> None:
    store = FlakyStore()
    world = World(store=store)
    numbers = deferring(world, "a", "b")
    store.fails = lambda changes: StoreError("not now")
    assert isinstance(fetch(world, *numbers, deletes=True), BrokerError)
    store.fails = lambda changes: None
    assert counts(world) == (0, 2, 0)
    assert len(fetch(world, *numbers)) == 2


def test_a_fetch_that_cannot_be_read_for_is_an_error() -> None:
    store = FlakyStore()
    world = World(store=store)
    (number,) = deferring(world, "a")
    store.fails_to_read = True
    assert isinstance(fetch(world, number), BrokerError)


# --- deleting many ---


def delete(
    world: World, limit: int = 100, before: int | None = None, path: str = "q", session: str | None = None
) -> Any:
    answers: list[Any] = []
    queue = world.namespace.queue(path)
    queue.deletion.delete_before(world.clock() + 1 if before is None else before, limit, session, answers.append)
    world.run()
    assert len(answers) == 1
    return answers[0]


def test_messages_are_deleted_from_the_head_up_to_the_limit() -> None:
    world = World()
    world.send("a", "b", "c")
    assert delete(world, limit=2) == 2
    assert counts(world) == (1, 0, 0)
    assert Receiver(world, world.queue()).bodies == ["c"]
    assert delete(world) == 0


def test_only_messages_enqueued_before_the_time_are_deleted() -> None:
    world = World()
    world.send("old")
    world.advance(SECOND)
    limit = world.clock()
    world.send("new")
    assert delete(world, before=limit) == 1
    assert Receiver(world, world.queue()).bodies == ["new"]


def test_locked_deferred_and_scheduled_messages_are_not_deleted() -> None:
    world = World()
    deferring(world, "deferred")
    world.send("locked")
    receiver = Receiver(world, world.queue(), credit=1)
    world.send("later", at=world.clock() + MINUTE)
    world.send("waiting")
    assert delete(world) == 1
    assert counts(world) == (1, 1, 1)
    world.queue().settlements.abandon(receiver.locks[0], ignore)
    world.run()
    assert delete(world) == 1


def test_messages_behind_locked_ones_are_deleted() -> None:
    world = World()
    world.send(*map(str, range(10)))
    Receiver(world, world.queue(), credit=5)
    assert delete(world, limit=5) == 5
    assert counts(world) == (5, 0, 0)


@pytest.mark.parametrize("limit", [1, 3])
def test_deleting_after_many_locked_messages_is_one_commit(limit: int) -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send(*map(str, range(3010)))
    Receiver(world, world.queue(), credit=3000)
    commits, reads = store.commits, store.reads
    assert delete(world, limit=limit) == limit
    assert (store.commits - commits, store.reads - reads) == (1, 1)
    assert counts(world) == (3010 - limit, 0, 0)


def test_deleting_where_all_messages_are_locked_commits_nothing() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send(*map(str, range(50)))
    Receiver(world, world.queue())
    commits = store.commits
    assert delete(world) == 0
    assert store.commits == commits


def test_deleting_in_a_session_whose_messages_are_locked_commits_nothing() -> None:
    store = FlakyStore()
    world = World(session_queue(), store=store)
    world.send(*map(str, range(50)), to="s", session_id="s")
    receiver = SessionReceiver(world, "s", credit=49)
    commits = store.commits
    assert delete(world, path="s", session="s") == 1
    assert delete(world, path="s", session="s") == 0
    assert store.commits == commits + 1
    assert len(receiver.locks) == 49


def test_large_messages_are_deleted_up_to_the_limit_too() -> None:
    world = World()
    world.send(*["x" * (MAX_PEEKED_BYTES // 2)] * 7)
    assert delete(world, limit=6) == 6
    assert counts(world) == (1, 0, 0)


def test_messages_in_and_beyond_the_window_are_deleted_and_never_received() -> None:
    world = World()
    many = WINDOW_MESSAGES + 500
    outcomes: list[BrokerError | None] = []
    world.queue().send([incoming(str(number)) for number in range(many)], outcomes.append)
    world.run()
    assert outcomes == [None]
    assert delete(world, limit=many - 1) == many - 1
    assert Receiver(world, world.queue()).bodies == [str(many - 1)]


def test_deleting_in_a_session_does_not_affect_other_sessions() -> None:
    world = World(session_queue())
    for id in ("a", "b", "a"):
        world.send(id, to="s", session_id=id)
    assert delete(world, path="s", session="a") == 2
    assert counts(world, "s") == (1, 0, 0)
    assert SessionReceiver(world).id == "b"
    assert SessionReceiver(world, "a").got == []


def test_deleting_in_a_locked_session_removes_its_active_messages() -> None:
    world = World(session_queue())
    for text in "123":
        world.send(text, to="s", session_id="a")
    holder = SessionReceiver(world, "a", credit=1)
    assert delete(world, path="s", session="a") == 2
    holder.more()
    assert holder.bodies == ["1"]


def test_a_deletion_that_could_not_be_stored_deletes_nothing() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a", "b", "c")
    receiver = Receiver(world, world.queue(), credit=1)
    world.queue().settlements.release(receiver.locks[0])
    store.fails = lambda changes: StoreError("not now")
    assert isinstance(delete(world), BrokerError)
    store.fails = lambda changes: None
    assert counts(world) == (3, 0, 0)
    receiver.more()
    assert receiver.bodies == ["a", "a", "b", "c"]
    assert world.namespace._machinery.budget.used == 0


def test_a_deletion_whose_read_fails_changes_nothing() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a")
    world = world.restarted()
    store.fails_to_read = True
    assert isinstance(delete(world), BrokerError)
    store.fails_to_read = False
    assert Receiver(world, world.queue()).bodies == ["a"]


def test_a_message_completed_while_a_deletion_reads_is_counted_once() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a", "b")
    receiver = Receiver(world, world.queue(), credit=1)
    answers: list[Any] = []
    store.held_answers = []
    world.queue().deletion.delete_before(world.clock() + 1, 100, None, answers.append)
    late, store.held_answers = store.held_answers, None
    world.queue().settlements.complete(receiver.locks[0], ignore)
    world.run()
    late[0]()
    world.run()
    assert answers == [1]
    assert counts(world) == (0, 0, 0)
    assert world.queue().counters.size_in_bytes == 0


def test_a_concurrent_sweep_and_deletion_do_not_restore_removed_messages() -> None:
    """No page is read before both are done, because it would have messages that are being removed."""
    store = FlakyStore()
    world = World(store=store)
    world.send("a", ttl=SECOND)
    world.send("b", "c")
    world = world.restarted()
    world.clock.advance(SECOND)
    store.held_answers = []
    world.run()
    (swept,) = store.held_answers
    answers: list[Any] = []
    world.queue().deletion.delete_before(world.clock() + 1, 100, None, answers.append)
    _, deleted = store.held_answers
    store.held_answers = None
    deleted()
    world.run()
    receiver = Receiver(world, world.queue())
    swept()
    world.run()
    assert answers == [3]
    assert receiver.got == []
    assert counts(world) == (0, 0, 0)


def test_a_deletion_waits_for_a_page_that_is_being_read() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send("a", "b")
    world = world.restarted()
    store.held_answers = []
    receiver = Receiver(world, world.queue(), credit=1)
    answers: list[Any] = []
    world.queue().deletion.delete_before(world.clock() + 1, 100, None, answers.append)
    world.run()
    store.release_answers()
    world.run()
    assert receiver.bodies == ["a"]
    world.advance(SECOND)
    assert answers == [1]
    receiver.more()
    assert receiver.bodies == ["a"]
