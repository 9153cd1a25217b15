"""The window of active messages: each message is taken once and in order, even if the store answers late."""

from __future__ import annotations

import random
from typing import Any

import pytest

from peeklock.broker.backlog import WINDOW_MESSAGES, Backlog, PageRead, ReadPage
from peeklock.broker.paging import FIRST_PAGE_MESSAGES, LEAST_PAGE_BYTES, LOW_MESSAGES, PAGE_BYTES, PAGE_MESSAGES
from peeklock.broker.window_budget import OBJECT_BYTES, Budget
from peeklock.store.base import Body, MessagesRead, Range, StoredMessage, StoreError


class LateStore:
    """A store of one entity that answers reads on request, with its current messages or with earlier ones."""

    def __init__(self) -> None:
        self.messages: dict[int, StoredMessage] = {}
        self.reads: list[tuple[Range, MessagesRead]] = []

    def read(self, wanted: Range, done: MessagesRead) -> None:
        self.reads.append((wanted, done))

    def page(self, wanted: Range) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        size = 0
        for number in sorted(self.messages):
            if wanted.after < number <= wanted.through and len(found) < wanted.limit and size < wanted.max_bytes:
                found.append(self.messages[number])
                size += len(self.messages[number].payload)
        return found

    def answer(self) -> None:
        wanted, done = self.reads.pop(0)
        done(self.page(wanted))

    def fail(self) -> None:
        self.reads.pop(0)[1](StoreError("the disk is on fire"))


class Bench:
    """A backlog with a store, and the calls that it has made."""

    def __init__(self, *, stored: int = 0, budget: int = 64 * 1024 * 1024, size: int = 10) -> None:
        self.store = LateStore()
        self.budget = Budget(budget)
        self.loaded = 0
        self.failed = 0
        self.size = size
        for number in range(1, stored + 1):
            self.store.messages[number] = self.message(number)
        self.lent: dict[int, StoredMessage] = {}
        """Numbers that are taken and not returned."""
        self.changed: set[int] = set()
        """Numbers that change while a page is read."""
        self.backlog = Backlog(
            1,
            self.store,  # type: ignore[arg-type]
            self.budget,
            self._on_loaded,
            self._on_failed,
            is_taken=lambda number: number in self.lent,
            watch=self._watch,
        )
        self.backlog.resume(stored, stored > 0)
        self.tail = stored

    def message(self, number: int) -> StoredMessage:
        return StoredMessage(number, bytes(self.size), 0)

    def arrive(self, count: int = 1) -> None:
        """Add new messages to the store and then to the backlog."""
        for _ in range(count):
            self.tail += 1
            message = self.store.messages[self.tail] = self.message(self.tail)
            self.backlog.add(message)

    def take(self) -> int | None:
        """Take the next message, and remove it from the store."""
        message = self.backlog.take()
        if message is None:
            return None
        return message.sequence_number

    def drain(self) -> list[int]:
        """Take all messages, with a store that answers at once."""
        found: list[int] = []
        while True:
            number = self.take()
            if number is not None:
                found.append(number)
            elif self.store.reads:
                self.store.answer()
            else:
                return found

    def come(self, number: int) -> None:
        """Add a message with that number to the store and then to the backlog."""
        message = self.store.messages[number] = self.message(number)
        self.tail = max(self.tail, number)
        self.backlog.add(message)

    def _watch(self, read: ReadPage, found: PageRead) -> None:
        changed = self.changed = set()
        read(lambda page: found(page, changed))

    def _on_loaded(self) -> None:
        self.loaded += 1

    def _on_failed(self) -> None:
        self.failed += 1


def test_new_messages_are_delivered_in_order_without_reading_the_store() -> None:
    bench = Bench()
    bench.arrive(3)
    assert [bench.take() for _ in range(4)] == [1, 2, 3, None]
    assert bench.store.reads == []


def test_stored_messages_are_read_at_the_start_in_growing_pages() -> None:
    bench = Bench(stored=3 * PAGE_MESSAGES + 10)
    assert bench.take() is None
    assert bench.backlog.loading
    limits, found = [], []
    while bench.store.reads:
        ((wanted, _),) = bench.store.reads
        assert wanted.after == sum(limits)
        assert wanted.max_bytes == PAGE_BYTES
        limits.append(wanted.limit)
        bench.store.answer()
        while not bench.store.reads and (number := bench.take()) is not None:
            found.append(number)
    assert limits[:4] == [FIRST_PAGE_MESSAGES, 4 * FIRST_PAGE_MESSAGES, PAGE_MESSAGES, PAGE_MESSAGES]
    assert bench.loaded == len(limits)
    assert found + bench.drain() == list(range(1, 3 * PAGE_MESSAGES + 11))


