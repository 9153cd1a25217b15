"""@azure/service-bus for JavaScript, unmodified: the scenarios of `js/scenarios.mjs`, each as a test.

One Node.js process runs them all, one at a time, each against a broker of its own; what JavaScript cannot do (move
the broker's clock, restart it) it asks this side for.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from happenings import await_session_waiter, cut_connections

from peeklock.broker.definitions import DEFAULT_KEY, QueueDefinition
from peeklock.server.certificates import ensure_certificates
from serving import BrokerThread, ServedBroker, StartBroker
from toolchains import npm_packages, toolchain

FOLDER = Path(__file__).parent / "js"
# Read from the text so that the names are known, and shown, without Node.js.
SCENARIOS = re.findall(r'^  async "(.+)"\(world\)', (FOLDER / "scenarios.mjs").read_text(), re.MULTILINE)
AFTER_RESTART = "client, sender and receiver find the broker again after a restart"

Answer = Callable[[dict[str, Any]], Any]


class Runner:
    """`js/run.mjs` in a process, and the JSON lines spoken with it."""

    def __init__(self, node: str, tls_folder: Path) -> None:
        self.tls_folder = tls_folder
        """Where the authority lives that Node.js trusts; it reads that only when it starts."""
        authority = ensure_certificates(tls_folder, ["127.0.0.1"]).authority
        self._process = subprocess.Popen(
            [node, str(FOLDER / "run.mjs")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "NODE_EXTRA_CA_CERTS": str(authority)},
        )
        self.scenarios: list[str] = self._hear()["scenarios"]

    def run(self, scenario: str, brokers: dict[str, str], answers: dict[str, Answer]) -> str | None:
        """Run a scenario to its end; returns why it failed, or None."""
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
        assert line, f"Node.js ended with code {self._process.wait(timeout=20)}"
        heard: dict[str, Any] = json.loads(line)
        return heard


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    node = toolchain("node")
    npm_packages(FOLDER)
    runner = Runner(node, tmp_path_factory.mktemp("authority"))
    yield runner
    runner.stop()


def without_emulator_flag(connection_string: str) -> str:
    """The SDK then uses TLS, and keeps the port."""
    return connection_string.replace("UseDevelopmentEmulator=true;", "")


def with_signature(broker: BrokerThread) -> str:
    """A connection string with a token in the place of the key."""
    endpoint, name, *_ = broker.connection_string.split(";")
    rule = name.partition("=")[2]
    scope = quote(endpoint.removeprefix("Endpoint="), safe="")
    expiry = broker.clock() // 1000 + 3600
    digest = hmac.digest(DEFAULT_KEY.encode(), f"{scope}\n{expiry}".encode(), hashlib.sha256)
    signature = quote(base64.b64encode(digest), safe="")
    token = f"SharedAccessSignature sr={scope}&sig={signature}&se={expiry}&skn={rule}"
    return f"{endpoint};SharedAccessSignature={token};UseDevelopmentEmulator=true;"


def test_the_scenarios_that_are_run_are_all_there_are(runner: Runner) -> None:
    assert runner.scenarios == SCENARIOS


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != AFTER_RESTART])
def test_scenario(runner: Runner, start_broker: StartBroker, scenario: str) -> None:
    queue = QueueDefinition(name="queue", max_delivery_count=3, lock_duration_ms=60_000)
    sessions = QueueDefinition(name="sessions", requires_session=True, lock_duration_ms=60_000)
    broker = start_broker(queue, sessions, tls_folder=runner.tls_folder)

    def counters(asked: dict[str, Any]) -> dict[str, int]:
        found = broker.counters(asked.get("queue", "queue"))
        return {"active": found.active, "deferred": found.deferred}

    brokers = {
        "plain": broker.connection_string,
        "tls": without_emulator_flag(broker.connection_string),
        "signature": with_signature(broker),
    }
    answers: dict[str, Answer] = {
        "advance": lambda asked: broker.advance(asked["seconds"]),
        "counters": counters,
        "cut": lambda _: cut_connections(broker),
        "now": lambda _: broker.clock(),
        "waiter": lambda _: await_session_waiter(broker, "sessions"),
    }
    error = runner.run(scenario, brokers, answers)
    assert error is None, error


def test_client_sender_and_receiver_find_the_broker_again_after_a_restart(runner: Runner, served: ServedBroker) -> None:
    def restart(asked: dict[str, Any]) -> None:
        if asked["how"] == "kill":
            served.kill()
        else:
            assert served.stop() == 0
        served.start()

    error = runner.run(AFTER_RESTART, {"plain": served.connection_string}, {"restart": restart})
    assert error is None, error
