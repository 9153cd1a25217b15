"""The agenda: appointments in the order of their times, with a clock that tests move."""

from __future__ import annotations

import pytest

from peeklock.broker.agenda import MAX_CANCELLED, Agenda, ManualClock, system_clock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000)


@pytest.fixture
def agenda(clock: ManualClock) -> Agenda:
    return Agenda(clock)


def test_nothing_is_due_at_first(agenda: Agenda) -> None:
    assert agenda.next_due is None
    agenda.run()


def test_due_actions_run_in_the_order_of_time_and_then_of_arrival(agenda: Agenda, clock: ManualClock) -> None:
    done: list[str] = []
    agenda.at(1030, lambda: done.append("third"))
    agenda.at(1010, lambda: done.append("first"))
    agenda.at(1010, lambda: done.append("second"))
    agenda.at(1031, lambda: done.append("not yet"))
    assert agenda.next_due == 1010
    clock.advance(30)
    agenda.run()
    assert done == ["first", "second", "third"]
    assert agenda.next_due == 1031


def test_nothing_is_done_twice(agenda: Agenda, clock: ManualClock) -> None:
    done: list[int] = []
    agenda.at(1000, lambda: done.append(1))
    agenda.run()
    agenda.run()
    assert done == [1]


def test_a_cancelled_action_is_not_run_and_not_awaited(agenda: Agenda, clock: ManualClock) -> None:
    done: list[str] = []
    agenda.at(1010, lambda: done.append("cancelled")).cancel()
    agenda.at(1020, lambda: done.append("kept"))
    assert agenda.next_due == 1020
    clock.advance(100)
    agenda.run()
    assert done == ["kept"]


def test_cancelling_twice_or_too_late_does_nothing(agenda: Agenda) -> None:
    done: list[int] = []
    appointment = agenda.at(1000, lambda: done.append(1))
    agenda.run()
    appointment.cancel()
    appointment.cancel()
    assert done == [1]


def test_an_action_added_for_now_runs_in_the_same_run(agenda: Agenda) -> None:
    done: list[str] = []

    def first() -> None:
        done.append("first")
        agenda.at(1000, lambda: done.append("second"))
        agenda.at(1001, lambda: done.append("later"))

    agenda.at(1000, first)
    agenda.run()
    assert done == ["first", "second"]


def test_an_action_may_cancel_another_that_is_due(agenda: Agenda) -> None:
    done: list[str] = []
    other = agenda.at(1000, lambda: None)
    other.cancel()
    second = agenda.at(1000, lambda: done.append("second"))
    agenda.at(999, lambda: second.cancel())
    agenda.run()
    assert done == []


def test_an_action_that_fails_stops_no_other(agenda: Agenda, caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fail() -> None:
        raise RuntimeError("an entity in trouble")

    agenda.at(1000, fail)
    agenda.at(1000, lambda: done.append("done"))
    agenda.run()
    assert done == ["done"]
    assert "an entity in trouble" in caplog.text


def test_the_owner_is_notified_of_an_earlier_next_action(agenda: Agenda) -> None:
    heard: list[int | None] = []
    agenda.on_earlier = lambda: heard.append(agenda.next_due)
    agenda.at(1050, lambda: None)
    agenda.at(1060, lambda: None)
    agenda.at(1040, lambda: None)
    assert heard == [1050, 1040]


def test_cancelled_appointments_are_removed_before_their_time(agenda: Agenda) -> None:
    kept = agenda.at(5000, lambda: None)
    for _ in range(100_000):
        agenda.at(10**15, lambda: None).cancel()
    assert len(agenda._moments) <= 2 * MAX_CANCELLED + 2
    assert agenda.next_due == 5000
    kept.cancel()
    assert agenda.next_due is None


def test_the_system_clock_counts_milliseconds_since_1970() -> None:
    assert 1_700_000_000_000 < system_clock.now() < 5_000_000_000_000


def test_a_manual_clock_starts_at_the_present_and_does_not_advance() -> None:
    clock = ManualClock()
    assert clock() == clock()
    assert abs(clock() - system_clock.now()) < 60_000
