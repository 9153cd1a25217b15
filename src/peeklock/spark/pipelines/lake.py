"""A folder of Parquet files with a commit log, for several writers and any Spark reader.

Every change is a commit to the log in `listing`. A plain `spark.read.parquet(folder)` therefore reads the files of one
commit, and a replaced file stays for readers that started before. The log also has the last batch of each query, so
that a batch that runs again is not added again.

This module writes, lists, replaces and deletes files. `capture` defines the rows, and `compaction` selects files to
merge.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from posixpath import dirname
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from peeklock.spark.pipelines.files import Files, Found, files_of
from peeklock.spark.pipelines.listing import LISTS, CommitLog, DataFile, Listing

OWN: Final = "_peeklock"
STAGING: Final = f"{OWN}/staging"
UNFINISHED: Final = f"{OWN}/unfinished"
REPLACED: Final = f"{OWN}/replaced"
ABANDONED_MS: Final = 24 * 3600 * 1000
"""The age at which files of an unfinished write or replacement are deleted: its process has ended by then."""


class Lake:
    """A captured folder. `schema_version` is the version of the columns of added rows."""

    def __init__(self, spark: SparkSession, folder: str, schema_version: int) -> None:
        self._spark = spark
        self._schema_version = schema_version
        self.files: Files = files_of(spark, folder)
        self.log = CommitLog(self.files)

    def listing(self) -> Listing:
        """The newest listing."""
        return self.log.listing()

    def known_listing(self) -> Listing:
        """The newest listing. Raises if the folder does not exist, has no captured messages, or has newer columns."""
        listing = self.listing()
        if listing.version < 0:
            if not self.files.exists():
                raise FileNotFoundError(f"the folder {self.files.place} does not exist")
            names = self.files.names("")
            if names and OWN not in names:  # other files, or a part of a capture; an empty folder is valid
                raise ValueError(f"{self.files.place} is not a folder with captured messages: it has no {LISTS}")
        newest = max((each.schema for each in listing.files), default=0)
        if newest > self._schema_version:
            raise ValueError(
                f"{self.files.place} has version {newest} of the columns, and this version of Peeklock supports "
                f"{self._schema_version}: use a newer version"
            )
        return listing

    def read(self, schema: StructType) -> DataFrame:
        """Read all rows, with the partition columns."""
        listing = self.known_listing()
        if not listing.files:
            return self._spark.createDataFrame([], schema)
        reader = self._spark.read.schema(schema)
        if listing.uri == self.files.uri:
            return reader.parquet(self.files.place)
        # The folder was moved or is addressed by another URI. The listing has whole URIs until the next commit.
        paths = [f"{self.files.place}/{each.path}" for each in listing.files]
        return reader.option("basePath", self.files.place).parquet(*paths)

    def add_batch(self, frame: DataFrame, partitions: Sequence[str], query: str, batch: int) -> list[DataFile] | None:
        """Write the rows of a batch and commit them. None if the batch was committed before."""
        name = f"{query}-{batch}"
        # A stopped query may still run a batch in this process when it is started again.
        with _lock(f"{self.files.uri} {query}"):
            if self.log.last_batch(query) >= batch:
                return None
            self._forget(name)
            added = self.write(frame, name, partitions)
            if added:  # a batch without rows needs no commit
                self.log.append(added, query, batch)
            self.settle(name)
            return added

    def write(self, frame: DataFrame, name: str, partitions: Sequence[str] = (), below: str = "") -> list[DataFile]:
        """Write files that are not committed yet. A note lists them until `settle`, so that `clean` can find them."""
        staging = f"{STAGING}/{name}"
        frame.write.partitionBy(*partitions).mode("overwrite").parquet(f"{self.files.place}/{staging}")
        written = [each for each in self.files.walk(staging) if each.path.endswith(".parquet")]
        placed: list[tuple[Found, str]] = []
        for number, found in enumerate(written):
            folder = below or dirname(found.path)[len(staging) + 1 :]
            placed.append((found, f"{folder}/{name}-{number:04}.parquet"))
        self.files.create(f"{UNFINISHED}/{name}.json", _note([target for _, target in placed]))
        for found, target in placed:
            self.files.move(found.path, target)
        self.files.delete(staging)
        return [DataFile(path, found.size, found.modified_ms, self._schema_version) for found, path in placed]

    def settle(self, name: str) -> None:
        """Delete the note of a write, after its files were committed or deleted."""
        self.files.delete(f"{UNFINISHED}/{name}.json")

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> bool:
        """Commit new files in place of old ones. False, without a change, if another process has replaced old files."""
        removed = {each.path for each in old}
        # Before the commit: a needless note does no harm, but a replaced file without a note would never be deleted.
        self.files.create(f"{REPLACED}/{uuid4().hex}.json", _note(sorted(removed)))
        replaced = False

        def change(found: Listing) -> Listing | None:
            nonlocal replaced
            there = {each.path for each in found.files}
            if new and there.issuperset(each.path for each in new):
                replaced = True  # by this process; its commit was dropped from the log after many others
                return None
            replaced = removed <= there
            if not replaced:
                return None
            return replace(found, files=(*(each for each in found.files if each.path not in removed), *new))

        self.log.rewrite(change)
        return replaced

    def discard(self, files: Iterable[DataFile]) -> None:
        """Delete files that were never committed."""
        for each in files:
            self.files.delete(each.path)

    def clean(self, keep_ms: int, now_ms: int | None = None) -> int:
        """Delete files replaced longer than `keep_ms` ago, and files of unfinished writes. Returns their number."""
        now = int(time.time() * 1000) if now_ms is None else now_ms
        removed = 0
        for kind, after in ((UNFINISHED, ABANDONED_MS), (REPLACED, keep_ms)):
            notes = list(self._notes(kind))
            # Read after the notes: a newer file may be in the note of a process that is about to replace it.
            live = {each.path for each in self.listing().files}
            for note, at, paths in notes:
                if kind == UNFINISHED and live.issuperset(paths):
                    self.files.delete(note)  # the write was committed, and the process ended before it deleted the note
                elif now - at >= after:
                    for path in paths:
                        if path not in live:
                            self.files.delete(path)
                            removed += 1
                    if not live.intersection(paths) or now - at >= ABANDONED_MS:
                        self.files.delete(note)
        for name in self.files.names(STAGING):
            last = max((each.modified_ms for each in self.files.walk(f"{STAGING}/{name}")), default=now)
            if now - last >= ABANDONED_MS:
                self.files.delete(f"{STAGING}/{name}")
        return removed

    def _forget(self, name: str) -> None:
        """Delete the files of an earlier attempt at a batch that was not committed."""
        path = f"{UNFINISHED}/{name}.json"
        if self.files.exists(path):
            for each in json.loads(self.files.read(path))["files"]:
                self.files.delete(each)
            self.files.delete(path)

    def _notes(self, kind: str) -> Iterator[tuple[str, int, list[str]]]:
        for name in self.files.names(kind):
            if name.endswith(".json") and not name.startswith("."):
                with suppress(FileNotFoundError):  # another process has deleted it
                    note = json.loads(self.files.read(f"{kind}/{name}"))
                    yield f"{kind}/{name}", note["at"], note["files"]


_locks: dict[str, threading.Lock] = {}


def _lock(name: str) -> threading.Lock:
    return _locks.setdefault(name, threading.Lock())


def _note(paths: Sequence[str]) -> str:
    return json.dumps({"at": int(time.time() * 1000), "files": list(paths)})
