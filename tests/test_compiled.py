"""Whether the package is the one that this run is about: interpreted, or compiled as in a built wheel."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from commands import environment

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
COMPILED = os.environ.get("PEEKLOCK_COMPILED") == "1"


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
