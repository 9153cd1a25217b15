"""Reads of a connection start one after the other, whether they succeed or fail."""

from __future__ import annotations

import pytest

from peeklock.broker.errors import BrokerError, MessageNotFound
from peeklock.nodes.read_slot import Leave, ReadSlot


class Bench:
    def __init__(self) -> None:
        self.slot = ReadSlot()
        self.started: list[str] = []
        self.leaves: dict[str, Leave] = {}
        self.failures: list[BrokerError] = []

    def enter(self, name: str, raises: Exception | None = None, *, at_once: bool = False) -> None:
        def start(leave: Leave) -> None:
            self.started.append(name)
            if raises is not None:
                raise raises
            self.leaves[name] = leave
            if at_once:
                leave()

        self.slot.enter(start, self.failures.append)


def test_each_starts_when_the_one_before_it_has_left() -> None:
    bench = Bench()
    for name in "abc":
        bench.enter(name)
    assert bench.started == ["a"]
    bench.leaves["a"]()
    bench.leaves["a"]()
    assert bench.started == ["a", "b"]
    bench.leaves["b"]()
    bench.leaves["c"]()
    bench.enter("d")
    assert bench.started == ["a", "b", "c", "d"]


def test_those_that_are_answered_at_once_do_not_wait() -> None:
    bench = Bench()
    for name in map(str, range(5000)):
        bench.enter(name, at_once=True)
    bench.enter("slow")
    for name in map(str, range(5000)):
        bench.enter(name, at_once=True)
    bench.leaves["slow"]()
    assert len(bench.started) == 10_001
    assert bench.failures == []


def test_concurrent_failures_each_get_their_own_error() -> None:
    bench = Bench()
    bench.enter("slow")
    for name in map(str, range(5000)):
        bench.enter(name, MessageNotFound(name))
    bench.leaves["slow"]()
    assert [str(failure) for failure in bench.failures] == [*map(str, range(5000))]


def test_one_that_fails_lets_the_next_pass(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.enter("a")
    bench.enter("b", MessageNotFound("There is none."))
    bench.enter("c", ValueError("a fault"))
    bench.enter("d")
    bench.leaves["a"]()
    assert bench.started == ["a", "b", "c", "d"]
    assert [str(failure) for failure in bench.failures] == [
        "There is none.",
        "The broker failed at this request; see its log.",
    ]
    assert "a fault" in caplog.text


def test_no_read_starts_for_a_detached_client() -> None:
    bench = Bench()
    bench.enter("a")
    bench.enter("b")
    bench.slot.close()
    bench.leaves["a"]()
    assert bench.started == ["a"]
    assert [str(failure) for failure in bench.failures] == ["The connection is closed."], (
        "what it costs is counted till then"
    )
