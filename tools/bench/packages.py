"""Programs for the comparison that this project does not include: the peers and Qpid Proton, fetched into a folder.

Everything comes from the package managers of this machine as they are configured: apt, Maven and pip. A program that
cannot be fetched raises Unavailable with the reason, and is left out of the comparison.
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
"""The source distribution of this package has the C sources of Proton."""
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
    """A program is unavailable on this machine; `str()` is the reason."""


def run(
    command: Sequence[str], *, seconds: int, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Run a program and return its output; Unavailable if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is not on the path") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took more than {seconds} seconds") from None
    if done.returncode != 0:
        raise Unavailable(f"{Path(command[0]).name} failed: {_first_error(done.stdout + done.stderr)}")
    return done.stdout


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Build something in a folder, unless an earlier run has completed it there."""
    stamp = folder / ".made"
    # Some results contain their own path, so a folder that was moved is built again.
    if not stamp.is_file() or stamp.read_text() != str(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        stamp.write_text(str(folder))
    return folder


def fetch_artemis(cache: Path) -> Path:
    """Fetch ActiveMQ Artemis; returns the folder of its distribution."""
    if shutil.which("java") is None:
        raise Unavailable("it requires Java")

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
    """Compile the load client with Proton, again when its source has changed; returns its path."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unavailable("the load client requires a C compiler")
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


def _first_error(output: str) -> str:
    """Return the first line with an error, otherwise the first line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E:", "[ERROR]", "ERROR")) and len(line) > 20]
    return " ".join((errors or lines)[:1] or ["it printed nothing"])[:300]
