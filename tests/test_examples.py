"""Every program in `examples` runs as it stands, against a broker of its own, and prints what it should."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from peeklock.server.broker import Options
from serving import SOURCE, ServedBroker
from toolchains import npm_packages, toolchain

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NPM_FOLDER = ROOT / "tests" / "sdk" / "js"
SECONDS = 60

PRINTED = {
    "send_and_receive.py": ["sent", "received Hello with the subject greeting", "completed"],
    "batch.py": [
        r"sent 100 messages in \d+ bytes",
        "received 100 messages, from message 1 to message 100",
    ],
    "dead_letter.py": [
        r"an order without a customer: NoCustomer \(Whose order is it\?\)",
        "it comes from queue",
    ],
    "settle.py": [
        "abandon first, delivered 0 times before",
        "complete first, delivered 1 times before",
        "received and deleted second",
    ],
    "lock_renewal.py": ["a lot of work: the lock lasts longer now", "completed in time"],
    "peek.py": ["first is deferred", "second is active", "third is scheduled"],
    "schedule_and_cancel.py": ["there is milk: cancelled", "buy bread, in time", "bake a cake, in time"],
    "sessions_with_state.py": [
        "ada has bought nothing",
        "ada has bought a lamp and a desk",
        "bob has bought nothing",
        "bob has bought a chair",
    ],
    "deferral.py": [
        "deferred: roof, walls, foundation",
        "build the foundation",
        "build the walls",
        "build the roof",
    ],
    "transaction.py": [
        "rolled back: nothing was sent",
        "committed: step 1 is completed",
        "now there is step 2",
    ],
    "topics_and_rules.py": [
        "everything got a lamp",
        "everything got a house",
        "everything got a car",
        "europe got a lamp",
        "europe got a car",
        "large got a house, made high by large",
        "large got a car, made high by large",
    ],
    "forwarding.py": ["work got good", "work got bad", "failures got bad from work: Unusable"],
    "duplicate_detection.py": ["accepted", "accepted", "received 10 euros for Ada", "received 20 euros for Bob"],
    "entity_status.py": ["the harbour is closed", "a ship was unloaded all the same", "the harbour is open"],
    "administration.py": [
        "invoices already exists",
        "5 deliveries, expired ones kept: True",
        "2 active messages, 0 dead-lettered messages",
        "invoices is listed: True",
        "invoices is listed: False",
    ],
    "http_only.py": ["sent", "received Hello with the subject greeting, in English", "completed"],
    "monitoring.py": [r"Service is healthy\.", "queue holds 0 messages", "session-queue holds 0 messages"],
    "topics.mjs": [
        "loud: volume > 7, then SET volume = 7",
        "subscription-1 got a scream at 7 by the rule loud",
        "subscription-2 got a whisper at 1",
        "subscription-2 got a scream at 11",
    ],
    "send-and-receive.mjs": ["sent", "received Hello with the subject greeting", "completed"],
}
"""What each program prints, as one pattern a line."""


def run(command: list[str], broker: ServedBroker) -> list[str]:
    """The lines the program prints; it must end well."""
    outcome = subprocess.run(
        command,
        env={
            **os.environ,
            "SERVICEBUS_CONNECTION_STRING": broker.connection_string,
            "PEEKLOCK_CA_FILE": str(broker.authority),  # for those that administer, over HTTPS
            "PYTHONPATH": str(SOURCE),  # for those that use Peeklock's own client
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout.splitlines()


def check(name: str, printed: list[str]) -> None:
    expected = PRINTED[name]
    assert len(printed) == len(expected), printed
    for line, pattern in zip(printed, expected, strict=True):
        assert re.fullmatch(pattern, line), line


def test_every_example_is_known_here() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".mjs")} == set(PRINTED)


@pytest.mark.parametrize("name", [name for name in PRINTED if name.endswith(".py")])
def test_a_python_example_runs_twice_against_the_same_broker(name: str, served: ServedBroker) -> None:
    # Twice: an example cleans up behind itself, so that a reader may run it again.
    for _ in range(2):
        check(name, run([sys.executable, str(EXAMPLES / name)], served))


@pytest.mark.parametrize("name", [name for name in PRINTED if name.endswith(".mjs")])
def test_a_javascript_example_runs_twice_against_the_same_broker(
    name: str, served: ServedBroker, tmp_path: Path
) -> None:
    node = toolchain("node")
    npm_packages(NPM_FOLDER)
    # Node.js looks for packages beside the program and above: give it the ones that the tests have.
    program = shutil.copy(EXAMPLES / name, tmp_path / name)
    (tmp_path / "node_modules").symlink_to(NPM_FOLDER / "node_modules")
    for _ in range(2):
        check(name, run([node, str(program)], served))


@pytest.mark.parametrize("name", list(PRINTED))
def test_without_the_environment_variable_an_example_uses_the_address_of_a_default_broker(name: str) -> None:
    # The string is cut into pieces in the source, for its length.
    pieces = re.sub(r'"\s*\+?\s*"', "", (EXAMPLES / name).read_text())
    address = f"sb://{Options().host}:{Options().port};"
    (found,) = re.findall(r'"(Endpoint=[^"]*)"', pieces)
    assert found == (
        f"Endpoint={address}SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
    )
