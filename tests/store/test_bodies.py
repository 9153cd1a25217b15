"""The contract of `store.base` for shared bodies, tested with every store."""

from __future__ import annotations

import random
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_harness import Driver, as_dict, body, entity, message

from peeklock.store.base import ACTIVE, DEFERRED, SCHEDULED, Body, Changes, Counters, StoredMessage, StoreError
from peeklock.store.disk.store import DiskStore
from peeklock.store.memory import MemoryStore

if TYPE_CHECKING:
    from postgres_server import Server


@pytest.fixture
def driver(driver: Driver) -> Driver:
    driver.create(1, 2, 3)
    return driver


def contents(driver: Driver, id: int) -> list[bytes]:
    return [each.content for each in driver.read(id, state=None)]


def test_the_content_is_the_payload_followed_by_the_body() -> None:
    plain, shared = message(1, b"front"), message(1, b"front", body=body(7, b"back"))
    assert (plain.content, plain.size) == (b"front", 5)
    assert (shared.content, shared.size) == (b"frontback", 9)


def test_a_body_is_charged_by_its_length_by_default() -> None:
    assert Body(1, b"data").cost == 4
    assert Body(1, b"data", 0).cost == 0


def test_messages_are_read_with_their_body(driver: Driver) -> None:
    rich = StoredMessage(
        2, bytes(range(256)), 10, SCHEDULED, "s\0", b"annex", 20, 3, 40, body(1 << 44 | 2, b"\0,:\xff")
    )
    messages = [message(1), rich, message(3, b"", body=body(3, b"")), message(4, body=body(2**63 - 1))]
    driver.append(1, *messages)
    for _ in range(2):
        assert [as_dict(each) for each in driver.read(1, state=None)] == [as_dict(each) for each in messages]
        driver.reopen()


def test_every_way_of_reading_gives_the_body(driver: Driver) -> None:
    driver.append(
        1,
        message(1, body=body(1), expires_at=5),
        message(2, body=body(2), state=SCHEDULED, due_at=5),
        message(3, body=body(3), state=DEFERRED),
        message(4, body=body(4), session_id="s"),
    )
    expired, _ = driver.ask(partial(driver.store.read_expired, 1, 5, 10, 1000))
    due, _ = driver.ask(partial(driver.store.read_due, 1, 5, 10, 1000))
    numbered = driver.ask(partial(driver.store.read_numbers, 1, [1, 3], 1000))
    assert [each.content for each in expired] == [b"payload 1 and body 1"]
    assert [each.content for each in due] == [b"payload 2 and body 2"]
    assert [each.content for each in numbered] == [b"payload 1 and body 1", b"payload 3 and body 3"]
    for wanted, number in (({"state": DEFERRED}, 3), ({"session_id": "s"}, 4), ({"session_id": "s", "state": None}, 4)):
        assert [each.content for each in driver.read(1, **wanted)] == [b"payload %d and body %d" % (number, number)]


def test_a_body_shared_by_many_messages_is_stored_once(driver: Driver, tmp_path: Path) -> None:
    driver.commit(Changes(entities={id: entity(id) for id in range(10, 510)}))
    data = random.Random(5).randbytes(1_000_000)
    driver.commit(Changes(appends=[(id, message(1, body=body(1, data))) for id in range(10, 510)]))
    driver.append(1, message(1, body=body(1, data)))
    assert driver.bodies == 1
    # The log has it twice, once for each commit, and index and unused ends of segments come on top.
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.name != "reserve") < 5_000_000
    for id in 1, 10, 255, 509:
        assert contents(driver, id) == [b"payload 1" + data]


def test_messages_that_are_read_share_the_body_in_memory_too(driver: Driver) -> None:
    for each in 1, 2:
        driver.append(each, *(message(n, body=body(n % 2)) for n in range(1, 5)))
    driver.reopen()
    found = [*driver.read(1), *driver.read(2)]
    assert len(found) == 8
    assert len({id(copy.body) for copy in found}) == 2


def test_a_body_may_be_shared_with_messages_of_later_commits(driver: Driver) -> None:
    for number in range(1, 4):
        driver.append(number, message(number, body=body(7)))
    assert driver.bodies == 1
    driver.commit(Changes(removals=[(1, message(1, body=body(7)))]))
    assert [contents(driver, id) for id in (1, 2, 3)] == [[], [b"payload 2 and body 7"], [b"payload 3 and body 7"]]


