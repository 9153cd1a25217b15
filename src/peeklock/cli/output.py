"""Print results as tables or JSON, show progress on standard error, and ask before deleting.

Rich is imported only when a table is printed, because the import takes time. Control characters in values are shown as
escapes, so that a message cannot move the terminal's cursor or change its colours.
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

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

_WIDE = 1000
"""Columns of a table in a file or a pipe: wide enough that Rich cuts no cell."""


def print_json(value: Any) -> None:
    """Print a JSON document on one line."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Iterable[str] = ()) -> None:
    """Print a table. The columns in `numbers` are aligned to the right."""
    console().print(table(columns, rows, numbers))


def print_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print each name with its value on a line."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, _cell(value))
    console().print(grid)


def note(text: str) -> None:
    """Print a note on standard error, as it is not a result."""
    print(text, file=sys.stderr, flush=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Iterable[str] = ()) -> Table:
    from rich import box
    from rich.table import Table

    right_aligned = set(numbers)
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right_aligned else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    return made


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _WIDE, markup=False, highlight=False, emoji=False)


def printable(text: str) -> str:
    """Replace control characters by visible escapes, so that a terminal does not execute them."""
    return "".join(each if each.isprintable() or each in "\n\t" else f"\\x{ord(each):02x}" for each in text)


def confirm(question: str, yes: bool) -> None:
    """Ask before a destructive change. Fails without a terminal unless --yes was given."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"{question} Standard input is not a terminal: give --yes to confirm")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        fail("not confirmed; nothing was changed", Exit.FAILED)


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if standard error is a terminal. Yields a function that advances it by a number of steps."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda steps: bar.advance(task, steps)


def _cell(value: Any) -> Any:
    from rich.text import Text

    if value is None:
        return Text("")
    if isinstance(value, bool):
        return Text("true" if value else "false")
    return Text(printable(str(value)))
