"""The commit log of a captured folder: the files that are committed, in the format of Spark's own file sink.

A plain `spark.read.parquet(folder)` therefore reads the files of one commit. The log is in `_spark_metadata`. Each
version is one small file with the files that the commit added. Every `INTERVAL` versions there is a checkpoint,
`<version>.compact`, with the whole list. A reader reads one checkpoint and fewer than `INTERVAL` small files, and the
cost of a commit does not grow with the number of commits.

Spark's format has no commit that removes files. A commit that replaces files is therefore a checkpoint, and may skip
versions. No other commit may use a skipped version, so each version has exactly one successor. A version without
entries is a seal, and its successor is the next checkpoint; the successor of any other version is the number plus one.
A commit creates the file of the successor, and `create` fails if it exists, so no commit is lost or made twice.

This module knows files and versions; `lake` writes the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from posixpath import dirname
from typing import Any, Final
from urllib.parse import quote

from peeklock.spark.pipelines.files import Files

LISTS: Final = "_spark_metadata"
INTERVAL: Final = 50
"""Versions between two checkpoints. Spark derives it from the two newest checkpoints."""
CHECKPOINTS_KEPT: Final = 3
"""Kept with all versions since the oldest of them: a reader lists the files first and opens them later."""
_CHECKPOINT: Final = ".compact"
_FORM: Final = "v1"

_FOREIGN: Final = "{} has the list of files of another Spark stream: capture into another folder"
_EARLIER: Final = (
    "{} has a list of files in the format of a version of Peeklock before the first release: capture into a new folder"
)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A committed file."""

    path: str
    size: int
    modified_ms: int
    schema: int
    """The version of its columns."""

    @property
    def partition(self) -> str:
        return dirname(self.path)


@dataclass(frozen=True, slots=True)
class Listing:
    """The committed files and batches as of one version."""

    version: int = -1
    files: tuple[DataFile, ...] = ()
    batches: Mapping[str, int] = field(default_factory=dict)
    """The last batch of each query."""
    uri: str = ""
    """The URI of the folder at that version."""
    is_sealed: bool = False
    """Whether the version is a seal: its successor is a checkpoint."""


@dataclass(frozen=True, slots=True)
class _Head:
    """The newest version without its files, which a commit that adds files does not require."""

    version: int = -1
    batches: Mapping[str, int] = field(default_factory=dict)
    uri: str = ""
    is_sealed: bool = False


