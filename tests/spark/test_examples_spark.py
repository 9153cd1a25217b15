"""The programs in `examples/spark` run as they stand, against a broker, and print what they should."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rooms import reader_variables
from serving import ServedBroker
from toolchains import toolchain

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"
SECONDS = 300

PRINTED = {
    "connector.py": [
        "wrote 3 messages",
        r'order-2 is large: \{"what":"house","price":250000\}',
        r'order-3 is large: \{"what":"car","price":20000\}',
        "took 3 orders of 270,040 euros",
        "0 messages are left",
    ],
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
"""What each program prints: patterns of its lines."""


def check(name: str, printed: str) -> None:
    lines = printed.splitlines()
    assert len(lines) == len(PRINTED[name]), printed
    for line, pattern in zip(lines, PRINTED[name], strict=True):
        assert re.fullmatch(pattern, line), line


def test_each_example_has_a_test() -> None:
    assert {each.name for each in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", [name for name in PRINTED if name != "connector.py"])
def test_an_example_prints_the_documented_output(
    name: str,
    spark: SparkSession,
    served: ServedBroker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On the Spark that is there, as in a notebook."""
    monkeypatch.setenv("SERVICEBUS_CONNECTION_STRING", served.connection_string)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # other tests need it
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    check(name, capsys.readouterr().out)


def test_an_example_runs_as_a_program_of_its_own(served: ServedBroker, tmp_path: Path) -> None:
    toolchain("java")
    outcome = subprocess.run(
        [sys.executable, str(EXAMPLES / "connector.py")],
        env={**reader_variables(tmp_path), "SERVICEBUS_CONNECTION_STRING": served.connection_string},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    check("connector.py", outcome.stdout)
