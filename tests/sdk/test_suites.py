"""The suites of SDKs: reading and comparing outcomes, and a part of azure-servicebus's own live tests."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from toolchains import missing
from tools.suites import go_sdk, page, rust_sdk, standard_ports
from tools.suites.catalogue import SUITES
from tools.suites.fetching import CACHE, once
from tools.suites.job import ENDED_LATE, Job, read_report
from tools.suites.outcome import Expectation, ExpectationsError, Outcome, expectations, surprise
from tools.suites.python_sdk import QUICK, TESTS, pytest_job
from tools.suites.running import Work, run
from tools.suites.standard_ports import PortIsolation, PortsUnavailable
from tools.suites.suite import Unavailable

EXPECTED = Expectation(suite="python", test="fails", fault="test", reason="it looks for a mock", says="mock")


def known(expectation: Expectation) -> dict[tuple[str, str], Expectation]:
    return {(expectation.suite, expectation.test): expectation}


# --- what is expected ---


def test_every_expected_failure_is_of_a_suite_and_has_a_reason() -> None:
    assert {suite for suite, _ in expectations()} <= set(SUITES)
    assert [each.test for each in expectations().values() if not each.reason.strip()] == []


def test_an_unknown_fault_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "expected.toml"
    file.write_text('[[expected]]\nsuite = "go"\ntests = ["a"]\nfault = "moon"\nreason = "it is full"\n')
    with pytest.raises(ExpectationsError, match="the fault of a is 'moon'"):
        expectations(file)


def test_only_the_expected_failure_is_accepted() -> None:
    assert surprise("python", Outcome("fails", "failed", "no mock is here"), known(EXPECTED)) is None
    assert surprise("python", Outcome("fails", "failed", "the queue is gone"), known(EXPECTED)) is not None
    assert surprise("python", Outcome("fails", "passed"), known(EXPECTED)) is not None
    assert surprise("python", Outcome("another", "failed", "no mock is here"), known(EXPECTED)) is not None
    assert surprise("rust", Outcome("fails", "failed", "no mock is here"), known(EXPECTED)) is not None
    assert surprise("python", Outcome("another", "passed"), known(EXPECTED)) is None


# --- what the harnesses print ---


def job_that_printed(folder: Path, text: str) -> Job:
    job = Job(name="queue.rs", command=[], folder=folder, output=folder, seconds=1)
    job.log.write_text(text)
    return job


def test_each_test_inside_a_test_of_rust_counts(tmp_path: Path) -> None:
    text = (
        "running 1 test\ntest run_all ... test sends ... Ok(())\ntest peeksOk(())\ntest waits ... Ok(())\n"
        "test renewsErr(no token)\ntest ends ... Ok(())\nthread 'run_all' (12) panicked at tests/queue.rs:1:1:\n"
        "assertion failed\n\nfailures:\n    run_all\n"
    )
    assert rust_sdk.read(job_that_printed(tmp_path, text)) == [
        Outcome("queue.rs::sends", "passed"),
        Outcome("queue.rs::peeks", "passed"),
        Outcome("queue.rs::waits", "passed"),
        Outcome("queue.rs::renews", "failed", "Err(no token)"),
        Outcome("queue.rs::ends", "passed"),
    ]


def test_a_test_of_rust_that_panics_is_named(tmp_path: Path) -> None:
    text = (
        "test run_all ... test sends ... Ok(())\ntest peeks\n"
        "thread 'run_all' panicked at tests/queue.rs:1:1:\nassertion failed: 1 == 2\n"
    )
    passed, failed = rust_sdk.read(job_that_printed(tmp_path, text))
    assert (passed.test, passed.outcome) == ("queue.rs::sends", "passed")
    assert (failed.test, failed.outcome) == ("queue.rs::peeks", "failed")
    assert failed.reason is not None
    assert "assertion failed: 1 == 2" in failed.reason


def test_a_test_of_rust_without_others_inside_it_is_one(tmp_path: Path) -> None:
    text = "test connects ... ok\ntest waits ... ignored\ntest breaks ... FAILED\n"
    text += "thread 'breaks' panicked at tests/queue.rs:1:1:\nno connection\n"
    outcomes = rust_sdk.read(job_that_printed(tmp_path, text))
    assert [(each.test, each.outcome) for each in outcomes] == [
        ("queue.rs::connects", "passed"),
        ("queue.rs::waits", "skipped"),
        ("queue.rs::breaks", "failed"),
    ]


def test_tests_of_go_are_read_with_their_output(tmp_path: Path) -> None:
    text = (
        "=== RUN   TestSend\n=== RUN   TestSend/batch\n    --- PASS: TestSend/batch (0.10s)\n"
        "--- PASS: TestSend (0.25s)\n=== RUN   TestPeek\n    peek_test.go:3: nothing there\n"
        "--- FAIL: TestPeek (1.00s)\n=== RUN   TestOld\n--- SKIP: TestOld (0.00s)\nFAIL\n"
    )
    sent, peeked, old = go_sdk.read(job_that_printed(tmp_path, text))
    assert (sent.test, sent.outcome, sent.seconds) == ("queue.rs/TestSend", "passed", 0.25)
    assert (peeked.test, peeked.outcome) == ("queue.rs/TestPeek", "failed")
    assert peeked.reason is not None
    assert "nothing there" in peeked.reason
    assert old.outcome == "skipped"


# --- fetching and running ---


def test_a_folder_is_filled_once_and_again_after_a_failure_or_for_different_content(tmp_path: Path) -> None:
    folder = tmp_path / "cache"

    def fail() -> None:
        with once(folder, "1"):
            (folder / "half").touch()
            raise Unavailable("no network")

    with pytest.raises(Unavailable):
        fail()
    with once(folder, "1") as needed:
        assert needed
        assert not (folder / "half").exists()
        (folder / "whole").touch()
    with once(folder, "1") as needed:
        assert not needed
        assert (folder / "whole").exists()
    with once(folder, "2") as needed:
        assert needed


def place() -> PortIsolation:
    try:
        return standard_ports.find()
    except PortsUnavailable as reason:
        missing(str(reason))


def command_job(folder: Path, program: str, seconds: float = 60) -> Job:
    return Job(
        name="job", command=[sys.executable, "-c", program], folder=folder, output=folder / "out", seconds=seconds
    )


def test_a_job_finds_a_broker_and_leaves_its_outcomes(tmp_path: Path) -> None:
    program = (
        "import json, os, socket\n"
        "socket.create_connection((os.environ['SERVICEBUS_FULLY_QUALIFIED_NAMESPACE'], 5671)).close()\n"
        "line = {'test': 'connects', 'outcome': 'passed'}\n"
        "open(os.environ['SUITES_REPORT'], 'a').write(json.dumps(line) + '\\n')\n"
    )
    (done,) = run([Work("python", command_job(tmp_path, program), read_report)], place(), 1, lambda done: None)
    assert done.outcomes == [Outcome("connects", "passed")]


def test_a_job_may_have_a_premium_broker_with_a_certificate_of_the_same_authority(tmp_path: Path) -> None:
    program = (
        "import json, os, socket, ssl\n"
        "trust = ssl.create_default_context(cafile=os.environ['SUITES_AUTHORITY'])\n"
        "hosts = [os.environ[name] for name in ('SERVICEBUS_ENDPOINT', 'SERVICEBUS_ENDPOINT_PREMIUM')]\n"
        "for host in hosts:\n"
        "    trust.wrap_socket(socket.create_connection((host, 5671)), server_hostname=host).close()\n"
        "line = {'test': 'connects', 'outcome': 'passed', 'reason': f'{len(set(hosts))} brokers'}\n"
        "open(os.environ['SUITES_REPORT'], 'a').write(json.dumps(line) + '\\n')\n"
    )
    job = replace(command_job(tmp_path, program), premium=True)
    (done,) = run([Work("go", job, read_report)], place(), 1, lambda done: None)
    assert done.outcomes == [Outcome("connects", "passed", "2 brokers")]


def test_a_job_without_an_end_or_without_outcomes_has_failed(tmp_path: Path) -> None:
    endless = command_job(tmp_path, "import threading; threading.Event().wait()", seconds=0.5)
    (done,) = run([Work("python", endless, read_report)], place(), 1, lambda done: None)
    assert [(each.test, each.outcome) for each in done.outcomes] == [("job", "failed")]
    assert "did not end in time" in (done.outcomes[0].reason or "")
    silent = command_job(tmp_path, "print('nothing to report')")
    (done,) = run([Work("python", silent, read_report)], place(), 1, lambda done: None)
    assert [(each.test, each.outcome) for each in done.outcomes] == [("job", "failed")]
    assert "nothing to report" in (done.outcomes[0].reason or "")


def test_a_job_is_the_same_after_it_was_written_and_read(tmp_path: Path) -> None:
    job = command_job(tmp_path, "pass")
    assert Job.load(job.dump()) == job
    assert ENDED_LATE not in job.ends_with


# --- the page ---


def test_the_page_has_a_row_for_each_failure_with_its_reason() -> None:
    (suite, test), expectation = next(iter(expectations().items()))
    text = page.compose([page.Found(suite, [Outcome(test, "failed", "why"), Outcome("other", "passed")])])
    assert f"| `{test}` |" in text
    assert " ".join(expectation.reason.split()) in text
    assert " | 1 | 1 | 0 |" in text


def test_the_page_in_the_documentation_explains_every_failure() -> None:
    text = page.PAGE.read_text()
    for suite in SUITES.values():
        counts = re.search(
            rf"^\| {re.escape(suite.title)} \|.*\| {suite.version} \| \d+ \| (\d+) \|", text, re.MULTILINE
        )
        assert counts is not None
        section = text.partition(f"\n## {suite.title}\n")[2].partition("\n## ")[0]
        rows = dict(re.findall(r"^\| `(.+?)` \| .+? \| (.+) \|$", section, re.MULTILINE))
        assert len(rows) == int(counts[1])
        reasons = {
            test: " ".join(each.reason.split()) for (name, test), each in expectations().items() if name == suite.name
        }
        assert {test: why for test, why in rows.items() if reasons.get(test) != why} == {}


# --- a part of the live tests ---


def test_live_tests_of_azure_servicebus_pass() -> None:
    there = place()
    folder = CACHE / TESTS.folder
    try:
        TESTS.prepare(folder)
    except Unavailable as reason:
        missing(str(reason))
    job = pytest_job(folder, "quick", QUICK, seconds=300)
    (done,) = run([Work(TESTS.name, job, TESTS.read)], there, 1, lambda done: None)
    found = {each.test: surprise(TESTS.name, each, expectations()) for each in done.outcomes}
    assert {test: why for test, why in found.items() if why is not None} == {}, json.dumps(
        [each.reason for each in done.outcomes if each.outcome == "failed"], indent=1
    )
    assert len(found) >= len(QUICK)
