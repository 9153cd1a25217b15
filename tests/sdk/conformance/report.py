"""The report of a run: progress lines, a table at the end, and the page of the documentation."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from conformance.catalogue import SDKS, Scenario, explanations, scenarios
from conformance.sdks import SDKS as PROGRAMS
from conformance.suite import Outcome, Result
from tools.suites.standard_ports import PortIsolation

PASS, FAIL, NOT = "pass", "fail", "–"

HEAD = """\
# Conformance

For people who want to know whether their SDK works with Peeklock. `make conformance` writes this page; do not edit it.

The suite runs the same scenarios through every official SDK, unmodified. For each SDK, a small program in the SDK's
language runs them against its own broker. `tests/sdk/conformance/scenarios.toml` lists the scenarios,
`tests/sdk/conformance/steps` contains their steps, and `tests/sdk/conformance/explanations.toml` explains each failure.
[Compatibility](compatibility.md) names further tests with the SDKs.

The brokers listen on the ports that the SDKs expect (5671, 5672, 443, 5300). Each broker has its own network namespace,
or its own loopback address if the machine does not allow namespaces.
"""


def progress(outcome: Outcome) -> None:
    mark = PASS if outcome.passed else FAIL
    words = "" if outcome.as_expected else "  (not expected)"
    line = f"{mark}  {outcome.seconds:5.1f} s  {outcome.sdk}: {outcome.scenario.name}{words}"
    print(line, file=sys.stderr, flush=True)
    if outcome.reason is not None and not outcome.as_expected:
        print(_indented(outcome.reason), file=sys.stderr, flush=True)


def table(result: Result, sdks: Sequence[str]) -> str:
    """Return the table for a terminal."""
    found = {(outcome.scenario.name, outcome.sdk): outcome for outcome in result.outcomes}
    listed = [each for each in scenarios() if any((each.name, sdk) in found for sdk in sdks)]
    width = max((len(each.name) for each in listed), default=0)
    lines = [" " * width + "  " + "  ".join(f"{sdk:>10}" for sdk in sdks)]
    for each in listed:
        cells = (_mark(found.get((each.name, sdk))) for sdk in sdks)
        lines.append(f"{each.name:<{width}}  " + "  ".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines)


def summary(result: Result, isolation: PortIsolation) -> str:
    passed = sum(outcome.passed for outcome in result.outcomes)
    names = {outcome.scenario.name for outcome in result.outcomes}
    unexpected = [outcome for outcome in result.outcomes if not outcome.as_expected]
    lines = [
        f"{len(names)} scenarios, {len(result.outcomes)} runs: {passed} pass, {len(result.outcomes) - passed} fail; "
        f"{result.seconds:.0f} s, with {isolation.how}."
    ]
    lines += [f"Not as expected: {outcome.sdk}: {outcome.scenario.name}" for outcome in unexpected]
    return "\n".join(lines)


def page(result: Result) -> str:
    """Return the text of `docs/conformance.md`."""
    return compose({(outcome.scenario.name, outcome.sdk): outcome.passed for outcome in result.outcomes})


def compose(passed: dict[tuple[str, str], bool]) -> str:
    """Return the page for these outcomes, by scenario and SDK."""
    notes: dict[str, int] = {}
    parts = [HEAD, _versions(), _counts(passed), _groups(passed, notes)]
    parts += [_failures(passed), _notes(notes)]
    return "\n".join(part for part in parts if part)


def expected() -> dict[tuple[str, str], bool]:
    """Return the outcomes that a complete run has."""
    return {
        (each.name, sdk): (each.name, sdk) not in explanations()
        for each in scenarios()
        for sdk in SDKS
        if each.applies_to(sdk)
    }


def _versions() -> str:
    lines = ["| SDK | Package | Version |", "|---|---|---|"]
    lines += [f"| {sdk.title} | {sdk.package} | {sdk.version()} |" for sdk in PROGRAMS.values()]
    return "\n".join(lines) + "\n"


def _counts(passed: dict[tuple[str, str], bool]) -> str:
    lines = ["| | " + " | ".join(PROGRAMS[sdk].title for sdk in SDKS) + " |", "|---|" + "---|" * len(SDKS)]
    columns = [[good for (_, sdk), good in passed.items() if sdk == column] for column in SDKS]
    lines.append("| Pass | " + " | ".join(str(sum(column)) for column in columns) + " |")
    lines.append("| Fail | " + " | ".join(str(len(column) - sum(column)) for column in columns) + " |")
    lines.append("| Does not apply | " + " | ".join(str(len(scenarios()) - len(column)) for column in columns) + " |")
    return f"{len(scenarios())} scenarios.\n\n" + "\n".join(lines) + "\n"


def _groups(passed: dict[tuple[str, str], bool], notes: dict[str, int]) -> str:
    parts: list[str] = []
    for group in dict.fromkeys(each.group for each in scenarios()):
        head = "| Scenario | Expected | " + " | ".join(PROGRAMS[sdk].title for sdk in SDKS) + " |"
        lines = [f"## {group}", "", head, "|---|---|" + "---|" * len(SDKS)]
        for each in scenarios():
            if each.group == group:
                cells = " | ".join(_cell(each, sdk, passed, notes) for sdk in SDKS)
                lines.append(f"| {each.name} | {each.expected} | {cells} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _cell(scenario: Scenario, sdk: str, passed: dict[tuple[str, str], bool], notes: dict[str, int]) -> str:
    if not scenario.applies_to(sdk):
        number = notes.setdefault(scenario.without[sdk], len(notes) + 1)
        return f"{NOT} [{number}](#not-applicable)"
    if passed[scenario.name, sdk]:
        return PASS
    return f"**{FAIL}**"


def _failures(passed: dict[tuple[str, str], bool]) -> str:
    failed = [key for key, good in passed.items() if not good]
    if not failed:
        return "## Failures\n\nNone.\n"
    lines = ["## Failures", "", "| Scenario | SDK | Why |", "|---|---|---|"]
    order = [each.name for each in scenarios()]
    for name, sdk in sorted(failed, key=lambda key: (order.index(key[0]), SDKS.index(key[1]))):
        known = explanations().get((name, sdk))
        why = "Not explained yet." if known is None else known.why
        lines.append(f"| {name} | {PROGRAMS[sdk].title} | {why} |")
    return "\n".join(lines) + "\n"


def _notes(notes: dict[str, int]) -> str:
    if not notes:
        return ""
    lines = ["## Not applicable", ""]
    lines += [f"{number}. {reason}" for reason, number in notes.items()]
    return "\n".join(lines) + "\n"


def _mark(outcome: Outcome | None) -> str:
    if outcome is None:
        return NOT
    return PASS if outcome.passed else FAIL


def _indented(text: str) -> str:
    lines: Iterable[str] = text.strip().splitlines()[:30]
    return "\n".join(f"      {line}" for line in lines)
