"""Every fuzz target runs a fixed number of executions from a fixed seed without a finding."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The number of executions, which take some seconds each.
TARGETS = {"fuzz_decoder.py": 20_000, "fuzz_frames.py": 6_000, "fuzz_filter.py": 4_000, "fuzz_atom.py": 15_000}

pytestmark = pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris has no wheel here")


def run(target: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "corpus").mkdir()
    return subprocess.run(
        [sys.executable, str(target), *arguments, f"-artifact_prefix={folder}/", str(folder / "corpus")],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT / "tools" / "fuzz")))},
        check=False,
    )


@pytest.mark.parametrize("target", TARGETS)
def test_a_short_run_finds_nothing(target: str, tmp_path: Path) -> None:
    runs = TARGETS[target]
    done = run(ROOT / "tools" / "fuzz" / target, tmp_path, f"-runs={runs}", "-seed=1", "-max_len=2048")
    assert done.returncode == 0, done.stderr[-3000:]
    # The fuzzer finishes the mutations of the current input, so it may run some more executions.
    ran = re.search(r"^Done (\d+) runs", done.stderr, re.MULTILINE)
    assert ran is not None, done.stderr[-3000:]
    assert int(ran[1]) >= runs


def test_every_target_is_run() -> None:
    assert {path.name for path in (ROOT / "tools" / "fuzz").glob("fuzz_*.py")} == set(TARGETS)


@pytest.mark.parametrize(
    ("body", "finding"), [("raise KeyError('found')", "KeyError"), ("while True: pass", "TooSlow")]
)
def test_errors_and_hangs_of_a_target_are_found(body: str, finding: str, tmp_path: Path) -> None:
    target = tmp_path / "fuzz_made_up.py"
    target.write_text(
        "import harness\n"
        "harness.LONGEST_SECONDS = 1\n"
        f"def check(data):\n    if data[:3] == b'bad':\n        {body}\n"
        "harness.fuzz(check, [b'bad'])\n"
    )
    done = run(target, tmp_path, "-runs=1000", "-seed=1")
    assert done.returncode != 0
    assert finding in done.stdout + done.stderr
