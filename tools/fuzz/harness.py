"""What the targets share: the fuzzer's loop, a bound for one execution, and the corpus that each target starts from.

atheris chooses inputs by the branches they reach. A target gives bytes to a parser and says what may come out; every
exception is a finding, and so is an execution that takes longer than `LONGEST_SECONDS`.
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
"""For one input. Limits keep them all to milliseconds; the rest is room for a machine that is busy."""

Check = Callable[[bytes], None]


class TooSlow(Exception):
    """An input keeps the parser busy for longer than any may."""


def fuzz(check: Check, examples: Iterable[bytes], words: Iterable[str] = ()) -> None:
    """Run as libFuzzer's options on the command line say.

    The first folder named there is the corpus, and gets the examples. `words` are put in as they are now and then:
    chance alone would take long to spell them.
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
    """The path of a file that goes with the process, which the fuzzer ends without a word."""
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
