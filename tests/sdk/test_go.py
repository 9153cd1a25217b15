"""azservicebus for Go and its admin package, unmodified: the scenarios of `go/scenarios_*.go`, each as a test.

One process runs them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.sdks import SDKS
from scenario_runner import Runner, answers_of, without_emulator_flag

from peeklock.entities.definitions import QueueDefinition
from peeklock.server.certificates import ensure_certificates
from serving import StartBroker

FOLDER = Path(__file__).parent / "go"
# Read from the text so that the names are known, and shown, without Go.
SCENARIOS = [
    name
    for file in sorted(FOLDER.glob("scenarios_*.go"))
    for name in re.findall(r'^\t\{"(.+)", func\(w \*world\) \{$', file.read_text(), re.MULTILINE)
]


@pytest.fixture(scope="module")
def tls_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the authority lives that the program trusts; it reads that only once."""
    return tmp_path_factory.mktemp("authority")


@pytest.fixture(scope="module")
def runner(tls_folder: Path) -> Iterator[Runner]:
    runner = Runner(SDKS["go"].prepare(ensure_certificates(tls_folder, ["127.0.0.1"]).authority))
    yield runner
    runner.stop()


def test_the_scenarios_that_are_run_are_all_there_are(runner: Runner) -> None:
    assert runner.scenarios == SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(runner: Runner, start_broker: StartBroker, tls_folder: Path, scenario: str) -> None:
    queue = QueueDefinition(name="queue", max_delivery_count=3, lock_duration_ms=60_000)
    sessions = QueueDefinition(name="sessions", requires_session=True, lock_duration_ms=60_000)
    broker = start_broker(queue, sessions, tls_folder=tls_folder)
    brokers = {"plain": broker.connection_string, "tls": without_emulator_flag(broker.connection_string)}
    error = runner.run(scenario, brokers, answers_of(broker))
    assert error is None, error
