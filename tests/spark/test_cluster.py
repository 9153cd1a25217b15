"""The data source where executors are processes of their own: work is shared, and who works on it may be killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from clusters import EXECUTORS, Driver

from peeklock.client import Management, Message, Properties, connect
from serving import ServedBroker

MakeQueue = Callable[..., str]
PATIENCE_S = 300
MESSAGES = 1200
BODY = "x" * 4096
"""With so much, a reader is not done with its task before its rows are taken."""


class Cluster:
    """What the driver can be asked for."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        driver.await_start()

    @property
    def log(self) -> str:
        return self._driver.log

    def ask(self, do: str, **request: Any) -> Any:
        self.begin(do, **request)
        return self.answer()

    def begin(self, do: str, **request: Any) -> None:
        self._driver.say(json.dumps({"do": do, **{name: _plain(value) for name, value in request.items()}}))

    def answer(self) -> Any:
        assert self._driver.is_alive, self._driver.log
        return json.loads(self._driver.line())["answer"]

    def kill_executor(self, held: Path) -> None:
        """That of the task which is held."""
        executor = self._driver.executor_of(await_held(held))
        os.kill(executor, signal.SIGKILL)
        await_until(lambda: executor not in self._driver.executors())

    def kill_workers(self, held: Path) -> None:
        """The Python processes of the executor whose task is held, and not the executor."""
        worker = await_held(held)
        executor = self._driver.executor_of(worker)
        workers = self._driver.workers_of(executor)
        assert worker in workers
        assert len(workers) > 1  # one that reads or writes, and the one that holds
        for each in workers:
            with suppress(ProcessLookupError):  # the executor ends one whose task has failed
                os.kill(each, signal.SIGKILL)
        await_until(lambda: not set(workers) & set(self._driver.workers_of(executor)))
        assert executor in self._driver.executors()

    def close(self) -> None:
        self._driver.kill()


KILLS = pytest.mark.parametrize("kill", [Cluster.kill_executor, Cluster.kill_workers], ids=["executor", "workers"])
Kill = Callable[[Cluster, Path], None]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(Driver(tmp_path_factory.mktemp("cluster"), "cluster_driver.py"))
    try:
        yield cluster
    finally:
        cluster.close()


class Queue:
    """A queue with a client of its own."""

    def __init__(self, bus: ServedBroker, name: str) -> None:
        self._bus = bus
        self.name = name

    @property
    def options(self) -> dict[str, str]:
        return {"connectionString": self._bus.connection_string, "queue": self.name}

    @property
    def reading(self) -> dict[str, str]:
        """A task for each executor."""
        return {**self.options, "numPartitions": f"{EXECUTORS}"}

    def fill(self) -> None:
        with connect(self._bus.connection_string) as connection:
            connection.sender(self.name).send_all(
                Message(properties=Properties(message_id=f"{number}"), data=[f"{number} {BODY}".encode()])
                for number in range(MESSAGES)
            )

    def numbers(self) -> list[int]:
        """What is in it, in order of arrival."""
        with connect(self._bus.connection_string) as connection:
            return list(numbers_in(connection.management(self.name)))


@pytest.fixture
def queue(bus: ServedBroker, make_queue: MakeQueue) -> Queue:
    return Queue(bus, make_queue(RequiresDuplicateDetection=True))


def numbers_of(rows: list[Any]) -> list[int]:
    return sorted(number for number, _ in rows)


def executors_of(rows: list[Any]) -> set[int]:
    return {executor for _, executor in rows}


EACH_ONCE = list(range(MESSAGES))


def test_a_batch_read_is_shared_by_the_executors(cluster: Cluster, queue: Queue) -> None:
    queue.fill()
    rows = cluster.ask("read", options=queue.reading)
    assert numbers_of(rows) == EACH_ONCE
    assert len(executors_of(rows)) == EXECUTORS
    assert queue.numbers() == EACH_ONCE


def test_a_claiming_stream_is_shared_by_the_executors(cluster: Cluster, queue: Queue, tmp_path: Path) -> None:
    queue.fill()
    rows = cluster.ask("claim", options={**queue.reading, "maxMessagesPerTrigger": "700"}, folder=tmp_path)
    assert numbers_of(rows) == EACH_ONCE
    assert len(executors_of(rows)) == EXECUTORS
    assert queue.numbers() == []


def test_a_write_that_is_repeated_under_its_name_writes_every_row_once(cluster: Cluster, queue: Queue) -> None:
    for _ in range(2):
        cluster.ask("write", options={**queue.options, "writeName": "rows"}, rows=MESSAGES)
        assert sorted(queue.numbers()) == EACH_ONCE


@KILLS
def test_a_batch_read_has_every_message_once_despite_kills(
    cluster: Cluster, queue: Queue, tmp_path: Path, kill: Kill
) -> None:
    queue.fill()
    cluster.begin("read", options=queue.reading, held=tmp_path / "held")
    kill(cluster, tmp_path / "held")
    assert numbers_of(cluster.answer()) == EACH_ONCE


@KILLS
def test_a_claiming_stream_has_every_message_once_despite_kills(
    cluster: Cluster, queue: Queue, tmp_path: Path, kill: Kill
) -> None:
    queue.fill()
    options = {**queue.reading, "maxMessagesPerTrigger": "700"}
    cluster.begin("claim", options=options, folder=tmp_path, held=tmp_path / "held")
    kill(cluster, tmp_path / "held")
    assert numbers_of(cluster.answer()) == EACH_ONCE
    assert queue.numbers() == []


@KILLS
def test_a_write_writes_every_row_once_despite_kills(
    cluster: Cluster, queue: Queue, tmp_path: Path, kill: Kill
) -> None:
    cluster.begin("write", options=queue.options, rows=MESSAGES, held=tmp_path / "held")
    await_held(tmp_path / "held")
    await_until(lambda: len(queue.numbers()) > MESSAGES // EXECUTORS)  # the other task is done, and this one is not
    kill(cluster, tmp_path / "held")
    cluster.answer()
    assert sorted(queue.numbers()) == EACH_ONCE


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def await_until(condition: Callable[[], object]) -> None:
    """Until it is so; the machine may be slow."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def await_held(held: Path) -> int:
    """The process of the task that is held."""
    await_until(lambda: held.exists() and held.read_text().endswith("\n"))
    return int(held.read_text())


def numbers_in(management: Management) -> Iterator[int]:
    first = 0
    while page := management.peek(first, 250):
        for message in page:
            yield int(bytes(message.body).split()[0])
        annotations = page[-1].message_annotations
        assert annotations is not None
        first = annotations["x-opt-sequence-number"] + 1
