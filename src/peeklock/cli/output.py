"""What commands print: tables for people, JSON for programs, progress on standard error, questions before destroying.

Rich is loaded when something for people is printed. What comes from messages is shown without the characters that
would move the terminal's cursor or change its colours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peeklock.cli.failing import Exit, fail

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_WIDE = 1000
"""Columns where there is no terminal: nothing is cut for a file or a pipe."""


def print_json(value: Any) -> None:
    """One document, on one line."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Iterable[str] = ()) -> None:
    """A row each, the columns that are `numbers` on the right."""
    console().print(table(columns, rows, numbers))


def print_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and their values below each other."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, _cell(value))
    console().print(grid)


def note(text: str) -> None:
    """For people only: not a result, so on standard error."""
    print(text, file=sys.stderr, flush=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Iterable[str] = ()) -> Table:
    from rich import box
    from rich.table import Table

    on_the_right = set(numbers)
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in on_the_right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    return made


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _WIDE, markup=False, highlight=False, emoji=False)


def printable(text: str) -> str:
    """Text from outside with what a terminal would obey made visible instead."""
    return "".join(each if each.isprintable() or each in "\n\t" else f"\\x{ord(each):02x}" for each in text)


def confirm(question: str, yes: bool) -> None:
    """Ask before something is destroyed; who cannot be asked must have said --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"{question} Nobody can be asked here: say so with --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        fail("nothing was changed", Exit.FAILED)


@contextmanager
def progress(doing: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while something takes long, if that is a terminal; call what it gives with each step."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda steps: bar.advance(task, steps)


def _cell(value: Any) -> Any:
    from rich.text import Text

    if value is None:
        return Text("")
    if isinstance(value, bool):
        return Text("true" if value else "false")
    return Text(printable(str(value)))
