"""What became of a test, and what was expected of it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

FILE: Final = Path(__file__).parent / "expected.toml"
Result = Literal["passed", "failed", "skipped"]
FAULTS: Final = {
    "test": "the test's",
    "client": "the client's",
    "place": "the environment's",
    "wording": "words of an error",
    "peeklock": "ours",
}
"""Whose fault a failure can be, and what the page calls it."""


@dataclass(frozen=True)
class Outcome:
    test: str
    outcome: Result
    reason: str | None = None
    """Why it failed or was skipped."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A test that fails, and why. Every other test passes or is skipped."""

    suite: str
    test: str
    fault: str
    reason: str
    says: str = ""
    """Words that the failure has, so that it is not taken for another one."""
    may_pass: bool = False
    """It depends on timing: both outcomes are expected."""


class ExpectationsError(Exception):
    """expected.toml is wrong; `str()` says where."""


@cache
def expectations(file: Path = FILE) -> Mapping[tuple[str, str], Expectation]:
    """By suite and test."""
    found: dict[tuple[str, str], Expectation] = {}
    for each in tomllib.loads(file.read_text()).get("expected", []):
        for test in each.pop("tests"):
            expectation = Expectation(test=test, **each)
            if expectation.fault not in FAULTS:
                raise ExpectationsError(f"{file.name}: fault of {test} is '{expectation.fault}', not one of {FAULTS}")
            if (expectation.suite, test) in found:
                raise ExpectationsError(f"{file.name}: {test} of {expectation.suite} is there twice")
            found[expectation.suite, test] = expectation
    return found


def surprise(suite: str, outcome: Outcome, known: Mapping[tuple[str, str], Expectation]) -> str | None:
    """Why the outcome is not as expected, or None."""
    expectation = known.get((suite, outcome.test))
    if outcome.outcome == "failed":
        if expectation is None:
            return "failed"
        if not re.search(expectation.says, outcome.reason or ""):
            return f"failed in another way than expected: not '{expectation.says}'"
    elif outcome.outcome == "passed" and expectation is not None and not expectation.may_pass:
        return "passed, and was expected to fail"
    return None
