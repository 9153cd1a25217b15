"""The contract of `store.base` for runs of messages and for claims, tested with every store."""

from __future__ import annotations

from functools import partial

import pytest
from store_harness import MAX_NUMBER, Driver, as_dict, body, entity, message

from peeklock.store.base import ACTIVE, CLAIMED, DEFERRED, SCHEDULED, Changes, Counters, Range, Run, StoreError

ONE, TWO = b"claim number one", b"claim number two"


def claimed(id: int, *runs: Run) -> Changes:
    return Changes(run_updates=[(id, run, ACTIVE, CLAIMED) for run in runs])


def removed(id: int, *runs: Run) -> Changes:
    return Changes(run_removals=[(id, run, CLAIMED) for run in runs])


def test_a_run_has_its_number_of_messages() -> None:
    assert Run(3, 3, 0).count == 1
    assert Run(3, 7, 0).count == 5


class TestSettingAside:
    @pytest.fixture
    def driver(self, driver: Driver) -> Driver:
        """Two entities with ten messages of ten bytes each."""
        driver.create(1, 2)
        for id in 1, 2:
            driver.append(id, *(message(number, bytes(10)) for number in range(1, 11)))
        return driver

    def test_all_messages_of_a_run_change_their_state(self, driver: Driver) -> None:
        driver.commit(claimed(1, Run(3, 5, 30), Run(9, 9, 10)))
        assert driver.numbers(1, state=CLAIMED) == [3, 4, 5, 9]
        assert driver.numbers(1) == [1, 2, 6, 7, 8, 10]
        assert driver.numbers(1, state=None) == list(range(1, 11))
        assert driver.numbers(1, state=CLAIMED, after=3, through=8, limit=1) == [4]
        assert driver.numbers(2, state=CLAIMED) == []
        assert driver.numbered(1, 2, 3) == [2, 3]

    def test_they_are_counted_in_their_new_state(self, driver: Driver) -> None:
        driver.commit(claimed(1, Run(3, 5, 30), Run(9, 9, 10)))
        assert [each.counters for each in driver.reopen()] == [
            Counters(10, active=6, claimed=4, size_in_bytes=100),
            Counters(10, active=10, size_in_bytes=100),
        ]
        driver.commit(Changes(run_updates=[(1, Run(3, 5, 30), CLAIMED, ACTIVE)]))
        assert driver.reopen()[0].counters == Counters(10, active=9, claimed=1, size_in_bytes=100)

    def test_nothing_else_of_them_changes(self, driver: Driver) -> None:
        rich = message(
            11, b"rich", expires_at=5, delivery_count=3, session_id="s", due_at=7, annex=b"annex", body=body(1)
        )
        driver.append(1, rich)
        driver.commit(claimed(1, Run(10, 11, 30)))
        rich.state = CLAIMED
        assert [as_dict(each) for each in driver.read(1, after=10, state=None)] == [as_dict(rich)]

    def test_released_messages_are_active_again(self, driver: Driver) -> None:
        driver.commit(claimed(1, Run(1, 10, 100)))
        assert driver.numbers(1) == []
        driver.commit(Changes(run_updates=[(1, Run(1, 4, 40), CLAIMED, ACTIVE)]))
        assert driver.numbers(1) == [1, 2, 3, 4]
        assert driver.numbers(1, state=CLAIMED) == [5, 6, 7, 8, 9, 10]

    def test_a_run_may_be_of_messages_that_the_same_changes_append(self, driver: Driver) -> None:
        changes = claimed(1, Run(11, 12, 20))
        changes.appends += [(1, message(number, bytes(10))) for number in (11, 12)]
        driver.commit(changes)
        assert driver.numbers(1, state=CLAIMED) == [11, 12]
        assert driver.reopen()[0].counters == Counters(12, active=10, claimed=2, size_in_bytes=120)

    def test_runs_of_a_dropped_entity_have_no_effect(self, driver: Driver) -> None:
        driver.commit(Changes(dropped_entities=[1]))
        driver.commit(claimed(1, Run(1, 3, 30)))
        driver.commit(removed(1, Run(1, 3, 30)))
        assert driver.numbers(2) == list(range(1, 11))
        assert [each.id for each in driver.reopen()] == [2]

    def test_commits_that_wait_together_are_done_one_after_the_other(self, driver: Driver) -> None:
        answers: list[StoreError | None] = []
        for changes in (
            Changes(appends=[(1, message(11, bytes(10), expires_at=50))]),
            claimed(1, Run(1, 11, 110)),
            Changes(run_updates=[(1, Run(5, 6, 20), CLAIMED, ACTIVE)]),
            Changes(updates=[(1, message(5, bytes(10), state=DEFERRED), ACTIVE)]),
            claimed(1, Run(6, 6, 10)),
            Changes(rewrites=[(1, message(11, b"new", state=SCHEDULED), CLAIMED, 10)]),
            removed(1, Run(1, 4, 40)),
            Changes(appends=[(1, message(12, bytes(10)))]),
            removed(1, Run(6, 7, 20)),
            Changes(removals=[(1, message(8, bytes(10), state=CLAIMED))]),
            Changes(updates=[(1, message(9, bytes(10)), CLAIMED)]),
        ):
            driver.store.commit(changes, answers.append)
        driver.wait(answers, 11)
        assert driver.numbers(1) == [9, 12]
        assert driver.numbers(1, state=DEFERRED) == [5]
        assert driver.numbers(1, state=SCHEDULED) == [11]
        assert driver.numbers(1, state=CLAIMED) == [10]
        assert driver.reopen()[0].counters == Counters(
            12, active=2, deferred=1, scheduled=1, claimed=1, size_in_bytes=43
        )

    def test_an_update_removes_one_message_from_a_claim(self, driver: Driver) -> None:
        driver.commit(claimed(1, Run(1, 10, 100)))
        driver.commit(Changes(updates=[(1, message(4, bytes(10), state=DEFERRED), CLAIMED)]))
        driver.commit(Changes(removals=[(1, message(6, bytes(10), state=CLAIMED))]))
        assert driver.spans(1, state=CLAIMED) == [(1, 3), (5, 5), (7, 10)]
        assert driver.reopen()[0].counters == Counters(10, deferred=1, claimed=8, size_in_bytes=90)


