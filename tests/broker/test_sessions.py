"""Sessions: one receiver at a time holds a session and gets its messages in order."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import MINUTE, SECOND, FlakyStore, Receiver, SessionReceiver, World, body, incoming, session_queue
from peeklock.broker.claimed_sessions import ClaimHolder
from peeklock.broker.errors import (
    BrokerError,
    EntityNotFound,
    MessageLockLost,
    OperationNotAllowed,
    OperationTimedOut,
    QuotaExceeded,
    SessionCannotBeLocked,
    SessionLockLost,
)
from peeklock.broker.incoming import Incoming
from peeklock.broker.session_states import STATE_BYTES
from peeklock.entities.definitions import QueueDefinition
from peeklock.limits.broker import MAX_SESSION_WAITERS
from peeklock.store.base import DEFERRED, StoreError, StoreFull
from peeklock.store.memory import MemoryStore


def ignore(error: BrokerError | None) -> None:
    assert error is None


def a_world(store: MemoryStore | None = None, **settings: Any) -> World:
    return World(session_queue(**settings), store=store)


def send(world: World, session_id: str, *bodies: str, **fields: Any) -> None:
    assert set(world.send(*bodies, to="s", session_id=session_id, **fields)) == {None}


def listed(world: World, updated_after: int | None = None) -> Any:
    answers: list[Any] = []
    world.sessions().states.list_sessions(updated_after, 0, 100, answers.append)
    return answers[0]


def state_of(world: World, id: str) -> Any:
    answers: list[Any] = []
    world.sessions().states.get(id, answers.append)
    return answers[0]


def set_state(world: World, id: str, state: bytes | None) -> None:
    world.sessions().states.set(id, state, ignore)
    world.run()


# --- accepting ---


def test_a_named_session_gives_its_messages_and_no_others_in_order() -> None:
    world = a_world()
    send(world, "a", "1", "2")
    send(world, "b", "3")
    send(world, "a", "4")
    assert SessionReceiver(world, "a").bodies == ["1", "2", "4"]


def test_a_named_session_without_messages_is_accepted_and_gets_later_ones() -> None:
    world = a_world()
    receiver = SessionReceiver(world, "a")
    assert receiver.id == "a"
    send(world, "b", "not this")
    send(world, "a", "this")
    assert receiver.bodies == ["this"]


def test_the_empty_name_is_a_session_like_any_other() -> None:
    world = a_world()
    send(world, "", "1")
    assert SessionReceiver(world, "").bodies == ["1"]
    assert listed(world) == [""]


def test_a_session_has_one_holder() -> None:
    world = a_world()
    send(world, "a", "1")
    SessionReceiver(world, "a")
    with pytest.raises(SessionCannotBeLocked):
        SessionReceiver(world, "a")
    assert SessionReceiver(world).session is None


def test_the_next_free_session_is_the_one_that_waits_longest() -> None:
    world = a_world()
    for id in "bac":
        send(world, id, "1")
    send(world, "a", "2")
    assert [SessionReceiver(world).id for _ in range(3)] == ["b", "a", "c"]


def test_a_closed_session_is_queued_after_other_sessions() -> None:
    world = a_world()
    for id in "ab":
        send(world, id, "1")
    SessionReceiver(world).close()
    assert [SessionReceiver(world).id for _ in range(2)] == ["b", "a"]


def test_a_session_accepted_by_name_is_not_the_next_free_one() -> None:
    world = a_world()
    for id in "ab":
        send(world, id, "1")
    SessionReceiver(world, "a")
    assert SessionReceiver(world).id == "b"


def test_a_waiting_receiver_gets_the_session_of_the_first_message() -> None:
    world = a_world()
    first, second = SessionReceiver(world), SessionReceiver(world)
    assert first.session is None
    send(world, "a", "1")
    assert (first.id, second.id) == ("a", None)
    send(world, "b", "2")
    assert second.id == "b"
    assert (first.bodies, second.bodies) == (["1"], ["2"])


def test_a_waiting_receiver_gets_a_session_that_is_closed() -> None:
    world = a_world()
    send(world, "a", "1")
    holder = SessionReceiver(world)
    waiting = SessionReceiver(world)
    holder.close()
    assert waiting.bodies == ["1"]
    assert waiting.got[0].delivery_count == 0


def test_waiting_ends_at_the_time_out_and_the_next_receiver_gets_the_session() -> None:
    world = a_world()
    impatient, patient = SessionReceiver(world, time_out=5 * SECOND), SessionReceiver(world, time_out=MINUTE)
    world.advance(5 * SECOND)
    assert isinstance(impatient.failure, OperationTimedOut)
    send(world, "a", "1")
    assert impatient.session is None
    assert patient.id == "a"
    world.advance(MINUTE - 5 * SECOND)
    assert patient.failure is None


def test_a_receiver_that_stops_waiting_gets_no_session() -> None:
    world = a_world()
    leaving, staying = SessionReceiver(world), SessionReceiver(world)
    leaving.close()
    send(world, "a", "1")
    assert leaving.session is None
    assert staying.id == "a"
    world.advance(2 * MINUTE)
    assert leaving.failure is None


def test_only_so_many_may_wait() -> None:
    world = a_world()
    for _ in range(MAX_SESSION_WAITERS):
        SessionReceiver(world)
    with pytest.raises(QuotaExceeded):
        SessionReceiver(world)


def test_a_slow_session_does_not_delay_another_session() -> None:
    world = a_world()
    send(world, "slow", "1", "2")
    send(world, "quick", "3", "4")
    slow, quick = SessionReceiver(world, credit=0), SessionReceiver(world)
    assert slow.id == "slow"
    assert quick.bodies == ["3", "4"]
    send(world, "quick", "5")
    assert quick.bodies == ["3", "4", "5"]
    slow.more()
    assert slow.bodies == ["1", "2"]


def test_a_session_that_is_read_slowly_does_not_delay_another_session() -> None:
    store = FlakyStore()
    world = a_world(store)
    send(world, "a", "1")
    send(world, "b", "2")
    store.held_answers = []
    slow = SessionReceiver(world, "a")
    held, store.held_answers = store.held_answers, None
    assert SessionReceiver(world, "b").bodies == ["2"]
    assert slow.bodies == []
    held[0]()
    world.run()
    assert slow.bodies == ["1"]


def test_a_session_that_could_not_be_read_is_read_again() -> None:
    store = FlakyStore()
    world = a_world(store)
    send(world, "a", "1")
    store.fails_to_read = True
    receiver = SessionReceiver(world, "a")
    assert receiver.bodies == []
    store.fails_to_read = False
    world.advance(SECOND)
    assert receiver.bodies == ["1"]


# --- letting go ---


def test_closing_gives_everything_back_at_once_and_uncounted() -> None:
    world = a_world()
    send(world, "a", "1", "2")
    SessionReceiver(world).close()
    again = SessionReceiver(world)
    assert again.bodies == ["1", "2"]
    assert [message.delivery_count for message in again.got] == [0, 0]


def test_a_lock_of_a_closed_session_is_invalid() -> None:
    world = a_world()
    send(world, "a", "1")
    receiver = SessionReceiver(world)
    receiver.close()
    with pytest.raises((MessageLockLost, SessionLockLost)):
        world.sessions().settlements.complete(receiver.locks[0], ignore)
    SessionReceiver(world)
    with pytest.raises((MessageLockLost, SessionLockLost)):
        world.sessions().settlements.complete(receiver.locks[0], ignore)


def test_a_session_is_offered_only_when_the_settlements_of_its_last_holder_are_done() -> None:
    store = FlakyStore()
    world = a_world(store)
    send(world, "a", "1", "2", "3")
    receiver = SessionReceiver(world)
    store.held = []
    world.sessions().settlements.complete(receiver.locks[0], ignore)
    world.sessions().settlements.abandon(receiver.locks[2], ignore)
    receiver.close()
    following = SessionReceiver(world)
    assert following.session is None
    store.release_commits()
    world.run()
    assert following.bodies == ["2", "3"]
    assert [message.delivery_count for message in following.got] == [0, 1]


def test_a_settlement_that_failed_after_the_session_was_closed_does_not_lose_the_message() -> None:
    store = FlakyStore()
    world = a_world(store)
    send(world, "a", "1", "2")
    receiver = SessionReceiver(world)
    outcomes: list[BrokerError | None] = []
    store.held = []
    world.sessions().settlements.complete(receiver.locks[0], outcomes.append)
    receiver.close()
    following = SessionReceiver(world)
    store.fails = lambda changes: StoreError("not now")
    store.release_commits()
    world.run()
    assert outcomes[0] is not None
    assert following.bodies == ["1", "2"]
    assert world.sessions().counters.active == 2


def test_a_session_that_a_claim_reserves_is_not_held_by_its_last_receiver() -> None:
    world = a_world()
    send(world, "a", "1")
    SessionReceiver(world, "a", credit=0).close()
    sessions = world.sessions().sessions
    session = sessions.find("a")
    assert session is not None
    sessions.reserve(session, ClaimHolder("claims"))
    with pytest.raises(SessionLockLost):
        sessions.held("a")


def test_a_session_without_messages_is_removed() -> None:
    world = a_world()
    send(world, "a", "1")
    receiver = SessionReceiver(world)
    world.sessions().settlements.complete(receiver.locks[0], ignore)
    receiver.close()
    assert listed(world) == []
    waiting = SessionReceiver(world)
    assert waiting.session is None
    send(world, "a", "2")
    assert waiting.bodies == ["2"]


def test_a_free_session_whose_messages_expire_is_not_offered() -> None:
    world = a_world()
    send(world, "a", "1", ttl=10 * SECOND)
    send(world, "b", "2")
    world.advance(10 * SECOND)
    assert SessionReceiver(world).id == "b"
    assert SessionReceiver(world).session is None
    assert world.sessions().counters.active == 1


def test_a_page_read_after_the_session_was_closed_uses_no_memory() -> None:
    store = FlakyStore()
    world = a_world(store)
    send(world, "a", "1" * 1000)
    store.held_answers = []
    SessionReceiver(world, "a").close()
    store.release_answers()
    world.run()
    assert world.namespace._machinery.budget.used == 0


# --- locks ---


def test_an_expired_session_lock_unlocks_all_messages_counted_and_notifies_the_holder() -> None:
    world = a_world(lock_duration_ms=30 * SECOND)
    send(world, "a", "1", "2")
    receiver = SessionReceiver(world)
    world.advance(30 * SECOND - 1)
    assert receiver.failure is None
    world.advance(1)
    assert isinstance(receiver.failure, SessionLockLost)
    again = SessionReceiver(world)
    assert [(body(message), message.delivery_count) for message in again.got] == [("1", 1), ("2", 1)]


def test_undelivered_messages_are_not_counted_when_the_session_lock_expires() -> None:
    world = a_world()
    send(world, "a", "1", "2")
    SessionReceiver(world, credit=1)
    world.advance(MINUTE)
    assert [message.delivery_count for message in SessionReceiver(world).got] == [1, 0]


def test_an_expired_session_lock_cannot_be_used_even_before_its_timer_ran() -> None:
    world = a_world()
    send(world, "a", "1")
    receiver = SessionReceiver(world)
    world.clock.advance(MINUTE)
    queue = world.sessions()
    with pytest.raises(SessionLockLost):
        queue.settlements.complete(receiver.locks[0], ignore)
    with pytest.raises(SessionLockLost):
        queue.sessions.held("a")
    with pytest.raises(SessionLockLost):
        queue.states.set("a", b"x", ignore)


def test_no_message_is_delivered_with_an_expired_session_lock() -> None:
    world = a_world()
    receiver = SessionReceiver(world, "a", deletes=True)
    world.clock.advance(MINUTE)
    send(world, "a", "1")
    assert receiver.got == []
    assert isinstance(receiver.failure, SessionLockLost)
    assert SessionReceiver(world).bodies == ["1"]


def test_a_session_is_held_longer_when_it_is_renewed() -> None:
    world = a_world(lock_duration_ms=30 * SECOND)
    send(world, "a", "1")
    receiver = SessionReceiver(world)
    queue = world.sessions()
    for _ in range(5):
        world.advance(20 * SECOND)
        assert queue.sessions.renew(queue.sessions.held("a")) == world.clock() + 30 * SECOND
    assert receiver.locks[0].locked_until == world.clock() + 30 * SECOND
    queue.settlements.complete(receiver.locks[0], ignore)
    world.advance(30 * SECOND)
    assert isinstance(receiver.failure, SessionLockLost)


def test_messages_of_a_session_are_not_renewed_one_by_one() -> None:
    world = a_world()
    send(world, "a", "1")
    with pytest.raises(OperationNotAllowed):
        world.sessions().renew([SessionReceiver(world).locks[0]])


def test_a_session_with_an_expired_lock_is_available_when_its_messages_are_unlocked() -> None:
    store = FlakyStore()
    world = a_world(store)
    send(world, "a", "1")
    SessionReceiver(world)
    following = SessionReceiver(world, time_out=10 * MINUTE)
    store.held = []
    world.advance(MINUTE)
    assert following.session is None
    store.release_commits()
    world.run()
    assert [message.delivery_count for message in following.got] == [1]


def test_a_session_is_unlocked_although_its_deliveries_could_not_be_counted() -> None:
    store = FlakyStore()
    world = a_world(store)
    send(world, "a", "1")
    SessionReceiver(world)
    store.fails = lambda changes: StoreError("not now")
    world.advance(MINUTE)
    store.fails = lambda changes: None
    assert SessionReceiver(world).bodies == ["1"]


def test_a_message_of_a_session_delivered_too_often_is_dead_lettered() -> None:
    world = a_world(max_delivery_count=2)
    send(world, "a", "1", "2")
    SessionReceiver(world, credit=1)
    world.advance(MINUTE)
    SessionReceiver(world, credit=1)
    world.advance(MINUTE)
    assert SessionReceiver(world).bodies == ["2"]
    letters = world.queue("s/$DeadLetterQueue")
    assert letters.counters.active == 1
    assert (world.sessions().counters.active, world.sessions().counters.last_sequence_number) == (1, 2)


# --- settling in a session ---


def test_an_abandoned_message_is_redelivered_before_other_messages() -> None:
    world = a_world()
    send(world, "a", "1", "2", "3")
    receiver = SessionReceiver(world, credit=1)
    world.sessions().settlements.abandon(receiver.locks[0], ignore)
    world.run()
    receiver.more()
    assert receiver.bodies == ["1", "1", "2", "3"]
    assert [message.delivery_count for message in receiver.got] == [0, 1, 0, 0]


def test_a_released_message_is_redelivered_and_not_counted() -> None:
    world = a_world()
    send(world, "a", "1", "2")
    receiver = SessionReceiver(world, credit=1)
    world.sessions().settlements.release(receiver.locks[0])
    receiver.more()
    assert receiver.bodies == ["1", "1", "2"]
    assert {message.delivery_count for message in receiver.got} == {0}


def test_the_dead_letters_of_a_session_queue_are_received_without_sessions() -> None:
    world = a_world()
    send(world, "a", "1")
    receiver = SessionReceiver(world)
    world.sessions().settlements.dead_letter(receiver.locks[0], ignore, "because")
    world.run()
    letters = world.queue("s/$DeadLetterQueue")
    assert not letters.has_sessions
    letter = Receiver(world, letters)
    assert letter.bodies == ["1"]
    letters.settlements.complete(letter.locks[0], ignore)
    world.run()
    receiver.close()
    assert listed(world) == []


def test_an_expired_message_is_skipped_and_later_ones_are_delivered() -> None:
    world = a_world(dead_lettering_on_message_expiration=True)
    send(world, "a", "1", ttl=10 * SECOND)
    send(world, "a", "2")
    receiver = SessionReceiver(world, "a", credit=0)
    world.clock.advance(10 * SECOND)
    receiver.more()
    assert receiver.bodies == ["2"]
    assert world.sessions().counters.active == 1
    assert world.queue("s/$DeadLetterQueue").counters.active == 1


def test_an_expired_message_being_removed_is_not_delivered_to_the_next_holder() -> None:
    store = FlakyStore()
    world = a_world(store)
    send(world, "a", "1", ttl=10 * SECOND)
    send(world, "a", "2")
    receiver = SessionReceiver(world, "a", credit=0)
    store.held = []
    world.clock.advance(10 * SECOND)
    receiver.more(1)
    receiver.close()
    following = SessionReceiver(world)
    store.release_commits()
    world.run()
    assert following.bodies == ["2"]
    assert world.sessions().counters.active == 1


def test_a_locked_message_does_not_expire_before_its_session_is_unlocked() -> None:
    world = a_world()
    send(world, "a", "1", ttl=10 * SECOND)
    receiver = SessionReceiver(world)
    world.advance(20 * SECOND)
    assert world.sessions().counters.active == 1
    world.sessions().settlements.complete(receiver.locks[0], ignore)
    send(world, "a", "2", ttl=10 * SECOND)
    world.advance(20 * SECOND)
    receiver.close()
    world.advance(SECOND)
    assert world.sessions().counters.active == 0
    assert SessionReceiver(world).session is None


def test_with_receive_and_delete_messages_of_a_session_are_delivered_in_order_after_removal() -> None:
    store = FlakyStore()
    world = a_world(store)
    send(world, "a", "1", "2")
    store.held = []
    receiver = SessionReceiver(world, deletes=True)
    assert receiver.got == []
    store.release_commits()
    world.run()
    assert receiver.bodies == ["1", "2"]
    receiver.close()
    assert world.sessions().counters.active == 0
    assert listed(world) == []


def test_a_message_of_a_session_that_could_not_be_deleted_is_tried_again() -> None:
    store = FlakyStore()
    world = a_world(store)
    send(world, "a", "1", "2")
    store.fails = lambda changes: StoreError("not now")
    receiver = SessionReceiver(world, deletes=True)
    assert receiver.got == []
    assert receiver.credit == 1000
    store.fails = lambda changes: None
    world.advance(SECOND)
    assert receiver.bodies == ["1", "2"]


def test_a_session_closed_while_its_messages_are_being_deleted_is_offered_without_them() -> None:
    store = FlakyStore()
    world = a_world(store)
    send(world, "a", "1", "2")
    store.held = []
    receiver = SessionReceiver(world, credit=1, deletes=True)
    receiver.close()
    following = SessionReceiver(world)
    store.release_commits()
    world.run()
    assert following.bodies == ["2"]


# --- deferral in a session ---


def deferred(world: World) -> int:
    """Defer a message of the session `a`, and return its sequence number."""
    send(world, "a", "1")
    receiver = SessionReceiver(world, "a")
    world.sessions().settlements.defer(receiver.locks[0], ignore)
    receiver.close()
    return receiver.numbers[0]


def fetch(world: World, number: int, session_id: str, deletes: bool = False) -> Any:
    answers: list[Any] = []
    world.sessions().deferred.receive([number], session_id, deletes, answers.append)
    world.run()
    return answers[0]


def test_a_deferred_message_is_skipped_and_its_session_is_not_offered() -> None:
    world = a_world()
    deferred(world)
    assert SessionReceiver(world).session is None
    assert SessionReceiver(world, "a").got == []
    assert world.sessions().counters.deferred == 1


def test_a_deferred_message_is_fetched_by_the_holder_of_its_session_only() -> None:
    world = a_world()
    number = deferred(world)
    assert isinstance(fetch(world, number, "a"), SessionLockLost)
    SessionReceiver(world, "b")
    assert isinstance(fetch(world, number, "b"), BrokerError)
    SessionReceiver(world, "a")
    ((message, lock),) = fetch(world, number, "a")
    world.sessions().settlements.complete(lock, ignore)
    world.run()
    assert body(message) == "1"
    assert world.sessions().counters.deferred == 0


def test_a_deferred_message_is_deferred_again_when_its_session_is_closed() -> None:
    world = a_world()
    number = deferred(world)
    receiver = SessionReceiver(world, "a")
    ((_, lock),) = fetch(world, number, "a")
    receiver.close()
    with pytest.raises((MessageLockLost, SessionLockLost)):
        world.sessions().settlements.complete(lock, ignore)
    SessionReceiver(world, "a")
    ((again, _),) = fetch(world, number, "a")
    assert (again.state, again.delivery_count) == (DEFERRED, 1)  # closing does not count


def test_a_session_that_is_closed_during_a_fetch_is_free_and_the_fetch_fails() -> None:
    store = FlakyStore()
    world = a_world(store)
    number = deferred(world)
    receiver = SessionReceiver(world, "a")
    store.held_answers = []
    answers: list[Any] = []
    world.sessions().deferred.receive([number], "a", False, answers.append)
    receiver.close()
    store.release_answers()
    world.run()
    assert isinstance(answers[0], SessionLockLost)
    assert SessionReceiver(world, "a").session is not None
    ((message, _),) = fetch(world, number, "a")
    assert message.state == DEFERRED


def test_a_fetched_message_is_counted_when_the_lock_of_its_session_expires() -> None:
    world = a_world()
    number = deferred(world)
    SessionReceiver(world, "a")
    fetch(world, number, "a")
    world.advance(MINUTE)
    SessionReceiver(world, "a")
    ((message, _),) = fetch(world, number, "a")
    assert (message.state, message.delivery_count) == (DEFERRED, 2)


# --- state ---


def test_a_session_state_is_set_read_and_cleared() -> None:
    world = a_world()
    SessionReceiver(world, "a")
    assert state_of(world, "a") is None
    set_state(world, "a", b"\x00one")
    assert state_of(world, "a") == b"\x00one"
    set_state(world, "a", b"")
    assert state_of(world, "a") == b""
    set_state(world, "a", None)
    assert state_of(world, "a") is None
    assert listed(world) == []


def test_a_state_outlives_messages_holder_and_restart() -> None:
    world = a_world()
    send(world, "a", "1")
    receiver = SessionReceiver(world)
    world.sessions().settlements.complete(receiver.locks[0], ignore)
    set_state(world, "a", b"kept")
    receiver.close()
    assert listed(world) == ["a"]
    world = world.restarted()
    assert listed(world) == ["a"]
    assert SessionReceiver(world).session is None
    SessionReceiver(world, "a")
    assert state_of(world, "a") == b"kept"


def test_a_state_is_for_the_holder_only() -> None:
    world = a_world()
    queue = world.sessions()
    send(world, "a", "1")
    with pytest.raises(SessionLockLost):
        queue.states.set("a", b"x", ignore)
    with pytest.raises(SessionLockLost):
        queue.states.get("a", lambda _: None)


def test_a_state_that_could_not_be_stored_is_the_old_one() -> None:
    store = FlakyStore()
    world = a_world(store)
    SessionReceiver(world, "a")
    set_state(world, "a", b"old")
    store.fails = lambda changes: StoreError("not now")
    outcomes: list[BrokerError | None] = []
    world.sessions().states.set("a", b"new", outcomes.append)
    world.run()
    assert outcomes[0] is not None
    assert state_of(world, "a") == b"old"


def states_set_while_the_first_one_is_tried_again(world: World, store: FlakyStore) -> list[BrokerError | None]:
    """Set two states, one after the other; the first is committed with a message for which there is no room."""
    outcomes: list[BrokerError | None] = []
    store.held = []
    world.queue().send([incoming("too much")], lambda error: None)
    for state in (b"first", b"second"):
        world.sessions().states.set("a", state, outcomes.append)
        world.run()
    store.fails = lambda changes: StoreFull("no room") if changes.appends else None
    while store.held:
        store.release_commits()
        world.run()
    return outcomes


def test_the_state_that_was_set_last_stays_though_an_earlier_one_is_committed_again() -> None:
    store = FlakyStore()
    world = World(session_queue(), QueueDefinition(name="q"), store=store)
    SessionReceiver(world, "a")
    assert states_set_while_the_first_one_is_tried_again(world, store) == [None, None]
    assert state_of(world, "a") == b"second"
    assert world.sessions().state_bytes == STATE_BYTES + len(b"second")


def test_states_that_wait_for_an_earlier_one_fail_when_their_queue_is_deleted() -> None:
    store = FlakyStore()
    world = a_world(store)
    SessionReceiver(world, "a")
    queue = world.sessions()
    outcomes: list[BrokerError | None] = []
    store.held = []
    for state in (b"first", b"second"):
        queue.states.set("a", state, outcomes.append)
        world.run()
    world.administration.delete_queue("s", ignore)
    world.run()
    store.release_commits()
    world.run()
    assert [type(outcome) for outcome in outcomes] == [type(None), EntityNotFound]
    assert queue.staged_bytes == 0


# --- listing and restart ---


def test_sessions_with_messages_or_a_state_are_listed_held_or_not() -> None:
    world = a_world()
    send(world, "held", "1")
    send(world, "free", "1")
    SessionReceiver(world, "held")
    SessionReceiver(world, "stateful")
    set_state(world, "stateful", b"x")
    SessionReceiver(world, "nothing")
    assert listed(world) == ["free", "held", "stateful"]


def test_sessions_are_listed_by_the_time_their_state_was_set() -> None:
    world = a_world()
    send(world, "messages only", "1")
    for id in "ab":
        SessionReceiver(world, id)
        set_state(world, id, b"x")
        world.advance(SECOND)
    assert listed(world, updated_after=world.clock() - 2 * SECOND) == ["b"]
    assert listed(world, updated_after=0) == ["a", "b"]


def test_a_list_that_cannot_be_read_is_an_error() -> None:
    store = FlakyStore()
    world = a_world(store)
    store.fails_to_read = True
    assert isinstance(listed(world), BrokerError)


def test_all_sessions_survive_a_restart_and_are_unlocked() -> None:
    world = a_world()
    send(world, "b", "1")
    send(world, "a", "2", "3")
    SessionReceiver(world, "a")
    world = world.restarted()
    receivers = [SessionReceiver(world) for _ in range(3)]
    assert [receiver.id for receiver in receivers] == ["b", "a", None]
    assert receivers[1].bodies == ["2", "3"]
    send(world, "a", "4")
    assert receivers[1].bodies == ["2", "3", "4"]


def test_messages_that_expired_while_the_broker_was_down_are_not_received() -> None:
    world = a_world()
    send(world, "a", "1", ttl=SECOND)
    send(world, "b", "2")
    world.clock.advance(MINUTE)
    world = world.restarted()
    assert SessionReceiver(world).id == "b"
    assert world.sessions().counters.active == 1


def test_accepting_the_next_of_a_hundred_thousand_sessions_takes_constant_time() -> None:
    many = 100_000
    store = FlakyStore()
    world = a_world(store)
    outcomes: list[BrokerError | None] = []
    bare = incoming("x", session_id="s").bare
    messages = [Incoming(bare, None, None, f"{number:06}", None) for number in range(many)]
    for at in range(0, many, 1000):
        world.sessions().send(messages[at : at + 1000], outcomes.append)
    world.run()
    assert outcomes == [None] * (many // 1000)
    world = world.restarted()
    before = store.reads
    receivers = [SessionReceiver(world) for _ in range(100)]
    assert [receiver.id for receiver in receivers] == [f"{number:06}" for number in range(100)]
    assert store.reads - before == 100  # one page each
    assert all(len(receiver.got) == 1 for receiver in receivers)
