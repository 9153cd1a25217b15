"""A private Kafka broker, and Spark's source for it: fetched with Maven, with its own folder and ports, on loopback.

It is one node, broker and controller, with the defaults of its distribution. Kafka does not sync its log to disk for
each message, so its durability is weaker than Peeklock's.
"""

from __future__ import annotations

import shutil
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from tools.bench.interrupts import interrupts
from tools.bench.packages import Unavailable, once, run
from tools.bench.processes import Child, StartFailed, free_port

SERVER: Final = "4.1.0"
SOURCE: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    # The latest version that is complete on Maven Central.
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.1",
)
"""Spark's source for Kafka, with the dependencies that it was built with."""
_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin"
_PROJECT: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{SERVER}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{SERVER}</version></dependency>
  </dependencies>
</project>
"""
_HEAP: Final = "-Xmx1g"
"""The options of Kafka's own start script."""
_START_SECONDS: Final = 60.0
_FETCH_SECONDS: Final = 900


def fetch_kafka(cache: Path) -> Path:
    """Return the folder with Kafka's jars."""
    _check_tools()

    def make(folder: Path) -> None:
        (folder / "pom.xml").write_text(_PROJECT)
        copy = ["mvn", "-q", "-B", f"{_PLUGIN}:copy-dependencies", "-DincludeScope=runtime"]
        run([*copy, f"-DoutputDirectory={folder / 'jars'}"], seconds=_FETCH_SECONDS, folder=folder)

    return once(cache / f"kafka-{SERVER}", make) / "jars"


def fetch_source(cache: Path) -> list[Path]:
    """Return the jars of Spark's source for Kafka."""
    _check_tools()

    def make(folder: Path) -> None:
        for artifact in SOURCE:
            copy = ["mvn", "-q", "-B", f"{_PLUGIN}:copy", f"-Dartifact={artifact}"]
            run([*copy, f"-DoutputDirectory={folder}"], seconds=_FETCH_SECONDS)

    return sorted(once(cache / "spark-kafka", make).glob("*.jar"))


class Kafka:
    """A broker that runs until `started` ends."""

    def __init__(self, jars: Path, folder: Path, started: ExitStack, partitions: int) -> None:
        self.port = free_port()
        self._classes = str(jars / "*")
        self._settings = folder / "server.properties"
        self._log = folder / "kafka.log"
        self._settings.write_text(_settings(folder, self.port, free_port(), partitions))
        self._format()
        started.callback(self.stop)
        with interrupts.held():
            command = ["java", _HEAP, "-cp", self._classes, "kafka.Kafka", str(self._settings)]
            self._child = Child(command, log=self._log)
        before = time.monotonic()
        while not self._answers():
            if not self._child.running or time.monotonic() > before + _START_SECONDS:
                raise StartFailed(f"Kafka did not start: {self._child.tail()}")
            time.sleep(0.1)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._child.pid

    def stop(self) -> None:
        self._child.stop()

    def _format(self) -> None:
        tool = ["java", "-cp", self._classes, "kafka.tools.StorageTool"]
        name = run([*tool, "random-uuid"], seconds=60).strip().splitlines()[-1]
        run([*tool, "format", "--standalone", "-t", name, "-c", str(self._settings)], seconds=60)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


def _check_tools() -> None:
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise Unavailable(f"it requires {tool}")


def _settings(folder: Path, port: int, controller: int, partitions: int) -> str:
    values = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "log.dirs": folder / "data",
        "num.partitions": partitions,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())
