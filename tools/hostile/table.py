"""The attacks as a table, for docs/hostile.md and `python -m tools.hostile --list`."""

from __future__ import annotations

from itertools import groupby

from tools.hostile.attacks import ATTACKS


def markdown() -> str:
    """Return the tables as Markdown, one section for each group."""
    lines: list[str] = []
    for group, attacks in groupby(ATTACKS.values(), lambda each: each.group):
        lines += [f"### {group}", "", "| Attack | What is done | What the broker does |", "|---|---|---|"]
        lines += [f"| `{each.name}` | {each.description} | {each.answer} |" for each in attacks]
        lines.append("")
    return "\n".join(lines)
