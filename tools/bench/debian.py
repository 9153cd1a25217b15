"""Programs from Debian packages, unpacked into a folder without installing them and without root rights.

Packages come from this machine's apt sources, of this or another release of Debian. A program of another release
requires that release's libraries: they are unpacked too, and its programs are started with its own loader.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.bench.packages import Unavailable, once, run

_SOURCES: Final = Path("/etc/apt")
_WANTED: Final = re.compile(r"(lib|zlib|erlang-|rabbitmq-)")
"""The dependencies that are unpacked: libraries and Erlang packages. Others, such as dpkg or Python, are not needed."""

_PROGRAMS: Final = ("bin/*", "erts-*/bin/*", "lib/*/bin/*", "lib/*/priv/bin/*")
"""The folder of Erlang's programs within its own folder."""


def codename() -> str:
    """Return the code name of this machine's Debian release; Unavailable on other systems."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    if release.get("ID") != "debian" or shutil.which("apt-get") is None:
        raise Unavailable("this system is not Debian; Debian's packages are required")
    return release["VERSION_CODENAME"]


def unpack(package: str, folder: Path, release: str | None = None, *, wanted: re.Pattern[str] = _WANTED) -> Path:
    """Unpack a package with its libraries below a folder, once for all runs; returns the root folder."""
    return once(folder, lambda root: _unpack(package, root, release or codename(), wanted))


def _unpack(package: str, root: Path, release: str, wanted: re.Pattern[str]) -> None:
    apt = _Apt(root.with_name(f"{root.name}.apt"), release)
    try:
        archives = apt.download(package, wanted)
        for archive in archives:
            run(["dpkg-deb", "-x", str(archive), str(root)], seconds=120)
    finally:
        shutil.rmtree(apt.folder, ignore_errors=True)
    if (root / "usr/lib/erlang").is_dir():
        _move_home(root)


class _Apt:
    """An apt with its own lists and cache, and an empty list of installed packages."""

    def __init__(self, folder: Path, release: str) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        for part in ("lists/partial", "cache/archives/partial", "sources", "archives"):
            (folder / part).mkdir(parents=True)
        _write_sources(folder / "sources", codename(), release)

    def download(self, package: str, matching: re.Pattern[str]) -> list[Path]:
        self._run("update", seconds=600)
        planned = self._run("install", "--print-uris", "-qq", "--no-install-recommends", package)
        names = [line.split()[1].split("_")[0] for line in planned.splitlines() if line.startswith("'")]
        wanted = [name for name in names if matching.match(name)]
        if package not in wanted:
            raise Unavailable(f"apt has no package {package}")
        self._run("download", *wanted, seconds=1200)
        return sorted((self.folder / "archives").glob("*.deb"))

    def _run(self, *arguments: str, seconds: int = 120) -> str:
        settings = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": str(self.folder / "sources"),
            "Dir::State": str(self.folder),
            "Dir::State::status": "/dev/null",
            "Dir::State::lists": str(self.folder / "lists"),
            "Dir::Cache": str(self.folder / "cache"),
            "Debug::NoLocking": "1",
            "APT::Sandbox::User": "root",  # the user that apt would switch to cannot write to the folder
        }
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        return run(["apt-get", *options, *arguments], seconds=seconds, folder=self.folder / "archives")


def _write_sources(folder: Path, own: str, release: str) -> None:
    """Return this machine's apt sources for Debian, with the name of the release replaced."""
    found = 0
    for path in (_SOURCES / "sources.list", *sorted((_SOURCES / "sources.list.d").glob("*"))):
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        text = path.read_text()
        if not re.search(rf"\b{own}\b", text):
            continue
        # The updates of this release are of no use for another one.
        text = re.sub(rf"\b{own}-(updates|backports)\b", "" if path.suffix == ".sources" else own, text)
        (folder / path.name).write_text(re.sub(rf"\b{own}\b", release, text))
        found += 1
    if not found:
        raise Unavailable(f"apt has no sources of {own}")


# --- running from another place ---


def _move_home(root: Path) -> None:
    """Make the programs run from this folder: Erlang's scripts have absolute paths, its programs a fixed loader."""
    erlang = root / "usr/lib/erlang"
    places = [path for parent in ("lib", "usr/lib") for path in sorted(root.glob(f"{parent}/*-linux-gnu*"))]
    loader = next((found for place in places for found in place.glob("ld-linux*.so.*")), None)
    if loader is None:
        raise Unavailable("the packages have no loader")
    for path in (found for part in _PROGRAMS for found in sorted(erlang.glob(part))):
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        if content.startswith(b"\x7fELF"):
            _wrap(path, loader, places)
        elif content.startswith(b"#!"):
            path.write_bytes(content.replace(b"/usr/lib/erlang", os.fsencode(erlang)))


def _wrap(program: Path, loader: Path, libraries: Sequence[Path]) -> None:
    behind = program.with_name(f"{program.name}.elf")
    program.rename(behind)
    places = ":".join(map(str, libraries))
    # Some of Erlang's programs depend on the name by which they are called.
    command = f'exec "{loader}" --argv0 "{program}" --library-path "{places}" "{behind}" "$@"'
    program.write_text(f"#!/bin/sh\n{command}\n")
    program.chmod(0o755)
