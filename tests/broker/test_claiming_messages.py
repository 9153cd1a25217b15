"""Claims: messages that one client sets aside for itself, with one commit, until it removes or releases them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.world import (
    HOUR,
    MINUTE,
    SECOND,
    AwaitedStore,
    FlakyStore,
    Receiver,
    SessionReceiver,
    World,
    incoming,
    session_queue,
    stored_claims,
    subscription,
    topic,
)
from peeklock.amqp.message import Header
from peeklock.broker.claim_records import Claim
from peeklock.broker.claims import Request, spans_of
from peeklock.broker.errors import (
    BrokerError,
    ClaimNameInUse,
    EntityNotFound,
    InvalidProperty,
    QuotaExceeded,
    SessionCannotBeLocked,
)
from peeklock.entities.definitions import QueueDefinition
from peeklock.limits.broker import MAX_CLAIM_RANGES, MAX_CLAIMS
from peeklock.store.base import ACTIVE, CLAIMED, MAX_NUMBER, StoreError
from raw_client import eventually

Outcome = Claim | BrokerError | None
OWNER = bytes(16)


class Client:
    """A client that claims under a name and records the answers."""

    def __init__(self, world: World, path: str = "q", name: str = "mine", owner: bytes = OWNER) -> None:
        self.world = world
        self.path = path
        self.name = name
        self.owner = owner
        self.answers: list[Outcome] = []
        self._ids = iter(range(1, 1 << 20))

    @property
    def claims(self) -> Any:
        return self.world.queue(self.path).claims

    def ask(self, count: int = 1000, *, id: int | None = None, **limits: int) -> None:
        number = next(self._ids) if id is None else id
        whole = {"max_bytes": 1 << 40, "through": MAX_NUMBER, "sessions": 100, "wait_ms": 0, "linger_ms": 0, **limits}
        request = Request(self._id(number), self.name, count=count, done=self.answers.append, **whole)
        self.claims.claim(request, self.owner, self)

    def claim(self, count: int = 1000, **limits: int) -> Claim | None:
        """Claim messages, and return the answer."""
        before = len(self.answers)
        self.ask(count, **limits)
        self.world.run()
        assert len(self.answers) == before + 1, "answered once"
        answer = self.answers[-1]
        assert not isinstance(answer, BrokerError)
        return answer

    def numbers(self, count: int = 1000, **limits: int) -> list[int]:
        claim = self.claim(count, **limits)
        return [] if claim is None else numbers_of(claim)

    def remove(self, claim: Claim, *numbers: int) -> Any:
        return self._end(self.claims.remove, claim, numbers)

    def release(self, claim: Claim, *numbers: int) -> Any:
        return self._end(self.claims.release, claim, numbers)

    def leave(self) -> None:
        self.claims.remove_holder(self)
        self.world.run()

    def _end(self, end: Any, claim: Claim, numbers: tuple[int, ...]) -> Any:
        answers: list[int | BrokerError | None] = []
        end(claim.name, claim.id, [(number, number) for number in numbers] or None, answers.append)
        self.world.run()
        assert len(answers) == 1, "answered once"
        return answers[0]

    def _id(self, number: int) -> bytes:
        return self.name.encode().ljust(8)[:8] + number.to_bytes(8)


def numbers_of(claim: Claim) -> list[int]:
    return [number for run in claim.runs for number in range(run.first, run.last + 1)]


def letters(count: int) -> list[str]:
    return [f"m{number}" for number in range(1, count + 1)]


@pytest.fixture(params=["memory", "disk"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    store: AwaitedStore | None = None
    if request.param == "disk":
        store = AwaitedStore(tmp_path)
    yield World(QueueDefinition(name="q"), session_queue("s"), store=store)
    while store is not None:
        store.close()
        store = store.successor


# --- making ---


def test_a_claim_gets_the_first_active_messages_up_to_its_limits(world: World) -> None:
    world.send(*letters(10))
    client = Client(world)
    assert client.numbers(3) == [1, 2, 3]
    assert client.numbers(through=5) == [4, 5]
    size = world.stored()[5].size
    assert client.numbers(max_bytes=2 * size) == [6, 7]
    assert client.numbers(max_bytes=1) == [8], "always one"
    assert client.numbers() == [9, 10]
    assert client.claim() is None
    counters = world.queue().counters
    assert (counters.active, counters.claimed) == (0, 10)
    world.check()


def test_a_claim_has_the_bytes_of_its_messages_and_its_creation_time(world: World) -> None:
    world.send("a", "bc")
    claim = Client(world).claim()
    assert claim is not None
    assert (claim.count, claim.size) == (2, sum(message.size for message in world.stored()))
    assert claim.since == world.clock()


def test_claimed_messages_are_not_delivered(world: World) -> None:
    world.send(*letters(5))
    Client(world).claim(3)
    receiver = Receiver(world, world.queue())
    assert receiver.numbers == [4, 5]
    world.advance(HOUR)
    assert 1 not in receiver.numbers


def test_locked_messages_are_not_claimed_but_can_be_claimed_later(world: World) -> None:
    world.send(*letters(4))
    receiver = Receiver(world, world.queue(), credit=2)
    client = Client(world)
    assert client.numbers() == [3, 4]
    world.queue().settlements.release(receiver.locks[0])
    world.advance(2 * MINUTE)
    assert client.numbers() == [1, 2]


def test_scheduled_deferred_and_expired_messages_are_not_claimed(world: World) -> None:
    world.send("deferred")
    receiver = Receiver(world, world.queue(), credit=1)
    world.settle(world.queue().settlements.defer, receiver.locks[0])
    receiver.leave()
    world.send_together(incoming("later", at=world.clock() + HOUR), incoming("short", ttl=SECOND), incoming("now"))
    world.clock.advance(2 * SECOND)
    assert [message.sequence_number for message in world.stored() if message.state == ACTIVE][-1:] == Client(
        world
    ).numbers()


def test_a_claimed_message_does_not_expire_until_it_is_released(world: World) -> None:
    world.send_together(incoming("short", ttl=SECOND))
    client = Client(world)
    claim = client.claim()
    assert claim is not None
    world.advance(HOUR)
    assert [message.state for message in world.stored()] == [CLAIMED]
    assert client.release(claim) == 1
    world.advance(MINUTE)
    assert world.stored() == []


def test_messages_that_arrive_during_a_claim_are_available_to_the_next(world: World) -> None:
    world.send("a")
    client = Client(world)
    client.ask()
    world.send("b")
    client.ask()
    world.run()
    assert [numbers_of(claim) for claim in client.answers if isinstance(claim, Claim)] in ([[1], [2]], [[1, 2]])
    world.check()


def test_a_claim_ends_at_so_many_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_CLAIM_RANGES == 8192
    monkeypatch.setattr("peeklock.broker.claim_search.MAX_CLAIM_RANGES", 3)
    world = World()
    world.send(*letters(12))
    receiver = Receiver(world, world.queue())
    for lock in receiver.locks[1::2]:
        world.settle(world.queue().settlements.complete, lock)
    receiver.leave()
    for lock in receiver.locks[::2]:
        world.queue().settlements.release(lock)
    client = Client(world)
    assert [client.numbers(), client.numbers()] == [[1, 3, 5], [7, 9, 11]]


@pytest.mark.parametrize("path", ["t/Subscriptions/a", "q/$DeadLetterQueue"])
def test_subscriptions_and_sub_queues_have_claims_too(path: str) -> None:
    world = World(topic("t", subscription("a")), QueueDefinition(name="q"))
    world.send("a", to="t")
    world.send("a")
    world.settle(world.queue().settlements.dead_letter, Receiver(world, world.queue()).locks[0])
    client = Client(world, path)
    claim = client.claim()
    assert claim is not None
    assert claim.count == 1
    assert client.remove(claim) == 1
    world.check()


def test_where_priorities_order_the_highest_are_claimed_first() -> None:
    world = World(QueueDefinition(name="q", order_by_priority=True))
    world.send_together(*(incoming(f"{n}", header=Header(priority=n % 3)) for n in range(9)))
    client = Client(world)
    assert client.numbers(3) == [3, 6, 9]
    assert client.numbers(4) == [1, 2, 5, 8]


# --- repeated requests ---


def test_a_repeated_request_has_the_same_answer(world: World) -> None:
    world.send(*letters(5))
    client = Client(world)
    assert client.numbers(2, id=7) == client.numbers(2, id=7) == [1, 2]
    assert client.numbers(2, id=8) == [3, 4]


def test_a_request_that_is_repeated_before_its_answer_is_answered_for_both(world: World) -> None:
    world.send(*letters(5))
    client = Client(world)
    client.ask(2, id=7)
    client.ask(2, id=7)
    world.run()
    assert [numbers_of(claim) for claim in client.answers if isinstance(claim, Claim)] == [[1, 2], [1, 2]]
    assert world.queue().counters.claimed == 2


def test_the_id_of_a_claim_with_another_name_is_refused(world: World) -> None:
    world.send("a")
    client = Client(world)
    claim = client.claim()
    assert claim is not None
    request = Request(
        claim.id,
        "other",
        count=1,
        max_bytes=1,
        through=1,
        sessions=1,
        wait_ms=0,
        linger_ms=0,
        done=client.answers.append,
    )
    with pytest.raises(InvalidProperty):
        client.claims.claim(request, OWNER, client)


# --- waiting ---


def test_a_request_may_wait_for_a_first_message(world: World) -> None:
    client = Client(world)
    client.ask(wait_ms=10 * SECOND)
    world.advance(5 * SECOND)
    assert client.answers == []
    world.send("a")
    (claim,) = client.answers
    assert isinstance(claim, Claim)
    assert numbers_of(claim) == [1]


def test_a_waiting_claim_request_is_answered_at_its_time_out(world: World) -> None:
    client = Client(world)
    client.ask(wait_ms=10 * SECOND)
    world.advance(10 * SECOND)
    assert client.answers == [None]


def test_a_request_waits_also_while_all_messages_are_locked(world: World) -> None:
    world.send("a")
    receiver = Receiver(world, world.queue(), credit=1)
    receiver.leave()
    client = Client(world)
    client.ask(wait_ms=10 * SECOND)
    world.run()
    assert client.answers == []
    world.queue().settlements.release(receiver.locks[0])
    world.run()
    assert [type(answer) for answer in client.answers] == [Claim]


def test_a_request_may_linger_for_more(world: World) -> None:
    world.send("a")
    client = Client(world)
    client.ask(3, linger_ms=SECOND)
    world.advance(500)
    world.send("b")
    assert client.answers == []
    world.advance(500)
    (claim,) = client.answers
    assert isinstance(claim, Claim)
    assert numbers_of(claim) == [1, 2]


def test_a_request_that_lingers_is_answered_when_it_has_all(world: World) -> None:
    world.send("a")
    client = Client(world)
    client.ask(2, linger_ms=HOUR)
    world.send("b")
    (claim,) = client.answers
    assert isinstance(claim, Claim)
    assert numbers_of(claim) == [1, 2]


def test_waiting_requests_are_served_in_order(world: World) -> None:
    first, second = Client(world, name="first"), Client(world, name="second")
    first.ask(1, wait_ms=MINUTE)
    second.ask(1, wait_ms=MINUTE)
    world.send("a", "b")
    assert [numbers_of(each.answers[0]) for each in (first, second) if isinstance(each.answers[0], Claim)] == [[1], [2]]


def test_a_client_that_detached_no_longer_waits_for_a_claim(world: World) -> None:
    client = Client(world)
    client.ask(wait_ms=MINUTE)
    client.leave()
    assert client.answers == [None]
    world.send("a")
    assert world.queue().counters.active == 1


# --- owners ---


def test_a_name_has_one_owner_as_long_as_it_is_connected(world: World) -> None:
    world.send("a", "b")
    first, second = Client(world), Client(world, owner=b"2" * 16)
    assert first.numbers(1) == [1]
    with pytest.raises(ClaimNameInUse, match="'mine'"):
        second.ask(1, id=100)
    first.leave()
    assert not first.claims.is_owned("mine")
    assert second.numbers(1, id=100) == [2]
    assert second.claims.is_owned("mine")


def test_an_owner_continues_from_another_connection(world: World) -> None:
    world.send("a", "b")
    before, after = Client(world), Client(world)
    assert before.numbers(1) == [1]
    assert after.numbers(1, id=100) == [2]
    before.leave()  # the broker hears late of the connection that was lost
    assert after.claims.is_owned("mine")


def test_other_names_are_free(world: World) -> None:
    world.send("a", "b")
    assert Client(world, name="one").numbers(1) == [1]
    assert Client(world, name="two", owner=b"2" * 16).numbers(1) == [2]


def test_an_entity_has_so_many_claims_at_most() -> None:
    world = World()
    world.send(*letters(MAX_CLAIMS + 1))
    client = Client(world)
    for _ in range(MAX_CLAIMS):
        client.claim(1)
    with pytest.raises(QuotaExceeded, match="1000 claims"):
        client.ask(1)


# --- ending ---


def test_removed_messages_of_a_claim_are_deleted(world: World) -> None:
    world.send(*letters(5))
    client = Client(world)
    claim = client.claim(3)
    assert claim is not None
    assert client.remove(claim) == 3
    assert [message.sequence_number for message in world.stored()] == [4, 5]
    assert client.remove(claim) is None, "there is no such claim any more"
    assert client.claims.of(None) == []
    world.check()


def test_released_messages_are_delivered_in_their_old_place(world: World) -> None:
    world.send(*letters(5))
    client = Client(world)
    claim = client.claim(3)
    assert claim is not None
    assert client.release(claim) == 3
    assert Receiver(world, world.queue()).numbers == [1, 2, 3, 4, 5]
    world.check()


def test_receivers_that_wait_get_released_messages(world: World) -> None:
    world.send(*letters(3))
    client = Client(world)
    claim = client.claim()
    assert claim is not None
    receiver = Receiver(world, world.queue())
    assert receiver.numbers == []
    client.release(claim, 2)
    assert receiver.numbers == [2]


def test_a_claim_can_be_removed_and_released_in_parts(world: World) -> None:
    world.send(*letters(6))
    client = Client(world)
    claim = client.claim()
    assert claim is not None
    assert client.remove(claim, 2, 5) == 2
    assert client.release(claim, 1, 2) == 1, "2 is gone"
    (left,) = client.claims.of("mine")
    assert numbers_of(left) == [3, 4, 6]
    assert left.size == sum(message.size for message in world.stored() if message.state == CLAIMED)
    assert client.remove(left, 100) == 0
    assert client.remove(left) == 3
    assert [message.sequence_number for message in world.stored()] == [1]
    world.check()


def test_another_name_does_not_end_a_claim(world: World) -> None:
    world.send("a")
    client = Client(world)
    claim = client.claim()
    assert claim is not None
    stranger = Claim(claim.id, "other", 0, {})
    assert client.remove(stranger) is None
    assert client.release(stranger) is None
    assert world.queue().counters.claimed == 1


def test_two_ends_of_one_claim_follow_each_other() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send(*letters(4))
    client = Client(world)
    claim = client.claim()
    assert claim is not None
    store.held = []
    answers: list[Any] = []
    client.claims.remove("mine", claim.id, [(1, 2)], answers.append)
    client.claims.release("mine", claim.id, None, answers.append)
    world.run()
    assert answers == []
    store.release_commits()
    world.run()
    assert answers == [2, 2]
    assert [(message.sequence_number, message.state) for message in world.stored()] == [(3, ACTIVE), (4, ACTIVE)]
    world.check()


# --- when the store fails ---


def test_a_claim_that_could_not_be_stored_claims_nothing() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send(*letters(3))
    store.fails = lambda changes: StoreError("broken")
    client = Client(world)
    client.ask()
    world.run()
    assert isinstance(client.answers[0], BrokerError)
    store.fails = lambda changes: None
    assert client.claims.of(None) == []
    assert Receiver(world, world.queue()).numbers == [1, 2, 3]
    world.check()


def test_a_failed_end_of_a_claim_does_not_change_it() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send(*letters(3))
    client = Client(world)
    claim = client.claim()
    assert claim is not None
    store.fails = lambda changes: StoreError("broken")
    assert isinstance(client.remove(claim), BrokerError)
    assert isinstance(client.release(claim, 2), BrokerError)
    store.fails = lambda changes: None
    world.check()
    assert client.remove(claim) == 3


def test_a_failed_read_of_the_store_fails_only_its_request() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send(*letters(3))
    store.fails_to_read = True
    client = Client(world)
    client.ask()
    world.run()
    assert isinstance(client.answers[0], BrokerError)
    store.fails_to_read = False
    assert Receiver(world, world.queue(), credit=1).numbers == [1]
    assert client.numbers() == [2, 3]


def test_a_message_that_is_found_damaged_under_a_claim_stays_damaged_and_is_not_counted_twice(tmp_path: Path) -> None:
    with closing(AwaitedStore(tmp_path)) as store:
        world = World(store=store)
        world.send("first", "the second one", "third")
        client = Client(world)
        claim = client.claim()
        assert claim is not None
        flip(tmp_path, b"the second one")
        queue = world.queue()
        queue.peek(1, 10, None, lambda answer: None)
        world.run()
        assert queue.counters.damaged == 1
        assert client.release(claim) == 2
        assert (queue.counters.active, queue.counters.claimed, queue.counters.damaged) == (2, 0, 1)
        assert Receiver(world, queue).numbers == [1, 3]


def flip(folder: Path, text: bytes) -> None:
    """Flip one bit of a message in the store's files."""
    places = [(path, path.read_bytes().find(text)) for path in folder.rglob("*") if path.is_file()]
    ((path, at),) = [(path, at) for path, at in places if at >= 0]
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes((text[0] ^ 1,)))


