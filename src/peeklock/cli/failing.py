"""How a command ends that cannot do what it was told: one clear sentence on standard error and an exit code."""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import NoReturn

import typer


class Exit(IntEnum):
    """What a program that runs the command reads; docs/features/command-line.md has the same table."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    EXISTS = 4
    UNAUTHORIZED = 5
    UNREACHABLE = 6
    DAMAGED = 7
    INTERRUPTED = 130


def fail(reason: str, code: Exit = Exit.USAGE) -> NoReturn:
    """One clear sentence and the exit code."""
    complain(reason)
    raise typer.Exit(code)


def complain(reason: str) -> None:
    print(f"peeklock: {reason}", file=sys.stderr)
