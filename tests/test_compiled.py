"""Whether the package is the one that this run is about: interpreted, or compiled as in a built wheel."""

from __future__ import annotations

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
