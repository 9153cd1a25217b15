"""The data source on a cluster of machines, each with a network, a hosts file, a folder and a Python of its own.

Spark's own cluster manager runs on them; the broker is on a further one, which the executors know by its name. A
machine loses its power, or its network cable, in the middle. Takes minutes: `make test-spark-machines`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from clusters import Driver, home
from machines import Machine, machines
from test_cluster import BODY, EACH_ONCE, MESSAGES, Cluster, await_held, await_until, numbers_in, numbers_of

from peeklock.client import Message, Properties, connect
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from serving import SOURCE
from toolchains import toolchain

pytestmark = pytest.mark.skipif(
    "PEEKLOCK_MACHINES" not in os.environ, reason="left out: takes minutes; make test-spark-machines has it"
)
WORKERS = ("one", "two")
PORT = 5672
MASTER = "spark://head:7077"
PYTHON = "python-of-this-machine"
"""What executors run: each machine has it in another place of its path."""
SETTINGS = {
    "spark.master": MASTER,
    "spark.driver.host": "driver",
    "spark.executor.memory": "1g",
    "spark.executor.cores": "1",
    # Spark's answer to a machine that says nothing any more takes minutes, unless it is told to look sooner.
    "spark.network.timeout": "12s",
    "spark.network.timeoutInterval": "3s",
    "spark.executor.heartbeatInterval": "2s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "12000",
}
DAEMONS = "-Dspark.worker.timeout=5 -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Site:
    """The machines with all that runs on them."""

    def __init__(self, folder: Path, started: ExitStack) -> None:
        toolchain("java")
        self._folder = folder
        self._home = home(folder)
        self.machines = started.enter_context(machines(folder, "head", "driver", "bus", *WORKERS))
        self._start_broker()
        self._start_daemon(self.machines["head"], "master.Master", "--host", "head", "--port", "7077")
        for name in WORKERS:
            self.start_worker(name)
        here = self.machines["driver"]
        self._driver = Driver(
            here.folder,
            "cluster_driver.py",
            json.dumps({**SETTINGS, "spark.driver.bindAddress": here.address}),
            command=here.command(),
            environment=self._environment(here),
        )
        started.callback(self._driver.kill)
        self.cluster = Cluster(self._driver)

    @property
    def connection_string(self) -> str:
        """By the name that the machines know it by."""
        return self._printed.replace("//0.0.0.0:", "//bus:").replace("//127.0.0.1:", "//bus:")

    def connect(self) -> Any:
        return connect(self.connection_string.replace("//bus:", f"//{self.machines['bus'].address}:"))

    def start_worker(self, name: str) -> None:
        machine = self.machines[name]
        machine.plug(into=True)
        place = machine.folder / "bin"
        place.mkdir(exist_ok=True)
        python = place / PYTHON
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        self._start_daemon(
            machine, "worker.Worker", "--host", name, "--cores", "1", "--memory", "1g",
            "--work-dir", str(machine.folder / "work"), MASTER,
        )  # fmt: skip

    def machine_of(self, process: int) -> str:
        return next(name for name in WORKERS if process in self.machines[name].members())

    def has_logged(self, text: str) -> bool:
        """Whether the data source has, on the driver or an executor."""
        logs = (log for name in WORKERS for log in self.machines[name].folder.glob("work/*/*/stderr"))
        return text in self.cluster.log or any(text in log.read_text() for log in logs)

    def _start_broker(self) -> None:
        machine = self.machines["bus"]
        command = [sys.executable, "-m", "peeklock", "serve", "--host", "0.0.0.0", "--port", str(PORT)]
        command += ["--data", str(machine.folder / "data"), "--insecure-default-key"]
        log = (machine.folder / "log").open("ab")
        process = machine.start(command, self._environment(machine), stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        self._printed = process.stdout.readline().strip()
        assert self._printed, (machine.folder / "log").read_text()

    def _start_daemon(self, machine: Machine, kind: str, *arguments: str) -> None:
        command = [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        with (machine.folder / "daemon.log").open("ab") as log:
            machine.start([*command, "--webui-port", "0"], self._environment(machine), stdout=log, stderr=log)

    def _environment(self, machine: Machine) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        return {
            **kept,
            "PATH": f"{machine.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join((str(SOURCE), str(SOURCE.parent / "tests"))),
            "PYSPARK_PYTHON": PYTHON,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_DIRS": str(machine.folder / "local"),
            "SPARK_LOCAL_IP": machine.address,
            "SPARK_DAEMON_JAVA_OPTS": DAEMONS,
            "SPARK_DAEMON_MEMORY": "256m",
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as started:
        yield Site(tmp_path_factory.mktemp("site"), started)


class Queue:
    def __init__(self, site: Site) -> None:
        self._site = site
        self.name = f"queue-{uuid4().hex}"
        self.options = {"connectionString": site.connection_string, "queue": self.name}
        self.reading = {**self.options, "numPartitions": "2"}
        with site.machines["bus"].network():
            here = site.connection_string.replace("//bus:", "//127.0.0.1:")
            with AdministrationClient.from_connection_string(here) as administration:
                administration.create(Kind.QUEUE, self.name, {"RequiresDuplicateDetection": True})

    def fill(self) -> None:
        with self._site.machines["bus"].network(), self._site.connect() as connection:
            connection.sender(self.name).send_all(
                Message(properties=Properties(message_id=f"{number}"), data=[f"{number} {BODY}".encode()])
                for number in range(MESSAGES)
            )

    def numbers(self) -> list[int]:
        with self._site.machines["bus"].network(), self._site.connect() as connection:
            return list(numbers_in(connection.management(self.name)))


@pytest.fixture
def queue(site: Site) -> Queue:
    return Queue(site)


def lose_power(machine: Machine) -> None:
    machine.kill_all()


def lose_network(machine: Machine) -> None:
    """Processes go on, and hear nothing any more."""
    machine.plug(into=False)


Loss = Callable[[Machine], None]
LOSE = pytest.mark.parametrize("lose", [lose_power, lose_network], ids=["power", "network"])


@pytest.fixture
def losing(site: Site) -> Iterator[Callable[[Path, Loss], None]]:
    """Takes away the machine whose task is held; it is back, and empty, after the test."""
    lost: list[str] = []

    def take(held: Path, lose: Loss) -> None:
        lost.append(site.machine_of(await_held(held)))
        lose(site.machines[lost[0]])

    yield take
    for name in lost:
        site.machines[name].kill_all()
        site.start_worker(name)


def places_of(rows: list[Any]) -> set[str]:
    return {place for _, place in rows}


def test_work_is_shared_by_machines_that_resolve_the_brokers_name(site: Site, queue: Queue, tmp_path: Path) -> None:
    site.cluster.ask("write", options=queue.options, rows=MESSAGES)
    assert sorted(queue.numbers()) == EACH_ONCE
    rows = site.cluster.ask("read", options=queue.reading, place="host")
    assert (numbers_of(rows), places_of(rows)) == (EACH_ONCE, set(WORKERS))
    options = {**queue.reading, "maxMessagesPerTrigger": "700"}
    rows = site.cluster.ask("claim", options=options, folder=tmp_path, place="host")
    assert (numbers_of(rows), places_of(rows)) == (EACH_ONCE, set(WORKERS))
    assert queue.numbers() == []


@LOSE
def test_a_batch_read_has_every_message_once_when_a_machine_is_lost(
    site: Site, queue: Queue, tmp_path: Path, losing: Callable[..., None], lose: Loss
) -> None:
    queue.fill()
    site.cluster.begin("read", options=queue.reading, held=tmp_path / "held")
    losing(tmp_path / "held", lose)
    assert numbers_of(site.cluster.answer()) == EACH_ONCE


@LOSE
def test_a_claiming_stream_has_every_message_once_when_a_machine_is_lost(
    site: Site, queue: Queue, tmp_path: Path, losing: Callable[..., None], lose: Loss
) -> None:
    queue.fill()
    options = {**queue.reading, "maxMessagesPerTrigger": "700"}
    site.cluster.begin("claim", options=options, folder=tmp_path, held=tmp_path / "held")
    losing(tmp_path / "held", lose)
    assert numbers_of(site.cluster.answer()) == EACH_ONCE
    assert queue.numbers() == []


@LOSE
def test_a_write_writes_every_row_once_when_a_machine_is_lost(
    site: Site, queue: Queue, tmp_path: Path, losing: Callable[..., None], lose: Loss
) -> None:
    site.cluster.begin("write", options=queue.options, rows=MESSAGES, held=tmp_path / "held")
    await_held(tmp_path / "held")
    await_until(lambda: len(queue.numbers()) > MESSAGES // len(WORKERS))
    losing(tmp_path / "held", lose)
    site.cluster.answer()
    assert sorted(queue.numbers()) == EACH_ONCE


def test_a_stream_continues_when_the_brokers_network_is_back(site: Site, queue: Queue, tmp_path: Path) -> None:
    queue.fill()
    options = {**queue.reading, "maxMessagesPerTrigger": "100", "requestTimeout": "2s"}
    site.cluster.begin("claim", options=options, folder=tmp_path)
    await_until(lambda: len(queue.numbers()) < MESSAGES)
    site.machines["bus"].plug(into=False)
    await_until(lambda: site.has_logged(f"'{queue.name}' failed, again in"))
    site.machines["bus"].plug(into=True)
    assert numbers_of(site.cluster.answer()) == EACH_ONCE
    assert queue.numbers() == []
