"""Fetch the suites at run time into a cache below `build`. No part of them is committed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.suites.suite import Unavailable

CACHE: Final = (Path(__file__).parents[2] / "build" / "suites").resolve()
_LARGEST: Final = 64 * 1024 * 1024
"""The largest file that is downloaded, in bytes."""
_PATIENCE: Final = 60.0


def download(url: str, sha256: str, file: Path) -> None:
    """Fetch a file with a known digest."""
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:
            content = answer.read(_LARGEST + 1)
    except OSError as error:
        raise Unavailable(f"{url} cannot be fetched: {error}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise Unavailable(f"{url} has the SHA-256 digest {found}, expected {sha256}")
    file.write_bytes(content)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar file; refuse members outside the folder."""
    with tarfile.open(archive) as members:
        members.extractall(folder, filter="data")


def run(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a tool of a package manager and return its output. Raises Unavailable if it fails."""
    words = [str(each) for each in command]
    outcome = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}
    )
    if outcome.returncode:
        said = (outcome.stderr.strip() or outcome.stdout.strip())[-2000:]
        raise Unavailable(f"'{' '.join(words)}' failed: {said}")
    return outcome.stdout


@contextmanager
def once(folder: Path, content: str) -> Iterator[bool]:
    """Yield whether the caller must fill the folder, which is then empty.

    The folder counts as filled after the block ends without an error. It is emptied again if `content` differs from
    that of the last time, or if the block failed. Processes take turns.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / ".done"
        if done.exists() and done.read_text() == content:
            yield False
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield True
        done.write_text(content)
