"""azservicebus for Rust, a community SDK: the live tests of its crate.

The tests of a file run one after the other inside one test of Rust's harness, and print their outcomes. These lines are
counted, not the test around them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from tools.suites.fetching import download, once, run, unpack
from tools.suites.job import Job
from tools.suites.outcome import Outcome, Result
from tools.suites.suite import Suite, Unavailable

VERSION: Final = "0.25.0"
_SHA256: Final = "6a8153a7fbf62b9271003adcfcb543666e3e8baa2b43cd757180291375591ee6"
_URL: Final = f"https://static.crates.io/crates/azservicebus/azservicebus-{VERSION}.crate"
_FILES: Final = ("client_live_tests", "queue_live_tests", "topic_live_tests")
"""All files except `long_tests`: its only test takes two hours, and the crate itself excludes it."""
_INNER: Final = re.compile(r"test (\w+?)(?: \.\.\. )?(Ok\(\(\)\)|Err\(.*)$", re.MULTILINE)
_BEGUN: Final = re.compile(r"test (\w+)(?: \.\.\.)? ?$", re.MULTILINE)
_OUTER: Final = re.compile(r"^test (\w+) \.\.\. (?!Ok\(|Err\()", re.MULTILINE)
_PANIC: Final = re.compile(r"^thread '(\w+)'.* panicked at .*(?:\n.+)*", re.MULTILINE)


def _prepare(folder: Path) -> None:
    with once(folder, VERSION) as needed:
        if not needed:
            return
        archive = folder / "azservicebus.crate"
        download(_URL, _SHA256, archive)
        unpack(archive, folder)
        build = ["cargo", "test", "--locked", "--no-run", "--features", "test_e2e", "--message-format", "json"]
        build += [word for file in _FILES for word in ("--test", file)]
        printed = run(build, _source(folder), {"CARGO_TARGET_DIR": str(folder / "target"), "CARGO_BUILD_JOBS": "1"})
        programs = {}
        for line in printed.splitlines():
            message = json.loads(line)
            if message.get("executable") and message["target"]["name"] in _FILES:
                programs[message["target"]["name"]] = message["executable"]
        if missing := set(_FILES) - set(programs):
            raise Unavailable(f"cargo built no program of {sorted(missing)}")
        (folder / "programs.json").write_text(json.dumps(programs))


def _source(folder: Path) -> Path:
    return folder / f"azservicebus-{VERSION}"


def _jobs(folder: Path) -> list[Job]:
    programs = json.loads((folder / "programs.json").read_text())
    return [
        Job(
            name=f"{file}.rs",
            command=[programs[file], "--nocapture", "--test-threads=1"],
            folder=_source(folder),
            output=folder / "output" / file,
            seconds=1200,
            ends_with=[0, 101],
            environment={"RUST_BACKTRACE": "0"},
        )
        for file in _FILES
    ]


def read(job: Job) -> list[Outcome]:
    """Read the output of Rust's harness and of the tests."""
    text = job.log.read_text(errors="replace") if job.log.exists() else ""
    panics = {found[1]: found[0] for found in _PANIC.finditer(text)}
    outcomes: list[Outcome] = []
    outer = list(_OUTER.finditer(text))
    for place, found in enumerate(outer):
        end = outer[place + 1].start() if place + 1 < len(outer) else len(text)
        outcomes += _outcomes_of(job.name, found[1], text[found.end() : end], panics)
    return outcomes


def _outcomes_of(file: str, test: str, printed: str, panics: dict[str, str]) -> list[Outcome]:
    """Return the outcomes of one test of the harness: those of the tests inside it, if it prints them."""
    inner = [
        Outcome(f"{file}::{found[1]}", "passed" if found[2].startswith("Ok") else "failed", found[2])
        for found in _INNER.finditer(printed)
    ]
    inner = [Outcome(each.test, each.outcome, None if each.outcome == "passed" else each.reason) for each in inner]
    if test in panics:
        # The first test that did not end, and the later ones that never began, are one failure.
        ended = {each.test for each in inner}
        begun = [f"{file}::{name}" for name in _BEGUN.findall(printed.partition("panicked at")[0])]
        broken = next((name for name in begun if name not in ended), f"{file}::{test}")
        if any(each.outcome == "failed" for each in inner) and broken == f"{file}::{test}":
            return inner  # the harness's test failed because a test inside it did
        return [*inner, Outcome(broken, "failed", panics[test])]
    if inner:
        return inner
    result: Result = "skipped" if "ignored" in printed.partition("\n")[0] else "passed"
    return [Outcome(f"{file}::{test}", result)]


TESTS: Final = Suite(
    name="rust",
    title="Rust (community): live tests",
    package="azservicebus",
    version=VERSION,
    source="the crate on crates.io",
    folder=f"rust-{VERSION}",
    tools=("cargo",),
    prepare=_prepare,
    jobs=_jobs,
    read=read,
)
