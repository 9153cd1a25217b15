"""azservicebus for Go: the tests in its module.

They log in with `az`, the command line of Azure; the SDK sends its token unchanged. `shims/go/az` prints a
shared access signature instead. The tests are built before they run, because a lane has no network.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.suites.fetching import once, run
from tools.suites.job import Job
from tools.suites.outcome import Outcome, Result
from tools.suites.suite import Suite

VERSION: Final = "1.11.0"
_MODULE: Final = "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
_SHIMS: Final = Path(__file__).parent / "shims" / "go"
_PACKAGES: Final = (".", "admin", "internal")
"""The packages whose tests use a namespace."""
_ENDED: Final = re.compile(r"^( *)--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)$")
_RESULTS: Final[dict[str, Result]] = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}


def _prepare(folder: Path) -> None:
    with once(folder, VERSION) as needed:
        if not needed:
            return
        modules = {"GOMODCACHE": str(folder / "modules"), "GOFLAGS": "-modcacherw -buildvcs=false"}
        found = json.loads(run(["go", "mod", "download", "-json", f"{_MODULE}@v{VERSION}"], folder, modules))
        (folder / "source").symlink_to(found["Dir"])
        for package in _PACKAGES:
            program = _program(folder, package)
            build = ["go", "test", "-c", "-p", "1", "-o", str(program), f"./{package}"]
            run(build, folder / "source", modules)


def _program(folder: Path, package: str) -> Path:
    return folder / f"{'azservicebus' if package == '.' else package}.test"


def _jobs(folder: Path) -> list[Job]:
    jobs = []
    for package in _PACKAGES:
        program = _program(folder, package)
        jobs.append(
            Job(
                name=program.stem,
                command=[str(program), "-test.v", "-test.timeout", "50m"],
                folder=folder / "source" / package,
                output=folder / "output" / program.stem,
                seconds=3300,
                premium=True,
                environment={
                    "AZURE_RECORD_MODE": "live",
                    "AZURE_TOKEN_CREDENTIALS": "AzureCLICredential",
                    "PATH": os.pathsep.join([str(_SHIMS), os.environ["PATH"]]),
                },
            )
        )
    return jobs


def read(job: Job) -> list[Outcome]:
    """Read the output of Go's harness: the tests, without subtests."""
    text = job.log.read_text(errors="replace") if job.log.exists() else ""
    return list(_read(job.name, text))


def _read(package: str, text: str) -> Iterator[Outcome]:
    printed: list[str] = []
    for line in text.splitlines():
        found = _ENDED.match(line)
        if found is None or found[1]:
            printed.append(line)
            continue
        result = _RESULTS[found[2]]
        reason = None if result == "passed" else "\n".join(printed)[-4000:]
        yield Outcome(f"{package}/{found[3]}", result, reason, float(found[4]))
        printed = []


TESTS: Final = Suite(
    name="go",
    title="Go: tests",
    package="azservicebus",
    version=VERSION,
    source="the module on the Go proxy",
    folder=f"go-{VERSION}",
    tools=("go",),
    prepare=_prepare,
    jobs=_jobs,
    read=read,
)
