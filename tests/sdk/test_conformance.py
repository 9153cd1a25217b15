"""The conformance suite: its list, steps and page are consistent, it reports failures, and all scenarios pass."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from pathlib import Path

import pytest
from conformance import report, suite
from conformance.catalogue import SDKS, explanations, scenarios
from conformance.clients import refused_in_words
from conformance.lane import Lane
from conformance.program import Program, ProgramFailed, SdkError
from conformance.sdks import SDKS as PROGRAMS
from conformance.sdks import Command
from conformance.steps import load
from conformance.world import World

from toolchains import missing
from tools.suites import standard_ports
from tools.suites.standard_ports import PortIsolation, PortsUnavailable

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
AREAS = {
    "Connecting",
    "Sending",
    "Receiving",
    "Settling",
    "Locks",
    "Sessions",
    "Topics and rules",
    "Transactions",
    "Forwarding, duplicates, expiry",
    "Administration",
    "Handlers, load, time",
}


# --- list, steps, page ---


def test_every_scenario_has_steps_and_every_steps_a_scenario() -> None:
    assert {each.name for each in scenarios()} == set(load())


def test_every_sdk_of_the_list_has_a_program() -> None:
    assert tuple(PROGRAMS) == SDKS


def test_there_are_scenarios_of_every_area() -> None:
    assert {each.group for each in scenarios()} == AREAS
    assert len(scenarios()) >= 80


def test_every_scenario_applies_to_some_sdk() -> None:
    assert [each.name for each in scenarios() if not any(each.applies_to(sdk) for sdk in SDKS)] == []


def test_the_page_is_that_of_the_list_with_the_outcomes_that_are_expected() -> None:
    assert without_versions(PAGE.read_text()) == without_versions(report.compose(report.expected()))


def without_versions(page: str) -> str:
    """The version of azure-servicebus is not fixed, and a newer one makes the page no less true."""
    return re.sub(r"^(\| Python.* \| azure-servicebus \|) \S+", r"\1", page, flags=re.MULTILINE)


def test_a_failure_that_is_not_explained_is_not_expected() -> None:
    (name, sdk), explanation = next(iter(explanations().items()))
    explained = next(each for each in scenarios() if each.name == name)
    other = next(each for each in scenarios() if (each.name, sdk) not in explanations())
    assert suite.Outcome(other, sdk, None, 0).as_expected
    assert not suite.Outcome(other, sdk, "it broke", 0).as_expected
    assert suite.Outcome(explained, sdk, f"it broke: {explanation.says}", 0).as_expected
    assert not suite.Outcome(explained, sdk, "it broke in another way", 0).as_expected
    assert not suite.Outcome(explained, sdk, None, 0).as_expected


def test_the_page_has_the_reason_of_each_failure() -> None:
    outcomes = report.expected()
    name = scenarios()[0].name
    page = report.compose(outcomes | {(name, "java"): False})
    assert f"| {name} | Java | Not explained yet. |" in page


# --- the program of an SDK ---


def program_that(tmp_path: Path, answers: str) -> Command:
    """A program in Python that answers a call `asked`."""
    file = tmp_path / "program.py"
    head = "import json, sys\nprint('{}', flush=True)\nfor line in sys.stdin:\n    asked = json.loads(line)\n"
    file.write_text(head + textwrap.indent(textwrap.dedent(answers), "    "))
    return Command((sys.executable, str(file)), {})


ECHO = "print(json.dumps({'id': asked['id'], 'value': asked['call']}), flush=True)"
REFUSE = "print(json.dumps({'id': asked['id'], 'error': {'kind': 'lock-lost', 'text': 'gone'}}), flush=True)"


def test_a_program_does_what_it_is_told_and_tells_what_is_wrong(tmp_path: Path) -> None:
    program = Program(program_that(tmp_path, ECHO))
    assert program.call("renew") == "renew"
    program.stop()
    program = Program(program_that(tmp_path, REFUSE))
    with pytest.raises(SdkError, match="lock-lost: gone"):
        program.call("renew")
    program.stop()


def test_a_program_that_ends_has_failed(tmp_path: Path) -> None:
    program = Program(program_that(tmp_path, "break"))
    with pytest.raises(ProgramFailed):
        program.call("renew")
    program.stop()


def test_a_program_that_says_something_else_has_failed_at_once(tmp_path: Path) -> None:
    program = Program(program_that(tmp_path, "print('a warning', flush=True)"))
    with pytest.raises(ProgramFailed, match="no answer: a warning"):
        program.call("renew")
    program.stop()


def test_a_failure_in_a_scenario_is_reported_and_the_next_one_runs(tmp_path: Path) -> None:
    def wrong(world: World) -> None:
        raise AssertionError("found 1, expected 2")

    def right(world: World) -> None:
        pass

    lane = Lane("python", "127.0.0.1", tmp_path / "tls" / "authority.pem", program_that(tmp_path, ECHO))
    assert lane.run(wrong) == "found 1, expected 2"
    assert lane.run(right) is None
    lane.close()


def test_a_failure_outside_the_steps_fails_the_scenario(tmp_path: Path) -> None:
    lane = Lane("python", "127.0.0.1", tmp_path / "tls" / "authority.pem", program_that(tmp_path, REFUSE))
    assert lane.run(lambda world: None) == "something failed beside the steps: lock-lost: gone"
    lane.close()


def test_a_lane_that_ends_fails_its_scenario_with_the_reason(tmp_path: Path) -> None:
    scenario = scenarios()[0]
    nowhere = PortIsolation(
        "nowhere", (sys.executable, "-c", "raise SystemExit('no ports here')"), lambda lane: "127.0.0.1"
    )
    result = suite.run([scenario], ["python"], nowhere, 1, lambda outcome: None)
    (outcome,) = result.outcomes
    assert outcome.reason is not None
    assert "no ports here" in outcome.reason


def test_a_failure_outside_the_lanes_is_reported() -> None:
    babbling = PortIsolation("nowhere", (sys.executable, "-c", "print('no JSON')"), lambda lane: "127.0.0.1")
    with pytest.raises(ValueError, match="Expecting value"):
        suite.run([scenarios()[0]], ["python"], babbling, 1, lambda outcome: None)


def test_words_are_looked_for_in_what_an_application_reads_and_not_in_a_trace() -> None:
    with refused_in_words("sessions"):
        raise SdkError("another", "it requires sessions", "in code")
    with pytest.raises(AssertionError, match="not a word of 'sessions'"), refused_in_words("sessions"):
        raise SdkError("another", "it broke", "in sessions.js")


# --- standard ports ---


def test_without_a_namespace_each_lane_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(standard_ports, "PORT", 0)
    monkeypatch.setattr(standard_ports, "FURTHER_PORTS", ())
    found = standard_ports.find()
    assert found.prefix == ()
    assert found.address(0) != found.address(1)


def test_an_error_says_why_no_standard_ports_are_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(standard_ports, "_address", lambda lane: "192.0.2.1")  # reserved for documentation (RFC 5737)
    with pytest.raises(PortsUnavailable, match=r"no program 'unshare'; port 5672 of 192\.0\.2\.1 cannot be bound"):
        standard_ports.find()


# --- the suite ---


def test_every_outcome_is_as_expected() -> None:
    try:
        place = standard_ports.find()
    except PortsUnavailable as reason:
        missing(str(reason))
    absent = {sdk: [tool for tool in PROGRAMS[sdk].tools if shutil.which(tool) is None] for sdk in SDKS}
    if any(absent.values()) and os.environ.get("CI") == "true":
        missing(f"not all tools of the SDKs are installed ({absent})")
    there = [sdk for sdk in SDKS if not absent[sdk]]
    result = suite.run(scenarios(), there, place, 3, lambda outcome: None)
    unexpected = [outcome for outcome in result.outcomes if not outcome.as_expected]
    assert not unexpected, "\n".join(f"{each.sdk}: {each.scenario.name}: {each.reason}" for each in unexpected)
    assert len(result.outcomes) == sum(each.applies_to(sdk) for each in scenarios() for sdk in there)
    if len(there) < len(SDKS):
        missing(f"only {', '.join(there)} could be run ({absent})")
