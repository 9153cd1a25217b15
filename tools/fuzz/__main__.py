"""Run every fuzz target for a long time, one after the other; or one target with options of libFuzzer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
FOUND: Final = Path(".fuzz")
"""The folder of corpora and findings."""
SECONDS: Final = 600


def main(arguments: list[str]) -> int:
    targets = {path.name for path in HERE.glob("fuzz_*.py")}
    chosen = [name for name in arguments if name in targets] or sorted(targets)
    options = [argument for argument in arguments if argument not in targets]
    if not any(option.startswith(("-max_total_time", "-runs")) for option in options):
        options.append(f"-max_total_time={SECONDS}")
    failed = [name for name in chosen if _run(name, options) != 0]
    print(f"findings in {', '.join(failed)}: see {FOUND}/" if failed else f"{len(chosen)} targets without findings")
    return 1 if failed else 0


def _run(name: str, options: list[str]) -> int:
    corpus = FOUND / Path(name).stem
    corpus.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(HERE / name), f"-artifact_prefix={FOUND}/", "-max_len=4096", *options, str(corpus)]
    return subprocess.call(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
