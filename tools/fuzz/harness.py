"""The common part of the targets: the fuzzer's loop, a time limit for one execution, and the initial corpus.

atheris chooses inputs by the branches that they reach. A target passes bytes to a parser and catches the exceptions
that are allowed. Any other exception is a finding, and so is an execution that takes longer than `LONGEST_SECONDS`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Final

import atheris  # type: ignore[import-untyped]

LONGEST_SECONDS: Final = 20
"""The time limit for one input. Inputs take milliseconds; the limit is higher because the machine may be busy."""

Check = Callable[[bytes], None]


class TooSlow(Exception):
    """The parser took longer than the time limit for an input."""


def fuzz(check: Check, examples: Iterable[bytes], words: Iterable[str] = ()) -> None:
    """Run with the options of libFuzzer on the command line.

    The first folder on the command line is the corpus; the examples are added to it. `words` are the fuzzer's
    dictionary: random mutations would rarely produce them.
    """
    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-") and Path(argument).is_dir()]
    if folders:
        for number, example in enumerate(examples):
            (folders[0] / f"example-{number:03}").write_bytes(example)
    dictionary = "".join(f'"{_quoted(word)}"\n' for word in words)
    arguments = [*sys.argv, *([f"-dict={_in_memory(dictionary)}"] if dictionary else [])]
    signal.signal(signal.SIGALRM, _too_slow)
    atheris.Setup(arguments, lambda data: _bounded(check, data))
    atheris.Fuzz()


def _in_memory(text: str) -> str:
    """Return the path of a file that disappears with the process: the fuzzer ends it without cleaning up."""
    descriptor = os.memfd_create("words")
    os.write(descriptor, text.encode())
    return f"/proc/self/fd/{descriptor}"


def _quoted(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"')


def _bounded(check: Check, data: bytes) -> None:
    signal.alarm(LONGEST_SECONDS)
    try:
        check(data)
    finally:
        signal.alarm(0)


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow(f"an input took longer than {LONGEST_SECONDS} seconds")
