"""The contract of `store.base`, tested with every store."""

from __future__ import annotations

import random
from functools import partial

import pytest
from store_harness import MAX_NUMBER, Driver, as_dict, body, entity, message

from peeklock.store.base import ACTIVE, DEFERRED, SCHEDULED, Changes, Counters, Range, StoredMessage, StoreError


def test_a_new_store_has_no_entities(driver: Driver) -> None:
    assert driver.entities == []


def test_a_stored_message_is_read_unchanged(driver: Driver) -> None:
    driver.create(1)
    plain = message(1)
    rich = StoredMessage(
        2, bytes(range(256)), 10, SCHEDULED, 'a "session"\n\x00 \u00fc\U0001f600', b"\x00annex", 20, 3, 40
    )
    driver.append(1, plain, rich)
    assert driver.numbers(1, state=None, session_id=rich.session_id) == [2]
    assert [as_dict(each) for each in driver.read(1, state=None)] == [as_dict(plain), as_dict(rich)]


def test_empty_payloads_annexes_and_session_ids_are_not_absent_ones(driver: Driver) -> None:
    driver.create(1)
    messages = [message(1, b""), message(2, b"", annex=b"", session_id=""), message(3, b"", annex=None)]
    driver.append(1, *messages)
    assert [as_dict(each) for each in driver.read(1)] == [as_dict(each) for each in messages]
    assert driver.numbers(1, session_id="") == [2]


@pytest.mark.parametrize("size", [32 * 1024, 32 * 1024 + 1, 3_000_000])
def test_long_payloads_are_read_unchanged(driver: Driver, size: int) -> None:
    driver.create(1)
    payloads = [random.Random(seed).randbytes(size) for seed in range(3)]
    driver.append(1, *(message(n, payload) for n, payload in enumerate(payloads, 1)), message(4))
    assert [each.payload for each in driver.read(1)] == [*payloads, b"payload 4"]


def test_a_commit_of_several_statements_is_atomic(driver: Driver) -> None:
    driver.create(1)
    payload = bytes(20_000_000)
    appends = [(1, message(n, payload, annex=b"a" if n == 4 else None)) for n in range(1, 6)]
    assert driver.try_commit(Changes(appends=[*appends, (1, message(1))])) is not None
    assert driver.numbers(1) == []
    driver.commit(Changes(appends=appends, removals=[(1, message(2, payload))]))
    assert driver.numbers(1) == [1, 3, 4, 5]


def test_the_caller_may_change_its_objects_once_they_are_handed_over(driver: Driver) -> None:
    handed_over = message(1)
    definition = {"lock": {"seconds": 30}}
    changes = Changes(entities={1: entity(1, definition=definition)}, appends=[(1, handed_over)])
    answers: list[StoreError | None] = []
    driver.store.commit(changes, answers.append)
    handed_over.delivery_count = 7
    handed_over.state = DEFERRED
    definition["lock"]["seconds"] = 60
    changes.appends.clear()
    driver.wait(answers)
    assert answers == [None]
    assert [each.delivery_count for each in driver.read(1, state=ACTIVE)] == [0]


def test_a_returned_message_can_be_changed_by_the_caller(driver: Driver) -> None:
    driver.create(1)
    driver.append(1, message(1))
    driver.read(1)[0].delivery_count = 9
    assert driver.read(1)[0].delivery_count == 0


def test_answers_to_commits_come_in_the_order_of_the_commits(driver: Driver) -> None:
    driver.create(1)
    answers: list[int] = []

    def committed(number: int, error: StoreError | None) -> None:
        answers.append(number)

    for number in range(1, 200):
        driver.store.commit(Changes(appends=[(1, message(number))]), partial(committed, number))
    driver.wait(answers, 199)
    assert answers == list(range(1, 200))
    assert driver.numbers(1) == answers


def test_a_read_from_the_callback_of_a_commit_sees_that_commit(driver: Driver) -> None:
    driver.create(1)
    answers: list[list[StoredMessage] | StoreError] = []
    wanted = Range(entity=1, through=10, limit=10, max_bytes=1000)
    driver.store.commit(Changes(appends=[(1, message(1))]), lambda error: driver.store.read(wanted, answers.append))
    driver.wait(answers)
    assert isinstance(answers[0], list)
    assert [each.sequence_number for each in answers[0]] == [1]


def test_a_commit_that_cannot_be_done_leaves_nothing_behind(driver: Driver) -> None:
    driver.create(1)
    driver.append(1, message(1), message(2))
    error = driver.try_commit(
        Changes(
            entities={2: entity(2)},
            appends=[(1, message(3)), (2, message(1)), (1, message(2))],
            updates=[(1, message(1, delivery_count=5), ACTIVE)],
            removals=[(1, message(2))],
        )
    )
    assert isinstance(error, StoreError)
    assert driver.numbers(1) == [1, 2]
    assert driver.read(1)[0].delivery_count == 0
    assert driver.numbers(2) == []
    driver.append(1, message(3))
    assert driver.numbers(1) == [1, 2, 3]


def test_only_the_commit_at_fault_fails_among_many_that_wait_together(driver: Driver) -> None:
    driver.create(1)
    answers: list[StoreError | None] = []
    for number in [*range(1, 50), 7, *range(50, 100)]:
        driver.store.commit(Changes(appends=[(1, message(number))]), answers.append)
    driver.wait(answers, 100)
    assert [at for at, error in enumerate(answers) if error] == [49]
    assert driver.numbers(1) == list(range(1, 100))


