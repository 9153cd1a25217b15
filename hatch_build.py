"""Compiles the modules that every message passes through, when a wheel is built with PEEKLOCK_COMPILE=1.

Without it, and in an editable install, everything stays Python. docs/compiling.md says what this is good for.
"""

from __future__ import annotations

import os
from contextlib import chdir
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Compile(BuildHookInterface[Any]):
    @property
    def _wanted(self) -> bool:
        return self.target_name == "wheel" and os.environ.get("PEEKLOCK_COMPILE") == "1"

    def dependencies(self) -> list[str]:
        """Return what a build needs besides hatchling.

        The package's own dependencies are among them: mypy reads the modules that the compiled ones import, and without
        the libraries behind those it takes their types for variables.
        """
        if not self._wanted:
            return []
        return ["mypy[mypyc]>=2.4,<3", "setuptools>=77", *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not self._wanted or version == "editable":
            return
        libraries = Path(self.root) / "build" / "libraries"
        made = _compile(Path(self.root) / "src", self.config["modules"], libraries)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(path): str(path.relative_to(libraries)) for path in made})


def _compile(source: Path, modules: list[str], libraries: Path) -> list[Path]:
    """Returns what was made. What is there already and no older is not made again: a build asks twice."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    paths = [f"{module.replace('.', '/')}.py" for module in modules]
    # Types were checked in full by `make check`; a library without type annotations is no reason to fail here.
    with chdir(source):  # names of modules come from paths
        extensions = mypycify(
            ["--config-file=", f"--cache-dir={libraries.with_name('types')}", "--ignore-missing-imports", *paths],
            group_name="peeklock",
            target_dir=str(libraries.with_name("c")),
        )
        distribution = Distribution({"name": "peeklock", "ext_modules": extensions})
        command = distribution.get_command_obj("build_ext")
        command.build_lib = str(libraries)  # type: ignore[attr-defined]
        command.build_temp = str(libraries.with_name("objects"))  # type: ignore[attr-defined]
        command.ensure_finalized()
        command.run()
    return [Path(output) for output in command.get_outputs()]  # type: ignore[attr-defined]
