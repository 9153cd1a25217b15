"""The ladder of packages holds: an import never goes upwards."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

# what every package may import: constants that import nothing
BASE = {"limits"}
# package -> what it may import besides that and itself
LADDER: dict[str, set[str]] = {
    "limits": set(),
    "amqp": set(),
    "entities": set(),
    "atom": {"entities"},
    "engine": {"amqp"},
    "store.base": {"store.bodies", "store.compiler"},
    "store.bodies": set(),
    "store.compiler": set(),
    "store.memory": {"store.base", "store.sorted_numbers"},
    "store.sorted_numbers": set(),
    "store.disk.turns": set(),
    "store.disk.keys": {"store.base"},
    "store.disk.failures": {"store.base"},
    "store.disk.folder": {"store.base"},
    "store.disk.space": {"store.base"},
    "store.disk.reserve": {"store.disk.failures"},
    "store.disk.pin": set(),
    "store.disk.log": {
        "store.base",
        "store.disk.failures",
        "store.disk.folder",
        "store.disk.keys",
        "store.disk.reserve",
    },
    "store.disk.commits": {"store.base", "store.disk.keys", "store.disk.log", "store.disk.turns"},
    "store.disk.index": {
        "store.base",
        "store.disk.commits",
        "store.disk.failures",
        "store.disk.folder",
        "store.disk.keys",
        "store.disk.log",
        "store.disk.pin",
        "store.disk.reserve",
        "store.disk.turns",
    },
    "store.disk.store": {
        "store.base",
        "store.disk.commits",
        "store.disk.failures",
        "store.disk.folder",
        "store.disk.index",
        "store.disk.log",
        "store.disk.pin",
        "store.disk.reserve",
    },
    "store.disk.upkeep": {
        "store.base",
        "store.disk.commits",
        "store.disk.failures",
        "store.disk.folder",
        "store.disk.index",
        "store.disk.keys",
        "store.disk.log",
        "store.disk.pin",
        "store.disk.reserve",
    },
    "store.postgres": {"store.base"},
    "broker": {"amqp", "engine", "entities", "store.base"},
    "nodes": {"amqp", "engine", "entities", "broker", "store.base"},
    "server": {
        "amqp",
        "engine",
        "entities",
        "atom",
        "broker",
        "nodes",
        "store.base",
        "store.memory",
        "store.disk.space",
        "store.disk.store",
        "store.postgres",
    },
    "admin": {"entities", "atom", "broker", "server"},
    "rest": {"amqp", "entities", "broker", "server", "store.base"},
    "client": {"amqp", "engine", "entities", "atom"},
    "spark": {"amqp", "entities", "client"},
    "cli": {
        "amqp",
        "engine",
        "entities",
        "atom",
        "broker",
        "nodes",
        "server",
        "admin",
        "rest",
        "client",
        "spark",
        "store.base",
        "store.disk.folder",
        "store.disk.upkeep",
    },
}


def package_of(module: str) -> str | None:
    """The rung a dotted module stands on; None for the root package, which holds the version only."""
    parts = module.split(".")[1:]
    if parts[:1] == ["store"]:
        deep = 3 if parts[1:2] == ["disk"] else 2
        return ".".join(parts[:deep]) if len(parts) >= deep else None
    return parts[0] if parts else None


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((SOURCE / "peeklock").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(module: str, path: Path) -> Iterator[tuple[int, str]]:
    is_package = path.name == "__init__.py"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + (1 if is_package else 0)]
                base = ".".join([*kept, node.module] if node.module else kept)
            # `from peeklock.store import memory` names a module, not only its package.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def violations(module: str, path: Path) -> list[str]:
    rung = package_of(module)
    if rung is None or module == "peeklock.__main__":
        return []
    allowed = LADDER[rung] | BASE | {rung}
    found = []
    for line, name in imported(module, path):
        target = package_of(name) if name.startswith("peeklock.") else None
        if target is not None and target in LADDER and target not in allowed:
            found.append(f"{path.name}:{line}: {rung} may not import {target}")
    return found


@pytest.mark.parametrize(("module", "path"), [pytest.param(m, p, id=m) for m, p in modules()])
def test_a_module_imports_only_from_its_own_rung_and_below(module: str, path: Path) -> None:
    assert violations(module, path) == []


def test_every_package_has_its_place_on_the_ladder() -> None:
    rungs = {package_of(module) for module, _ in modules()} - {None, "store", "__main__"}
    assert rungs <= set(LADDER)


def test_an_import_that_goes_upwards_is_found(tmp_path: Path) -> None:
    offender = tmp_path / "offender.py"
    offender.write_text("from peeklock.server import listener\nfrom ..nodes import cbs\n")
    assert [v.split(": ")[1] for v in violations("peeklock.amqp.offender", offender)] == [
        "amqp may not import server",
        "amqp may not import nodes",
    ]


def test_no_module_that_a_cluster_starts_from_its_folder_hides_one_of_python() -> None:
    """`spark-submit` runs a file of `cli`, whose folder Python then searches first."""
    names = {path.stem for path in (SOURCE / "peeklock" / "cli").glob("*.py")}
    assert names & sys.stdlib_module_names == set()