def test_an_entity_with_nothing_active_is_not_read() -> None:
    store = LateStore()
    backlog = Backlog(1, store, Budget(), lambda: None)  # type: ignore[arg-type]
    backlog.resume(1000, False)
    assert backlog.take() is None
    assert store.reads == []


def test_the_next_page_is_requested_before_the_window_is_empty() -> None:
    bench = Bench(stored=10 * PAGE_MESSAGES)
    bench.take()
    bench.store.answer()
    half = FIRST_PAGE_MESSAGES // 2
    assert [bench.take() for _ in range(half)] == list(range(1, half + 1))
    assert bench.store.reads == []
    assert bench.take() == half + 1
    assert len(bench.store.reads) == 1
    assert bench.store.reads[0][0].after == FIRST_PAGE_MESSAGES
    assert bench.take() == half + 2
    assert len(bench.store.reads) == 1


def test_only_one_page_is_requested_at_a_time() -> None:
    bench = Bench(stored=10 * PAGE_MESSAGES)
    for _ in range(5):
        assert bench.take() is None
    assert len(bench.store.reads) == 1


def test_messages_that_arrive_during_a_page_read_are_delivered_once_and_in_order() -> None:
    bench = Bench(stored=100)
    assert bench.take() is None
    (wanted, done) = bench.store.reads.pop()
    before = bench.store.page(wanted)
    bench.arrive(50)
    done(before)
    assert bench.drain() == list(range(1, 151))


def test_a_returned_message_precedes_messages_with_higher_numbers() -> None:
    bench = Bench()
    bench.arrive(5)
    first, second = bench.backlog.take(), bench.backlog.take()
    assert first is not None
    assert second is not None
    bench.backlog.add(second)
    bench.backlog.add(first)
    assert bench.drain() == [1, 2, 3, 4, 5]


def test_a_returned_message_beyond_the_window_is_read_from_the_store() -> None:
    bench = Bench(stored=3 * PAGE_MESSAGES)
    number = 2 * PAGE_MESSAGES + 5
    bench.backlog.add(bench.store.messages[number])
    assert bench.drain() == list(range(1, 3 * PAGE_MESSAGES + 1))


@pytest.mark.parametrize("read_saw_it", [True, False])
def test_a_message_returned_while_its_page_is_read_is_delivered_once(read_saw_it: bool) -> None:
    bench = Bench(stored=10)
    assert bench.take() is None
    wanted, done = bench.store.reads.pop()
    page = bench.store.page(wanted)
    if not read_saw_it:
        page = [message for message in page if message.sequence_number != 5]
    bench.backlog.add(bench.store.messages[5])
    done(page)
    assert bench.drain() == list(range(1, 11))


def test_a_late_message_with_a_low_number_is_delivered_in_its_place() -> None:
    bench = Bench()
    bench.arrive(3)
    bench.tail = 5
    bench.arrive(1)
    late = bench.message(4)
    bench.backlog.add(late)
    assert bench.drain() == [1, 2, 3, 4, 6]


# --- memory ---


def test_the_window_holds_only_so_many_and_the_rest_is_read_later() -> None:
    bench = Bench()
    bench.arrive(WINDOW_MESSAGES + 500)
    assert bench.budget.used == WINDOW_MESSAGES * (bench.size + OBJECT_BYTES)
    assert bench.drain() == list(range(1, WINDOW_MESSAGES + 501))
    assert bench.budget.used == 0


def test_a_budget_that_is_used_up_keeps_messages_in_the_store() -> None:
    bench = Bench(budget=10_000, size=1000)
    bench.arrive(100)
    assert bench.budget.used <= 10_000 + 1000 + OBJECT_BYTES
    assert bench.drain() == list(range(1, 101))


def test_a_queue_can_be_received_from_though_others_have_used_up_the_budget() -> None:
    bench = Bench(stored=50)
    bench.budget.used = 2 * bench.budget.limit
    assert bench.drain() == list(range(1, 51))


def test_messages_returned_in_reverse_order_stay_within_the_budget() -> None:
    bench = Bench(budget=10_000, size=700)
    for number in range(60, 0, -1):
        bench.come(number)
        assert bench.budget.used <= 10_000
    assert bench.drain() == list(range(1, 61))
    assert bench.budget.used == 0


