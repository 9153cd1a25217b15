"""The reference page of the command line equals the page generated from the commands."""

from __future__ import annotations

from pathlib import Path

from peeklock.cli.main import COMMANDS
from peeklock.cli.reference import page

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def test_the_page_is_that_of_the_commands() -> None:
    assert PAGE.read_text() == page(), "run: python -m peeklock.cli.reference > docs/commands.md"


def test_the_page_has_every_command_once_with_its_options() -> None:
    text = page()
    for name in COMMANDS:
        assert f"\n## peeklock {name}" in text
    assert text.count("\n## peeklock dead-letter resubmit\n") == 1
    assert (
        "| `--tls-port <int range>` | A further port, such as 5671 for TLS; every port accepts every protocol. "
        "[env var: PEEKLOCK_TLS_PORT; 0<=x<=65535] |" in text
    )


def test_every_row_has_two_cells() -> None:
    rows = [line for line in page().splitlines() if line.startswith("|")]
    assert rows
    assert {line.replace("\\|", "").count("|") for line in rows} == {3}
