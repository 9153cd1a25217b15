"""The programs in `examples/spark` for pipelines run as they stand and print what they should."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from serving import SOURCE, ServedBroker

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"
SECONDS = 300

PRINTED = {
    "capture.py": ["80 orders from DE", "40 orders from FR", r"\d+ files merged into [12], still 120 orders"],
    "dead_letters.py": [
        "10 of queue because of NoCustomer",
        "body.customer is missing: 100% of the failed, 0% of the others",
        r"release = 2\.0: 100% of the failed, 0% of the others",
        "region = n: 100% of the failed, 33% of the others",
        "3 would be sent again",
    ],
    "report.py": [
        "order-1 came 2 times to queue",
        r"3 sessions, the largest 1\.0 times the mean",
        r"30 messages: report\.html and 10 tables",
    ],
    "replay.py": ["10 messages are odd", "5 sent", "5 sent", "in the queue: 1, 3, 5, 7, 9, 11, 13, 15, 17, 19"],
}


@pytest.mark.parametrize("name", list(PRINTED))
def test_an_example_prints_what_it_should(name: str, bus: ServedBroker) -> None:
    outcome = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env={**os.environ, "SERVICEBUS_CONNECTION_STRING": bus.connection_string, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    printed = outcome.stdout.splitlines()
    assert len(printed) == len(PRINTED[name]), printed
    for line, pattern in zip(printed, PRINTED[name], strict=True):
        assert re.fullmatch(pattern, line), line
