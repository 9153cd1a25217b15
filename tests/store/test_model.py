"""Durable stores and the store in memory have the same contents after the same workload.

The store on disk is closed and reopened, and killed at random calls that change the disk; its segments are small.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from store_children import start
from store_harness import Driver
from store_workload import CLOCK, SMALL, Workload, everything

from peeklock.store.base import StoredEntity, StoreError
from peeklock.store.disk.store import DiskStore
from peeklock.store.memory import MemoryStore


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for (module, name), value in SMALL.items():
        monkeypatch.setattr(module, name, value)


def remembering() -> Driver:
    memory = MemoryStore()
    return Driver(lambda call: memory)


def by_id(entities: list[StoredEntity]) -> list[StoredEntity]:
    return sorted(entities, key=lambda each: each.id)


def claims(of: Driver) -> list[tuple[int, bytes, bytes]]:
    return sorted(of.store.claims())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_random_commits_give_the_same_state_as_a_store_in_memory(
    request: pytest.FixtureRequest, kind: str, seed: int
) -> None:
    tested: Driver = request.getfixturevalue(kind)
    memory = remembering()
    workload = Workload(seed)
    answers: list[StoreError | None] = []
    wanted: list[bool] = []
    for step in range(1, 401):
        changes, is_refused = workload.next()
        tested.store.commit(changes, answers.append)
        assert (memory.try_commit(changes) is not None) is is_refused
        wanted.append(is_refused)
        if step % 23 == 0 or step % 100 == 0:
            tested.wait(answers, step)
            assert [error is not None for error in answers] == wanted
        if step % 100 == 0:
            assert everything(tested, workload) == everything(memory, workload)
            assert by_id(tested.reopen()) == by_id(memory.reopen())
            assert claims(tested) == claims(memory)
            assert everything(tested, workload) == everything(memory, workload)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", [100, 101, 102])
def test_a_store_that_is_killed_at_any_call_to_the_disk_has_every_acknowledged_commit(
    tmp_path: Path, seed: int
) -> None:
    folder = tmp_path / "data"
    committed = 0
    calls = Workload(seed).random
    for life in range(6):
        child = start(f"live({str(folder)!r}, {seed}, {calls.randint(1, 300)})", "store_workload")
        said, _ = child.communicate(timeout=60)
        assert child.returncode == 9
        committed = max([committed, *map(int, said.split())])

        copy = tmp_path / f"copy-{life}"  # so that the next process starts with the folder as it was left
        shutil.copytree(folder, copy)
        sqlite = Driver(lambda call, copy=copy: DiskStore(copy, call))
        there = sqlite.entities[0].counters.last_sequence_number if sqlite.entities else 0
        assert there >= committed
        memory = remembering()
        workload = Workload(seed)
        while workload.count < there:
            changes, _ = workload.next()
            memory.try_commit(changes)
        assert by_id(sqlite.entities) == by_id(memory.reopen())
        assert claims(sqlite) == claims(memory)
        assert everything(sqlite, workload) == everything(memory, workload)
        sqlite.store.close()
        committed = there
    assert committed > CLOCK


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(200, 203))
def test_on_a_failing_disk_acknowledged_commits_survive_a_crash_and_failed_ones_do_not(
    tmp_path: Path, seed: int
) -> None:
    folder = tmp_path / "data"
    memory = remembering()
    outcomes: list[str] = []
    for life, length in enumerate((30, 80, 60)):
        begin, end = len(outcomes), len(outcomes) + length
        child = start(f"fail({str(folder)!r}, {seed}, {begin}, {end})", "store_workload")
        said, _ = child.communicate(timeout=60)
        assert child.returncode == 9
        outcomes += said.split()
        workload = Workload(seed)
        steps = [workload.next()[0] for _ in range(end)]
        for changes, outcome in zip(steps[begin:], outcomes[begin:], strict=True):
            if outcome == "done":
                memory.commit(changes)

        copy = tmp_path / f"copy-{life}"
        shutil.copytree(folder, copy)
        sqlite = Driver(lambda call, copy=copy: DiskStore(copy, call))
        assert by_id(sqlite.entities) == by_id(memory.reopen())
        assert claims(sqlite) == claims(memory)
        assert everything(sqlite, workload) == everything(memory, workload)
        sqlite.store.close()
    assert set(outcomes) == {"done", "failed"}
