"""A suite of an SDK: where it comes from, and the jobs that run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.suites.job import Job, Reader


class Unavailable(Exception):
    """A suite cannot be fetched or built here; `str()` says why."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    name: str
    title: str
    package: str
    version: str
    source: str
    """Where it is fetched from."""
    folder: str
    """Of the cache."""
    tools: tuple[str, ...]
    """Programs that must be installed."""
    prepare: Callable[[Path], None]
    """Fetches it into a folder and builds it there, unless that was done. Needs the network; raises Unavailable."""
    jobs: Callable[[Path], Sequence[Job]]
    """What is run, given the folder. Does not need the network."""
    read: Reader
