"""A suite of an SDK: its source, and the jobs that run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.suites.job import Job, Reader


class Unavailable(Exception):
    """A suite cannot be fetched or built; `str()` is the reason."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    name: str
    title: str
    package: str
    version: str
    source: str
    """Where it is fetched from."""
    folder: str
    """The folder in the cache."""
    tools: tuple[str, ...]
    """Programs that must be installed."""
    prepare: Callable[[Path], None]
    """Fetches the suite into a folder and builds it, if not done before. Requires the network; raises Unavailable."""
    jobs: Callable[[Path], Sequence[Job]]
    """Returns the jobs, given the folder. Does not require the network."""
    read: Reader
