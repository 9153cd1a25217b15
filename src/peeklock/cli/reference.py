"""Generate the reference page of the command line from the commands.

`python -m peeklock.cli.reference > docs/commands.md` writes the page; a test compares it with the commands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import typer

from peeklock.cli.main import compose

_OPENING: Final = """\
# Commands

<!-- Made from the commands: python -m peeklock.cli.reference > docs/commands.md -->

For people who look up an option: every command of `peeklock`, with its arguments and options, as `--help` prints them.
[Command line](features/command-line.md) explains how to use the commands.
"""
_SHARED_BY: Final = 8
"""An option that at least this many commands have, with the same text, is described once."""

Command = Any
"""A command of click, which typer bundles under a private name."""


def page() -> str:
    """Make the page."""
    commands = list(_commands(typer.main.get_command(compose(None)), "peeklock"))
    counts = Counter(entry for _, command in commands for entry in _entries(command, "option"))
    shared = {entry for entry, count in counts.items() if count >= _SHARED_BY}
    lines = [_OPENING, "## Options of many commands", "", *_table("Option", sorted(shared))]
    for name, command in commands:
        lines += ["", f"## {name}", "", _prose(command.help)]
        arguments = list(_entries(command, "argument"))
        if arguments:
            lines += ["", *_table("Argument", arguments)]
        options = list(_entries(command, "option"))
        own = [entry for entry in options if entry not in shared]
        if own:
            lines += ["", *_table("Option", own)]
        others = [written for written, text in options if (written, text) in shared]
        if others:
            lines += ["", f"{'Also' if own else 'Options'}: {', '.join(others)}."]
    return "\n".join(lines) + "\n"


def _commands(command: Command, name: str) -> Iterator[tuple[str, Command]]:
    """All commands in a group that can be run, with the words to type."""
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    if command.invoke_without_command:
        yield name, command
    for word, part in below.items():
        yield from _commands(part, f"{name} {word}")


def _entries(command: Command, kind: str) -> Iterator[tuple[str, str]]:
    """The syntax and the help text of each argument or option of a command."""
    context = typer.Context(command, auto_envvar_prefix=command.context_settings.get("auto_envvar_prefix"))
    for parameter in command.params:
        if parameter.param_type_name != kind:
            continue
        record = parameter.get_help_record(context)
        written, text = record if record is not None else (parameter.human_readable_name, "")
        yield f"`{_cell(written)}`", _cell(text)


def _table(head: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"| {head} | |", "|---|---|", *(f"| {written} | {text} |" for written, text in rows)]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _prose(text: str | None) -> str:
    """Put each paragraph of a text on one line."""
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


if __name__ == "__main__":
    print(page(), end="")
