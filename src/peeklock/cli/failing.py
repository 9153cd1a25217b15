"""End a failed command: one error message on standard error, and an exit code."""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import NoReturn

import typer


class Exit(IntEnum):
    """The exit codes; docs/features/command-line.md explains each."""

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
    """Print an error message and exit with the code."""
    print_error(reason)
    raise typer.Exit(code)


def print_error(reason: str) -> None:
    """Print an error message on standard error, after the name of the program."""
    print(f"peeklock: {reason}", file=sys.stderr)
