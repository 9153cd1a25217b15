"""Whether the package is the one that this run is about: interpreted, or compiled as in a built wheel."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from commands import environment
from rooms import Room

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPILED = os.environ.get("PEEKLOCK_COMPILED") == "1"
WHEELS = ROOT.parent / "wheel"
"""Of a compiled checkout, which is `build/checkout`: what `make wheel` built."""


def test_the_modules_of_the_list_are_of_that_kind_and_all_others_are_python() -> None:
    hooks = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    files = [importlib.import_module(name).__file__ or "" for name in hooks["custom"]["modules"]]
    assert files
    assert {file.endswith(".py") for file in files} == {not COMPILED}
    assert (importlib.import_module("peeklock.amqp.types").__file__ or "").endswith(".py")


def test_no_module_in_python_has_a_subclass_of_a_compiled_class_that_does_not_allow_it() -> None:
    """Compiled code compares the type with the compiled classes only, so `isinstance` would be false."""
    modules = set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"])
    trees = {
        ".".join(file.relative_to(SOURCE).with_suffix("").parts): ast.parse(file.read_text())
        for file in SOURCE.rglob("*.py")
    }
    closed = {
        (name, node.name)
        for name in modules & trees.keys()
        for node in trees[name].body
        if isinstance(node, ast.ClassDef)
        and not {"Protocol", "NamedTuple"} & set(map(ast.unparse, node.bases))
        and not any("allow_interpreted_subclasses=True" in ast.unparse(each) for each in node.decorator_list)
    }
    assert ("peeklock.engine.links", "Receiver") in closed
    assert ("peeklock.store.base", "StoreError") not in closed
    wrong = [
        (name, node.name)
        for name in trees.keys() - modules
        for node in ast.walk(trees[name])
        if isinstance(node, ast.ClassDef)
        and closed & {(origin(trees[name], base, name), ast.unparse(base).rpartition(".")[2]) for base in node.bases}
    ]
    assert wrong == []


def origin(tree: ast.Module, base: ast.expr, module: str) -> str:
    """The module from which a class was imported by name; "" if the module defines it."""
    name = ast.unparse(base)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any((each.asname or each.name) == name for each in node.names):
            package = module.split(".")[: -node.level] if node.level else []
            return ".".join([*package, *([node.module] if node.module else [])])
    return ""


def test_a_program_that_is_started_is_of_that_kind() -> None:
    command = [sys.executable, "-m", "peeklock", "version"]
    said = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=30, check=True).stdout
    assert said.endswith(" compiled\n") is COMPILED


@pytest.mark.skipif(not COMPILED, reason="this checkout is not compiled")
def test_the_wheel_serves_and_sends_in_a_new_environment_with_nothing_else(tmp_path: Path) -> None:
    (wheel,) = WHEELS.glob("peeklock-*.whl")
    room = Room(tmp_path / "room")
    room.make_environment()
    room.run(f"pip install {wheel}")
    assert room.run("peeklock version").endswith(" compiled\n")
    with room.serving("peeklock serve --memory --port 0") as connection_string:
        there = f"--connection-string '{connection_string}'"
        room.run(f"peeklock send queue hello {there}")
        assert "hello" in room.run(f"peeklock receive queue {there}")
