"""Group commit: the changes of one turn are one commit, and separate failures have separate outcomes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from peeklock.broker.errors import BrokerError, ChangeRefused, StorageFailed, StorageFull
from peeklock.broker.journal import COMMITS_IN_FLIGHT, HURRY_MESSAGES, Journal, Lane
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


class Desk:
    """A journal with a store, whose turns the test runs."""

    def __init__(self) -> None:
        self.disk = Disk()
        self._turn: deque[Callable[[], None]] = deque()
        self.journal = Journal(self.disk, self._turn.append)  # type: ignore[arg-type]
        self.journal.make_probe = lambda: PROBE
        self.told: list[tuple[str, type[BrokerError] | None]] = []

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
        lane.then(self._tell, name)

    def _append(self, lane: Lane, name: str) -> None:
        lane.changes.appends.append((1, message(name)))
        self.wait(lane, name)

    def _tell(self, name: Any, error: BrokerError | None) -> None:
        self.told.append((name, None if error is None else type(error)))


def message(name: str) -> StoredMessage:
    return StoredMessage(1, name.encode(), 0)


def names(messages: list[tuple[int, StoredMessage]]) -> list[str]:
    return [each.payload.decode() for _, each in messages]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_one_turn_staged_is_one_commit(desk: Desk) -> None:
    desk.send("a")
    desk.settle("b")
    desk.send("c")
    assert desk.disk.commits == []
    desk.turn()
    (commit,) = desk.disk.commits
    assert names(commit[0].appends) == ["a", "c"]
    assert names(commit[0].removals) == ["b"]


def test_nobody_is_told_before_the_commit_is_done(desk: Desk) -> None:
    desk.send("a")
    desk.settle("b")
    desk.turn()
    assert desk.told == []
    desk.disk.answer()
    assert desk.told == [("a", None), ("b", None)]


def test_everybody_is_told_in_the_order_of_staging(desk: Desk) -> None:
    for name in "abcde":
        desk.send(name)
    desk.turn()
    desk.disk.answer()
    assert [name for name, _ in desk.told] == list("abcde")


def test_much_is_committed_before_its_turn_ends_and_little_is_not(desk: Desk) -> None:
    for number in range(HURRY_MESSAGES - 1):
        desk.send(str(number))
    desk.journal.hurry()
    assert desk.disk.commits == []
    desk.settle("one more")
    desk.journal.hurry()
    assert len(desk.disk.commits) == 1
    desk.turn()
    assert len(desk.disk.commits) == 1


def test_a_store_that_has_enough_to_do_is_not_hurried(desk: Desk) -> None:
    for _ in range(COMMITS_IN_FLIGHT + 1):
        for number in range(HURRY_MESSAGES):
            desk.send(str(number))
        desk.journal.hurry()
    assert len(desk.disk.commits) == COMMITS_IN_FLIGHT
    desk.disk.answer()
    desk.turn()
    assert [len(changes.appends) for changes, _ in desk.disk.commits] == [HURRY_MESSAGES, HURRY_MESSAGES]


def test_a_turn_that_was_asked_for_before_a_hurry_adds_no_commit_too_many(desk: Desk) -> None:
    for _ in range(COMMITS_IN_FLIGHT):
        for number in range(HURRY_MESSAGES):
            desk.send(str(number))
        desk.journal.hurry()
    desk.send("last")
    desk.turn()
    assert len(desk.disk.commits) == COMMITS_IN_FLIGHT
    desk.disk.answer()
    desk.turn()
    assert names(desk.disk.commits[-1][0].appends) == ["last"]


def test_an_empty_turn_commits_nothing(desk: Desk) -> None:
    desk.journal.flush()
    assert desk.disk.commits == []
    assert desk.journal.idle


def test_only_so_many_commits_are_on_their_way_and_the_rest_share_the_next(desk: Desk) -> None:
    for number in range(10):
        desk.send(str(number))
        desk.turn()
    assert len(desk.disk.commits) == COMMITS_IN_FLIGHT
    desk.disk.answer()
    desk.turn()
    assert len(desk.disk.commits) == COMMITS_IN_FLIGHT
    assert names(desk.disk.commits[-1][0].appends) == [str(n) for n in range(COMMITS_IN_FLIGHT, 10)]
    while desk.disk.commits:
        desk.disk.answer()
        desk.turn()
    assert [name for name, _ in desk.told] == [str(n) for n in range(10)]


def test_it_is_idle_when_nothing_is_staged_and_nothing_on_its_way(desk: Desk) -> None:
    assert desk.journal.idle
    desk.send("a")
    assert not desk.journal.idle
    desk.turn()
    assert not desk.journal.idle
    desk.disk.answer()
    assert desk.journal.idle


def test_something_that_waits_without_a_change_is_told_too(desk: Desk) -> None:
    told: list[BrokerError | None] = []
    desk.journal.rest.then(lambda _, error: told.append(error), None)
    desk.turn()
    desk.disk.answer()
    assert told == [None]


# --- failures ---


def test_a_full_store_fails_the_sends(desk: Desk) -> None:
    desk.send("a")
    desk.send("b")
    desk.turn()
    desk.disk.answer(StoreFull("no room"))
    assert desk.told == [("a", StorageFull), ("b", StorageFull)]


def test_another_failure_is_told_as_one_worth_another_try(desk: Desk) -> None:
    desk.settle("a")
    desk.turn()
    desk.disk.fail(StoreError("on fire"))
    assert desk.told == [("a", StorageFailed)]


def test_settlements_are_tried_again_without_the_sends_that_failed_with_them(desk: Desk) -> None:
    desk.send("a")
    desk.settle("b")
    desk.turn()
    desk.disk.answer(StoreFull("no room"))
    assert desk.told == [("a", StorageFull)]
    assert not desk.journal.idle
    again = desk.disk.answer()
    assert again.appends == []
    assert names(again.removals) == ["b"]
    assert desk.told == [("a", StorageFull), ("b", None)]
    assert desk.journal.idle


def test_settlements_that_fail_alone_too_are_told(desk: Desk) -> None:
    desk.send("a")
    desk.settle("b")
    desk.turn()
    desk.disk.answer(StoreFull("no room"))
    desk.disk.answer(StoreFull("not even for this"))
    assert desk.told == [("a", StorageFull), ("b", StorageFull)]
    assert desk.journal.idle


def test_what_is_staged_by_those_who_are_told_goes_with_the_next_commit(desk: Desk) -> None:
    desk.journal.rest.then(lambda _, error: desk.send("follows"), None)
    desk.turn()
    desk.disk.answer()
    desk.turn()
    assert names(desk.disk.commits[0][0].appends) == ["follows"]


def test_one_who_fails_when_told_keeps_nobody_else_from_hearing(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Any, error: BrokerError | None) -> None:
        raise RuntimeError("a mistake of ours")

    desk.journal.sends.then(fail, None)
    desk.send("a")
    desk.turn()
    desk.disk.answer()
    assert desk.told == [("a", None)]
    assert "a mistake of ours" in caplog.text


# --- what the store does not take although it works ---


def refuse_together(desk: Desk, guilty: str) -> None:
    """Make the store refuse commits that have all of these changes."""
    desk.disk.answer(StoreError("cannot hold it"))
    assert desk.disk.answer() == PROBE
    while desk.disk.commits:
        changes = desk.disk.commits[0][0]
        refused = guilty in names(changes.appends) + names(changes.removals)
        desk.disk.answer(StoreError("cannot hold it") if refused else None)


def test_only_the_guilty_one_fails_and_all_are_told_in_order(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    for name in "abc":
        desk.send(name)
        desk.settle(name.upper())
    desk.turn()
    refuse_together(desk, "b")
    assert desk.told == [("a", None), ("b", ChangeRefused), ("c", None), ("A", None), ("B", None), ("C", None)]
    assert desk.journal.idle
    assert "the store refused a change: cannot hold it" in caplog.text


def test_what_was_committed_behind_changes_that_are_tried_again_is_told_after_them(desk: Desk) -> None:
    desk.send("first")
    desk.turn()
    desk.send("second")
    desk.turn()
    desk.disk.answer(StoreError("a sync failed"))
    desk.disk.answer()
    assert desk.told == []
    assert desk.disk.answer() == PROBE
    assert desk.told == []
    desk.disk.answer()
    assert desk.told == [("first", None), ("second", None)]
    assert desk.journal.idle


def test_changes_that_are_tried_again_keep_their_order_when_the_commits_behind_them_fail_too(desk: Desk) -> None:
    for name in ("first", "second"):
        desk.send(name)
        desk.turn()
    for _ in range(2):
        desk.disk.answer(StoreError("a sync failed"))
    for name in ("first", "second"):
        assert desk.disk.answer() == PROBE
        assert names(desk.disk.answer().appends) == [name]
    assert desk.told == [("first", None), ("second", None)]
    assert desk.journal.idle


def test_a_commit_is_told_after_the_settlements_of_the_one_before_it(desk: Desk) -> None:
    desk.send("refused")
    desk.settle("settled")
    desk.turn()
    desk.send("behind it")
    desk.turn()
    desk.disk.answer(StoreFull("no room"))
    desk.disk.answer()
    assert desk.told == [("refused", StorageFull)]
    desk.disk.answer()
    assert desk.told == [("refused", StorageFull), ("settled", None), ("behind it", None)]
    assert desk.journal.idle


def test_a_change_that_is_refused_is_no_failure_of_the_store(desk: Desk) -> None:
    failed: list[int] = []
    desk.journal.on_failed = lambda: failed.append(1)
    desk.send("guilty")
    desk.turn()
    refuse_together(desk, "guilty")
    assert desk.told == [("guilty", ChangeRefused)]
    assert (desk.journal.failure, failed) == (None, [])


def test_each_is_committed_with_all_that_it_had_staged(desk: Desk) -> None:
    journal = desk.journal
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
        desk.wait(lane, name)
    desk.wait(journal.rest, "nothing")
    desk.turn()
    desk.disk.answer(StoreError("cannot hold it"))
    desk.disk.answer()
    for number in (5, 6):
        part = desk.disk.answer()
        lists = (part.appends, part.removals, part.updates, part.rewrites, part.seen)
        for each in (*lists, part.forgotten, part.session_states):
            assert [entry[0] for entry in each] == [number, number]
        assert part.dropped_entities == [number, number]
        assert list(part.entities) == [number]
        assert part.advances == {5: 5, 6: 6}, "numbers that are left out do no harm"
    assert desk.disk.answer().advances == {5: 5, 6: 6}
    assert desk.told == [("first", None), ("second", None), ("nothing", None)]


def test_what_is_all_or_nothing_stays_together_when_it_is_tried_again(desk: Desk) -> None:
    def both() -> None:
        desk.move("moved")
        desk.settle("guilty")

    desk.move("before")
    desk.journal.all_or_nothing(both)
    desk.move("after")
    desk.turn()
    refuse_together(desk, "guilty")
    assert desk.told == [("before", None), ("moved", ChangeRefused), ("guilty", ChangeRefused), ("after", None)]


def test_a_full_store_that_refuses_a_change_takes_the_others_as_far_as_they_fit(desk: Desk) -> None:
    for name in "ab":
        desk.send(name)
    desk.settle("c")
    desk.turn()
    desk.disk.answer(StoreError("cannot hold it"))
    desk.disk.answer(StoreFull("no room"))
    desk.disk.answer(StoreError("cannot hold it"))
    desk.disk.answer(StoreFull("no room"))
    desk.disk.answer()
    assert desk.told == [("a", ChangeRefused), ("b", StorageFull), ("c", None)]
    assert str(desk.journal.failure) == "no room"
    assert desk.journal.idle


def test_what_is_staged_while_each_is_tried_goes_with_the_next_commit(desk: Desk) -> None:
    desk.send("guilty")
    desk.turn()
    desk.disk.answer(StoreError("cannot hold it"))
    desk.send("later")
    desk.disk.answer()
    desk.disk.answer(StoreError("cannot hold it"))
    desk.turn()
    desk.disk.answer()
    assert desk.told == [("guilty", ChangeRefused), ("later", None)]
    assert desk.journal.idle


# --- whether the store works ---


def fail_a_send(desk: Desk, error: StoreError) -> None:
    desk.send("failed")
    desk.turn()
    desk.disk.answer(error) if desk.journal.failure is not None else desk.disk.fail(error)


def test_a_failure_is_known_and_logged_once_until_it_is_over(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    failed: list[int] = []
    desk.journal.on_failed = lambda: failed.append(1)
    for _ in range(3):
        fail_a_send(desk, StoreFull("no room"))
    assert str(desk.journal.failure) == "no room"
    assert len(failed) == 3
    assert caplog.text.count("the store refused changes: no room") == 1
    desk.send("a")
    desk.turn()
    desk.disk.answer()
    assert desk.journal.failure is None
    assert caplog.text.count("accepts messages again") == 1


def test_a_settlement_that_works_does_not_prove_that_there_is_room(desk: Desk) -> None:
    fail_a_send(desk, StoreFull("no room"))
    desk.settle("a")
    desk.turn()
    desk.disk.answer()
    assert desk.journal.failure is not None


def test_a_settlement_that_works_proves_that_the_disk_does(desk: Desk) -> None:
    fail_a_send(desk, StoreError("on fire"))
    desk.settle("a")
    desk.turn()
    desk.disk.answer()
    assert desk.journal.failure is None


def test_settlements_between_sends_that_fail_do_not_make_it_flicker(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    fail_a_send(desk, StoreError("on fire"))
    for _ in range(3):
        desk.send("a")
        desk.settle("b")
        desk.turn()
        desk.disk.answer(StoreError("on fire"))
        desk.disk.answer()
        assert desk.journal.failure is not None
    assert caplog.text.count("the store refused") == 1


def test_a_probe_that_works_proves_it_and_one_that_fails_asks_for_another(desk: Desk) -> None:
    failed: list[int] = []
    fail_a_send(desk, StoreFull("no room"))
    desk.journal.on_failed = lambda: failed.append(1)
    desk.journal.probe(Changes())
    assert not desk.journal.idle
    desk.disk.answer(StoreFull("still no room"))
    assert failed == [1]
    assert str(desk.journal.failure) == "still no room"
    desk.journal.probe(Changes())
    desk.disk.answer()
    assert desk.journal.failure is None
    assert desk.journal.idle


# --- what goes together ---


def test_all_kinds_of_changes_of_all_lanes_are_in_the_commit(desk: Desk) -> None:
    journal = desk.journal
    row = StoredEntity(1, "q", "queue", {})
    for lane, number in ((journal.sends, 5), (journal.moves, 7), (journal.rest, 6)):
        lane.changes.advances = {1: number, number: number}
        lane.changes.seen.append((number, bytes(16), 0))
        lane.changes.forgotten.append((number, 0))
        lane.changes.session_states.append((number, "s", None, 0))
        lane.changes.dropped_entities.append(number)
        lane.changes.entities[number] = row
        desk.wait(lane, "any")
    desk.turn()
    ((changes, _),) = desk.disk.commits
    assert changes.advances == {1: 7, 5: 5, 6: 6, 7: 7}, "the highest number given out"
    for of in (changes.seen, changes.forgotten, changes.session_states):
        assert [each[0] for each in of] == [5, 7, 6]
    assert changes.dropped_entities == [5, 7, 6]
    assert list(changes.entities) == [5, 7, 6]


def test_what_is_all_or_nothing_goes_with_the_moves_or_with_the_rest(desk: Desk) -> None:
    def move() -> None:
        desk.move("moved")
        desk.settle("removed")

    desk.send("sent")
    desk.journal.all_or_nothing(move)
    desk.journal.all_or_nothing(lambda: desk.settle("settled"))
    desk.turn()
    desk.disk.answer(StoreFull("no room"))
    desk.disk.answer(StoreFull("no room"))
    desk.disk.answer()
    expected = [("sent", StorageFull), ("moved", StorageFull), ("removed", StorageFull), ("settled", None)]
    assert desk.told == expected


def test_what_cannot_be_staged_whole_is_undone_at_once(desk: Desk) -> None:
    def fail() -> None:
        desk.settle("first")
        raise StorageFailed("no")

    desk.settle("other")
    with pytest.raises(StorageFailed):
        desk.journal.all_or_nothing(fail)
    assert desk.told == [("first", StorageFailed)]
    desk.turn()
    assert names(desk.disk.answer().removals) == ["other"]


# --- when all is settled ---


def test_what_waits_for_all_to_be_settled_is_called_at_once_if_nothing_is_on_its_way(desk: Desk) -> None:
    called: list[str] = []
    desk.journal.when_settled(lambda: called.append("now"))
    assert called == ["now"]


def test_it_is_called_after_what_is_staged_and_what_is_on_its_way_and_not_later(desk: Desk) -> None:
    called: list[str] = []
    desk.send("on its way")
    desk.turn()
    desk.settle("staged")
    desk.journal.when_settled(lambda: called.append("all"))
    desk.turn()
    desk.send("later")
    desk.disk.answer()
    assert called == []
    desk.disk.answer()
    assert called == ["all"]
    assert desk.told[-1] == ("staged", None), "after those who wait for the commit"


def test_a_commit_that_is_tried_again_without_its_sends_is_on_its_way_until_it_is_done(desk: Desk) -> None:
    called: list[str] = []
    desk.send("refused")
    desk.settle("tried again")
    desk.turn()
    desk.journal.when_settled(lambda: called.append("all"))
    desk.settle("later")
    desk.turn()
    desk.disk.answer(StoreFull("no room"))
    (later, _), (again, _) = desk.disk.commits
    assert (names(later.removals), names(again.removals)) == (["later"], ["tried again"])
    desk.disk.answer()
    assert called == []
    desk.disk.answer()
    assert called == ["all"]