def test_claimed_messages_do_not_expire(driver: Driver) -> None:
    driver.create(1)
    driver.append(1, *(message(number, expires_at=number) for number in range(1, 7)))
    driver.commit(claimed(1, Run(2, 4, 27)))
    assert driver.expired(1, 10) == ([1, 5, 6], None)
    assert driver.expired(1, 1) == ([1], 5)
    driver.commit(Changes(run_updates=[(1, Run(3, 3, 9), CLAIMED, ACTIVE)]))
    assert driver.expired(1, 10) == ([1, 3, 5, 6], None)


def test_a_session_counts_its_active_messages_only(driver: Driver) -> None:
    driver.create(1)
    driver.append(1, *(message(number, session_id="ab"[number % 2]) for number in range(1, 9)))
    driver.commit(claimed(1, Run(1, 4, 36)))
    assert driver.session_counts(1) == [("b", 2), ("a", 2)]
    assert driver.numbers(1, session_id="a", state=CLAIMED) == [2, 4]
    assert driver.numbers(1, session_id="a", state=None) == [2, 4, 6, 8]
    driver.commit(claimed(1, Run(5, 5, 9), Run(7, 7, 9)))
    assert driver.sessions(1) == ["a"]
    driver.commit(removed(1, Run(1, 4, 36)))
    assert driver.numbers(1, session_id="a", state=None) == [6, 8]


def test_claimed_scheduled_messages_are_not_due(driver: Driver) -> None:
    driver.create(1)
    driver.append(1, *(message(number, state=SCHEDULED, due_at=number) for number in range(1, 5)))
    driver.commit(Changes(run_updates=[(1, Run(2, 3, 18), SCHEDULED, CLAIMED)]))
    assert driver.due(1, 10) == ([1, 4], None)
    driver.commit(Changes(run_updates=[(1, Run(2, 2, 9), CLAIMED, SCHEDULED)]))
    assert driver.due(1, 10) == ([1, 2, 4], None)


