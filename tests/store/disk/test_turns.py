"""Long loops that let other threads run."""

from __future__ import annotations

from threading import Thread

import pytest

from peeklock.store.disk import turns
from peeklock.store.disk.turns import clear, yield_between


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 35])
def test_all_calls_run_in_order_in_turns_of_any_size(count: int) -> None:
    assert list(yield_between(range(count), 10)) == list(range(count))
    items = list(range(count))
    clear(items, 10)
    assert items == []


@pytest.mark.interpreted
def test_others_have_a_turn_after_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    done: list[int] = []
    monkeypatch.setattr(turns, "sleep", lambda seconds: given.append(len(done)))
    for item in yield_between(range(35), 10):
        done.append(item)
    assert given == [10, 20, 30]
    given.clear()
    done.clear()
    for item in yield_between(range(10), 10, lambda item: item):
        done.append(item)
    assert given == [5, 7, 9]


def test_another_thread_works_while_much_is_done() -> None:
    worked: list[int] = []
    other = Thread(target=lambda: worked.append(1))
    for item in yield_between(range(2_000_000), 1000):
        if item == 0:
            other.start()
        if worked:
            break
    else:
        pytest.fail("it had no turn")
    other.join()
