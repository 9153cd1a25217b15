"""`docs/sdk-suites.md`: the outcomes of each suite, and why tests fail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.suites.catalogue import SUITES
from tools.suites.outcome import FAULTS, Expectation, Outcome, expectations
from tools.suites.suite import Suite

PAGE: Final = Path(__file__).parents[2] / "docs" / "sdk-suites.md"
NOT_EXPLAINED: Final = "Not explained yet."
_HEAD: Final = """\
# Suites of SDKs

Written by `make sdk-suites`; do not edit. This page lists the outcomes of the SDKs' own tests, run unmodified against
Peeklock. The tests are downloaded for each run and are not part of this repository. [Clients](clients.md) says how to
configure each SDK; [Conformance](conformance.md) lists Peeklock's own scenarios.

Each suite has its own environment in `build/suites` and is divided into jobs. Each job starts a new broker with
`peeklock serve` on the standard ports (5671, 443). Where the suites need Azure itself, `tools/suites/shims` replaces
it: shared access keys replace identities, and the administration client replaces resource management. Every Python
test gets new entities. `tools/suites/expected.toml` lists the tests that are expected to fail, with the reasons.
`make sdk-suites` fails if any other test fails, or if a listed test passes and its outcome does not depend on timing.
`make test` runs a part of the Python tests, which takes a minute.

```console
$ make sdk-suites                                # all suites; requires Go and Rust
$ make sdk-suites ARGS="python --only test_mgmt" # some jobs of a suite
$ make sdk-suites ARGS=--last                    # run nothing; write the page from the last outcomes
```
"""
_LEFT_OUT: Final = """\
## Without live tests

| Package | Reason |
|---|---|
| `@azure/service-bus` (npm) | the package has no tests |
| `azure-messaging-servicebus` (Maven Central) | no artifact has test sources |
| `azservicebus` for Rust: `long_tests` | one test of two hours, which the crate itself excludes |
| `azure-servicebus` for Python: `perf_tests` | benchmarks without assertions |
"""


@dataclass(frozen=True)
class Found:
    """The outcomes of a suite."""

    suite: str
    outcomes: Sequence[Outcome]


def compose(found: Iterable[Found]) -> str:
    parts = [_HEAD, _counts(found := list(found))]
    for each in found:
        parts.append(_section(SUITES[each.suite], each.outcomes))
    return "\n".join([*parts, _LEFT_OUT])


def _counts(found: Sequence[Found]) -> str:
    lines = ["| Suite | Package | Version | Passed | Failed | Skipped |", "|---|---|---|---|---|---|"]
    for each in found:
        suite = SUITES[each.suite]
        counts = " | ".join(str(_count(each.outcomes, kind)) for kind in ("passed", "failed", "skipped"))
        lines.append(f"| {suite.title} | `{suite.package}`, {suite.source} | {suite.version} | {counts} |")
    return "\n".join(lines) + "\n"


def _count(outcomes: Sequence[Outcome], kind: str) -> int:
    return sum(each.outcome == kind for each in outcomes)


def _section(suite: Suite, outcomes: Sequence[Outcome]) -> str:
    parts = [f"## {suite.title}\n"]
    known = expectations()
    failed = sorted((each for each in outcomes if each.outcome == "failed"), key=lambda each: each.test)
    parts.append(_failures(suite.name, failed, known) if failed else "No failures.\n")
    skipped: dict[str, int] = {}
    for each in outcomes:
        if each.outcome == "skipped":
            reason = _one_line(each.reason)
            skipped[reason] = skipped.get(reason, 0) + 1
    if skipped:
        lines = ["| Reason of the suite for skipping | Tests |", "|---|---|"]
        lines += [f"| {reason} | {count} |" for reason, count in sorted(skipped.items())]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _failures(suite: str, failed: Sequence[Outcome], known: Mapping[tuple[str, str], Expectation]) -> str:
    lines = ["| Failed | Fault | Why |", "|---|---|---|"]
    for each in failed:
        expectation = known.get((suite, each.test))
        why = NOT_EXPLAINED if expectation is None else " ".join(expectation.reason.split())
        fault = "" if expectation is None else FAULTS[expectation.fault]
        lines.append(f"| `{each.test}` | {fault} | {why} |")
    return "\n".join(lines) + "\n"


def _one_line(reason: str | None) -> str:
    """Remove line breaks and the parts that differ between runs."""
    words = " ".join((reason or "no reason is given").split()).removeprefix("Skipped: ")
    words = re.sub(r"\d{4}/\d\d/\d\d \S+ ", "", words)
    return words[-160:].replace("|", "\\|")