class TestRemoval:
    def test_removed_runs_are_deleted_and_subtracted_from_the_counters(self, driver: Driver) -> None:
        driver.create(1, 2)
        for id in 1, 2:
            driver.append(id, *(message(number, bytes(number)) for number in range(1, 11)))
        driver.commit(claimed(1, Run(1, 10, 55)))
        driver.commit(removed(1, Run(1, 2, 3), Run(6, 8, 21)))
        assert driver.numbers(1, state=None) == [3, 4, 5, 9, 10]
        assert driver.numbers(2) == list(range(1, 11))
        assert driver.reopen()[0].counters == Counters(10, claimed=5, size_in_bytes=31)

    def test_messages_of_any_state_are_removed(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, *(message(number, b"1", state=DEFERRED) for number in range(1, 4)), message(4, b"1"))
        driver.commit(Changes(run_removals=[(1, Run(1, 3, 3), DEFERRED), (1, Run(4, 4, 1), ACTIVE)]))
        assert driver.numbers(1, state=None) == []
        assert driver.reopen()[0].counters == Counters(4)

    def test_a_body_is_freed_with_the_last_message_that_has_it(self, driver: Driver) -> None:
        driver.create(1, 2)
        shared, own = body(1), body(2)
        appends = [(1, message(number, b"1", body=shared)) for number in (1, 2, 3)]
        driver.commit(Changes(appends=[*appends, (1, message(4, b"1", body=own)), (2, message(1, b"1", body=shared))]))
        size = sum(each.size for _, each in appends)
        driver.commit(claimed(1, Run(1, 3, size), Run(4, 4, 1 + len(own.data))))
        assert driver.bodies == 2
        driver.commit(removed(1, Run(1, 3, size)))
        assert driver.bodies == 2
        assert driver.read(2)[0].content == b"1" + shared.data
        driver.commit(Changes(removals=[(2, message(1, b"1", body=shared))]))
        assert driver.bodies == 1
        driver.commit(removed(1, Run(4, 4, 1 + len(own.data))))
        assert driver.bodies == 0
        assert [each.counters for each in driver.reopen()] == [Counters(4), Counters(1)]

    def test_a_body_added_in_the_commit_of_its_removal_is_stored(self, driver: Driver) -> None:
        driver.create(1, 2)
        shared = body(1)
        driver.append(1, message(1, b"1", body=shared))
        driver.commit(
            Changes(
                appends=[(2, message(1, b"2", body=shared))],
                run_removals=[(1, Run(1, 1, 1 + len(shared.data)), ACTIVE)],
            )
        )
        assert driver.bodies == 1
        assert driver.read(2)[0].content == b"2" + shared.data

    def test_bodies_of_many_messages_are_freed_together(self, driver: Driver) -> None:
        driver.create(1)
        messages = [message(number, b"1", body=body(number, b"1")) for number in range(1, 3001)]
        driver.append(1, *messages)
        driver.commit(claimed(1, Run(1, 3000, 6000)))
        driver.commit(removed(1, Run(1, 1000, 2000), Run(1002, 2999, 3996)))
        assert driver.bodies == 2
        assert driver.numbers(1, state=CLAIMED) == [1001, 3000]


