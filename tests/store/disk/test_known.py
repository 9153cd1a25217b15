"""The check of a commit before it is logged: the entities must exist, and the sequence numbers must be unused."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from store_harness import Driver, body, entity, message

from peeklock.store.base import Changes, Counters, StoreError
from peeklock.store.disk.commits.batch import Batch
from peeklock.store.disk.commits.entry import Entry
from peeklock.store.disk.commits.known import Known
from peeklock.store.disk.keys import MAX_NUMBER


class Asked:
    """A `Known` with entities 1 and 2, whose last numbers are 10, and an index with these numbers of entity 1."""

    def __init__(self, *taken: int) -> None:
        self.taken = set(taken)
        self.questions: list[list[int]] = []
        entities = [entity(id, counters=Counters(last_sequence_number=10)) for id in (1, 2)]
        self.known = Known(entities, self._any_exists)

    def _any_exists(self, keys: list[int]) -> bool:
        self.questions.append([key & MAX_NUMBER for key in keys])
        return not self.taken.isdisjoint(self.questions[-1])

    def check(self, changes: Changes, *, is_alone: bool = True) -> None:
        batch = Batch(changes)
        entry, _ = Entry.of(batch, 1, 100)
        self.known.check(batch, entry, is_alone=is_alone)
        self.known.learn(batch)

    def append(self, *numbers: int, id: int = 1, is_alone: bool = True, shared: Iterable[int] = ()) -> None:
        appends = [(id, message(number)) for number in numbers] + [(id, message(n, body=body(n))) for n in shared]
        self.check(Changes(appends=appends), is_alone=is_alone)


def test_increasing_numbers_are_accepted_without_reading_the_index() -> None:
    asked = Asked(9, 10)
    asked.append(11, 12, 13, is_alone=False)
    asked.append(14, shared=[15, 18], is_alone=False)
    asked.append(19, 25, 30, is_alone=False)
    asked.append(11, id=2, is_alone=False)
    assert asked.questions == []


@pytest.mark.parametrize("number", [10, 11, 12, 13, 20])
def test_a_number_that_another_has_is_refused(number: int) -> None:
    asked = Asked(9, 10)
    asked.append(11, 12, 13, shared=[20])
    asked.taken |= {11, 12, 13, 20}
    for shared in (False, True):
        with pytest.raises(StoreError, match=f"a sequence number is in use, among {number}"):
            asked.append(*[] if shared else [number], shared=[number] if shared else [])
    asked.append(21)


@pytest.mark.parametrize(
    ("numbers", "shared"), [([11, 11], []), ([11], [11]), ([], [11, 11]), ([5, 5], []), ([12, 11], [12])]
)
def test_a_number_twice_in_one_commit_is_refused(numbers: list[int], shared: list[int]) -> None:
    with pytest.raises(StoreError, match="a sequence number is in use"):
        Asked().append(*numbers, shared=shared)


def test_new_numbers_that_do_not_increase_are_accepted_after_reading_the_index() -> None:
    asked = Asked(3, 10)
    asked.append(4, 5)
    asked.append(15, 13, 12)  # all beyond what was known
    asked.append(14, 11)
    asked.append(20, shared=[18])
    assert [sorted(question) for question in asked.questions] == [[4, 5], [11, 14], [18]]
    with pytest.raises(StoreError):
        asked.append(2, 3)


def test_a_run_that_begins_below_the_known_numbers_is_known_to_its_end() -> None:
    asked = Asked()
    asked.append(9, 10, 11, 12, 13)
    asked.taken = {9, 10, 11, 12, 13}
    for number in (11, 12, 13):
        with pytest.raises(StoreError):
            asked.append(number)
    asked.append(14, is_alone=False)


def test_what_is_written_with_others_is_not_taken_while_it_is_in_doubt() -> None:
    asked = Asked()
    with pytest.raises(StoreError):
        asked.append(5, is_alone=False)
    assert asked.questions == []
    asked.append(5)


def test_an_entity_that_does_not_exist_is_not_appended_to() -> None:
    asked = Asked()
    for is_alone in (True, False):
        with pytest.raises(StoreError, match="entity 3: it does not exist"):
            asked.append(1, id=3, is_alone=is_alone)
    asked.check(Changes(entities={3: entity(3)}, appends=[(3, message(1)), (3, message(2, body=body(2)))]))
    asked.append(3, id=3, is_alone=False)
    asked.check(Changes(dropped_entities=[3]))
    with pytest.raises(StoreError, match="entity 3: it does not exist"):
        asked.append(4, id=3)


def test_an_entity_that_could_not_be_created_is_not_known() -> None:
    asked = Asked()
    batch = Batch(Changes(entities={3: entity(3)}))
    entry, _ = Entry.of(batch, 1, 100)
    asked.known.check(batch, entry, is_alone=True)  # and then the disk was full
    with pytest.raises(StoreError, match="does not exist"):
        asked.append(1, id=3)


def test_an_entity_that_changes_keeps_its_numbers() -> None:
    asked = Asked(10)
    asked.check(Changes(entities={1: entity(1, path="renamed")}))
    with pytest.raises(StoreError):
        asked.append(10)
    asked.append(11, is_alone=False)


def test_a_store_refuses_used_numbers_in_any_group_of_commits(sqlite: Driver) -> None:
    sqlite.create(1)
    sqlite.append(1, message(5))
    sqlite.commit(Changes(removals=[(1, message(5))]))
    answers: list[StoreError | None] = []
    for numbers in ([1], [4, 6, 7], [7], [8], [8], [2, 3], [3], [9]):
        sqlite.store.commit(Changes(appends=[(1, message(number)) for number in numbers]), answers.append)
    sqlite.wait(answers, 8)
    assert [error is None for error in answers] == [True, True, False, True, False, True, False, True]
    for _ in range(2):
        assert sqlite.numbers(1) == [1, 2, 3, 4, 6, 7, 8, 9]
        sqlite.reopen()
