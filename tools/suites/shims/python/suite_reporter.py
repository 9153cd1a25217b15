"""A plugin for pytest: writes the outcome of each test as a line of JSON, and runs one share of the tests.

It writes each line when the test has ended, so that an interrupted run leaves its outcomes.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

_reports: dict[str, list[pytest.TestReport]] = {}


@pytest.fixture(scope="session")
def test_proxy() -> None:
    """Replaces the suite's own fixture, which records HTTP: nothing is recorded."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share, _, shares = os.environ.get("SUITES_SHARE", "0/1").partition("/")
    kept = [item for number, item in enumerate(items) if number % int(shares) == int(share)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write({"test": report.nodeid, "outcome": "failed", "reason": _reason(report), "seconds": 0.0})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    reports = _reports.setdefault(report.nodeid, [])
    reports.append(report)
    if report.when != "teardown":
        return
    del _reports[report.nodeid]
    worst = next((each for each in reports if each.failed), None) or next(
        (each for each in reports if each.skipped), report
    )
    _write(
        {
            "test": report.nodeid,
            "outcome": worst.outcome,
            "reason": None if worst.passed else _reason(worst),
            "seconds": round(sum(each.duration for each in reports), 2),
        }
    )


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Return the end of pytest's own report."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    return str(report.longrepr)[-4000:]


def _write(line: dict[str, Any]) -> None:
    with open(os.environ["SUITES_REPORT"], "a") as file:
        file.write(json.dumps(line) + "\n")