# --- restarts ---


def test_claims_are_restored_after_a_restart(world: World) -> None:
    world.send(*letters(5))
    claim = Client(world).claim(3)
    assert claim is not None
    after = world.restarted()
    client = Client(after)
    (found,) = client.claims.of("mine")
    assert (found.id, found.since, found.parts) == (claim.id, claim.since, claim.parts)
    assert not client.claims.is_owned("mine")
    assert after.queue().counters.claimed == 3
    assert Receiver(after, after.queue()).numbers == [4, 5]
    assert client.remove(found) == 3
    after.check()


def test_claims_go_with_their_entity(world: World) -> None:
    world.send("a")
    client = Client(world)
    client.claim()
    entity = world.queue().id
    client.ask(wait_ms=MINUTE)
    assert world.administer(world.administration.delete_queue, "q") is None
    assert isinstance(client.answers[-1], EntityNotFound)
    after = world.restarted()
    assert after.store.claims() == []
    if isinstance(after.store, AwaitedStore):
        eventually(lambda: not stored_claims(after.store, entity))  # it purges when there is nothing else to do


# --- sessions ---


def session_world() -> World:
    world = World(session_queue("s"))
    for session in ("x", "y", "x", "z", "y"):
        world.send(f"{session}", to="s", session_id=session)
    return world


