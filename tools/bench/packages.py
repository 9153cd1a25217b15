"""What the comparison needs and this project has not: peers and the load client's engine, fetched into a folder.

Everything comes through the package managers of this machine as they are set up: apt, Maven and pip. What cannot be had
is said plainly (`Unavailable`), and is left out.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

ARTEMIS: Final = "org.apache.artemis:apache-artemis:2.56.0:tar.gz:bin"
PROTON: Final = "python-qpid-proton==0.40.0"
"""Its source distribution has the C sources of the engine."""
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:copy"
_PROTON_PARTS: Final = (
    "src/core/**/*.c",
    "src/compiler/gcc/start.c",
    "src/platform/platform.c",
    "src/sasl/sasl.c",
    "src/sasl/default_sasl.c",
    "src/sasl/cyrus_stub.c",
    "src/ssl/ssl_stub.c",
)
LOAD_SOURCE: Final = Path(__file__).with_name("proton_load.c")


class Unavailable(Exception):
    """Something cannot be had on this machine, and why."""


def run(
    command: Sequence[str], *, seconds: int, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """What a program prints; Unavailable when it is not there, fails or takes too long."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is not on the path") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took more than {seconds} seconds") from None
    if done.returncode != 0:
        raise Unavailable(f"{Path(command[0]).name} failed: {_complaint(done.stdout + done.stderr)}")
    return done.stdout


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Have something made in a folder, unless an earlier run made it there. What is half made is made again."""
    stamp = folder / ".made"
    # Some of what is made has its own place written into it: a folder that was moved is made again.
    if not stamp.is_file() or stamp.read_text() != str(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        stamp.write_text(str(folder))
    return folder


def fetch_artemis(cache: Path) -> Path:
    """The folder of ActiveMQ Artemis's distribution."""
    if shutil.which("java") is None:
        raise Unavailable("it needs Java")

    def make(folder: Path) -> None:
        run(["mvn", "-q", "-B", _COPY, f"-Dartifact={ARTEMIS}", f"-DoutputDirectory={folder}"], seconds=900)
        for archive in folder.glob("*.tar.gz"):
            _extract(archive, folder)

    folder = once(cache / "artemis", make)
    homes = [path.parents[1] for path in folder.glob("*/bin/artemis")]
    if not homes:
        raise Unavailable("Maven's archive has no bin/artemis")
    return homes[0]


def build_load_client(cache: Path) -> Path:
    """The load client, compiled with Proton's engine; again when its source has changed."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unavailable("the load client needs a C compiler")
    proton = once(cache / "proton", lambda folder: _fetch_proton(folder, compiler))
    (include,) = proton.glob("*/include")
    program = proton / "load"
    if not program.exists() or program.stat().st_mtime < LOAD_SOURCE.stat().st_mtime:
        flags = ["-O2", "-std=gnu99", "-DPROTON_DECLARE_STATIC", f"-I{include}"]
        objects = sorted(str(path) for path in proton.glob("*.o"))
        run([compiler, *flags, "-o", str(program), str(LOAD_SOURCE), *objects], seconds=300)
    return program


def _fetch_proton(folder: Path, compiler: str) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run([*pip, "--no-binary", ":all:", "--dest", str(folder), PROTON], seconds=900)
    for archive in folder.glob("*.tar.gz"):
        _extract(archive, folder)
    (include,) = folder.glob("*/include")
    home = include.parent
    sources = [str(path) for part in _PROTON_PARTS for path in sorted(home.glob(part))]
    flags = ["-c", "-O2", "-std=gnu99", "-DPROTON_DECLARE_STATIC", "-DNDEBUG", f"-I{include}", f"-I{home / 'src'}"]
    run([compiler, *flags, *sources], seconds=900, folder=folder)


def _extract(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as content:
        content.extractall(folder, filter="data")
    archive.unlink()


def _complaint(output: str) -> str:
    """The first line that says it is an error, or else the first."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E:", "[ERROR]", "ERROR")) and len(line) > 20]
    return " ".join((errors or lines)[:1] or ["it said nothing"])[:300]
