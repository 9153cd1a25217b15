"""Group commit: what one turn staged goes to the store as one, and what fails apart is told apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from peeklock.broker.errors import BrokerError, StorageFailed, StorageFull
from peeklock.broker.journal import COMMITS_IN_FLIGHT, HURRY_MESSAGES, Journal, Lane
from peeklock.store.base import Changes, Committed, StoredEntity, StoredMessage, StoreError, StoreFull


class Disk:
    """A store that answers when it is told to."""

    def __init__(self) -> None:
        self.commits: list[tuple[Changes, Committed]] = []

    def commit(self, changes: Changes, done: Committed) -> None:
        self.commits.append((changes, done))

    def answer(self, error: StoreError | None = None) -> Changes:
        """Answer the oldest commit; returns what it was."""
        changes, done = self.commits.pop(0)
        done(error)
        return changes


class Desk:
    """A journal with a disk, and turns that are run by hand."""

    def __init__(self) -> None:
        self.disk = Disk()
        self._turn: deque[Callable[[], None]] = deque()
        self.journal = Journal(self.disk, self._turn.append)  # type: ignore[arg-type]
        self.told: list[tuple[str, type[BrokerError] | None]] = []

    def turn(self) -> None:
        while self._turn:
            self._turn.popleft()()

    def send(self, name: str) -> None:
        self._stage(self.journal.sends, name).appends.append((1, message(name)))

    def settle(self, name: str) -> None:
        self._stage(self.journal.rest, name).removals.append((1, message(name)))

    def _stage(self, lane: Lane, name: str) -> Changes:
        lane.waiting.append((self._tell, name))
        self.journal.wake()
        return lane.changes

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
    desk.journal.wake()
    desk.turn()
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
    desk.journal.rest.waiting.append((lambda _, error: told.append(error), None))
    desk.journal.wake()
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
    desk.disk.answer(StoreError("on fire"))
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
    desk.journal.rest.waiting.append((lambda _, error: desk.send("follows"), None))
    desk.journal.wake()
    desk.turn()
    desk.disk.answer()
    desk.turn()
    assert names(desk.disk.commits[0][0].appends) == ["follows"]


def test_one_who_fails_when_told_keeps_nobody_else_from_hearing(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Any, error: BrokerError | None) -> None:
        raise RuntimeError("a mistake of ours")

    desk.journal.sends.waiting.append((fail, None))
    desk.send("a")
    desk.turn()
    desk.disk.answer()
    assert desk.told == [("a", None)]
    assert "a mistake of ours" in caplog.text


# --- whether the store works ---


def fail_a_send(desk: Desk, error: StoreError) -> None:
    desk.send("failed")
    desk.turn()
    desk.disk.answer(error)


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
    assert caplog.text.count("takes messages again") == 1


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
        desk._stage(lane, "any")
        lane.changes.advances = {1: number, number: number}
        lane.changes.seen.append((number, bytes(16), 0))
        lane.changes.forgotten.append((number, 0))
        lane.changes.session_states.append((number, "s", None, 0))
        lane.changes.dropped_entities.append(number)
        lane.changes.entities[number] = row
    desk.turn()
    ((changes, _),) = desk.disk.commits
    assert changes.advances == {1: 7, 5: 5, 6: 6, 7: 7}, "the highest number given out"
    for of in (changes.seen, changes.forgotten, changes.session_states):
        assert [each[0] for each in of] == [5, 7, 6]
    assert changes.dropped_entities == [5, 7, 6]
    assert list(changes.entities) == [5, 7, 6]


def test_what_is_all_or_nothing_goes_with_the_moves_or_with_the_rest(desk: Desk) -> None:
    def move() -> None:
        desk._stage(desk.journal.moves, "moved").appends.append((1, message("moved")))
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