def test_a_number_that_was_appended_twice_in_one_commit_is_refused(driver: Driver) -> None:
    driver.create(1)
    assert driver.try_commit(Changes(appends=[(1, message(1)), (1, message(1))])) is not None
    assert driver.numbers(1) == []


def test_a_message_for_an_entity_that_does_not_exist_is_refused(driver: Driver) -> None:
    driver.create(1)
    error = driver.try_commit(Changes(appends=[(1, message(1)), (2, message(1))]))
    assert "does not exist" in str(error)
    assert driver.numbers(1) == []


@pytest.mark.parametrize("number", [0, -1, MAX_NUMBER + 1])
def test_a_sequence_number_out_of_range_is_refused_by_name(driver: Driver, number: int) -> None:
    driver.create(1, 2)
    assert str(number) in str(driver.try_commit(Changes(appends=[(1, message(number))])))
    assert driver.numbers(1) == driver.numbers(2) == []


def test_a_definition_that_is_not_json_is_refused(driver: Driver) -> None:
    changes = Changes(entities={1: entity(1, definition={"since": object()})})
    assert "JSON" in str(driver.try_commit(changes))


def test_sequence_numbers_go_up_to_the_last_of_44_bits(driver: Driver) -> None:
    driver.create(1, 2)
    driver.append(1, message(1), message(MAX_NUMBER - 1), message(MAX_NUMBER, expires_at=5))
    driver.append(2, message(1, b"other"))
    assert driver.numbers(1) == [1, MAX_NUMBER - 1, MAX_NUMBER]
    assert driver.numbers(1, after=MAX_NUMBER - 1) == [MAX_NUMBER]
    assert driver.numbers(1, after=MAX_NUMBER) == []
    assert driver.expired(1, 10) == ([MAX_NUMBER], None)
    assert driver.numbers(2) == [1]


class TestRanges:
    @pytest.fixture
    def driver(self, driver: Driver) -> Driver:
        """Entity 2 has every third number between 3 and 300, between two entities with other messages."""
        driver.create(1, 2, 3)
        for id in 1, 3:
            driver.append(id, message(1), message(MAX_NUMBER))
        driver.append(2, *(message(number, bytes(100)) for number in range(3, 301, 3)))
        return driver

    def test_a_range_begins_after_its_first_number_and_includes_its_last(self, driver: Driver) -> None:
        assert driver.numbers(2, after=9, through=15) == [12, 15]
        assert driver.numbers(2, after=10, through=17) == [12, 15]

    def test_a_range_without_messages_is_empty(self, driver: Driver) -> None:
        assert driver.numbers(2, after=12, through=14) == []
        assert driver.numbers(2, after=300) == []
        assert driver.numbers(2, after=20, through=10) == []
        assert driver.numbers(9) == []

    def test_the_limit_ends_the_answer(self, driver: Driver) -> None:
        assert driver.numbers(2, limit=2) == [3, 6]
        assert driver.numbers(2, after=6, limit=1) == [9]
        assert driver.numbers(2, limit=0) == []

    def test_the_message_that_reaches_the_bytes_is_the_last(self, driver: Driver) -> None:
        assert driver.numbers(2, max_bytes=200) == [3, 6]
        assert driver.numbers(2, max_bytes=201) == [3, 6, 9]

    def test_the_first_message_is_returned_even_beyond_the_limit_of_bytes(self, driver: Driver) -> None:
        assert driver.numbers(2, max_bytes=1) == [3]
        assert driver.numbers(2, max_bytes=0) == [3]

    def test_removed_messages_leave_gaps(self, driver: Driver) -> None:
        removed = [*range(3, 60, 3), 90, 93, 99, 300]
        driver.commit(Changes(removals=[(2, message(number)) for number in removed]))
        assert driver.numbers(2) == [n for n in range(3, 301, 3) if n not in removed]
        assert driver.numbers(1) == driver.numbers(3) == [1, MAX_NUMBER]

    def test_removing_a_missing_message_is_no_error(self, driver: Driver) -> None:
        for _ in range(2):
            driver.commit(Changes(removals=[(2, message(3)), (2, message(4)), (77, message(1))]))
        assert driver.numbers(2, limit=2) == [6, 9]


def test_a_read_continues_over_many_messages_and_bytes(driver: Driver) -> None:
    driver.create(1)
    driver.append(1, *(message(number, bytes(1500)) for number in range(1, 3001)))
    assert driver.numbers(1, limit=5000) == list(range(1, 3001))
    assert driver.numbers(1, after=7, limit=2000) == list(range(8, 2008))
    assert len(driver.numbers(1, limit=5000, max_bytes=1500 * 1000)) == 1000
    assert len(driver.numbers(1, limit=5000, max_bytes=1500 * 1000 + 1)) == 1001


def test_a_million_bytes_of_long_messages_are_counted_against_the_limit(driver: Driver) -> None:
    driver.create(1)
    driver.append(1, *(message(number, bytes(400_000)) for number in range(1, 11)))
    assert driver.numbers(1, max_bytes=2_000_000) == [1, 2, 3, 4, 5]
    assert len(driver.numbers(1)) == 10


def test_messages_appended_out_of_order_are_read_in_order(driver: Driver) -> None:
    driver.create(1)
    numbers = list(range(1, 5001))
    random.Random(1).shuffle(numbers)
    driver.append(1, *(message(number) for number in numbers))
    removed = set(random.Random(2).sample(numbers, 2500))
    driver.commit(Changes(removals=[(1, message(number)) for number in numbers if number in removed]))
    assert driver.numbers(1, limit=5000) == [n for n in range(1, 5001) if n not in removed]