def test_a_body_goes_with_the_last_message_that_has_it(driver: Driver) -> None:
    driver.append(1, message(1, body=body(1)), message(2, body=body(2)), message(3))
    driver.append(2, message(1, body=body(1)))
    driver.append(3, message(1, body=body(1)), message(2, body=body(1)))
    for id, number, left in ((1, 1, 2), (1, 3, 2), (3, 1, 2), (3, 2, 2), (1, 2, 1), (2, 1, 0)):
        driver.commit(Changes(removals=[(id, driver.ask(partial(driver.store.read_numbers, id, [number], 1000))[0])]))
        assert driver.bodies == left
        driver.reopen()


def test_removing_a_removed_message_does_not_free_a_shared_body(driver: Driver) -> None:
    for id in 1, 2, 3:
        driver.append(id, message(1, body=body(1)))
    for _ in range(3):
        driver.commit(Changes(removals=[(1, message(1, body=body(1)))]))
    driver.commit(Changes(dropped_entities=[2]))
    assert driver.bodies == 1
    driver.commit(Changes(removals=[(2, message(1, body=body(1)))]))
    assert contents(driver, 3) == [b"payload 1 and body 1"]


def test_a_moved_message_keeps_its_body(driver: Driver) -> None:
    driver.append(1, message(5, body=body(1)))
    driver.commit(Changes(appends=[(2, message(1, b"moved", body=body(1)))], removals=[(1, message(5, body=body(1)))]))
    assert contents(driver, 1) == []
    assert contents(driver, 2) == [b"moved and body 1"]
    assert driver.bodies == 1
    assert contents(driver, 2) == [b"moved and body 1"]


def test_a_message_appended_and_removed_in_one_commit_leaves_no_body(driver: Driver) -> None:
    driver.commit(Changes(appends=[(1, message(1, body=body(1)))], removals=[(1, message(1, body=body(1)))]))
    assert driver.bodies == 0


def test_updates_and_rewrites_leave_the_body(driver: Driver) -> None:
    driver.append(1, message(1, body=body(1)), message(2, body=body(2)), message(3))
    other = body(9)
    driver.commit(
        Changes(
            updates=[(1, message(1, delivery_count=2, body=other), ACTIVE)],
            rewrites=[
                (1, message(2, b"new", state=DEFERRED, body=body(2)), ACTIVE, 20),
                (1, message(3, b"new"), ACTIVE, 9),
            ],
        )
    )
    assert contents(driver, 1) == [b"payload 1 and body 1", b"new and body 2", b"new"]
    assert driver.bodies == 2


def test_the_size_of_an_entity_counts_the_bodies_of_all_its_messages(driver: Driver) -> None:
    shared = body(1, bytes(1000))
    driver.append(1, message(1, bytes(10), body=shared), message(2, bytes(20), body=shared), message(3, bytes(5)))
    assert driver.reopen()[0].counters == Counters(3, 3, 0, 0, 2035)
    rewritten = message(2, bytes(1), state=DEFERRED, body=shared)
    driver.commit(Changes(rewrites=[(1, rewritten, ACTIVE, 1020)], removals=[(1, message(1, bytes(10), body=shared))]))
    assert driver.reopen()[0].counters == Counters(3, 1, 1, 0, 1006)


def test_the_bodies_count_against_the_limit_of_a_read(driver: Driver) -> None:
    shared = body(100, bytes(90))
    driver.append(1, *(message(n, bytes(10), body=shared) for n in range(1, 10)), message(10, bytes(100)))
    assert driver.numbers(1, max_bytes=200) == [1, 2]
    assert driver.numbers(1, max_bytes=201) == [1, 2, 3]
    assert driver.numbers(1, after=8, max_bytes=1) == [9]
    assert driver.numbers(1, max_bytes=1000) == list(range(1, 11))
    driver.append(2, *(message(n, b"", body=body(n, bytes(400_000))) for n in range(1, 11)))
    assert driver.numbers(2, max_bytes=2_000_000) == [1, 2, 3, 4, 5]
    assert {each.size for each in driver.read(2)} == {400_000}


