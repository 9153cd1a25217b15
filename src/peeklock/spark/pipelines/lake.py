"""A folder of Parquet files that several writers add to and any Spark reads.

Every change is a commit of the folder's log (`listing`). So a plain `spark.read.parquet(folder)` sees what one commit
says, never a half of a change, and a file that was replaced stays for readers that began before. The log also says
which batch of which query came last, so that a batch that is run again is not added again.

Knows how files get into their places and leave them. Leaves what the rows are to `capture`, and which files to merge to
`compaction`.
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
"""After that long, who has not finished never will."""


class Lake:
    """One folder. `schema_version` is that of the rows which are added."""

    def __init__(self, spark: SparkSession, folder: str, schema_version: int) -> None:
        self._spark = spark
        self._schema_version = schema_version
        self.files: Files = files_of(spark, folder)
        self.log = CommitLog(self.files)

    def listing(self) -> Listing:
        """The newest."""
        return self.log.listing()

    def known_listing(self) -> Listing:
        """The newest, of a folder that is there and whose columns this program knows."""
        listing = self.listing()
        if listing.version < 0:
            if not self.files.exists():
                raise FileNotFoundError(f"there is no folder {self.files.place}")
            names = self.files.names("")
            if names and OWN not in names:  # of others, or only a part of a capture: not the same as nothing captured
                raise ValueError(f"{self.files.place} is no folder that messages were captured into: it has no {LISTS}")
        newest = max((each.schema for each in listing.files), default=0)
        if newest > self._schema_version:
            raise ValueError(
                f"{self.files.place} was written with version {newest} of the columns, and this program knows "
                f"{self._schema_version}: use a newer one"
            )
        return listing

    def read(self, schema: StructType) -> DataFrame:
        """All rows, with the partition columns."""
        listing = self.known_listing()
        if not listing.files:
            return self._spark.createDataFrame([], schema)
        reader = self._spark.read.schema(schema)
        if listing.uri == self.files.uri:
            return reader.parquet(self.files.place)
        # Moved, or reached by another way: the list has whole addresses, until the next commit.
        paths = [f"{self.files.place}/{each.path}" for each in listing.files]
        return reader.option("basePath", self.files.place).parquet(*paths)

    def add_batch(self, frame: DataFrame, partitions: Sequence[str], query: str, batch: int) -> list[DataFile] | None:
        """Write the rows and have them count, all or none; None when this batch was added before."""
        name = f"{query}-{batch}"
        # A query that was stopped may still be at it in this process when it is started again.
        with _lock(f"{self.files.uri} {query}"):
            if self.log.last_batch(query) >= batch:
                return None
            self._forget(name)
            added = self.write(frame, name, partitions)
            if added:  # without rows there is nothing that could be added twice
                self.log.append(added, query, batch)
            self.settle(name)
            return added

    def write(self, frame: DataFrame, name: str, partitions: Sequence[str] = (), below: str = "") -> list[DataFile]:
        """Files in their places that do not count yet. They are noted until `settle`, so that they can be found."""
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
        """What was written under the name counts now, or is gone."""
        self.files.delete(f"{UNFINISHED}/{name}.json")

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> bool:
        """Have the new files count instead of the old; False, and nothing done, when somebody else replaced them."""
        gone = {each.path for each in old}
        # Before the commit: a note too many does no harm, a file that nobody remembers stays for ever.
        self.files.create(f"{REPLACED}/{uuid4().hex}.json", _note(sorted(gone)))
        replaced = False

        def change(found: Listing) -> Listing | None:
            nonlocal replaced
            there = {each.path for each in found.files}
            if new and there.issuperset(each.path for each in new):
                replaced = True  # by us: so many commits came at once that ours was not found any more
                return None
            replaced = gone <= there
            if not replaced:
                return None
            return replace(found, files=(*(each for each in found.files if each.path not in gone), *new))

        self.log.rewrite(change)
        return replaced

    def discard(self, files: Iterable[DataFile]) -> None:
        """Remove files that never counted."""
        for each in files:
            self.files.delete(each.path)

    def clean(self, keep_ms: int, now_ms: int | None = None) -> int:
        """Remove files that were replaced longer ago than that, and what was never finished; how many."""
        now = int(time.time() * 1000) if now_ms is None else now_ms
        removed = 0
        for kind, after in ((UNFINISHED, ABANDONED_MS), (REPLACED, keep_ms)):
            notes = list(self._notes(kind))
            # After the notes: what was added since then may be in the note of somebody who is about to replace it.
            live = {each.path for each in self.listing().files}
            for note, at, paths in notes:
                if kind == UNFINISHED and live.issuperset(paths):
                    self.files.delete(note)  # it was finished, and only the note had no time to go
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
        """Remove what an attempt that was killed has left of a batch that does not count."""
        path = f"{UNFINISHED}/{name}.json"
        if self.files.exists(path):
            for each in json.loads(self.files.read(path))["files"]:
                self.files.delete(each)
            self.files.delete(path)

    def _notes(self, kind: str) -> Iterator[tuple[str, int, list[str]]]:
        for name in self.files.names(kind):
            if name.endswith(".json") and not name.startswith("."):
                with suppress(FileNotFoundError):  # somebody else cleans as well
                    note = json.loads(self.files.read(f"{kind}/{name}"))
                    yield f"{kind}/{name}", note["at"], note["files"]


_locks: dict[str, threading.Lock] = {}


def _lock(name: str) -> threading.Lock:
    return _locks.setdefault(name, threading.Lock())


def _note(paths: Sequence[str]) -> str:
    return json.dumps({"at": int(time.time() * 1000), "files": list(paths)})
