"""Freed memory stays with the process, if the C library supports that."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

_FAULTS = """
import ctypes, resource, sys
from peeklock.amqp.allocation import keep_freed_memory

ctypes.CDLL(None)
kept = keep_freed_memory() if sys.argv[1] == "kept" else None

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def copy():
    return [source[:-1] for _ in range(6)]

source = bytes(4 << 20)
copy()
before = faults()
for _ in range(10):
    copy()
print(kept, faults() - before)
"""


def _faults(how: str, **variables: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS, how],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | variables,
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such limits, and counts no faults")
def test_large_blocks_are_not_faulted_in_again_where_glibc_keeps_them() -> None:
    kept, faults = _faults("kept")
    _, before = _faults("not kept")
    has_glibc = platform.libc_ver()[0] == "glibc"
    assert kept == str(has_glibc)
    if has_glibc:
        assert faults < 1000 < before


@pytest.mark.parametrize("variable", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"])
def test_limits_of_the_environment_are_not_replaced(variable: str) -> None:
    assert _faults("kept", **{variable: "131072"})[0] == "False"
