"""Run scenarios in a program of another language, one at a time, each against a new broker.

The program is spoken with in JSON lines. It begins with the names of its scenarios; it is told which to run, against
which brokers, and says why that failed. Meanwhile it asks for what it cannot do itself: move the broker's clock, count
messages, restart.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from conformance.sdks import Command
from happenings import await_session_waiter, cut_connections

from serving import BrokerThread

Answer = Callable[[dict[str, Any]], Any]


class Runner:
    """The process of the program."""

    def __init__(self, command: Command) -> None:
        environment = {**os.environ, **command.environment}
        self._process = subprocess.Popen(
            command.arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.scenarios: list[str] = self._hear()["scenarios"]

    def run(self, scenario: str, brokers: dict[str, str], answers: Mapping[str, Answer]) -> str | None:
        """Run a scenario to its end and return why it failed, or None."""
        self._say({"run": scenario, "brokers": brokers})
        while "ask" in (heard := self._hear()):
            self._say({"answer": answers[heard["ask"]](heard)})
        assert heard["name"] == scenario
        error: str | None = heard["error"]
        return error

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)
        self._process.stdout.close()

    def _say(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the program ended with code {self._process.wait(timeout=20)}"
        heard: dict[str, Any] = json.loads(line)
        return heard


def without_emulator_flag(connection_string: str) -> str:
    """With this, SDKs use TLS and the port of the connection string."""
    return connection_string.replace("UseDevelopmentEmulator=true;", "")


def answers_of(broker: BrokerThread) -> dict[str, Answer]:
    """The requests of a program to a broker whose clock can be moved."""

    def counters(asked: dict[str, Any]) -> dict[str, int]:
        found = broker.counters(asked.get("queue", "queue"))
        return {"active": found.active, "deferred": found.deferred}

    return {
        "advance": lambda asked: broker.advance(asked["seconds"]),
        "counters": counters,
        "cut": lambda _: cut_connections(broker),
        "now": lambda _: broker.clock(),
        "waiter": lambda _: await_session_waiter(broker, "sessions"),
    }