def test_returned_messages_stay_within_the_budget() -> None:
    bench = Bench(budget=10_000, size=700)
    bench.arrive(60)
    taken: list[StoredMessage] = []
    while len(taken) < 60:
        message = bench.backlog.take()
        if message is None:
            bench.store.answer()
        else:
            bench.lent[message.sequence_number] = message
            taken.append(message)
    for message in reversed(taken):
        del bench.lent[message.sequence_number]
        bench.backlog.add(message)
        assert bench.budget.used <= 10_000
    assert bench.drain() == list(range(1, 61))


def test_messages_delivered_from_beyond_a_shortened_window_are_not_read_again() -> None:
    bench = Bench(budget=10_000, size=700)
    bench.arrive(5)
    taken = [bench.backlog.take() for _ in range(5)]
    for message in taken:
        assert message is not None
        bench.lent[message.sequence_number] = message
    for number in range(20, 5, -1):
        bench.come(number)
    bench.budget.used += 10_000  # others have it all
    bench.backlog.add(bench.lent.pop(1))
    bench.backlog.add(bench.lent.pop(3))
    bench.budget.used -= 10_000
    assert bench.take() is None
    # 4 is completed while the page is on its way, 5 given back: the page still shows both.
    wanted, done = bench.store.reads.pop()
    page = bench.store.page(wanted)
    bench.changed |= {4, 5}
    del bench.store.messages[4], bench.lent[4]
    bench.backlog.add(bench.lent.pop(5))
    done(page)
    assert bench.drain() == [1, 3, *range(5, 21)]


def test_a_page_for_a_window_that_became_shorter_meanwhile_is_read_again() -> None:
    bench = Bench(budget=10_000, size=700)
    bench.arrive(30)
    for number in range(1, 11):
        assert bench.take() == number
        del bench.store.messages[number]
    assert bench.take() is None
    assert len(bench.store.reads) == 1
    bench.budget.used += 10_000
    bench.come(3)
    bench.budget.used -= 10_000
    assert bench.drain() == [3, *range(11, 31)]


def test_pages_are_short_when_the_budget_is_used_up() -> None:
    bench = Bench(stored=100, budget=1, size=1000)
    bench.take()
    assert bench.store.reads[0][0].max_bytes == LEAST_PAGE_BYTES
    assert bench.drain() == list(range(1, 101))


def test_memory_of_messages_that_left_from_the_head_is_given_back_though_nobody_takes() -> None:
    bench = Bench()
    bench.arrive(10)
    for number in (2, 3, 1):
        bench.backlog.drop(bench.message(number))
    assert bench.budget.used == 7 * (10 + OBJECT_BYTES)
    bench.backlog.add(bench.message(2))  # it could not leave
    assert bench.take() == 2


def test_the_next_message_is_known_without_reading() -> None:
    bench = Bench()
    bench.arrive(10)
    taken = [bench.backlog.take() for _ in range(6)]
    assert bench.backlog.next_after(0) == bench.backlog.next_after(6) == 7
    returned = taken[3]
    assert returned is not None
    bench.backlog.add(returned)
    assert [bench.backlog.next_after(number) for number in (0, 3, 4, 7, 10, 12)] == [4, 4, 7, 8, 11, 13]


def test_large_messages_are_read_in_pages_of_bytes() -> None:
    bench = Bench(stored=40, size=1024 * 1024)
    bench.take()
    bench.store.answer()
    assert bench.budget.used == PAGE_BYTES // bench.size * (bench.size + OBJECT_BYTES)
    assert bench.drain() == list(range(1, 41))


def test_memory_does_not_depend_on_the_length_of_the_queue() -> None:
    bench = Bench(stored=20 * PAGE_MESSAGES, size=1000)
    most = 0
    taken = 0
    while taken < 20 * PAGE_MESSAGES:
        if bench.take() is not None:
            taken += 1
        while bench.store.reads:
            bench.store.answer()
        most = max(most, bench.budget.used)
    assert most <= (LOW_MESSAGES + 2 * PAGE_MESSAGES) * (1000 + OBJECT_BYTES)


def test_memory_of_a_forgotten_entity_is_released() -> None:
    bench = Bench()
    bench.arrive(100)
    first = bench.backlog.take()
    assert first is not None
    bench.backlog.add(first)
    bench.backlog.forget()
    assert bench.budget.used == 0
    assert bench.backlog.take() is None
    assert bench.store.reads == []


def test_messages_returned_to_a_forgotten_entity_are_ignored() -> None:
    bench = Bench()
    bench.arrive(2)
    taken = bench.backlog.take()
    assert taken is not None
    bench.backlog.forget()
    bench.backlog.add(taken)
    bench.arrive(1)
    assert bench.budget.used == 0
    assert bench.backlog.take() is None


