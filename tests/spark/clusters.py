"""A Spark cluster with executors as processes, for tests that start, control and kill its driver.

The cluster is Spark's own for one machine (`local-cluster`): the driver's JVM starts a JVM for each executor, and each
executor starts Python workers. Knows which process is which; what the driver does is in the script that it runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyspark

from serving import SOURCE
from toolchains import SHORT_LIVED_JAVA, toolchain

EXECUTORS = 2
SETTINGS: Mapping[str, str] = {
    "spark.master": f"local-cluster[{EXECUTORS},1,1024]",
    "spark.driver.memory": "1g",
    "spark.executor.extraJavaOptions": " ".join(SHORT_LIVED_JAVA),
    "spark.sql.shuffle.partitions": "2",
    # Work begins when all executors are there, so that each has its share of it.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_WORKER = "pyspark.daemon"


class Process(NamedTuple):
    pid: int
    parent: int
    command: str


class Driver:
    """A driver script, in a process group with its JVM and its executors.

    It says `started` when it has a Spark, reads from its standard input, and answers by lines.
    """

    def __init__(
        self,
        folder: Path,
        script: str,
        *arguments: str,
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`command` runs the program; `environment` replaces the environment of this process."""
        toolchain("java")
        self._log = folder / "driver.log"
        usual = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(SOURCE), str(SOURCE.parent / "tests"))),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(home(folder)),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):  # of a Spark in this process
            usual.pop(name, None)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, sys.executable, str(Path(__file__).with_name(script)), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=usual if environment is None else dict(environment),
                start_new_session=True,
            )

    def await_start(self) -> None:
        try:
            said = self.line()
            assert said == "started", said
        except BaseException:
            self.kill()
            raise

    def line(self) -> str:
        assert self.process.stdout is not None
        said = self.process.stdout.readline().strip()
        assert said, f"the driver has ended: {self.log}"
        return said

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def stop(self, seconds: float) -> int:
        """Stop the driver by closing its standard input, and return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            return self.process.wait(seconds)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the driver, its JVM and its executors together; Python workers then end by themselves."""
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text()

    def executors(self) -> list[int]:
        """Return the processes of the executors' JVMs."""
        return [each.pid for each in self._descendants() if _EXECUTOR in each.command]

    def executor_of(self, worker: int) -> int:
        """Return the executor of a Python worker."""
        known = {each.pid: each for each in processes()}
        while _EXECUTOR not in known[worker].command:
            worker = known[worker].parent
        assert worker in self.executors()
        return worker

    def workers_of(self, executor: int) -> list[int]:
        """Return the Python workers of an executor, without the process that forks them."""
        running = processes()
        forking = {each.pid for each in running if each.parent == executor and _WORKER in each.command}
        return [each.pid for each in running if each.parent in forking]

    def _descendants(self) -> list[Process]:
        running = processes()
        found: list[Process] = []
        family = {self.process.pid}
        while grown := [each for each in running if each.parent in family and each.pid not in family]:
            found += grown
            family |= {each.pid for each in grown}
        return found


def processes() -> list[Process]:
    """Return all processes on this machine."""
    listed = subprocess.run(
        ["ps", "-axww", "-o", "pid=,ppid=,stat=,command="], capture_output=True, text=True, check=True
    )
    found: list[Process] = []
    for line in listed.stdout.splitlines():
        pid, parent, state, *command = line.split(None, 3)
        if not state.startswith("Z"):  # killed, and not reaped by its parent yet
            found.append(Process(int(pid), int(parent), "".join(command)))
    return found


def home(folder: Path) -> Path:
    """Link the installed Spark into a folder of the test, in which executors make their working folders."""
    home = folder / "spark"
    if not home.exists():
        home.mkdir()
        for each in Path(pyspark.__file__).parent.iterdir():
            if each.name != "work":
                (home / each.name).symlink_to(each)
    return home
