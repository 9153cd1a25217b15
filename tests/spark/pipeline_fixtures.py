"""Fixtures for tests of the pipelines: messages to capture, and the commands.

The commands run in this process, on the Spark that is there: starting one takes seconds.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import pytest
from pyspark.sql import SparkSession

from peeklock.cli.main import main
from peeklock.client import Message, Properties, connect
from peeklock.spark.pipelines import capture
from peeklock.spark.pipelines.capture import Batch, Target
from serving import ServedBroker


class Capturing:
    """A queue to capture, the folder to capture into, and their contents."""

    def __init__(self, spark: SparkSession, bus: ServedBroker, folder: Path, *entities: str) -> None:
        self.spark = spark
        self.bus = bus
        self.folder = folder
        self.entities = entities
        self.tasks = 2
        self.batches: list[Batch] = []

    @property
    def options(self) -> dict[str, str]:
        return {
            "connectionString": self.bus.connection_string,
            "maxMessagesPerTrigger": "10",
            "numPartitions": str(self.tasks),
        }

    def send(self, bodies: Iterable[str], to: str | None = None, session: str | None = None) -> None:
        with connect(self.bus.connection_string) as connection:
            properties = Properties(group_id=session)
            connection.sender(to or self.entities[0]).send_all(
                Message(properties=properties, data=[each.encode()]) for each in bodies
            )

    def run(self, on_batch: Callable[[Batch], None] | None = None) -> None:
        target = Target(folder=str(self.folder), until_empty=True)
        capture.capture(self.spark, self.entities, self.options, target, on_batch or self.batches.append)

    def captured(self) -> list[str]:
        return sorted(row.body.decode() for row in capture.read(self.spark, str(self.folder)).collect())

    def left(self) -> int:
        """Return the number of messages in any state."""
        with connect(self.bus.connection_string) as connection:
            return sum(len(connection.management(each).peek(1, 100)) for each in self.entities)


@pytest.fixture
def capturing(spark: SparkSession, bus: ServedBroker, make_queue: Callable[..., str], tmp_path: Path) -> Capturing:
    return Capturing(spark, bus, tmp_path / "captured", make_queue())


def numbered(first: int, last: int) -> list[str]:
    return [f"message {number:03}" for number in range(first, last)]


# --- the commands

Ended = subprocess.CompletedProcess[str]


class Pipeline(Protocol):
    def __call__(self, *arguments: str, bus: ServedBroker | None = None) -> Ended: ...


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pipeline:
    """Runs a command as `peeklock` does; without a broker, with the address of a closed port."""

    def run(*arguments: str, bus: ServedBroker | None = None) -> Ended:
        nowhere = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=SAS_KEY_VALUE"
        monkeypatch.setenv("PEEKLOCK_CONNECTION_STRING", nowhere if bus is None else bus.connection_string)
        command = ["peeklock", "pipeline", *arguments]
        monkeypatch.setattr("sys.argv", command)
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return Ended(command, int(end.value.code or 0), said.out, said.err)

    return run


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if it starts Spark."""

    def start(*_: object, **__: object) -> None:
        pytest.fail("a Spark was started")

    monkeypatch.setattr("peeklock.spark.session.local_session", start)
