"""Run each sample in a folder as a separate program; a sample passes if it ends with 0 in time.

python suite_samples.py FOLDER SECONDS
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ENDLESS = ("failure_and_recovery", "receive_iterator_queue")
"""Samples that receive until they are stopped: after a minute."""


def _environment(sample: Path) -> dict[str, str]:
    """Some variables name an entity with sessions in one sample and an entity without sessions in the others."""
    if not sample.name.startswith("list_sessions"):
        return dict(os.environ)
    return {
        **os.environ,
        "SERVICEBUS_TOPIC_NAME": os.environ["SERVICE_BUS_SESSION_TOPIC"],
        "SERVICEBUS_SUBSCRIPTION_NAME": os.environ["SERVICE_BUS_SESSION_SUBSCRIPTION"],
    }


def _outcome(sample: Path, seconds: float) -> tuple[str, str | None]:
    try:
        ended = subprocess.run(
            [sys.executable, str(sample)],
            env=_environment(sample),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "failed", f"did not end within {seconds:.0f} seconds"
    if ended.returncode:
        return "failed", f"ended with {ended.returncode}: {ended.stdout[-3000:]}"
    return "passed", None


def main() -> None:
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    for sample in sorted(folder.glob("*.py")):
        began = time.monotonic()
        outcome, reason = _outcome(sample, 60.0 if sample.name.startswith(ENDLESS) else seconds)
        line = {
            "test": str(sample),
            "outcome": outcome,
            "reason": reason,
            "seconds": round(time.monotonic() - began, 2),
        }
        with open(os.environ["SUITES_REPORT"], "a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
