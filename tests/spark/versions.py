"""Run the tests of the data source on each supported series of Spark, for `make test-spark-versions`.

Each version of PySpark has a virtual environment in `.venv-spark`, made at the first run and kept. Needs nothing but
Python and what the tests of Spark need of the machine: a Java. The newest series is what `make test-spark` is for.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VERSIONS: Final = ("4.0.5", "4.1.4", "4.2.1")
"""The last version of each older series of Spark."""
NEWEST: Final = "4.3.0"
"""The version for scopes whose packages are not in the environment of the other tests."""
PROJECT: Final = Path(__file__).parents[2]
FOLDER: Final = PROJECT / ".venv-spark"
TOOLS: Final = ("hypothesis", "pytest", "websocket-client")
"""The development dependencies that the Spark tests import."""
TESTS: Final = Path(__file__).parent.relative_to(PROJECT)
CORE: Final = (
    "test_source.py::test_spark_finds_the_source_without_registration",
    "test_source.py::test_no_plan_shows_the_key",
    "test_peeking.py::test_a_batch_read_returns_every_message_once_and_removes_none[3]",
    "test_peeking.py::test_pushed_filters_narrow_the_read_and_the_result_is_the_same_without_them",
    "test_peeking.py::test_properties_of_every_type_are_read",
    "test_peeking.py::test_a_peeking_stream_continues_from_its_checkpoint",
    "test_claiming.py::test_a_batch_has_a_maximum_of_messages_and_its_offset_covers_only_them",
    "test_claiming.py::test_a_failed_batch_is_repeated_at_the_next_start",
    "test_claiming.py::test_a_session_is_read_by_one_task_completely_and_in_order",
    "test_claiming.py::test_a_continuous_query_settles_its_last_batch_without_a_next_one",
    "test_claiming.py::test_draining_receives_and_removes_all_messages_in_several_batches",
    "test_deleting.py::test_a_run_receives_the_present_messages_and_ends",
    "test_writing.py::test_every_column_that_is_the_writers_arrives",
    "test_writing.py::test_rows_that_were_read_can_be_written_and_read_unchanged",
    "test_writing.py::test_a_bad_row_fails_the_write_by_default",
    "test_writing.py::test_a_batch_that_is_replayed_after_a_crash_writes_every_row_once",
)
"""One test of each reader and writer, and tests of version-specific behaviour: limits, runs, filters, restarts."""
SCOPES: Final = {
    "core": [str(TESTS / test) for test in CORE],
    "connector": [str(TESTS / f"test_{name}.py") for name in ("source", "peeking", "claiming", "deleting", "writing")],
    "all": [str(TESTS)],
    "connect": [str(TESTS / "test_connect.py")],
    **{name: [str(TESTS / f"test_{each}.py") for each in ("table_formats", "faults")] for name in ("delta", "iceberg")},
}
FORMATS: Final = ("delta", "iceberg")
"""Scopes that capture into a table format, whose packages Spark downloads from Maven Central."""
LEFT_OUT: Final = {
    "core": "Left out: most tests of the connector, and the pipelines. --scope connector and --scope all have more.",
    "connector": "Left out: the pipelines, kills of processes, clusters. --scope all has them.",
    "all": "Left out: nothing but what was skipped above.",
    "connect": "Left out: all but what goes through Spark Connect.",
    "delta": "Left out: all but what captures into Delta.",
    "iceberg": "Left out: all but what captures into Iceberg.",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    version: str
    install_s: float
    test_s: float
    status: int

    def __str__(self) -> str:
        told = "fine" if self.status == 0 else f"FAILED ({self.status})"
        return f"PySpark {self.version}: {told}; {self.install_s:.0f} s to set up, {self.test_s:.0f} s to test"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests of the data source with several versions of PySpark.")
    parser.add_argument("versions", nargs="*", metavar="version", help=f"default: {' '.join(VERSIONS)}")
    parser.add_argument("--scope", choices=SCOPES, default="connector", help="which tests (default: connector)")
    parser.add_argument("--install", action="store_true", help="only make the environments")
    parser.add_argument("--pytest", default="", metavar="ARGS", help="more arguments for pytest")
    asked = parser.parse_args()
    for version in asked.versions:
        if not re.fullmatch(r"4(\.\d+){2}", version):
            parser.error(f"'{version}' is no version of PySpark 4, such as {VERSIONS[0]}")
    outcomes = []
    connects = asked.scope == "connect"
    for version in asked.versions or ([NEWEST] if connects else VERSIONS):
        began = time.monotonic()
        try:
            python = environment(version, "[connect]" if connects else "")
        except subprocess.CalledProcessError as error:
            sys.exit(f"PySpark {version} could not be set up: '{' '.join(error.cmd)}' failed")
        installed = time.monotonic()
        status = 0 if asked.install else run_tests(python, [*SCOPES[asked.scope], *asked.pytest.split()], asked.scope)
        outcomes.append(Outcome(version, installed - began, time.monotonic() - installed, status))
    print(*outcomes, sep="\n", file=sys.stderr)
    print(LEFT_OUT[asked.scope], file=sys.stderr)
    return int(any(outcome.status for outcome in outcomes))


def environment(version: str, extra: str = "") -> Path:
    """Return the Python of an environment with this PySpark. Makes it if it is missing or `pyproject.toml` changed."""
    folder = FOLDER / f"{version}{extra.strip('[]')}"
    python, done = folder / "bin" / "python", folder / ".installed"
    declared = (PROJECT / "pyproject.toml").read_text()
    if done.exists() and done.read_text() == declared:
        return python
    print(f"Setting up {folder.relative_to(PROJECT)} ...", file=sys.stderr, flush=True)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    tools = requirements(tomllib.loads(declared)["project"]["optional-dependencies"]["dev"])
    subprocess.run([*install, f"pyspark{extra}=={version}", "--editable", ".[spark]", *tools], cwd=PROJECT, check=True)
    done.write_text(declared)
    return python


def requirements(declared: Iterable[str]) -> list[str]:
    """Return the tools with the version bounds of `pyproject.toml`."""
    return [each for each in declared if re.split(r"[^\w-]", each)[0] in TOOLS]


def run_tests(python: Path, arguments: Iterable[str], scope: str) -> int:
    """Run tests with CI=true, so that they fail without Java instead of being skipped."""
    kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}  # it would be another version
    if scope in FORMATS:
        kept["PEEKLOCK_TABLE_FORMAT"] = scope
    command = [str(python), "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=PROJECT, env={**kept, "CI": "true"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