class TestRuns:
    @pytest.fixture
    def driver(self, driver: Driver) -> Driver:
        """Entity 2 has the numbers 1 to 30 but for 11 to 13 and 20, between two entities with other messages."""
        driver.create(1, 2, 3)
        for id in 1, 3:
            driver.append(id, message(1), message(MAX_NUMBER))
        gaps = {11, 12, 13, 20}
        driver.append(2, *(message(number, bytes(100)) for number in range(1, 31) if number not in gaps))
        return driver

    def test_a_run_ends_before_a_gap(self, driver: Driver) -> None:
        assert driver.runs(2) == [Run(1, 10, 1000), Run(14, 19, 600), Run(21, 30, 1000)]
        assert driver.runs(1) == [Run(1, 1, 9), Run(MAX_NUMBER, MAX_NUMBER, 22)]

    def test_a_range_begins_after_its_first_number_and_includes_its_last(self, driver: Driver) -> None:
        assert driver.spans(2, after=4, through=16) == [(5, 10), (14, 16)]
        assert driver.runs(2, after=10, through=13) == []
        assert driver.runs(2, after=30) == driver.runs(9) == []

    def test_the_limit_of_messages_ends_the_answer(self, driver: Driver) -> None:
        assert driver.spans(2, limit=0) == []
        assert driver.spans(2, limit=4) == [(1, 4)]
        assert driver.spans(2, limit=10) == [(1, 10)]
        assert driver.runs(2, limit=12) == [Run(1, 10, 1000), Run(14, 15, 200)]

    def test_the_message_that_reaches_the_bytes_is_the_last(self, driver: Driver) -> None:
        assert driver.spans(2, max_bytes=300) == [(1, 3)]
        assert driver.spans(2, max_bytes=301) == [(1, 4)]
        assert driver.spans(2, max_bytes=1100) == [(1, 10), (14, 14)]
        assert driver.spans(2, max_bytes=0) == driver.spans(2, max_bytes=1) == [(1, 1)]

    def test_messages_in_other_states_are_gaps(self, driver: Driver) -> None:
        driver.commit(claimed(2, Run(5, 6, 200), Run(10, 10, 100), Run(14, 15, 200)))
        assert driver.spans(2) == [(1, 4), (7, 9), (16, 19), (21, 30)]
        assert driver.runs(2, state=CLAIMED) == [Run(5, 6, 200), Run(10, 10, 100), Run(14, 15, 200)]
        assert driver.spans(2, state=CLAIMED, after=5, through=14) == [(6, 6), (10, 10), (14, 14)]
        assert driver.runs(2, state=DEFERRED) == []

    def test_numbers_may_be_left_out(self, driver: Driver) -> None:
        assert driver.runs(2, excluded=[1, 5, 30, 12, 99], through=20) == [
            Run(2, 4, 300),
            Run(6, 10, 500),
            Run(14, 19, 600),
        ]
        assert driver.spans(2, excluded=[2, 1, 2], limit=3) == [(3, 5)]
        assert driver.spans(2, excluded=range(1, 29), max_bytes=1) == [(29, 29)]

    def test_the_caller_may_change_its_list_once_it_is_handed_over(self, driver: Driver) -> None:
        excluded = [2, 3]
        answers: list[list[Run] | StoreError] = []
        driver.store.read_runs(Range(entity=2, through=5, limit=9, max_bytes=999), answers.append, excluded=excluded)
        excluded.clear()
        driver.wait(answers)
        assert answers == [[Run(1, 1, 100), Run(4, 5, 200)]]

    def test_messages_whose_time_is_over_are_left_out_on_request(self, driver: Driver) -> None:
        driver.append(2, *(message(number, bytes(100), expires_at=number) for number in range(31, 36)))
        assert driver.spans(2, after=20) == [(21, 35)]
        assert driver.spans(2, now=33, after=20) == [(21, 30), (34, 35)]
        assert driver.spans(2, now=33, excluded=[34], after=20, limit=11) == [(21, 30), (35, 35)]
        assert driver.spans(2, now=30, after=20) == [(21, 35)]

    def test_sizes_are_with_bodies_and_without_annexes(self, driver: Driver) -> None:
        driver.append(2, message(31, bytes(10), annex=bytes(1000), body=body(1, bytes(200))), message(32, bytes(20)))
        assert driver.runs(2, after=29) == [Run(30, 32, 330)]
        assert driver.runs(2, after=29, max_bytes=310) == [Run(30, 31, 310)]

    def test_a_session_has_runs_of_its_own(self, driver: Driver) -> None:
        driver.append(2, *(message(number, b"1", session_id=name) for number, name in enumerate("aabbbaaa", 31)))
        assert driver.runs(2, session_id="a") == [Run(31, 32, 2), Run(36, 38, 3)]
        assert driver.spans(2, session_id="b", limit=2) == [(33, 34)]
        driver.commit(claimed(2, Run(34, 37, 4)))
        assert driver.spans(2, session_id="a") == [(31, 32), (38, 38)]
        assert driver.spans(2, session_id="a", state=CLAIMED) == [(36, 37)]
        assert driver.spans(2, session_id="a", state=CLAIMED, excluded=[36]) == [(37, 37)]

    def test_runs_go_on_through_very_many_messages(self, driver: Driver) -> None:
        driver.append(3, *(message(number, b"12") for number in range(2, 30_001)))
        assert driver.runs(3, through=30_000) == [Run(1, 30_000, 60_007)]
        assert driver.runs(3, through=30_000, limit=20_001) == [Run(1, 20_001, 40_009)]
        assert driver.runs(3, through=30_000, max_bytes=50_000) == [Run(1, 24_997, 50_001)]
        driver.commit(Changes(removals=[(3, message(number, b"12")) for number in range(10_000, 30_000, 2)]))
        gapped = [Run(1, 9_999, 20_005), *(Run(number, number, 2) for number in range(10_001, 30_000, 2))]
        assert driver.runs(3, through=29_999) == gapped
        assert driver.spans(3, limit=12_000)[-1] == (14_001, 14_001)

    def test_runs_of_a_dropped_entity_are_none(self, driver: Driver) -> None:
        driver.commit(Changes(dropped_entities=[2]))
        assert driver.runs(2) == []

    def test_a_read_from_the_callback_of_a_commit_sees_that_commit(self, driver: Driver) -> None:
        answers: list[list[Run] | StoreError] = []
        wanted = Range(entity=2, through=10, limit=100, max_bytes=10_000, state=CLAIMED)
        driver.store.commit(
            claimed(2, Run(2, 3, 200)), lambda error: driver.store.read_runs(wanted, partial(answers.append))
        )
        driver.wait(answers)
        assert answers == [[Run(2, 3, 200)]]

    def test_a_range_of_any_state_is_refused(self, driver: Driver) -> None:
        with pytest.raises(StoreError, match="one state"):
            driver.runs(2, state=None)

    def test_a_closed_store_answers_with_an_error(self, driver: Driver) -> None:
        driver.store.close()
        with pytest.raises(StoreError, match="closed"):
            driver.runs(2)


