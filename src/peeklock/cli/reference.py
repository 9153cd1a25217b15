"""The reference page of the command line, made from the commands themselves.

`python -m peeklock.cli.reference > docs/commands.md` writes it; a test compares the two.
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
[Command line](features/command-line.md) explains how to work with them.
"""
_SHARED_BY: Final = 8
"""An option that so many commands have, with the same text, is described once."""

Command = Any
"""A command of click, which typer brings with it under a name of its own."""


def page() -> str:
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
    """All commands below this one that do something, with the words that start them."""
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    if command.invoke_without_command:
        yield name, command
    for word, part in below.items():
        yield from _commands(part, f"{name} {word}")


def _entries(command: Command, kind: str) -> Iterator[tuple[str, str]]:
    """How an argument or option is written, and what it does."""
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
    """Paragraphs, each on one line."""
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


if __name__ == "__main__":
    print(page(), end="")
