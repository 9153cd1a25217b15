"""New environments for what the documentation prints: commands and programs run there as a reader types them.

A room has a virtual environment that is not activated, a home folder of its own, and no variable set but PATH and HOME:
what the tests set for themselves, or a developer has in a profile, does not reach it. Programs of the environment
(`pip`, `peeklock`) can be called by name; its Python is called by its path, so `python3` on the path is another one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 900
"""For commands that install packages, on a busy machine."""
PYTHON = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
"""The `python3` of a room's path: the Python that the tests' environment was made with, without what is in that."""
PROGRAMS = ("pip", "peeklock", "pytest", "spark-submit")
NOT_COPIED = (
    ".git",
    ".venv*",
    "build",
    "node_modules",
    "__pycache__",
    ".*_cache",
    ".hypothesis",
    "peeklock-*",
    ".peers",
)
FETCHING_PACKAGES = ("PIP_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Beginnings of variables, in either case, that belong to the machine and not to the reader."""


class Room:
    """A folder to work in, a copy of the checkout or empty, and beside it what belongs to its environment."""

    def __init__(self, folder: Path, environment: str = "environment", *, checkout: bool = False) -> None:
        self.folder = folder
        self._bin = folder / environment / "bin"
        home, names = (folder.with_name(f"{folder.name}-{part}") for part in ("home", "names"))
        for made in (home, names):
            made.mkdir(parents=True)
        for name in PROGRAMS:
            (names / name).symlink_to(self._bin / name)
        (names / "python3").symlink_to(PYTHON)
        self._variables = {**reader_variables(home, names), **_fetching_packages()}
        if checkout:
            shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
        else:
            folder.mkdir()

    def make_environment(self) -> None:
        self.run(f"python3 -m venv {self._bin.parent}")

    def run(self, command: str, **variables: str) -> str:
        """Run a line in a shell, which must succeed, and return what it prints."""
        ended = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env={**self._variables, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def run_program(self, text: str) -> str:
        """Run a Python program, as a file and with the environment's Python; return what it prints."""
        program = self.folder / "program.py"
        program.write_text(text)
        return self.run(f"{self._bin / 'python'} {program.name}")

    @contextmanager
    def serving(self, command: str, **variables: str) -> Iterator[str]:
        """Run a command that starts a broker; yield the connection string that it prints."""
        errors = self.folder.with_name(f"{self.folder.name}-errors")
        with (
            errors.open("ab") as log,
            subprocess.Popen(
                ["sh", "-c", command],
                cwd=self.folder,
                env={**self._variables, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # a group of its own: make does not pass signals on
            ) as process,
        ):
            assert process.stdout is not None
            try:
                printed = process.stdout.readline().strip()
                assert printed.startswith("Endpoint=sb://"), errors.read_text()
                yield printed
            finally:
                os.killpg(process.pid, signal.SIGTERM)


def reader_variables(home: Path, *first: Path) -> dict[str, str]:
    """The variables of a shell in which nothing is set, and no environment is activated."""
    tests = Path(sys.prefix, "bin")
    path = [entry for entry in os.environ["PATH"].split(os.pathsep) if Path(entry) != tests]
    return {"PATH": os.pathsep.join((*map(str, first), *path)), "HOME": str(home)}


def _fetching_packages() -> dict[str, str]:
    """How this machine fetches packages, and the cache of those that were fetched."""
    command = [sys.executable, "-m", "pip", "cache", "dir"]
    cache = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    kept = {name: value for name, value in os.environ.items() if name.upper().startswith(FETCHING_PACKAGES)}
    return {"PIP_CACHE_DIR": cache, **kept}