class TestRecords:
    def test_a_claim_is_known_when_the_store_is_opened_again(self, driver: Driver) -> None:
        driver.create(1, 2)
        assert driver.store.claims() == []
        driver.commit(Changes(claims={(1, ONE): b"content", (2, ONE): b"", (1, TWO): bytes(range(256))}))
        driver.reopen()
        assert sorted(driver.store.claims()) == [(1, ONE, b"content"), (1, TWO, bytes(range(256))), (2, ONE, b"")]

    def test_a_claim_is_replaced_and_forgotten(self, driver: Driver) -> None:
        driver.create(1, 2)
        driver.commit(Changes(claims={(1, ONE): b"old", (1, TWO): b"two", (2, ONE): b"other"}))
        driver.commit(Changes(claims={(1, ONE): b"new" * 100_000}))
        driver.commit(Changes(claims={(1, TWO): None, (2, TWO): None}))
        driver.reopen()
        assert sorted(driver.store.claims()) == [(1, ONE, b"new" * 100_000), (2, ONE, b"other")]

    def test_the_last_of_several_commits_wins(self, driver: Driver) -> None:
        driver.create(1)
        answers: list[StoreError | None] = []
        contents: list[dict[tuple[int, bytes], bytes | None]]
        contents = [{(1, ONE): b"1", (1, TWO): None}, {(1, ONE): None, (1, TWO): b"1"}, {(1, TWO): b"2"}]
        for claims in contents:
            driver.store.commit(Changes(claims=claims), answers.append)
        driver.wait(answers, 3)
        driver.reopen()
        assert driver.store.claims() == [(1, TWO, b"2")]

    def test_a_claim_is_kept_in_one_commit_with_its_messages(self, driver: Driver) -> None:
        driver.create(1)
        driver.append(1, message(1, b"1"))
        refused = claimed(1, Run(1, 1, 1))
        refused.claims[1, ONE] = b"one"
        refused.appends.append((1, message(1)))
        assert driver.try_commit(refused) is not None
        driver.reopen()
        assert driver.store.claims() == []
        assert driver.numbers(1) == [1]
        refused.appends.clear()
        driver.commit(refused)
        driver.reopen()
        assert driver.store.claims() == [(1, ONE, b"one")]
        assert driver.numbers(1, state=CLAIMED) == [1]

    def test_a_claim_of_an_entity_that_does_not_exist_is_not_kept(self, driver: Driver) -> None:
        driver.commit(Changes(claims={(1, ONE): b"content", (1, TWO): None}))
        driver.create(1)
        driver.reopen()
        assert driver.store.claims() == []
        driver.commit(Changes(entities={2: entity(2)}, claims={(2, ONE): b"content"}))
        driver.reopen()
        assert driver.store.claims() == [(2, ONE, b"content")]

    def test_claims_go_with_their_entity_also_when_its_id_is_used_again(self, driver: Driver) -> None:
        driver.create(1, 2)
        driver.append(1, message(1, b"1"), message(2, b"1"))
        driver.commit(claimed(1, Run(1, 2, 2)))
        driver.commit(Changes(claims={(1, ONE): b"one", (2, TWO): b"two"}))
        driver.commit(Changes(claims={(1, TWO): b"too late"}, dropped_entities=[1]))
        driver.create(1)
        driver.append(1, message(2, b"new"))
        assert driver.runs(1, state=CLAIMED) == []
        assert driver.numbers(1) == [2]
        driver.reopen()
        assert driver.store.claims() == [(2, TWO, b"two")]
        (counters,) = [each.counters for each in driver.entities if each.id == 1]
        assert counters == Counters(2, active=1, size_in_bytes=3)

    def test_claims_of_dropped_entities_are_absent_after_a_restart(self, driver: Driver) -> None:
        driver.create(1)
        driver.commit(Changes(claims={(1, ONE): b"one"}))
        driver.commit(Changes(dropped_entities=[1]))
        driver.reopen()
        assert driver.store.claims() == []

    def test_an_id_of_another_length_is_refused(self, driver: Driver) -> None:
        driver.create(1)
        for id in b"", b"short", ONE + b"1":
            assert "16" in str(driver.try_commit(Changes(claims={(1, id): b"content"})))
        driver.reopen()
        assert driver.store.claims() == []

    def test_claims_alone_are_changes(self) -> None:
        assert Changes(claims={(1, ONE): None})
        assert Changes(run_updates=[(1, Run(1, 1, 1), ACTIVE, CLAIMED)])
        assert Changes(run_removals=[(1, Run(1, 1, 1), CLAIMED)])


