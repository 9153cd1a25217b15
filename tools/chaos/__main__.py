"""`python -m tools.chaos`: the command line."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Final

from tools.chaos import checker, report
from tools.chaos.history import load
from tools.chaos.plan import Kind
from tools.chaos.run import Run
from tools.chaos.sabotage import BROKEN

_DESCRIPTION: Final = "Run clients against a broker, cause faults, and check that the broker kept its promises."
_EPILOG: Final = (
    "Exit codes: 0 all promises were kept; 1 a promise was broken; 2 the run itself failed; 130 interrupted. "
    "See docs/chaos.md."
)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return _run(options) if options.check is None else _check(options.check)
    except KeyboardInterrupt:
        return 130
    except Exception as failure:  # Python would exit with 1, which means that a promise was broken
        traceback.print_exc()
        print(f"chaos: {failure}", file=sys.stderr)
        return 2


def _check(file: Path) -> int:
    with file.open() as lines:
        found = checker.check(load(lines))
    print(report.violations(found))
    return 1 if found else 0


def _run(options: argparse.Namespace) -> int:
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    parent = options.folder
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-", dir=parent))
    print(f"seed {seed}, {options.faults} faults, in {folder}", flush=True)
    keeps = True
    try:
        result = Run(folder, seed, options.faults, only=options.only, broken=options.broken, say=_say).go()
        keeps = bool(result.violations) or options.keep
        print(f"\n{report.operations(result.records)}\n\n{report.faults(result.records)}\n")
        print(report.violations(result.violations))
        return 1 if result.violations else 0
    finally:
        if keeps:
            broken = "" if options.broken is None else f" --broken {options.broken}"
            only = "".join(f" --only '{kind}'" for kind in options.only)
            again = f"python -m tools.chaos --seed {seed} --faults {options.faults}{only}{broken}"
            print(f"history, log and data are in {folder}; to run it again: {again}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tools.chaos", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--seed", type=int, help="determines every choice of the run (default: random)")
    parser.add_argument("--faults", type=int, default=200, help="number of faults (default: %(default)s)")
    parser.add_argument(
        "--only",
        type=Kind,
        action="append",
        default=[],
        metavar="KIND",
        help=f"cause only faults of this kind; can be repeated: {', '.join(repr(kind.value) for kind in Kind)}",
    )
    parser.add_argument("--folder", type=Path, help="create the run's folder in this folder")
    parser.add_argument("--keep", action="store_true", help="keep the run's folder also when no promise was broken")
    parser.add_argument("--broken", choices=sorted(BROKEN), help="use a broker that is broken on purpose")
    parser.add_argument("--check", type=Path, metavar="FILE", help="only check the history in this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
