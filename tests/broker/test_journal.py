"""Group commit: the changes of one turn are one commit, and separate failures have separate outcomes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from peeklock.broker.errors import BrokerError, ChangeRefused, StorageFailed, StorageFull
from peeklock.broker.journal import COMMITS_IN_FLIGHT, MANY_MESSAGES, Journal, Lane
from peeklock.store.base import Changes, Committed, StoredEntity, StoredMessage, StoreError, StoreFull

PROBE = Changes(forgotten=[(0, 0)])


class Disk:
    """A store that answers on request."""

    def __init__(self) -> None:
        self.commits: list[tuple[Changes, Committed]] = []

    def commit(self, changes: Changes, done: Committed) -> None:
        self.commits.append((changes, done))

    def answer(self, error: StoreError | None = None) -> Changes:
        """Answer the oldest commit, and return its changes."""
        changes, done = self.commits.pop(0)
        done(error)
        return changes

    def fail(self, error: StoreError) -> None:
        """Fail the oldest commit, and the probe that follows it."""
        self.answer(error)
        if not isinstance(error, StoreFull):
            assert self.answer(error) == PROBE


class Bench:
    """A journal with a store, whose turns the test runs."""

    def __init__(self) -> None:
        self.disk = Disk()
        self._turn: deque[Callable[[], None]] = deque()
        self.journal = Journal(self.disk, self._turn.append)  # type: ignore[arg-type]
        self.journal.make_probe = lambda: PROBE
        self.outcomes: list[tuple[str, type[BrokerError] | None]] = []

    def turn(self) -> None:
        while self._turn:
            self._turn.popleft()()

    def send(self, name: str) -> None:
        self._append(self.journal.sends, name)

    def move(self, name: str) -> None:
        self._append(self.journal.moves, name)

    def settle(self, name: str) -> None:
        self.journal.rest.changes.removals.append((1, message(name)))
        self.wait(self.journal.rest, name)

    def wait(self, lane: Lane, name: str) -> None:
        lane.then(self._record, name)

    def _append(self, lane: Lane, name: str) -> None:
        lane.changes.appends.append((1, message(name)))
        self.wait(lane, name)

    def _record(self, name: Any, error: BrokerError | None) -> None:
        self.outcomes.append((name, None if error is None else type(error)))


def message(name: str) -> StoredMessage:
    return StoredMessage(1, name.encode(), 0)


def names(messages: list[tuple[int, StoredMessage]]) -> list[str]:
    return [each.payload.decode() for _, each in messages]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_changes_of_one_turn_are_one_commit(bench: Bench) -> None:
    bench.send("a")
    bench.settle("b")
    bench.send("c")
    assert bench.disk.commits == []
    bench.turn()
    (commit,) = bench.disk.commits
    assert names(commit[0].appends) == ["a", "c"]
    assert names(commit[0].removals) == ["b"]


def test_callbacks_run_after_the_commit(bench: Bench) -> None:
    bench.send("a")
    bench.settle("b")
    bench.turn()
    assert bench.outcomes == []
    bench.disk.answer()
    assert bench.outcomes == [("a", None), ("b", None)]


def test_callbacks_run_in_the_order_of_staging(bench: Bench) -> None:
    for name in "abcde":
        bench.send(name)
    bench.turn()
    bench.disk.answer()
    assert [name for name, _ in bench.outcomes] == list("abcde")


def test_many_changes_are_committed_before_the_end_of_the_turn_and_few_are_not(bench: Bench) -> None:
    for number in range(MANY_MESSAGES - 1):
        bench.send(str(number))
    bench.journal.commit_if_many()
    assert bench.disk.commits == []
    bench.settle("one more")
    bench.journal.commit_if_many()
    assert len(bench.disk.commits) == 1
    bench.turn()
    assert len(bench.disk.commits) == 1


def test_a_store_that_has_enough_to_do_is_not_hurried(bench: Bench) -> None:
    for _ in range(COMMITS_IN_FLIGHT + 1):
        for number in range(MANY_MESSAGES):
            bench.send(str(number))
        bench.journal.commit_if_many()
    assert len(bench.disk.commits) == COMMITS_IN_FLIGHT
    bench.disk.answer()
    bench.turn()
    assert [len(changes.appends) for changes, _ in bench.disk.commits] == [MANY_MESSAGES, MANY_MESSAGES]


def test_a_turn_requested_before_an_early_commit_adds_no_extra_commit(bench: Bench) -> None:
    for _ in range(COMMITS_IN_FLIGHT):
        for number in range(MANY_MESSAGES):
            bench.send(str(number))
        bench.journal.commit_if_many()
    bench.send("last")
    bench.turn()
    assert len(bench.disk.commits) == COMMITS_IN_FLIGHT
    bench.disk.answer()
    bench.turn()
    assert names(bench.disk.commits[-1][0].appends) == ["last"]


def test_an_empty_turn_commits_nothing(bench: Bench) -> None:
    bench.journal.flush()
    assert bench.disk.commits == []
    assert bench.journal.idle


def test_the_number_of_pending_commits_is_limited_and_later_changes_share_the_next(bench: Bench) -> None:
    for number in range(10):
        bench.send(str(number))
        bench.turn()
    assert len(bench.disk.commits) == COMMITS_IN_FLIGHT
    bench.disk.answer()
    bench.turn()
    assert len(bench.disk.commits) == COMMITS_IN_FLIGHT
    assert names(bench.disk.commits[-1][0].appends) == [str(n) for n in range(COMMITS_IN_FLIGHT, 10)]
    while bench.disk.commits:
        bench.disk.answer()
        bench.turn()
    assert [name for name, _ in bench.outcomes] == [str(n) for n in range(10)]


def test_the_journal_is_idle_without_staged_changes_and_pending_commits(bench: Bench) -> None:
    assert bench.journal.idle
    bench.send("a")
    assert not bench.journal.idle
    bench.turn()
    assert not bench.journal.idle
    bench.disk.answer()
    assert bench.journal.idle


def test_a_callback_without_a_change_runs_too(bench: Bench) -> None:
    outcomes: list[BrokerError | None] = []
    bench.journal.rest.then(lambda _, error: outcomes.append(error), None)
    bench.turn()
    bench.disk.answer()
    assert outcomes == [None]


# --- failures ---


def test_a_full_store_fails_the_sends(bench: Bench) -> None:
    bench.send("a")
    bench.send("b")
    bench.turn()
    bench.disk.answer(StoreFull("no room"))
    assert bench.outcomes == [("a", StorageFull), ("b", StorageFull)]


def test_any_other_failure_is_reported_as_retryable(bench: Bench) -> None:
    bench.settle("a")
    bench.turn()
    bench.disk.fail(StoreError("on fire"))
    assert bench.outcomes == [("a", StorageFailed)]


def test_settlements_are_tried_again_without_the_sends_that_failed_with_them(bench: Bench) -> None:
    bench.send("a")
    bench.settle("b")
    bench.turn()
    bench.disk.answer(StoreFull("no room"))
    assert bench.outcomes == [("a", StorageFull)]
    assert not bench.journal.idle
    again = bench.disk.answer()
    assert again.appends == []
    assert names(again.removals) == ["b"]
    assert bench.outcomes == [("a", StorageFull), ("b", None)]
    assert bench.journal.idle


def test_settlements_that_also_fail_alone_are_reported(bench: Bench) -> None:
    bench.send("a")
    bench.settle("b")
    bench.turn()
    bench.disk.answer(StoreFull("no room"))
    bench.disk.answer(StoreFull("not even for this"))
    assert bench.outcomes == [("a", StorageFull), ("b", StorageFull)]
    assert bench.journal.idle


def test_changes_staged_by_callbacks_are_in_the_next_commit(bench: Bench) -> None:
    bench.journal.rest.then(lambda _, error: bench.send("follows"), None)
    bench.turn()
    bench.disk.answer()
    bench.turn()
    assert names(bench.disk.commits[0][0].appends) == ["follows"]


def test_a_failing_callback_does_not_prevent_other_callbacks(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Any, error: BrokerError | None) -> None:
        raise RuntimeError("a mistake of ours")

    bench.journal.sends.then(fail, None)
    bench.send("a")
    bench.turn()
    bench.disk.answer()
    assert bench.outcomes == [("a", None)]
    assert "a mistake of ours" in caplog.text


# --- what the store does not take although it works ---


def refuse_together(bench: Bench, guilty: str) -> None:
    """Make the store refuse commits that have all of these changes."""
    bench.disk.answer(StoreError("cannot hold it"))
    assert bench.disk.answer() == PROBE
    while bench.disk.commits:
        changes = bench.disk.commits[0][0]
        refused = guilty in names(changes.appends) + names(changes.removals)
        bench.disk.answer(StoreError("cannot hold it") if refused else None)


def test_only_the_refused_change_fails_and_callbacks_run_in_order(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "abc":
        bench.send(name)
        bench.settle(name.upper())
    bench.turn()
    refuse_together(bench, "b")
    assert bench.outcomes == [("a", None), ("b", ChangeRefused), ("c", None), ("A", None), ("B", None), ("C", None)]
    assert bench.journal.idle
    assert "the store refused a change: cannot hold it" in caplog.text


def test_callbacks_of_later_changes_run_after_those_of_retried_changes(bench: Bench) -> None:
    bench.send("first")
    bench.turn()
    bench.send("second")
    bench.turn()
    bench.disk.answer(StoreError("a sync failed"))
    bench.disk.answer()
    assert bench.outcomes == []
    assert bench.disk.answer() == PROBE
    assert bench.outcomes == []
    bench.disk.answer()
    assert bench.outcomes == [("first", None), ("second", None)]
    assert bench.journal.idle


def test_changes_that_are_tried_again_keep_their_order_when_the_commits_behind_them_fail_too(bench: Bench) -> None:
    for name in ("first", "second"):
        bench.send(name)
        bench.turn()
    for _ in range(2):
        bench.disk.answer(StoreError("a sync failed"))
    for name in ("first", "second"):
        assert bench.disk.answer() == PROBE
        assert names(bench.disk.answer().appends) == [name]
    assert bench.outcomes == [("first", None), ("second", None)]
    assert bench.journal.idle


def test_callbacks_of_a_commit_run_after_the_settlements_of_the_previous_one(bench: Bench) -> None:
    bench.send("refused")
    bench.settle("settled")
    bench.turn()
    bench.send("behind it")
    bench.turn()
    bench.disk.answer(StoreFull("no room"))
    bench.disk.answer()
    assert bench.outcomes == [("refused", StorageFull)]
    bench.disk.answer()
    assert bench.outcomes == [("refused", StorageFull), ("settled", None), ("behind it", None)]
    assert bench.journal.idle


def test_a_change_that_is_refused_is_no_failure_of_the_store(bench: Bench) -> None:
    failed: list[int] = []
    bench.journal.on_failed = lambda: failed.append(1)
    bench.send("guilty")
    bench.turn()
    refuse_together(bench, "guilty")
    assert bench.outcomes == [("guilty", ChangeRefused)]
    assert (bench.journal.failure, failed) == (None, [])


def test_each_is_committed_with_all_that_it_had_staged(bench: Bench) -> None:
    journal = bench.journal
    row = StoredEntity(1, "q", "queue", {})
    for name, number in (("first", 5), ("second", 6)):
        lane = journal.rest
        for _ in range(2):
            lane.changes.appends.append((number, message(name)))
            lane.changes.removals.append((number, message(name)))
            lane.changes.updates.append((number, message(name), 0))
            lane.changes.rewrites.append((number, message(name), 0, 0))
            lane.changes.seen.append((number, bytes(16), 0))
            lane.changes.forgotten.append((number, 0))
            lane.changes.session_states.append((number, "s", None, 0))
            lane.changes.dropped_entities.append(number)
        lane.changes.advances[number] = number
        lane.changes.entities[number] = row
        bench.wait(lane, name)
    bench.wait(journal.rest, "nothing")
    bench.turn()
    bench.disk.answer(StoreError("cannot hold it"))
    bench.disk.answer()
    for number in (5, 6):
        part = bench.disk.answer()
        lists = (part.appends, part.removals, part.updates, part.rewrites, part.seen)
        for each in (*lists, part.forgotten, part.session_states):
            assert [entry[0] for entry in each] == [number, number]
        assert part.dropped_entities == [number, number]
        assert list(part.entities) == [number]
        assert part.advances == {5: 5, 6: 6}, "numbers that are left out do no harm"
    assert bench.disk.answer().advances == {5: 5, 6: 6}
    assert bench.outcomes == [("first", None), ("second", None), ("nothing", None)]


def test_atomic_changes_stay_together_when_retried(bench: Bench) -> None:
    def both() -> None:
        bench.move("moved")
        bench.settle("guilty")

    bench.move("before")
    bench.journal.all_or_nothing(both)
    bench.move("after")
    bench.turn()
    refuse_together(bench, "guilty")
    assert bench.outcomes == [("before", None), ("moved", ChangeRefused), ("guilty", ChangeRefused), ("after", None)]


def test_a_full_store_accepts_other_changes_that_fit(bench: Bench) -> None:
    for name in "ab":
        bench.send(name)
    bench.settle("c")
    bench.turn()
    bench.disk.answer(StoreError("cannot hold it"))
    bench.disk.answer(StoreFull("no room"))
    bench.disk.answer(StoreError("cannot hold it"))
    bench.disk.answer(StoreFull("no room"))
    bench.disk.answer()
    assert bench.outcomes == [("a", ChangeRefused), ("b", StorageFull), ("c", None)]
    assert str(bench.journal.failure) == "no room"
    assert bench.journal.idle


def test_changes_staged_during_retries_are_in_the_next_commit(bench: Bench) -> None:
    bench.send("guilty")
    bench.turn()
    bench.disk.answer(StoreError("cannot hold it"))
    bench.send("later")
    bench.disk.answer()
    bench.disk.answer(StoreError("cannot hold it"))
    bench.turn()
    bench.disk.answer()
    assert bench.outcomes == [("guilty", ChangeRefused), ("later", None)]
    assert bench.journal.idle


# --- whether the store works ---


def fail_a_send(bench: Bench, error: StoreError) -> None:
    bench.send("failed")
    bench.turn()
    bench.disk.answer(error) if bench.journal.failure is not None else bench.disk.fail(error)


def test_a_failure_is_reported_and_logged_once_until_it_ends(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    failed: list[int] = []
    bench.journal.on_failed = lambda: failed.append(1)
    for _ in range(3):
        fail_a_send(bench, StoreFull("no room"))
    assert str(bench.journal.failure) == "no room"
    assert len(failed) == 3
    assert caplog.text.count("the store refused changes: no room") == 1
    bench.send("a")
    bench.turn()
    bench.disk.answer()
    assert bench.journal.failure is None
    assert caplog.text.count("accepts messages again") == 1


def test_a_settlement_that_works_does_not_prove_that_there_is_room(bench: Bench) -> None:
    fail_a_send(bench, StoreFull("no room"))
    bench.settle("a")
    bench.turn()
    bench.disk.answer()
    assert bench.journal.failure is not None


def test_a_settlement_that_works_proves_that_the_disk_does(bench: Bench) -> None:
    fail_a_send(bench, StoreError("on fire"))
    bench.settle("a")
    bench.turn()
    bench.disk.answer()
    assert bench.journal.failure is None


def test_settlements_between_sends_that_fail_do_not_make_it_flicker(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    fail_a_send(bench, StoreError("on fire"))
    for _ in range(3):
        bench.send("a")
        bench.settle("b")
        bench.turn()
        bench.disk.answer(StoreError("on fire"))
        bench.disk.answer()
        assert bench.journal.failure is not None
    assert caplog.text.count("the store refused") == 1


def test_a_successful_probe_ends_the_failure_and_a_failed_one_is_repeated(bench: Bench) -> None:
    failed: list[int] = []
    fail_a_send(bench, StoreFull("no room"))
    bench.journal.on_failed = lambda: failed.append(1)
    bench.journal.probe(Changes())
    assert not bench.journal.idle
    bench.disk.answer(StoreFull("still no room"))
    assert failed == [1]
    assert str(bench.journal.failure) == "still no room"
    bench.journal.probe(Changes())
    bench.disk.answer()
    assert bench.journal.failure is None
    assert bench.journal.idle


# --- what goes together ---


def test_all_kinds_of_changes_of_all_lanes_are_in_the_commit(bench: Bench) -> None:
    journal = bench.journal
    row = StoredEntity(1, "q", "queue", {})
    for lane, number in ((journal.sends, 5), (journal.moves, 7), (journal.rest, 6)):
        lane.changes.advances = {1: number, number: number}
        lane.changes.seen.append((number, bytes(16), 0))
        lane.changes.forgotten.append((number, 0))
        lane.changes.session_states.append((number, "s", None, 0))
        lane.changes.dropped_entities.append(number)
        lane.changes.entities[number] = row
        bench.wait(lane, "any")
    bench.turn()
    ((changes, _),) = bench.disk.commits
    assert changes.advances == {1: 7, 5: 5, 6: 6, 7: 7}, "the highest number given out"
    for of in (changes.seen, changes.forgotten, changes.session_states):
        assert [each[0] for each in of] == [5, 7, 6]
    assert changes.dropped_entities == [5, 7, 6]
    assert list(changes.entities) == [5, 7, 6]


def test_atomic_changes_are_committed_with_the_moves_or_with_the_other_changes(bench: Bench) -> None:
    def move() -> None:
        bench.move("moved")
        bench.settle("removed")

    bench.send("sent")
    bench.journal.all_or_nothing(move)
    bench.journal.all_or_nothing(lambda: bench.settle("settled"))
    bench.turn()
    bench.disk.answer(StoreFull("no room"))
    bench.disk.answer(StoreFull("no room"))
    bench.disk.answer()
    expected = [("sent", StorageFull), ("moved", StorageFull), ("removed", StorageFull), ("settled", None)]
    assert bench.outcomes == expected


def test_a_partly_staged_change_is_undone_at_once(bench: Bench) -> None:
    def fail() -> None:
        bench.settle("first")
        raise StorageFailed("no")

    bench.settle("other")
    with pytest.raises(StorageFailed):
        bench.journal.all_or_nothing(fail)
    assert bench.outcomes == [("first", StorageFailed)]
    bench.turn()
    assert names(bench.disk.answer().removals) == ["other"]


# --- when all is settled ---


def test_a_callback_for_settled_changes_runs_at_once_if_no_commit_is_pending(bench: Bench) -> None:
    called: list[str] = []
    bench.journal.when_settled(lambda: called.append("now"))
    assert called == ["now"]


def test_a_callback_for_settled_changes_runs_right_after_staged_and_pending_changes(bench: Bench) -> None:
    called: list[str] = []
    bench.send("on its way")
    bench.turn()
    bench.settle("staged")
    bench.journal.when_settled(lambda: called.append("all"))
    bench.turn()
    bench.send("later")
    bench.disk.answer()
    assert called == []
    bench.disk.answer()
    assert called == ["all"]
    assert bench.outcomes[-1] == ("staged", None), "after those who wait for the commit"


def test_a_commit_retried_without_its_sends_is_pending_until_it_is_done(bench: Bench) -> None:
    called: list[str] = []
    bench.send("refused")
    bench.settle("tried again")
    bench.turn()
    bench.journal.when_settled(lambda: called.append("all"))
    bench.settle("later")
    bench.turn()
    bench.disk.answer(StoreFull("no room"))
    (later, _), (again, _) = bench.disk.commits
    assert (names(later.removals), names(again.removals)) == (["later"], ["tried again"])
    bench.disk.answer()
    assert called == []
    bench.disk.answer()
    assert called == ["all"]
