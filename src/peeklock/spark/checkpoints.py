"""Settles the last batch of a query from its checkpoint: after a run, or when the query will not be started again.

A claiming stream settles a batch when Spark asks for the next one. If a query stops right after a batch, or an
AvailableNow run ends on Spark 4.0 and 4.1, the claims of the last batch remain until the query starts again. This
module knows the layout of a checkpoint's logs. It settles only batches that the commit log has, so it is safe at any
time, also while the query runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from peeklock.spark.broker_claims import claims_of
from peeklock.spark.offsets import Offset
from peeklock.spark.options import Options


class Folder(Protocol):
    """Where a checkpoint is; paths are relative to it."""

    def names(self, path: str) -> list[str]:
        """Return the names of the files in a folder below; none when there is no such folder."""

    def read(self, path: str) -> str: ...


def settle_checkpoint(folder: str | Folder, options: Options | Mapping[str, str]) -> int:
    """Remove the claims of the last durable batch of a checkpoint; returns how many messages that batch had.

    `options` are the options of the stream. A folder that is not on this machine is given as a `Folder`.
    """
    offset = durable_offset(folder, options)
    return 0 if offset is None else settle(options, offset)


def settle(options: Options | Mapping[str, str], offset: Offset | Mapping[str, Any]) -> int:
    """Remove the claims of an offset, whose batch must be durable; returns how many messages it had."""
    known = offset if isinstance(offset, Offset) else Offset.parse(offset)
    if known.count:
        with claims_of(_parsed(options)) as claims:
            claims.settle(known)
            claims.finish()
    return known.count


def durable_offset(folder: str | Folder, options: Options | Mapping[str, str]) -> Offset | None:
    """Return the offset of the last completed batch of a checkpoint, for this entity and claim, or None."""
    opened = _opened(folder) if isinstance(folder, str) else folder
    done = _batches(opened, "commits") & _batches(opened, "offsets")
    if not done:
        return None
    parsed = _parsed(options)
    for line in opened.read(f"offsets/{max(done)}").splitlines()[1:]:
        for offset in _offsets(line):
            if offset.entity == parsed.address and offset.claim == parsed.claim:
                return offset
    return None


def batches_done(folder: str | Folder) -> int:
    """Return the number after the highest completed batch in the checkpoint. Spark removes records of old batches."""
    return max(_batches(_opened(folder) if isinstance(folder, str) else folder, "commits"), default=-1) + 1


class _LocalFolder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self, path: str) -> list[str]:
        folder = self._path / path
        return [each.name for each in folder.iterdir()] if folder.is_dir() else []

    def read(self, path: str) -> str:
        return (self._path / path).read_text()


def _opened(folder: str) -> Folder:
    path = folder.removeprefix("file://").removeprefix("file:")
    if "://" in path:
        raise ValueError(f"'{folder}' is not on this machine; give an object that can list and read it")
    return _LocalFolder(Path(path))


def _parsed(options: Options | Mapping[str, str]) -> Options:
    return options if isinstance(options, Options) else Options.parse(options, use="readStream")


def _batches(folder: Folder, log: str) -> set[int]:
    return {int(name) for name in folder.names(log) if name.isdigit()}


def _offsets(text: Any) -> Iterator[Offset]:
    """Find our offsets in a line of the offset log, which has one for each source; some versions nest them."""
    value = text
    if isinstance(text, str):
        try:
            value = json.loads(text)
        except ValueError:
            return
    if isinstance(value, dict):
        try:
            yield Offset.parse(value)
        except ValueError:
            for each in value.values():
                yield from _offsets(each)