class CommitLog:
    """The commit log of one folder, for one writer or reader."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._head = _Head()

    def listing(self) -> Listing:
        """The newest listing; empty without a commit."""
        while True:
            versions = self._versions()
            if not versions:
                return Listing()
            try:
                return self._read(versions)
            except FileNotFoundError:  # other commits have dropped a version since it was listed
                continue

    def last_batch(self, query: str) -> int:
        """The last committed batch of a query; -1 without one."""
        return self._refresh().batches.get(query, -1)

    def append(self, added: Sequence[DataFile], query: str, batch: int) -> None:
        """Commit files as a batch of a query, unless the batch was committed before."""
        assert added  # a version without entries is a seal
        while True:
            head = self._refresh()
            if head.batches.get(query, -1) >= batch:
                return
            version = head.version + 1
            if head.is_sealed or _is_checkpoint(version) or head.uri != self._files.uri:
                self.rewrite(lambda found: _with_batch(found, added, query, batch))
                return
            if self._create(version, _format(added, {query: batch}, self._files.uri)):
                self._head = replace(head, version=version, batches={**head.batches, query: batch})
                return

    def rewrite(self, change: Callable[[Listing], Listing | None]) -> None:
        """Commit a changed listing. Calls `change` again if another commit came first; None commits nothing."""
        while True:
            found = self.listing()
            wanted = change(found)
            if wanted is None:
                return
            if not (found.is_sealed or found.version < 0 or _is_checkpoint(found.version + 1)):
                # Only the checkpoint can follow the seal, so all writers then try to create the same file.
                self._create(found.version + 1, _FORM)
            elif self._checkpoint(found.version, wanted):
                return

    def _checkpoint(self, known: int, wanted: Listing) -> bool:
        """Create the checkpoint that follows a version."""
        version = (known + 1) // INTERVAL * INTERVAL + INTERVAL - 1
        if known < 0:
            # Spark derives the interval from two checkpoints, so the first commit follows a checkpoint without files.
            self._files.create(_path(version), _FORM)
            version += INTERVAL
        if not self._create(version, _format(wanted.files, wanted.batches, self._files.uri)):
            return False
        self._head = _Head(version, wanted.batches, self._files.uri, not wanted.files)
        versions = self._versions()
        kept = [each for each in versions if _is_checkpoint(each)][-CHECKPOINTS_KEPT:]
        for each in versions:  # in ascending order, on which `_create` relies
            if each < kept[0]:
                self._files.delete(_path(each))
        return True

    def _create(self, version: int, text: str) -> bool:
        if not self._files.create(_path(version), text):
            return False
        versions = self._versions()
        if versions[-1] > version and not any(_is_checkpoint(each) and each < version for each in versions):
            # This process was paused during many commits, and has created a version that was dropped since.
            self._files.delete(_path(version))
            return False
        return True

    def _refresh(self) -> _Head:
        """The newest version. Reads only the versions since the last call."""
        while True:
            versions = self._versions()
            newest = versions[-1] if versions else -1
            head = self._head
            if newest == head.version:
                return head
            try:
                if not 0 <= head.version < newest or any(map(_is_checkpoint, range(head.version + 1, newest + 1))):
                    found = self._read(versions) if versions else Listing()
                    head = _Head(found.version, found.batches, found.uri, found.is_sealed)
                else:
                    for version in range(head.version + 1, newest + 1):
                        entries = self._entries(version)
                        uri = entries[0]["folder"] if entries else head.uri
                        head = _Head(version, {**head.batches, **_batches(entries)}, uri, not entries)
                self._head = head
            except FileNotFoundError:  # other commits have dropped a version since it was listed
                self._head = _Head()

    def _read(self, versions: Sequence[int]) -> Listing:
        newest = versions[-1]
        start = max((each for each in versions if _is_checkpoint(each)), default=-1)
        if start < 0:
            raise ValueError(_EARLIER.format(self._files.place))
        files: list[DataFile] = []
        batches: dict[str, int] = {}
        uri, is_sealed = "", False
        for version in range(start, newest + 1):
            entries = self._entries(version)
            files += (_data_file(each) for each in entries)
            batches |= _batches(entries)
            uri = entries[0]["folder"] if entries else uri
            is_sealed = not entries
        return Listing(newest, tuple(files), batches, uri, is_sealed)

    def _entries(self, version: int) -> list[dict[str, Any]]:
        lines = self._files.read(_path(version)).splitlines()
        if not lines or lines[0] != _FORM:
            form = lines[0][:20] if lines else ""
            raise ValueError(f"the list of files {_path(version)} has the unknown format {form!r}")
        entries: list[dict[str, Any]] = [json.loads(line) for line in lines[1:]]
        if any("file" not in each for each in entries):
            raise ValueError(_FOREIGN.format(self._files.place))
        return entries

    def _versions(self) -> list[int]:
        found: list[int] = []
        for name in self._files.names(LISTS):
            number = name.removesuffix(_CHECKPOINT)
            if not number.isdigit():
                continue
            if _path(int(number)) != f"{LISTS}/{name}" or int(number) < INTERVAL - 1:
                # Versions of another Spark stream start at 0; before the first release all versions were checkpoints.
                is_earlier = name.endswith(_CHECKPOINT) and '"file"' in self._files.read(f"{LISTS}/{name}")
                raise ValueError((_EARLIER if is_earlier else _FOREIGN).format(self._files.place))
            found.append(int(number))
        return sorted(found)


def _is_checkpoint(version: int) -> bool:
    return (version + 1) % INTERVAL == 0


def _path(version: int) -> str:
    return f"{LISTS}/{version}{_CHECKPOINT if _is_checkpoint(version) else ''}"


def _with_batch(found: Listing, added: Sequence[DataFile], query: str, batch: int) -> Listing | None:
    if found.batches.get(query, -1) >= batch:
        return None
    return replace(found, files=(*found.files, *added), batches={**found.batches, query: batch})


def _batches(entries: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
    return entries[0].get("batches", {}) if entries else {}


def _data_file(entry: Mapping[str, Any]) -> DataFile:
    return DataFile(entry["file"], entry["size"], entry["modificationTime"], entry["schema"])


def _format(files: Iterable[DataFile], batches: Mapping[str, int], uri: str) -> str:
    """Format a version of the log. The first line is the format's version. Spark ignores Peeklock's own members."""
    lines = [_FORM]
    for number, each in enumerate(files):
        entry: dict[str, Any] = {
            "path": f"{uri}/{quote(each.path, safe='/=')}",
            "size": each.size,
            "isDir": False,
            "modificationTime": each.modified_ms,
            "blockReplication": 1,
            "blockSize": 128 * 1024 * 1024,
            "action": "add",
            "file": each.path,
            "schema": each.schema,
        }
        if number == 0:
            entry |= {"folder": uri, "batches": dict(batches)}
        lines.append(json.dumps(entry))
    return "\n".join(lines)
