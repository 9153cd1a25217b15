"""@azure/service-bus for JavaScript, unmodified: the scenarios of `js/scenarios*.mjs`, each as a test.

One Node.js process runs them all.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from conformance.sdks import SDKS
from scenario_runner import Runner, answers_of, without_emulator_flag

from peeklock.entities.authorization import DEFAULT_KEY
from peeklock.entities.definitions import QueueDefinition
from peeklock.server.certificates import ensure_certificates
from serving import BrokerThread, ServedBroker, StartBroker

FOLDER = Path(__file__).parent / "js"
# Read from the text so that the names are known, and shown, without Node.js.
SCENARIOS = [
    name
    for file in sorted(FOLDER.glob("scenarios*.mjs"))
    for name in re.findall(r'^  async "(.+)"\(world\)', file.read_text(), re.MULTILINE)
]
AFTER_RESTART = "client, sender and receiver find the broker again after a restart"


@pytest.fixture(scope="module")
def tls_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the authority lives that Node.js trusts; it reads that only when it starts."""
    return tmp_path_factory.mktemp("authority")


@pytest.fixture(scope="module")
def runner(tls_folder: Path) -> Iterator[Runner]:
    runner = Runner(SDKS["javascript"].prepare(ensure_certificates(tls_folder, ["127.0.0.1"]).authority))
    yield runner
    runner.stop()


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
def test_scenario(runner: Runner, start_broker: StartBroker, tls_folder: Path, scenario: str) -> None:
    queue = QueueDefinition(name="queue", max_delivery_count=3, lock_duration_ms=60_000)
    sessions = QueueDefinition(name="sessions", requires_session=True, lock_duration_ms=60_000)
    broker = start_broker(queue, sessions, tls_folder=tls_folder)
    brokers = {
        "plain": broker.connection_string,
        "tls": without_emulator_flag(broker.connection_string),
        "signature": with_signature(broker),
    }
    error = runner.run(scenario, brokers, answers_of(broker))
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
