"""Expensive work gets a limited share of the time."""

from __future__ import annotations

import pytest

from broker.world import BodySelector, Receiver, SelectingReceiver, World
from peeklock.broker.agenda import Agenda, ManualClock
from peeklock.broker.pace import LONG_MS, REST, Pace


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000_000)


def test_a_short_turn_is_followed_by_the_next(clock: ManualClock) -> None:
    pace = Pace(Agenda(clock))
    started = clock.monotonic()
    clock.advance(LONG_MS - 1)
    pace.worked(started)
    assert not pace.is_resting


def test_a_long_turn_is_followed_by_a_rest_after_which_all_go_on_in_order(clock: ManualClock) -> None:
    agenda = Agenda(clock)
    pace = Pace(agenda)
    started = clock.monotonic()
    clock.advance(10)
    pace.worked(started)
    done: list[int] = []
    for number in range(3):
        pace.when_rested(lambda number=number: done.append(number))  # type: ignore[misc]
    clock.advance(10 * REST - 1)
    agenda.run()
    assert pace.is_resting
    assert done == []
    clock.advance(1)
    agenda.run()
    assert not pace.is_resting
    assert done == [0, 1, 2]


def test_work_done_during_a_pause_makes_the_pause_longer(clock: ManualClock) -> None:
    agenda = Agenda(clock)
    pace = Pace(agenda)
    done: list[int] = []

    def work() -> None:
        done.append(clock.monotonic())
        started = clock.monotonic()
        clock.advance(10)
        pace.worked(started)

    work()
    pace.when_rested(work)
    pace.when_rested(work)
    work()  # what was asked for before
    clock.advance(10 * REST)
    agenda.run()
    assert len(done) == 2
    clock.advance(10 * REST)
    agenda.run()
    assert len(done) == 3
    clock.advance(10 * REST)
    agenda.run()
    assert len(done) == 4


def test_consumers_without_a_selector_are_served_during_a_pause_of_selectors() -> None:
    world = World()
    world.send(*map(str, range(20)))

    def slow(text: str) -> bool:
        world.clock.advance(20)
        return text == "never"

    selector = BodySelector(slow, cost=100)
    SelectingReceiver(world, world.queue(), selector)
    looked = sum(selector.looks.values())
    assert looked < 20
    assert Receiver(world, world.queue(), credit=5).bodies == list("01234")
    assert sum(selector.looks.values()) == looked
    for _ in range(30):
        world.advance(100)
    assert selector.looks == dict.fromkeys(map(str, [*range(looked), *range(max(5, looked), 20)]), 1)
