"""azure-messaging-servicebus for Java, unmodified: the scenarios of `java/Scenarios.java`, each as a test.

One Java process runs them all, one at a time, each against a broker of its own; what Java cannot do (move the broker's
clock, count its messages) it asks this side for.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peeklock.broker.definitions import QueueDefinition
from serving import BrokerThread, StartBroker
from toolchains import java_classpath, toolchain

FOLDER = Path(__file__).parent / "java"
# Read from the text so that the names are known, and shown, without Java.
SCENARIOS = re.findall(r'^        ALL\.put\("(.+)",', (FOLDER / "Scenarios.java").read_text(), re.MULTILINE)

Answer = Callable[..., str]


class Runner:
    """`java/Run.java` in a process, and the lines spoken with it."""

    def __init__(self, java: str, classpath: str) -> None:
        self._process = subprocess.Popen(
            [java, "-XX:TieredStopAtLevel=1", "-cp", classpath, "Run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.scenarios = self._hear()[1].split("|")

    def run(self, scenario: str, connection_string: str, answers: dict[str, Answer]) -> str | None:
        """Run a scenario to its end; returns why it failed, or None."""
        self._say("run", scenario, connection_string)
        while (heard := self._hear())[0] == "ask":
            _, question, *arguments = heard
            self._say(answers[question](*arguments))
        return None if heard == ["passed"] else heard[1].replace("\\n", "\n")

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)
        self._process.stdout.close()

    def _say(self, *fields: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(fields) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> list[str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"Java ended with code {self._process.wait(timeout=20)}"
        return line.rstrip("\n").split("\t")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    java = toolchain("java")
    runner = Runner(java, java_classpath(FOLDER))
    yield runner
    runner.stop()


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(
        QueueDefinition(name="queue", lock_duration_ms=60_000),
        QueueDefinition(name="other", lock_duration_ms=60_000),
        QueueDefinition(name="sessions", requires_session=True, lock_duration_ms=60_000),
    )


def test_the_scenarios_that_are_run_are_all_there_are(runner: Runner) -> None:
    assert runner.scenarios == SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(runner: Runner, broker: BrokerThread, scenario: str) -> None:
    def advance(seconds: str) -> str:
        broker.advance(int(seconds))
        return "done"

    def counters(queue: str) -> str:
        found = broker.counters(queue)
        return f"{found.active} {found.deferred} {found.scheduled}"

    answers: dict[str, Answer] = {"advance": advance, "counters": counters, "now": lambda: str(broker.clock())}
    error = runner.run(scenario, broker.connection_string, answers)
    assert error is None, error