class TestStates:
    @pytest.fixture
    def driver(self, driver: Driver) -> Driver:
        driver.create(1, 2)
        states = {1: ACTIVE, 2: DEFERRED, 3: SCHEDULED, 4: ACTIVE, 5: DEFERRED, 6: SCHEDULED}
        for id in 1, 2:
            driver.append(id, *(message(number, state=state) for number, state in states.items()))
        return driver

    def test_a_range_is_of_one_state_or_of_any(self, driver: Driver) -> None:
        assert driver.numbers(1, state=ACTIVE) == [1, 4]
        assert driver.numbers(1, state=DEFERRED) == [2, 5]
        assert driver.numbers(1, state=SCHEDULED) == [3, 6]
        assert driver.numbers(1, state=None) == [1, 2, 3, 4, 5, 6]
        assert driver.numbers(1, state=DEFERRED, after=2, through=5) == [5]
        assert driver.numbers(1, state=None, after=2, limit=3) == [3, 4, 5]

    def test_an_update_moves_a_message_to_another_state(self, driver: Driver) -> None:
        driver.commit(
            Changes(
                updates=[
                    (1, message(1, state=DEFERRED), ACTIVE),
                    (1, message(2), DEFERRED),
                    (1, message(3), SCHEDULED),
                ]
            )
        )
        assert driver.numbers(1, state=ACTIVE) == [2, 3, 4]
        assert driver.numbers(1, state=DEFERRED) == [1, 5]
        assert driver.numbers(1, state=SCHEDULED) == [6]
        assert driver.numbers(2, state=ACTIVE) == [1, 4]


def test_a_range_is_of_one_session_or_of_any(driver: Driver) -> None:
    driver.create(1, 2)
    for id in 1, 2:
        driver.append(
            id,
            *(message(number, session_id="ab"[number % 2]) for number in range(1, 8)),
            message(8),
            message(9, session_id="a", state=DEFERRED),
        )
    assert driver.numbers(1) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert driver.numbers(1, session_id="a") == [2, 4, 6]
    assert driver.numbers(1, session_id="b", after=1, through=5) == [3, 5]
    assert driver.numbers(1, session_id="a", state=None) == [2, 4, 6, 9]
    assert driver.numbers(1, session_id="a", state=DEFERRED) == [9]
    assert driver.numbers(1, session_id="A") == []
    driver.commit(Changes(removals=[(1, message(number)) for number in (2, 4, 6, 9)]))
    assert driver.numbers(1, session_id="a", state=None) == []
    assert driver.numbers(2, session_id="a", state=None) == [2, 4, 6, 9]


