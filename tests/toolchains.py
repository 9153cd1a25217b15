"""Programs that tests need and a machine may lack: missing ones are left out with a reason, but never in CI."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

SHORT_LIVED_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For a Java that lives for seconds: to compile its code well, and to collect beside it, takes longer than it saves."""

_CHROMIUM = re.compile(r"(?!libc6|libc-bin)(lib|zlib|chromium|fontconfig|fonts-)")
"""Packages that the browser needs to run. The C library is the machine's own, which its loader belongs to."""

_LIBRARIES = ("lib/*-linux-gnu*", "usr/lib/*-linux-gnu*", "usr/lib/*-linux-gnu*/pulseaudio")


def toolchain(name: str) -> str:
    """Where the program is. Without it the test is skipped, and the summary says so; under `CI=true` it fails."""
    found = shutil.which(name)
    if found is None:
        missing(f"'{name}' is not installed on this machine")
    return found


def missing(reason: str) -> NoReturn:
    """What the test needs cannot be had: skip, or fail where everything must have been there."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and CI leaves nothing out", pytrace=False)
    pytest.skip(f"left out: {reason}")


def npm_packages(folder: Path) -> None:
    """Install what the folder's package.json names, unless that was done already. Test processes take turns."""
    npm = toolchain("npm")
    wanted = (folder / "package.json").read_text()
    modules = folder / "node_modules"
    done = modules / ".installed"
    with _locked(folder):
        if done.exists() and done.read_text() == wanted:
            return
        command = [npm, "install", "--no-audit", "--no-fund", "--silent"]
        _run(command, folder, "npm could not install the packages")
        done.write_text(wanted)


def java_classpath(folder: Path) -> str:
    """Fetch what the folder's pom.xml names and compile its Java files, unless that was done already.

    Returns the class path of both. Test processes take turns.
    """
    maven, compiler = toolchain("mvn"), toolchain("javac")
    sources = sorted(folder.glob("*.java"))
    wanted = "".join(path.read_text() for path in (folder / "pom.xml", *sources))
    classes, libraries, done = (folder / "build" / name for name in ("classes", "classpath", "done"))
    with _locked(folder):
        if not (done.exists() and done.read_text() == wanted and _all_there(libraries.read_text())):
            fetch = [maven, "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={libraries}"]
            _run(fetch, folder, "Maven could not fetch the libraries")
            compile = [compiler, "-d", str(classes), "-cp", libraries.read_text(), *map(str, sources)]
            outcome = subprocess.run(compile, cwd=folder, capture_output=True, text=True, check=False)
            assert outcome.returncode == 0, outcome.stderr
            done.write_text(wanted)
        return f"{classes}{os.pathsep}{libraries.read_text()}"


def go_program(folder: Path) -> Path:
    """Fetch what the folder's go.mod names and build its program, unless that was done already.

    Test processes take turns.
    """
    go = toolchain("go")
    sources = [folder / "go.mod", folder / "go.sum", *sorted(folder.glob("*.go"))]
    wanted = "".join(path.read_text() for path in sources)
    program, done = (folder / "build" / name for name in ("scenarios", "done"))
    with _locked(folder):
        if not (done.exists() and done.read_text() == wanted and program.exists()):
            _run([go, "mod", "download"], folder, "Go could not fetch the modules")
            # The state of the repository is of no interest, and not always there to be asked.
            build = [go, "build", "-buildvcs=false", "-o", str(program), "."]
            outcome = subprocess.run(build, cwd=folder, capture_output=True, text=True, check=False)
            assert outcome.returncode == 0, outcome.stderr
            done.write_text(wanted)
        return program


def python_with(name: str, *requirements: str) -> Path:
    """A Python that has these packages, in an environment of its own, unless that was made already.

    Test processes take turns.
    """
    build = Path(__file__).parents[1] / "build"
    build.mkdir(exist_ok=True)
    folder = build / name
    python, done, wanted = folder / "bin" / "python", folder / ".installed", "\n".join(requirements)
    with _locked(build):
        if not (done.exists() and done.read_text() == wanted):
            _run([sys.executable, "-m", "venv", "--clear", str(folder)], build, "an environment could not be made")
            _run(
                [str(python), "-m", "pip", "install", "--quiet", *requirements], build, "pip could not install packages"
            )
            done.write_text(wanted)
    return python


def chromium() -> list[str]:
    """How the browser is started. In CI it is unpacked from Debian's package where there is none."""
    # Here: programs that tests start import this module, too, without the root on their path.
    from tools.bench.debian import unpack
    from tools.bench.packages import Unavailable

    found = shutil.which("chromium")
    if found is not None:
        return [found]
    if os.environ.get("CI") != "true":
        missing("'chromium' is not installed on this machine")
    folder = Path(__file__).parents[1] / "build"
    folder.mkdir(exist_ok=True)
    with _locked(folder):
        try:
            root = unpack("chromium", folder / "chromium", wanted=_CHROMIUM)
        except Unavailable as reason:
            missing(f"'chromium' cannot be unpacked: {reason}")
    libraries = [path for part in _LIBRARIES for path in sorted(root.glob(part))]
    fonts = root / "etc/fonts"
    settings = [f"LD_LIBRARY_PATH={os.pathsep.join(map(str, libraries))}", f"FONTCONFIG_PATH={fonts}"]
    return ["env", *settings, str(root / "usr/lib/chromium/chromium")]


def _all_there(classpath: str) -> bool:
    return all(Path(path).exists() for path in classpath.split(os.pathsep))


def _run(command: list[str], folder: Path, complaint: str) -> None:
    outcome = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if outcome.returncode:
        missing(f"{complaint} of {folder.name}: {outcome.stderr.strip() or outcome.stdout}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one process is inside at a time. A folder can be locked itself: no file is left behind."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
