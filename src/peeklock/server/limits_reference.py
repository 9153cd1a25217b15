"""The tables of docs/limits.md, made from the declarations in `peeklock.limits` and from the profiles.

`python -m peeklock.server.config_reference docs/limits.md` writes them into the page; a test compares the two.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from peeklock.limits import amqp, broker, http, server
from peeklock.limits.server import Limits, configured_limits
from peeklock.limits.units import KIB, MIB

_DOCSTRING = re.compile(r"(?P<bounds>.+?)\. Beyond it: (?P<beyond>.+?)\.(?: Set by (?P<by>.+)\.)?")
_SECTION = re.compile(r"# --- (.+)")
_UNITS = {"Bytes": "bytes", "Characters": "characters", "Levels": "levels", "Milliseconds": "ms", "Seconds": "s"}
_DEFAULTS = Limits()


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit as its declaration has it."""

    name: str
    value: float | None
    section: str
    unit: str
    bounds: str
    beyond: str
    set_by: str


def limits_of(module: ModuleType) -> Iterator[Limit]:
    """Read the declarations of a module: constants or fields, each followed by its docstring.

    ValueError if a docstring does not say what happens beyond the limit.
    """
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    titles = {line: found[1] for line, text in enumerate(source.splitlines(), 1) if (found := _SECTION.match(text))}
    keys = {name: f"`{configured.key}`" for name, configured in configured_limits().items()}
    for owner in ast.walk(ast.parse(source)):
        if not isinstance(owner, ast.Module) and getattr(owner, "name", "") != Limits.__name__:
            continue
        for node, following in zip(owner.body, owner.body[1:], strict=False):  # type: ignore[attr-defined]
            name, text = _target(node), _text(following)
            if name is None or text is None:
                continue
            match = _DOCSTRING.fullmatch(text)
            if match is None:
                raise ValueError(f"{module.__name__}.{name}: the docstring must say what happens beyond the limit")
            line = max((line for line in titles if line < node.lineno), default=0)
            value = getattr(_DEFAULTS if module is server else module, name)
            unit = _UNITS.get(match["bounds"].split(" ", 1)[0], "")
            yield Limit(
                name,
                value,
                titles.get(line, ""),
                unit,
                match["bounds"],
                match["beyond"],
                match["by"] or keys.get(name, ""),
            )


def limits(module: ModuleType) -> str:
    """Return the tables of a module: one for each section."""
    sections: dict[str, list[Limit]] = {}
    for limit in limits_of(module):
        sections.setdefault(limit.section, []).append(limit)
    return "\n\n".join(
        (f"### {title[0].upper()}{title[1:]}\n\n" if title else "") + _table(rows) for title, rows in sections.items()
    )


def _table(rows: list[Limit]) -> str:
    has_keys = any(limit.set_by for limit in rows)
    titles = ["Limit", "Value", "Beyond it", *(["Set by"] if has_keys else [])]
    lines = [[limit.bounds, _shown(limit), limit.beyond, *([limit.set_by] if has_keys else [])] for limit in rows]
    head, *body = (f"| {' | '.join(line)} |".replace("|  |", "| |") for line in (titles, *lines))
    return "\n".join((head, "|---" * len(titles) + "|", *body))


def _shown(limit: Limit) -> str:
    value = limit.value
    if value is None:
        return "none"
    if limit.unit == "bytes":
        for size, unit in ((1 << 40, "TiB"), (MIB, "MiB"), (KIB, "KiB")):
            if value >= size and value % size == 0:
                return f"{value // size:,.0f} {unit}"
    return f"{value:,g} {limit.unit}".rstrip() if isinstance(value, float) else f"{value:,} {limit.unit}".rstrip()


def _target(node: ast.stmt) -> str | None:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return None


def _text(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return None


TABLES = {
    "process": lambda: limits(server),
    "amqp": lambda: limits(amqp),
    "entities": lambda: limits(broker),
    "http": lambda: limits(http),
}