def test_a_page_read_for_a_forgotten_entity_is_discarded() -> None:
    bench = Bench(stored=3)
    bench.backlog.resume(3, any_stored=True)
    assert bench.backlog.take() is None
    bench.backlog.forget()
    bench.store.answer()
    assert (bench.budget.used, bench.loaded) == (0, 0)


def test_a_body_that_messages_share_is_charged_in_shares() -> None:
    bench = Bench()
    body = Body(1, bytes(1000), cost=10)
    bench.backlog.add(StoredMessage(1, b"front", 0, body=body))
    assert bench.budget.used == len(b"front") + OBJECT_BYTES + 10
    assert bench.backlog.take() is not None
    assert bench.budget.used == 0


# --- messages that leave while they wait ---


def test_a_message_that_left_is_skipped() -> None:
    bench = Bench()
    bench.arrive(5)
    for number in (1, 3, 5):
        del bench.store.messages[number]
        bench.backlog.drop(bench.message(number))
    assert bench.drain() == [2, 4]
    assert bench.budget.used == 0


def test_no_page_is_requested_while_messages_beyond_the_window_are_being_removed() -> None:
    bench = Bench(stored=100)
    bench.backlog.hold(True)
    assert bench.take() is None
    assert bench.store.reads == []
    for number in range(1, 51):
        del bench.store.messages[number]
        bench.backlog.drop(bench.message(number))
    bench.backlog.hold(False)
    assert bench.drain() == list(range(51, 101))


# --- a store that fails ---


def test_a_failed_page_read_is_reported_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(stored=10)
    assert bench.take() is None
    bench.store.fail()
    assert (bench.failed, bench.loaded) == (1, 0)
    assert not bench.backlog.loading
    assert "the disk is on fire" in caplog.text
    assert bench.drain() == list(range(1, 11))


def test_messages_that_arrived_during_a_read_that_failed_are_not_lost() -> None:
    bench = Bench(stored=10)
    assert bench.take() is None
    bench.arrive(5)
    bench.backlog.add(bench.store.messages[7])
    bench.store.fail()
    assert bench.drain() == list(range(1, 16))


# --- all of it at once ---


@pytest.mark.parametrize("budget", [64 * 1024 * 1024, 8 * (10 + OBJECT_BYTES)])
@pytest.mark.parametrize("seed", range(20))
def test_every_message_is_delivered_once_after_random_operations(
    seed: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"paging.PAGE_MESSAGES": 8, "paging.LOW_MESSAGES": 12, "backlog.WINDOW_MESSAGES": 20}.items():
        monkeypatch.setattr(f"peeklock.broker.{name}", value)
    chance = random.Random(seed)
    monkeypatch.setattr("peeklock.broker.paging.LEAST_PAGE_BYTES", 30)
    bench = Bench(stored=chance.randrange(60), budget=budget)
    lent: list[StoredMessage] = []
    done: list[int] = []
    in_flight: list[tuple[Any, list[StoredMessage]]] = []
    for _ in range(600):
        what = chance.random()
        if what < 0.25:
            bench.arrive(chance.randrange(1, 5))
        elif what < 0.6:
            message = bench.backlog.take()
            if message is not None:
                assert all(message.sequence_number != other.sequence_number for other in lent), "lent twice"
                lent.append(message)
                bench.lent[message.sequence_number] = message
        elif what < 0.7 and lent:
            message = lent.pop(chance.randrange(len(lent)))
            del bench.lent[message.sequence_number]
            bench.changed.add(message.sequence_number)
            bench.backlog.add(message)
            assert bench.budget.used <= budget + 8 * (10 + OBJECT_BYTES)  # a page, at most
        elif what < 0.85 and lent:
            message = lent.pop(chance.randrange(len(lent)))
            del bench.store.messages[message.sequence_number], bench.lent[message.sequence_number]
            bench.changed.add(message.sequence_number)
            done.append(message.sequence_number)
        elif bench.store.reads:
            # The read looks at the store at some moment and answers at a later one. A locked message is active
            # in the store, so a page may hold it only where the window has not been: that is the window's promise.
            wanted, answer = bench.store.reads.pop()
            if chance.random() < 0.1:
                answer(StoreError("not this time"))
            else:
                in_flight.append((answer, bench.store.page(wanted)))
        if in_flight and chance.random() < 0.5:
            answer, page = in_flight.pop()
            answer(page)
    while in_flight:
        answer, page = in_flight.pop()
        answer(page)
    bench.lent.clear()
    for message in lent:
        bench.backlog.add(message)
    rest = bench.drain()
    assert rest == sorted(rest)
    assert sorted(done + rest) == list(range(1, bench.tail + 1))
    assert bench.budget.used == 0