@pytest.mark.parametrize("run", [Run(0, 3, 1), Run(-1, 3, 1), Run(3, 2, 1), Run(1, MAX_NUMBER + 1, 1)])
def test_a_run_that_no_messages_can_have_is_refused(driver: Driver, run: Run) -> None:
    driver.create(1, 2)
    driver.append(1, message(1), message(MAX_NUMBER))
    driver.append(2, message(1))
    for changes in claimed(1, run), removed(1, run), Changes(run_removals=[(1, run, ACTIVE)]):
        assert "run" in str(driver.try_commit(changes))
    assert driver.numbers(1) == [1, MAX_NUMBER]


def test_claimed_messages_are_unchanged_after_a_restart(driver: Driver) -> None:
    driver.create(1)
    driver.append(1, *(message(number, expires_at=number, session_id="s") for number in range(1, 8)))
    driver.commit(claimed(1, Run(2, 6, 45)))
    driver.commit(removed(1, Run(3, 4, 18)))
    before = [as_dict(each) for each in driver.read(1, state=None)]
    driver.reopen()
    assert [as_dict(each) for each in driver.read(1, state=None)] == before
    assert driver.spans(1, state=CLAIMED) == [(2, 2), (5, 6)]
    assert driver.expired(1, 10) == ([1, 7], None)
    assert driver.session_counts(1) == [("s", 2)]