def test_a_read_continues_over_many_messages_with_and_without_bodies(driver: Driver) -> None:
    def made(number: int) -> StoredMessage:
        return message(number, bytes(number % 50), body=body(number // 2, b"%d" % number * 9) if number % 3 else None)

    messages = [made(number) for number in range(1, 3001)]
    for each in messages:  # two neighbours have one body, that of the first of them
        if each.body is not None and each.sequence_number % 2 and each.sequence_number > 1:
            before = messages[each.sequence_number - 2].body
            each.body = before or each.body
    driver.append(1, *messages)
    found = driver.read(1, limit=5000)
    assert [each.content for each in found] == [each.content for each in messages]
    removed = [each for each in messages if each.sequence_number % 4]
    driver.commit(Changes(removals=[(1, each) for each in removed]))
    left = [each for each in messages if each.sequence_number % 4 == 0]
    assert [each.content for each in driver.read(1, limit=5000)] == [each.content for each in left]
    assert driver.bodies == len({each.body.key for each in left if each.body is not None})


def test_different_copies_in_one_commit_are_distinguished(driver: Driver) -> None:
    fronts = [b"same" * 50, b"same" * 50, b"", b"other", b"same" * 50]
    appends = [
        (id, message(n, front, body=body(n), annex=b"annex" if n == 2 else None, session_id="s" if n == 3 else None))
        for n, front in enumerate(fronts, 1)
        for id in (1, 2, 3)
    ]
    driver.commit(Changes(appends=appends))
    for id in 1, 2, 3:
        wanted = [as_dict(each) for owner, each in appends if owner == id]
        assert [as_dict(each) for each in driver.read(id)] == wanted


def test_a_commit_of_several_statements_has_its_bodies_once(driver: Driver) -> None:
    bodies = [body(n, bytes([n]) * 15_000_000) for n in range(1, 6)]
    appends = [(id, message(n, bytes(2_000_000), body=bodies[n - 1])) for n in range(1, 6) for id in (1, 2, 3)]
    refused = Changes(appends=[*appends, (1, message(1))], seen=[(1, bytes(16), 5)])
    assert driver.try_commit(refused) is not None
    assert driver.bodies == 0
    assert driver.seen(1) == []
    driver.commit(Changes(appends=appends, removals=[each for each in appends if each[1].sequence_number == 2]))
    assert driver.bodies == 4
    for id in 1, 2, 3:
        wanted = [bytes(2_000_000) + bytes([n]) * 15_000_000 for n in (1, 3, 4, 5)]
        assert contents(driver, id) == wanted


def test_a_refused_commit_neither_stores_nor_frees_a_body(driver: Driver) -> None:
    driver.append(1, message(1, body=body(1)))
    refused = Changes(
        appends=[(2, message(1, body=body(2))), (9, message(1))],
        removals=[(1, message(1, body=body(1)))],
    )
    assert driver.try_commit(refused) is not None
    assert driver.bodies == 1
    assert contents(driver, 1) == [b"payload 1 and body 1"]


def test_commits_that_wait_together_share_and_free_bodies(driver: Driver) -> None:
    answers: list[StoreError | None] = []
    for number in range(1, 101):
        shared = body(number)
        changes = Changes(appends=[(id, message(number, body=shared)) for id in (1, 2)])
        if number > 1:
            changes.removals.append((1, message(number - 1, body=body(number - 1))))
        if number > 2:
            changes.removals.append((2, message(number - 2, body=body(number - 2))))
        if number % 10 == 0:  # the last message with a body goes, and the next commit has it again
            changes.removals.append((2, message(number - 1, body=body(number - 1))))
            changes.appends.append((3, message(number, body=body(number - 1))))
        driver.store.commit(changes, answers.append)
    driver.wait(answers, 100)
    assert answers == [None] * 100
    assert contents(driver, 1) == [b"payload 100 and body 100"]
    assert contents(driver, 2) == [b"payload 100 and body 100"]
    assert contents(driver, 3) == [b"payload %d and body %d" % (n, n - 1) for n in range(10, 101, 10)]
    assert driver.bodies == 11


def test_dropping_an_entity_frees_bodies_that_only_it_had(driver: Driver) -> None:
    for id in 1, 2:
        driver.append(id, *(message(n, b"", body=body(n)) for n in range(1, 2501)))
    driver.append(3, *(message(n, b"", body=body(n)) for n in range(2001, 3001)))
    driver.commit(Changes(dropped_entities=[2]))
    assert driver.bodies == 3000
    driver.commit(Changes(dropped_entities=[1]))
    assert driver.bodies == 1000
    assert contents(driver, 3) == [b" and body %d" % n for n in range(2001, 3001)]
    driver.commit(Changes(dropped_entities=[3]))
    assert driver.bodies == 0


Step = tuple[str, int, int, int]
"""What to do, an entity, another one, and a number to choose a message or a body by."""

steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "share", "move", "remove", "rewrite", "drop", "wait", "restart"]),
        st.integers(1, 3),
        st.integers(1, 3),
        st.integers(0, 1000),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(steps)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_after_random_operations_exactly_the_bodies_of_existing_messages_are_stored(
    kind: str, steps: list[Step]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        memory = MemoryStore()
        world = Driver(lambda call: memory if kind == "memory" else DiskStore(Path(folder), call))
        try:
            _Model(world).follow(steps)
        finally:
            world.store.close()


@settings(max_examples=20, deadline=None)
@given(steps)
def test_whatever_is_done_in_postgres_every_message_has_its_body_and_no_other_is_kept(
    postgres_server: Server, steps: list[Step]
) -> None:
    # Here: tests of other stores need none of its packages.
    from postgres_harness import make_store, new_engine

    engine = new_engine(postgres_server)
    world = Driver(lambda call: make_store(engine, call))
    try:
        _Model(world).follow(steps)
    finally:
        world.store.close()


class _Model:
    """Does to a store what the steps say, without waiting between them, and knows what must come of it."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.places = {1: 1, 2: 2, 3: 3}
        """The entities by the number the steps have for them; a dropped one is followed by a new one."""
        self.messages: dict[tuple[int, int], StoredMessage] = {}
        self.numbers = 0
        self.answers: list[StoreError | None] = []
        self.asked = 0
        driver.create(1, 2, 3)

    def follow(self, steps: list[Step]) -> None:
        for what, one, other, choice in steps:
            getattr(self, what)(self.places[one], self.places[other], choice)
        self.wait()
        for id in self.places.values():
            wanted = {number: each.content for (owner, number), each in self.messages.items() if owner == id}
            found = self.driver.read(id)
            assert {each.sequence_number: each.content for each in found} == wanted
            counters = next(each.counters for each in self.driver.reopen() if each.id == id)
            assert counters.size_in_bytes == sum(map(len, wanted.values()))
        assert self.driver.bodies == len({each.body.key for each in self.messages.values() if each.body})

    def append(self, id: int, other: int, choice: int) -> None:
        shared = Body(self.numbers + 1, b"body %d" % self.numbers) if choice % 4 else None
        self.commit(Changes(appends=[self.made(each, shared) for each in sorted({id, other})]))

    def share(self, id: int, other: int, choice: int) -> None:
        if (chosen := self.choose(id, choice)) and chosen.body:
            again = Body(chosen.body.key, chosen.body.data)  # as after a restart of the broker
            self.commit(Changes(appends=[self.made(other, again)]))

    def move(self, id: int, other: int, choice: int) -> None:
        if chosen := self.choose(id, choice):
            del self.messages[id, chosen.sequence_number]
            self.commit(Changes(appends=[self.made(other, chosen.body)], removals=[(id, chosen)]))

    def remove(self, id: int, other: int, choice: int) -> None:
        if chosen := self.choose(id, choice):
            del self.messages[id, chosen.sequence_number]
            self.commit(Changes(removals=[(id, chosen)]))

    def rewrite(self, id: int, other: int, choice: int) -> None:
        if chosen := self.choose(id, choice):
            before = chosen.size
            chosen.payload = b"new front %d" % choice
            self.commit(Changes(rewrites=[(id, chosen, ACTIVE, before)]))

    def drop(self, id: int, other: int, choice: int) -> None:
        new = max(self.places.values()) + 1
        self.places = {place: new if each == id else each for place, each in self.places.items()}
        self.messages = {place: each for place, each in self.messages.items() if place[0] != id}
        self.commit(Changes(entities={new: entity(new)}, dropped_entities=[id]))

    def restart(self, id: int, other: int, choice: int) -> None:
        self.wait()
        self.driver.reopen()

    def wait(self, *_: int) -> None:
        self.driver.wait(self.answers, self.asked)
        assert self.answers == [None] * self.asked

    def made(self, id: int, shared: Body | None) -> tuple[int, StoredMessage]:
        self.numbers += 1
        self.messages[id, self.numbers] = message(self.numbers, body=shared)
        return id, self.messages[id, self.numbers]

    def choose(self, id: int, choice: int) -> StoredMessage | None:
        there = [each for (owner, _), each in self.messages.items() if owner == id]
        return there[choice % len(there)] if there else None

    def commit(self, changes: Changes) -> None:
        self.asked += 1
        self.driver.store.commit(changes, self.answers.append)


def test_the_highest_key_of_a_body_is_known_when_the_store_is_opened(driver: Driver) -> None:
    assert driver.store.highest_body_key() == 0
    driver.append(1, message(1, body=body(7)), message(2, body=body(1 << 62)), message(3))
    driver.reopen()
    assert driver.store.highest_body_key() == 1 << 62
    driver.commit(Changes(removals=[(1, message(2, body=body(1 << 62)))]))
    driver.reopen()
    assert driver.store.highest_body_key() == 7