def test_a_session_is_read_in_order_through_many_messages_in_all_states(driver: Driver) -> None:
    driver.create(1, 2)
    for id in 1, 2:
        driver.append(id, *(message(n, session_id=f"s{n % 2}", state=n // 2 % 3) for n in range(1, 3001)))
    odd = range(1, 3001, 2)
    assert driver.numbers(1, session_id="s1", state=None, limit=5000) == list(odd)
    for state in ACTIVE, DEFERRED, SCHEDULED:
        wanted = [n for n in odd if n // 2 % 3 == state]
        assert driver.numbers(1, session_id="s1", state=state, limit=5000) == wanted
        later = [n for n in wanted if n > 100][:7]
        assert driver.numbers(1, session_id="s1", state=state, after=100, limit=7) == later


def test_a_message_stays_in_its_session_when_its_state_changes(driver: Driver) -> None:
    driver.create(1)
    driver.append(1, *(message(n, session_id="s") for n in range(1, 5)))
    driver.commit(Changes(updates=[(1, message(2, state=DEFERRED), ACTIVE), (1, message(3, state=DEFERRED), ACTIVE)]))
    driver.commit(Changes(updates=[(1, message(3), DEFERRED)]))
    assert driver.numbers(1, session_id="s") == [1, 3, 4]
    assert driver.numbers(1, session_id="s", state=DEFERRED) == [2]
    assert driver.numbers(1, session_id="s", state=None) == [1, 2, 3, 4]


SESSION_IDS = ["", "\x00", "\x00a", " ", '"', "'", "a", "a\x00", "a\x00b", "ab", "b", "\u00fc", "\uffff", "\U0001f600"]
"""In the order of their code points, which for the last two is not that of UTF-16."""


def test_any_text_is_a_session_id_of_its_own(driver: Driver) -> None:
    driver.create(1)
    backwards = list(reversed(SESSION_IDS))
    driver.append(1, *(message(n, session_id=name) for n, name in enumerate(backwards, 1)), message(100))
    driver.commit(Changes(session_states=[(1, name, b"of " + name.encode(), 5) for name in backwards]))
    assert driver.session_counts(1) == [(name, 1) for name in backwards]
    assert driver.sessions(1) == driver.sessions(1, updated_after=4) == SESSION_IDS
    for n, name in enumerate(backwards, 1):
        assert driver.numbers(1, session_id=name) == [n]
        assert driver.state(1, name) == b"of " + name.encode()
        driver.set_state(1, name, None)
        assert driver.state(1, name) is None


def test_how_long_the_states_of_sessions_are(driver: Driver) -> None:
    driver.create(1, 2)
    assert driver.state_sizes(1) == driver.state_sizes(3) == {}
    for name, state in (("a", b"x" * 70_000), ("b\0,", b""), ("c", b"abc"), ("c", None), ("d", b"1"), ("d", b"22")):
        driver.set_state(1, name, state)
    driver.set_state(2, "e", b"333")
    assert driver.state_sizes(1) == {"a": 70_000, "b\0,": 0, "d": 2}
    driver.commit(Changes(dropped_entities=[2]))
    assert driver.state_sizes(2) == {}


class TestNumbers:
    def test_those_that_exist_come_ascending_in_any_state(self, driver: Driver) -> None:
        driver.create(1, 2)
        driver.append(1, *(message(n, state=n % 3) for n in range(1, 20)))
        driver.append(2, message(1), message(25))
        assert driver.numbered(1, 9, 3, 25, 7, 8) == [3, 7, 8, 9]
        assert driver.numbered(1, 5, 5) == [5]
        assert driver.numbered(1, 25) == driver.numbered(1) == driver.numbered(3, 1) == []

    def test_they_come_back_whole(self, driver: Driver) -> None:
        driver.create(1)
        rich = StoredMessage(2, b"two", 10, DEFERRED, "s", b"annex", 20, 3, 40)
        driver.append(1, message(1), rich, message(3))
        found = driver.ask(partial(driver.store.read_numbers, 1, [2, 3], 1000))
        assert [as_dict(each) for each in found] == [as_dict(rich), as_dict(message(3))]

    def test_a_number_that_no_message_can_have_is_not_found(self, driver: Driver) -> None:
        driver.create(1, 2, 3)
        for id in 1, 2, 3:
            driver.append(id, message(1), message(MAX_NUMBER))
        outside = [0, -1, -MAX_NUMBER, MAX_NUMBER + 1, MAX_NUMBER + 2, 2**64, -(2**64)]
        assert driver.numbered(2, *outside, MAX_NUMBER) == [MAX_NUMBER]

    def test_thousands_of_messages_are_requested_at_once(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, *(message(n, bytes(n % 7)) for n in range(2, 10_001, 2)))
        wanted = random.Random(3).sample(range(1, 10_001), 5000)
        assert driver.numbered(1, *wanted) == sorted(n for n in wanted if n % 2 == 0)

    def test_long_messages_are_among_them(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, *(message(n, bytes(600_000)) for n in range(1, 11)))
        assert driver.numbered(1, *range(3, 20)) == list(range(3, 11))

    def test_the_one_that_reaches_the_bytes_is_the_last(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, *(message(n, bytes(100)) for n in range(1, 2001)))
        wanted = range(3, 3000, 2)
        assert driver.numbered(1, *wanted, max_bytes=300) == [3, 5, 7]
        assert driver.numbered(1, *wanted, max_bytes=301) == [3, 5, 7, 9]
        assert driver.numbered(1, *wanted, max_bytes=0) == driver.numbered(1, *wanted, max_bytes=1) == [3]
        assert driver.numbered(1, *wanted, max_bytes=80_000) == list(range(3, 1603, 2))

    def test_bytes_of_annexes_count_in_every_read(self, driver: Driver) -> None:
        driver.create(1)
        long = [message(n, bytes(100), annex=bytes([n]) * 1000, expires_at=n) for n in range(1, 11)]
        driver.append(1, *long, *(message(n, state=SCHEDULED, due_at=n, annex=bytes(2000)) for n in range(11, 21)))
        assert driver.numbered(1, *range(1, 11), max_bytes=2200) == [1, 2]
        assert driver.numbers(1, max_bytes=2201) == [1, 2, 3]
        assert driver.expired(1, 10, max_bytes=1101) == ([1, 2], 3)
        assert driver.due(1, 20, max_bytes=1) == ([11], 12)
        assert [each.annex for each in driver.read(1)] == [each.annex for each in long]

    def test_bytes_of_bodies_count(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, *(message(n, bytes(100), body=body(n, bytes(1000))) for n in range(1, 11)))
        assert driver.numbered(1, *range(1, 11), max_bytes=2200) == [1, 2]

    def test_the_caller_may_change_its_list_once_it_is_handed_over(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, message(1), message(2))
        numbers = [1, 2]
        answers: list[list[StoredMessage] | StoreError] = []
        driver.store.read_numbers(1, numbers, 1000, answers.append)
        numbers.clear()
        driver.wait(answers)
        assert isinstance(answers[0], list)
        assert [each.sequence_number for each in answers[0]] == [1, 2]


def test_an_update_changes_state_count_and_times_only(driver: Driver) -> None:
    driver.create(1)
    driver.append(1, message(1, b"old", session_id="s", annex=b"old"))
    update = StoredMessage(1, b"new", 5, DEFERRED, "other", b"new", 6, 7, 8)
    driver.commit(Changes(updates=[(1, update, ACTIVE)]))
    (found,) = driver.read(1, state=None)
    assert as_dict(found) == as_dict(StoredMessage(1, b"old", 5, DEFERRED, "s", b"old", 6, 7, 8))


def test_messages_with_equal_annexes_are_read_again_as_they_were_appended(driver: Driver) -> None:
    driver.create(1)
    driver.append(
        1, *(message(n, annex=[b"usual", b"usual", None, b"", b"other", b"usual"][n % 6]) for n in range(1, 31))
    )
    driver.append(1, message(31, annex=b"usual", delivery_count=2), message(32, annex=b"usual" * 40), message(33))
    expected = [each.annex for each in driver.read(1)]
    assert expected[:7] == [b"usual", None, b"", b"other", b"usual", b"usual", b"usual"]
    assert expected[-3:] == [b"usual", b"usual" * 40, None]
    for _ in range(3):  # what was read lately changes how a store reads, not what
        assert [each.annex for each in driver.read(1)] == expected
        assert [each.sequence_number for each in driver.read(1, max_bytes=1)] == [1]
        assert [each.annex for each in driver.read(1, after=4, through=6)] == [b"usual"] * 2
        assert [each.delivery_count for each in driver.read(1, after=30)] == [2, 0, 0]


def test_a_rewrite_changes_payload_and_annex_too(driver: Driver) -> None:
    driver.create(1)
    driver.append(1, message(1, b"old", session_id="s", annex=b"old"), message(2, b"old", annex=b"old"))
    first = StoredMessage(1, b"new", 5, DEFERRED, "other", b"new", 6, 7, 8)
    second = StoredMessage(2, b"", 5)
    driver.commit(Changes(rewrites=[(1, first, ACTIVE, 3), (1, second, ACTIVE, 3)]))
    assert [as_dict(each) for each in driver.read(1, state=None)] == [
        as_dict(StoredMessage(1, b"new", 5, DEFERRED, "s", b"new", 6, 7, 8)),
        as_dict(second),
    ]


def test_the_last_of_several_changes_to_one_message_wins(driver: Driver) -> None:
    driver.create(1)
    driver.append(1, message(1, b"old"))
    answers: list[StoreError | None] = []
    for changes in (
        Changes(updates=[(1, message(1, delivery_count=n), ACTIVE) for n in (1, 2)]),
        Changes(rewrites=[(1, message(1, b"new", delivery_count=n), ACTIVE, 3) for n in (3, 4)]),
        Changes(updates=[(1, message(1, delivery_count=5), ACTIVE)]),
        Changes(appends=[(1, message(2))]),
        Changes(updates=[(1, message(2, delivery_count=1), ACTIVE)]),
        Changes(appends=[(1, message(3))]),
        Changes(removals=[(1, message(3))]),
    ):
        driver.store.commit(changes, answers.append)
    driver.wait(answers, 7)
    first, second = driver.read(1)
    assert (first.payload, first.delivery_count) == (b"new", 5)
    assert (second.payload, second.delivery_count) == (b"payload 2", 1)


def test_changes_to_missing_messages_have_no_effect(driver: Driver) -> None:
    driver.create(1)
    driver.commit(
        Changes(updates=[(1, message(1), ACTIVE)], rewrites=[(1, message(2), ACTIVE, 0), (9, message(1), 0, 0)])
    )
    assert driver.numbers(1, state=None) == []


def test_a_commit_applies_its_changes_in_the_order_of_the_fields(driver: Driver) -> None:
    driver.commit(
        Changes(
            entities={1: entity(1), 2: entity(2)},
            appends=[(1, message(1)), (1, message(2)), (1, message(3)), (2, message(1))],
            updates=[(1, message(1, delivery_count=1), ACTIVE), (1, message(2, delivery_count=1), ACTIVE)],
            rewrites=[(1, message(2, b"new", delivery_count=2), ACTIVE, 9)],
            removals=[(1, message(3))],
            dropped_entities=[2],
        )
    )
    found = driver.read(1)
    assert [(each.sequence_number, each.delivery_count, each.payload) for each in found] == [
        (1, 1, b"payload 1"),
        (2, 2, b"new"),
    ]
    assert driver.numbers(2) == []


class TestExpiry:
    def test_expired_messages_come_soonest_first_with_the_next_expiry(self, driver: Driver) -> None:
        driver.create(1, 2)
        driver.append(1, *(message(n, expires_at=at) for n, at in ((1, 50), (2, 30), (3, 40), (4, 30), (5, 60))))
        driver.append(1, message(6))
        driver.append(2, message(1, expires_at=1))
        assert driver.expired(1, 29) == ([], 30)
        assert driver.expired(1, 30) == ([2, 4], 40)
        assert driver.expired(1, 55) == ([2, 4, 3, 1], 60)
        assert driver.expired(1, 60) == ([2, 4, 3, 1, 5], None)
        assert driver.expired(3, 60) == ([], None)

    def test_beyond_the_limit_the_next_expiry_may_have_passed(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, *(message(n, expires_at=n) for n in range(1, 2001)))
        assert driver.expired(1, 100, limit=3) == ([1, 2, 3], 4)
        assert driver.expired(1, 100, limit=0) == ([], 1)
        assert driver.expired(1, 1500, limit=1400) == (list(range(1, 1401)), 1401)
        assert driver.expired(1, 1500, limit=1600) == (list(range(1, 1501)), 1501)

    def test_only_active_messages_expire(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, *(message(n, expires_at=n, state=n % 3) for n in range(1, 7)))
        assert driver.expired(1, 4) == ([3], 6)
        driver.commit(
            Changes(
                updates=[
                    (1, message(3, expires_at=3, state=DEFERRED), ACTIVE),
                    (1, message(4, expires_at=4), 1),
                ]
            )
        )
        assert driver.expired(1, 4) == ([4], 6)

    def test_a_changed_expiry_counts(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, message(1, expires_at=10), message(2, expires_at=20), message(3))
        driver.commit(Changes(updates=[(1, message(1, expires_at=30), ACTIVE), (1, message(2), ACTIVE)]))
        driver.commit(Changes(rewrites=[(1, message(3, expires_at=25), ACTIVE, 9)]))
        assert driver.expired(1, 20) == ([], 25)
        assert driver.expired(1, 30) == ([3, 1], None)
        driver.commit(Changes(removals=[(1, message(1)), (1, message(3))]))
        assert driver.expired(1, 30) == ([], None)

    def test_many_long_messages_expire_together(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, *(message(n, bytes(300_000), expires_at=100 - n) for n in range(1, 11)))
        assert driver.expired(1, 98, limit=8) == ([10, 9, 8, 7, 6, 5, 4, 3], 98)

    def test_the_one_that_reaches_the_bytes_is_the_last(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, *(message(n, bytes(100), expires_at=50 - n) for n in range(1, 11)))
        driver.append(1, *(message(n, bytes(100), state=SCHEDULED, due_at=50 - n) for n in range(11, 21)))
        for read, highest in ((driver.expired, 10), (driver.due, 20)):
            found = [highest, highest - 1, highest - 2]
            assert read(1, 100, max_bytes=201) == read(1, 100, max_bytes=300) == (found, 50 - highest + 3)
            assert read(1, 100, max_bytes=0) == read(1, 100, max_bytes=1) == (found[:1], 50 - highest + 1)

    def test_they_are_read_on_behind_a_place(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, *(message(n, expires_at=n // 4) for n in range(1, 13)))
        driver.append(1, *(message(n, state=SCHEDULED, due_at=n // 4) for n in range(21, 33)))
        assert driver.expired(1, 1, after=(0, 2)) == ([3, 4, 5, 6, 7], 2)
        assert driver.expired(1, 9, limit=3, after=(1, 5)) == ([6, 7, 8], 2)
        assert driver.expired(1, 9, after=(1, 7)) == ([8, 9, 10, 11, 12], None)
        assert driver.expired(1, 0, after=(1, 7)) == ([], 2)
        assert driver.expired(1, 9, after=(3, 12)) == driver.expired(1, 9, after=(9, 1)) == ([], None)
        assert driver.due(1, 9, limit=3, after=(5, 23)) == ([24, 25, 26], 6)
        assert driver.due(1, 9, max_bytes=1, after=(6, 26)) == ([27], 7)


class TestDueMessages:
    def test_due_messages_come_soonest_first_with_the_next_time(self, driver: Driver) -> None:
        driver.create(1, 2)
        times = {1: 50, 2: 30, 3: 40, 4: 30, 5: 60}
        driver.append(1, *(message(n, state=SCHEDULED, due_at=at) for n, at in times.items()))
        driver.append(1, message(6, state=SCHEDULED), message(7, due_at=1), message(8, state=DEFERRED, due_at=1))
        driver.append(2, message(1, state=SCHEDULED, due_at=1))
        assert driver.due(1, 29) == ([], 30)
        assert driver.due(1, 30) == ([2, 4], 40)
        assert driver.due(1, 55) == ([2, 4, 3, 1], 60)
        assert driver.due(1, 60) == ([2, 4, 3, 1, 5], None)
        assert driver.due(3, 60) == ([], None)

    def test_beyond_the_limit_the_next_time_may_have_passed(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, *(message(n, state=SCHEDULED, due_at=5) for n in range(1, 2001)))
        assert driver.due(1, 5, limit=3) == ([1, 2, 3], 5)
        assert driver.due(1, 5, limit=0) == ([], 5)
        assert driver.due(1, 5, limit=1400) == (list(range(1, 1401)), 5)
        assert driver.due(1, 5, limit=2000) == (list(range(1, 2001)), None)

    def test_a_message_that_became_active_or_was_removed_is_not_due(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, *(message(n, state=SCHEDULED, due_at=n) for n in range(1, 5)))
        driver.commit(
            Changes(
                updates=[(1, message(1, due_at=1), SCHEDULED)],
                rewrites=[(1, message(2, state=SCHEDULED, due_at=9), SCHEDULED, 9)],
                removals=[(1, message(3, state=SCHEDULED))],
            )
        )
        assert driver.due(1, 4) == ([4], 9)
        driver.commit(Changes(removals=[(1, message(2, state=SCHEDULED)), (1, message(4, state=SCHEDULED))]))
        assert driver.due(1, 9) == ([], None)

    def test_a_time_may_lie_before_1970(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, *(message(n, state=SCHEDULED, due_at=at) for n, at in ((1, 0), (2, -(2**62)), (3, -1))))
        assert driver.due(1, -1) == ([2, 3], 0)


class TestSessions:
    def test_active_messages_are_counted_by_session_in_the_order_of_the_first(self, driver: Driver) -> None:
        driver.create(1, 2)
        driver.append(1, *(message(n, session_id=name) for n, name in enumerate("cabbacca", 1)), message(9))
        driver.append(2, message(1, session_id="b"), message(2, session_id="z"))
        assert driver.session_counts(1) == [("c", 3), ("a", 3), ("b", 2)]
        driver.commit(
            Changes(
                updates=[(1, message(1, state=DEFERRED), ACTIVE), (1, message(3, state=SCHEDULED), ACTIVE)],
                removals=[(1, message(4))],
            )
        )
        assert driver.session_counts(1) == [("a", 3), ("c", 2)]
        driver.commit(Changes(updates=[(1, message(1), DEFERRED)]))
        assert driver.session_counts(1) == [("c", 3), ("a", 3)]
        assert driver.session_counts(3) == []

    def test_very_many_sessions_are_counted(self, driver: Driver) -> None:
        driver.create(1)
        names = [f"session {n}" for n in random.Random(4).sample(range(20_000), 20_000)]
        driver.append(1, *(message(n, b"", session_id=name) for n, name in enumerate(names, 1)))
        assert driver.session_counts(1) == [(name, 1) for name in names]
        assert driver.sessions(1, top=20_000) == sorted(names)

    def test_a_state_is_kept_until_it_is_set_again_or_cleared(self, driver: Driver) -> None:
        driver.create(1, 2)
        assert driver.state(1, "s") is None
        for state in bytes(range(256)), b"", b"x" * 300_000, None, b"again":
            driver.set_state(1, "s", state)
            driver.set_state(2, "s", b"other")
            assert driver.state(1, "s") == state
            driver.reopen()
            assert driver.state(1, "s") == state
        assert driver.state(2, "s") == b"other"
        assert driver.state(1, "S") is None

    def test_the_last_of_several_states_wins(self, driver: Driver) -> None:
        driver.create(1)
        answers: list[StoreError | None] = []
        for states in (
            [("a", b"1"), ("b", b"1"), ("a", None), ("a", b"2")],
            [("b", None), ("c", b"1")],
            [("c", b"2"), ("c", b"3")],
            [("d", b"1"), ("d", None)],
        ):
            changes = Changes(session_states=[(1, name, state, 5) for name, state in states])
            driver.store.commit(changes, answers.append)
        driver.wait(answers, 4)
        assert [driver.state(1, name) for name in "abcd"] == [b"2", None, b"3", None]

    def test_session_states_of_several_statements_are_one_commit(self, driver: Driver) -> None:
        driver.create(1)
        states: list[tuple[int, str, bytes | None, int]]
        states = [(1, f"s{n}", bytes([n]) * 15_000_000, 5) for n in range(5)]
        refused = Changes(appends=[(1, message(1)), (1, message(1))], session_states=states)
        assert driver.try_commit(refused) is not None
        assert driver.sessions(1) == []
        driver.commit(Changes(session_states=states))
        assert [driver.state(1, f"s{n}") == bytes([n]) * 15_000_000 for n in range(5)] == [True] * 5

    def test_states_do_not_count(self, driver: Driver) -> None:
        driver.create(1)
        driver.set_state(1, "s", b"state")
        assert driver.reopen()[0].counters == Counters()
        assert Changes(session_states=[(1, "s", None, 5)])

    def test_sessions_with_active_messages_or_a_state_are_listed_in_order(self, driver: Driver) -> None:
        driver.create(1, 2)
        driver.append(1, *(message(n, session_id=name) for n, name in enumerate("fbdbb", 1)), message(6))
        driver.append(1, message(7, session_id="x", state=DEFERRED), message(8, session_id="y", state=SCHEDULED))
        driver.append(2, message(1, session_id="z"))
        for name in "edca":
            driver.set_state(1, name, b"state")
        driver.set_state(1, "c", None)
        driver.set_state(2, "w", b"state")
        assert driver.sessions(1) == ["a", "b", "d", "e", "f"]
        assert driver.sessions(1, skip=1, top=2) == ["b", "d"]
        assert driver.sessions(1, skip=4, top=2) == ["f"]
        assert driver.sessions(1, skip=5) == driver.sessions(1, top=0) == driver.sessions(3) == []

    def test_sessions_are_listed_whose_state_was_set_after_a_time(self, driver: Driver) -> None:
        driver.create(1, 2)
        driver.append(1, message(1, session_id="m"))
        for at, name in enumerate("cab", 10):
            driver.set_state(1, name, b"state", at)
        driver.set_state(2, "z", b"state", 50)
        assert driver.sessions(1, updated_after=9) == ["a", "b", "c"]
        assert driver.sessions(1, updated_after=10) == ["a", "b"]
        assert driver.sessions(1, updated_after=9, skip=1, top=1) == ["b"]
        driver.set_state(1, "c", b"", 20)
        driver.set_state(1, "b", None, 20)
        assert driver.sessions(1, updated_after=10) == ["a", "c"]
        assert driver.sessions(1, updated_after=20) == []

    def test_dropping_an_entity_removes_its_sessions(self, driver: Driver) -> None:
        driver.create(1, 2)
        for id in 1, 2:
            driver.append(id, message(1, session_id="s"), message(2, state=SCHEDULED, due_at=5))
            driver.set_state(id, "s", b"state")
        driver.commit(Changes(session_states=[(1, "t", b"state", 5)], dropped_entities=[1]))
        assert driver.state(1, "s") is None
        assert driver.sessions(1) == driver.sessions(1, updated_after=0) == []
        assert driver.session_counts(1) == []
        assert driver.numbered(1, 1, 2) == driver.numbers(1, session_id="s") == []
        assert driver.due(1, 5) == ([], None)
        assert driver.state(2, "s") == b"state"

    def test_a_state_for_an_entity_that_does_not_exist_is_not_kept(self, driver: Driver) -> None:
        driver.set_state(1, "s", b"state")
        driver.create(1)
        assert driver.state(1, "s") is None
        driver.commit(Changes(entities={2: entity(2)}, session_states=[(2, "s", b"state", 5)]))
        assert driver.state(2, "s") == b"state"


def test_dropping_an_entity_removes_its_messages(driver: Driver) -> None:
    driver.create(1, 2, 3)
    for id in 1, 2, 3:
        driver.append(id, *(message(number, expires_at=number) for number in range(1, 2501)))
    driver.commit(Changes(dropped_entities=[2]))
    assert driver.numbers(2, state=None) == []
    assert driver.expired(2, 5) == ([], None)
    assert driver.try_commit(Changes(appends=[(2, message(3000))])) is not None
    assert len(driver.numbers(1, limit=5000)) == len(driver.numbers(3, limit=5000)) == 2500
    driver.commit(Changes(dropped_entities=[2, 3, 4]))
    assert driver.numbers(3) == []


def test_a_path_may_be_reused_in_the_commit_that_drops_its_entity(driver: Driver) -> None:
    driver.create(1)
    driver.commit(Changes(entities={2: entity(2, path="queue-1")}, dropped_entities=[1]))
    driver.append(2, message(1))
    assert driver.numbers(2) == [1]


def test_after_close_every_call_is_answered_with_an_error(driver: Driver) -> None:
    driver.create(1)
    driver.store.close()
    driver.store.close()
    assert isinstance(driver.try_commit(Changes(appends=[(1, message(1))])), StoreError)
    for read in (
        lambda: driver.read(1),
        lambda: driver.numbered(1, 1),
        lambda: driver.expired(1, 1),
        lambda: driver.due(1, 1),
        lambda: driver.session_counts(1),
        lambda: driver.state_sizes(1),
        lambda: driver.state(1, "s"),
        lambda: driver.sessions(1),
        lambda: driver.seen(1),
    ):
        with pytest.raises(StoreError, match="closed"):
            read()


def test_close_finishes_the_commits_handed_over_and_runs_their_callbacks(driver: Driver) -> None:
    answers: list[StoreError | None] = []
    driver.store.commit(Changes(entities={1: entity(1)}), answers.append)
    for number in range(1, 101):
        driver.store.commit(Changes(appends=[(1, message(number))]), answers.append)
    driver.store.close()
    assert answers == [None] * 101


def test_empty_changes_are_a_commit_too(driver: Driver) -> None:
    driver.commit(Changes())


class TestReopening:
    def test_entities_are_as_they_were_last_committed(self, driver: Driver) -> None:
        definition = {"lock_duration": 30, "nested": {"list": [1, None, "\u00fc\x00"]}}
        driver.commit(Changes(entities={1: entity(1, definition=definition), 2: entity(2), 3: entity(3)}))
        driver.commit(
            Changes(entities={2: entity(2, path="Orders/2", kind="topic", definition={"a": 1})}, dropped_entities=[3])
        )
        assert driver.reopen() == [
            entity(1, definition=definition),
            entity(2, path="Orders/2", kind="topic", definition={"a": 1}),
        ]

    def test_messages_are_still_there(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, *(message(number, annex=b"x" * number) for number in range(1, 100)))
        before = [as_dict(each) for each in driver.read(1)]
        driver.reopen()
        assert [as_dict(each) for each in driver.read(1)] == before
        driver.append(1, message(100))
        assert driver.numbers(1, after=98) == [99, 100]

    def test_an_entity_starts_with_the_counters_it_was_created_with(self, driver: Driver) -> None:
        driver.commit(Changes(entities={1: entity(1, counters=Counters(9, 1, 2, 3, 4))}))
        assert driver.reopen()[0].counters == Counters(9, 1, 2, 3, 4)

    def test_counters_follow_the_changes(self, driver: Driver) -> None:
        driver.create(1, 2)
        driver.append(1, message(5, bytes(10)), message(9, bytes(20)), message(7, bytes(30), state=SCHEDULED))
        driver.append(2, message(1, bytes(1)))
        assert [each.counters for each in driver.reopen()] == [
            Counters(9, 2, 0, 1, 60),
            Counters(1, 1, 0, 0, 1),
        ]
        driver.commit(
            Changes(
                updates=[(1, message(5, bytes(10), state=DEFERRED), ACTIVE)],
                rewrites=[(1, message(7, bytes(5)), SCHEDULED, 30)],
                removals=[(1, message(9, bytes(20)))],
            )
        )
        assert driver.reopen()[0].counters == Counters(9, 1, 1, 0, 15)

    def test_counters_add_up_over_commits_that_wait_together(self, driver: Driver) -> None:
        driver.create(1, 2)
        answers: list[StoreError | None] = []
        for number in range(1, 101):
            changes = Changes(appends=[(1, message(number, bytes(10)))])
            if number % 2:
                changes.appends.append((2, message(number, b"")))
            else:
                changes.removals.append((1, message(number - 1, bytes(10))))
            driver.store.commit(changes, answers.append)
        driver.wait(answers, 100)
        assert [each.counters for each in driver.reopen()] == [
            Counters(100, 50, 0, 0, 500),
            Counters(99, 50, 0, 0, 0),
        ]

    def test_a_refused_commit_does_not_count(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, message(1, b"one"))
        assert driver.try_commit(Changes(appends=[(1, message(2)), (1, message(1))])) is not None
        assert driver.reopen()[0].counters == Counters(1, 1, 0, 0, 3)

    def test_a_new_definition_leaves_the_counters(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, message(1, b"one"))
        driver.commit(Changes(entities={1: entity(1, path="new")}))
        assert driver.reopen() == [entity(1, path="new", counters=Counters(1, 1, 0, 0, 3))]

    def test_numbers_given_out_without_a_message_count(self, driver: Driver) -> None:
        driver.commit(Changes(entities={1: entity(1), 2: entity(2)}, advances={1: 7}))
        assert [each.counters for each in driver.reopen()] == [Counters(7), Counters()]
        driver.commit(Changes(advances={1: 5, 2: 3, 9: 1}, appends=[(2, message(8, b"one"))]))
        assert [each.counters for each in driver.reopen()] == [Counters(7), Counters(8, 1, 0, 0, 3)]
        assert driver.numbers(1, state=None) == []
        assert Changes(advances={1: 5})

    def test_a_number_given_out_without_a_message_may_be_above_those_with_one(self, driver: Driver) -> None:
        driver.create(1)
        answers: list[StoreError | None] = []
        for number in range(1, 100, 2):
            changes = Changes(advances={1: number + 1}, appends=[(1, message(number, b""))])
            driver.store.commit(changes, answers.append)
        driver.wait(answers, 50)
        assert driver.reopen()[0].counters == Counters(100, 50, 0, 0, 0)