def test_sessions_are_claimed_whole_and_in_order() -> None:
    client = Client(session_world(), "s")
    claim = client.claim(sessions=2)
    assert claim is not None
    assert {id: [(run.first, run.last) for run in runs] for id, runs in claim.parts.items()} == {
        "x": [(1, 1), (3, 3)],
        "y": [(2, 2), (5, 5)],
    }
    assert client.numbers() == [4]


def test_a_session_that_does_not_fit_is_left_for_the_next_claim() -> None:
    client = Client(session_world(), "s")
    assert client.numbers(3) == [1, 3]
    assert client.numbers(1) == [2], "one that is too large for any claim comes in pieces"
    assert client.numbers(1) == [5]


def test_a_session_with_claimed_messages_is_reserved_for_their_claim_name() -> None:
    world = session_world()
    client = Client(world, "s")
    claim = client.claim(sessions=1)
    assert claim is not None
    world.send("more", to="s", session_id="x")
    with pytest.raises(SessionCannotBeLocked):
        SessionReceiver(world, "x")
    other = Client(world, "s", name="other")
    assert other.numbers() == [2, 5, 4]
    assert client.numbers() == [6], "what follows in the session is the same name's"


def test_a_session_is_free_when_nothing_of_it_is_claimed_any_more() -> None:
    world = session_world()
    client = Client(world, "s")
    claim = client.claim(sessions=1)
    assert claim is not None
    assert client.remove(claim, 1) == 1
    world.send("more", to="s", session_id="x")
    assert client.release(claim) == 1
    holder = SessionReceiver(world, "x")
    assert holder.numbers == [3, 6]
    world.check()


