"""The outcome of a test, and the expected outcome."""

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
    "wording": "wording",
    "peeklock": "Peeklock's",
}
"""The possible causes of a failure, and their names on the page."""


@dataclass(frozen=True)
class Outcome:
    test: str
    outcome: Result
    reason: str | None = None
    """Why the test failed or was skipped."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A test that is expected to fail, and why. Every other test passes or is skipped."""

    suite: str
    test: str
    fault: str
    reason: str
    says: str = ""
    """A pattern that the failure contains, so that a different failure is not accepted."""
    may_pass: bool = False
    """The outcome depends on timing: passing is accepted, too."""


class ExpectationsError(Exception):
    """expected.toml is invalid; `str()` has the place."""


@cache
def expectations(file: Path = FILE) -> Mapping[tuple[str, str], Expectation]:
    """Return the expected failures by suite and test."""
    found: dict[tuple[str, str], Expectation] = {}
    for each in tomllib.loads(file.read_text()).get("expected", []):
        for test in each.pop("tests"):
            expectation = Expectation(test=test, **each)
            if expectation.fault not in FAULTS:
                raise ExpectationsError(
                    f"{file.name}: the fault of {test} is '{expectation.fault}'; it must be one of {', '.join(FAULTS)}"
                )
            if (expectation.suite, test) in found:
                raise ExpectationsError(f"{file.name} has {test} of {expectation.suite} twice")
            found[expectation.suite, test] = expectation
    return found


def surprise(suite: str, outcome: Outcome, known: Mapping[tuple[str, str], Expectation]) -> str | None:
    """Return why the outcome is not as expected, or None."""
    expectation = known.get((suite, outcome.test))
    if outcome.outcome == "failed":
        if expectation is None:
            return "failed"
        if not re.search(expectation.says, outcome.reason or ""):
            return f"failed, but not as expected: the failure does not contain '{expectation.says}'"
    elif outcome.outcome == "passed" and expectation is not None and not expectation.may_pass:
        return "passed, but was expected to fail"
    return None
