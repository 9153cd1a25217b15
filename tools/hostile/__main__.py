"""`python -m tools.hostile`: the command line."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

from tools.bench.processes import StartFailed
from tools.hostile.attack import MIB, Attack, AttackFailed
from tools.hostile.attacks import ATTACKS
from tools.hostile.run import LOG, Result, Run, attack_each
from tools.hostile.table import markdown


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.hostile",
        description="Start a broker on loopback, attack it, and check it after each attack.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="names of attacks (default: all)")
    parser.add_argument("--list", action="store_true", help="print the table of attacks, without running any")
    parser.add_argument("--log", type=Path, help="write a copy of the broker's log to this file")
    options = parser.parse_args(arguments)
    if options.list:
        print(markdown(), end="")
        return 0
    unknown = [name for name in options.names if name not in ATTACKS]
    if unknown:
        parser.error(f"there is no attack {unknown[0]}; --list shows them")
    return _run([ATTACKS[name] for name in options.names] or list(ATTACKS.values()), options.log)


def _run(attacks: list[Attack], log: Path | None) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the broker is stopped too
    failed = 0
    width = max(len(each.name) for each in attacks)
    with tempfile.TemporaryDirectory(prefix="peeklock-hostile-") as folder:
        try:
            for result in attack_each(Path(folder), attacks, partial(_announce, width)):
                print(_line(result, width), flush=True)
                failed += result.failure is not None
        except (StartFailed, AttackFailed) as failure:
            print(f"hostile: {failure}", file=sys.stderr)
            failed += 1
        except KeyboardInterrupt:
            return 130
        finally:
            if log is not None:
                log.write_bytes((Path(folder) / LOG).read_bytes())
    print(f"{len(attacks)} attacks, {failed} failed" if failed else f"{len(attacks)} attacks; all checks passed")
    return 1 if failed else 0


def _announce(width: int, broker: str, run: Run) -> None:
    usual = f"{run.normal_client.usual * 1000:.0f} ms"
    print(f"{broker} broker: before the attacks, a round of the normal client takes {usual}")
    print(f"{'attack':{width}}  {'took':>7}  {'round':>7}  {'peak':>9}  {'after':>9}  log", flush=True)


def _line(result: Result, width: int) -> str:
    line = (
        f"{result.attack.name:{width}}  {result.seconds:5.1f} s  {result.served * 1000:4.0f} ms"
        f"  {result.peak / MIB:+5.0f} MiB  {result.left / MIB:+5.0f} MiB  {result.lines}"
    )
    return line if result.failure is None else f"{line}\n    FAILED: {result.failure}"


if __name__ == "__main__":
    sys.exit(main())
