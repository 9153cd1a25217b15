"""`python -m conformance`: run the scenarios, print a table, write the page of the documentation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from conformance import report, suite
from conformance.catalogue import SDKS, scenarios
from tools.suites.standard_ports import PortsUnavailable, find

PAGE = Path(__file__).parents[3] / "docs" / "conformance.md"
UNEXPECTED = 1
IMPOSSIBLE = 2


def main() -> int:
    """Return 0 if every outcome is as expected, 1 if one is not, 2 if nothing could be run."""
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("--sdk", action="append", choices=SDKS, help="only this SDK; may be given several times")
    parser.add_argument("--only", default="", metavar="WORDS", help="only scenarios with these words in name or group")
    parser.add_argument("--lanes", type=int, default=3, help="how many scenarios of an SDK run side by side")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page that a whole run writes")
    chosen = parser.parse_args()
    sdks = chosen.sdk or SDKS
    wanted = [
        each
        for each in scenarios()
        if chosen.only in f"{each.group}: {each.name}" and any(each.applies_to(sdk) for sdk in sdks)
    ]
    if not wanted:
        print(f"No scenario of {', '.join(sdks)} has '{chosen.only}' in its name or group.", file=sys.stderr)
        return IMPOSSIBLE
    try:
        isolation = find()
    except PortsUnavailable as reason:
        print(reason, file=sys.stderr)
        return IMPOSSIBLE
    try:
        result = suite.run(wanted, sdks, isolation, chosen.lanes, report.progress)
    except (pytest.skip.Exception, pytest.fail.Exception) as missing:
        # As the tests say that a program is not there.
        print(f"{missing}. With --sdk the others can be run alone: {', '.join(SDKS)}.", file=sys.stderr)
        return IMPOSSIBLE
    print(report.table(result, sdks))
    if len(wanted) == len(scenarios()) and set(sdks) == set(SDKS):
        chosen.page.write_text(report.page(result))
        print(f"Written: {chosen.page}")
    print(report.summary(result, isolation))
    return 0 if result.as_expected else UNEXPECTED


if __name__ == "__main__":
    sys.exit(main())
