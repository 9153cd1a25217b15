"""`python -m tools.suites`: the command line."""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
from pathlib import Path

from tools.suites.catalogue import SUITES
from tools.suites.fetching import CACHE
from tools.suites.outcome import Outcome, expectations, surprise
from tools.suites.page import PAGE, Found, compose
from tools.suites.running import Done, Work, last_outcomes, run
from tools.suites.standard_ports import PortsUnavailable, find
from tools.suites.suite import Suite, Unavailable

UNEXPECTED, IMPOSSIBLE = 1, 2


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if every outcome is as expected, 1 if one is not, 2 if nothing could be run."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.suites",
        description="Run the live tests of SDKs, unmodified, on brokers started for them.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"suites: {', '.join(SUITES)} (default: all)")
    parser.add_argument("--only", default="", metavar="PATTERN", help="run only jobs whose names match this pattern")
    parser.add_argument("--lanes", type=int, default=4, help="number of concurrent jobs; most of them wait")
    parser.add_argument("--last", action="store_true", help="run nothing; use the outcomes of the last runs")
    parser.add_argument("--fetch", action="store_true", help="fetch and build; run nothing")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page that a run of all suites writes")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in SUITES]
    if unknown:
        parser.error(f"no suite is named '{unknown[0]}'; the suites are {', '.join(SUITES)}")
    suites = [SUITES[name] for name in options.names] or list(SUITES.values())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the brokers, too
    try:
        isolation = find()
        for suite in suites:
            prepare(suite)
    except (PortsUnavailable, Unavailable) as reason:
        print(f"suites: {reason}", file=sys.stderr)
        return IMPOSSIBLE
    if options.fetch:
        return 0
    works = [
        Work(suite.name, job, suite.read)
        for suite in suites
        for job in suite.jobs(CACHE / suite.folder)
        if re.search(options.only, job.name)
    ]
    if not works:
        parser.error(f"no job's name matches '{options.only}'")
    if options.last:
        found = [Done(work.suite, work.job, last_outcomes(work)) for work in works]
    else:
        found = run(works, isolation, options.lanes, show)
    if len(suites) == len(SUITES) and not options.only:
        by_suite = [Found(suite.name, _outcomes(found, suite.name)) for suite in suites]
        options.page.write_text(compose(by_suite))
        print(f"Written: {options.page}")
    unexpected = [line for done in found for line in unexpected_of(done)]
    outcomes = [outcome for done in found for outcome in done.outcomes]
    counts = ", ".join(
        f"{sum(each.outcome == kind for each in outcomes)} {kind}" for kind in ("passed", "failed", "skipped")
    )
    print(f"{len(outcomes)} tests: {counts}; {len(unexpected)} not as expected")
    for line in unexpected:
        print(line)
    return UNEXPECTED if unexpected else 0


def prepare(suite: Suite) -> None:
    absent = [tool for tool in suite.tools if shutil.which(tool) is None]
    if absent:
        raise Unavailable(f"{suite.title}: '{absent[0]}' is not installed on this machine")
    suite.prepare(CACHE / suite.folder)


def _outcomes(found: list[Done], suite: str) -> list[Outcome]:
    return [outcome for done in found if done.suite == suite for outcome in done.outcomes]


def unexpected_of(done: Done) -> list[str]:
    known = expectations()
    found = ((each, surprise(done.suite, each, known)) for each in done.outcomes)
    return [f"{done.suite}: {outcome.test}: {why}" for outcome, why in found if why is not None]


def show(done: Done) -> None:
    passed = sum(each.outcome == "passed" for each in done.outcomes)
    failed = sum(each.outcome == "failed" for each in done.outcomes)
    skipped = len(done.outcomes) - passed - failed
    print(f"{done.suite}: {done.job.name}: {passed} passed, {failed} failed, {skipped} skipped", flush=True)
    for line in unexpected_of(done):
        print(f"    {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