def test_sessions_that_are_held_are_not_claimed() -> None:
    world = session_world()
    holder = SessionReceiver(world, "x")
    client = Client(world, "s")
    assert client.numbers() == [2, 5, 4]
    client.ask(wait_ms=MINUTE)
    holder.close()
    claim = client.answers[-1]
    assert isinstance(claim, Claim)
    assert numbers_of(claim) == [1, 3]


def test_claims_of_sessions_are_restored_after_a_restart() -> None:
    world = session_world()
    Client(world, "s").claim(sessions=2)
    after = world.restarted()
    assert SessionReceiver(after).id == "z"
    with pytest.raises(SessionCannotBeLocked):
        SessionReceiver(after, "x")
    client = Client(after, "s")
    for claim in client.claims.of(None):
        client.release(claim)
    assert SessionReceiver(after, "x").numbers == [1, 3]
    after.check()


# --- ranges ---


@pytest.mark.parametrize("numbers", [[1], [2, 1], [0, 1], [1, 3, 3, 4], [5, 6, 1, 2], [1, MAX_NUMBER + 1], [-1, 2]])
def test_ranges_that_do_not_ascend_are_refused(numbers: list[int]) -> None:
    with pytest.raises(InvalidProperty, match="'ranges'"):
        spans_of(numbers)


def test_ranges_are_pairs() -> None:
    assert spans_of([1, 1, 2, 5, 9, MAX_NUMBER]) == [(1, 1), (2, 5), (9, MAX_NUMBER)]
