"""The programs in `examples/spark` run as they stand, against a broker of their own, and print what they should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving import SOURCE, ServedBroker
from toolchains import toolchain

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"
SECONDS = 300

PRINTED = {
    "connector.py": [
        "wrote 3 messages",
        'order-2 is large: {"what":"house","price":250000}',
        'order-3 is large: {"what":"car","price":20000}',
        "took 3 orders of 270,040 euros",
        "0 messages are left",
    ],
}
"""What each program prints."""


@pytest.mark.parametrize("name", list(PRINTED))
def test_an_example_runs_and_leaves_nothing_behind(name: str, served: ServedBroker, tmp_path: Path) -> None:
    toolchain("java")
    outcome = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env={
            **os.environ,
            "SERVICEBUS_CONNECTION_STRING": served.connection_string,
            "PYTHONPATH": str(SOURCE),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.splitlines() == PRINTED[name]
