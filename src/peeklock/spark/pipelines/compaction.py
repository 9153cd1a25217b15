"""Compaction: merge many small files of captured rows into few large ones while readers run.

A reader sees each row once: the list of files is changed in one commit, and replaced files stay for some time, for
readers that started before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from pyspark.sql import SparkSession

from peeklock.spark.pipelines.columns import IN_FILES, SCHEMA_VERSION
from peeklock.spark.pipelines.lake import Lake
from peeklock.spark.pipelines.listing import DataFile

TARGET_BYTES: Final = 128 * 1024 * 1024
KEEP_MS: Final = 3600 * 1000
_LARGE: Final = 0.75
"""A file of at least this part of the target size is not merged."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A merge of files of one partition into one file."""

    partition: str
    files: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction."""

    merged: int
    """Files that were merged."""
    into: int
    """Files that they were merged into."""
    removed: int
    """Files that were replaced earlier and have been deleted now."""


def compact(
    spark: SparkSession,
    folder: str,
    *,
    target_bytes: int = TARGET_BYTES,
    keep_ms: int = KEEP_MS,
    on_merged: Callable[[Merged], None] | None = None,
    stopping: threading.Event | None = None,
) -> Compacted:
    """Merge the small files of each partition, and delete files that were replaced longer than `keep_ms` ago.

    It may run at the same time as captures and other compactions, and may be killed at any time. If `stopping` is set,
    it ends after the current merge.
    """
    lake = Lake(spark, folder, SCHEMA_VERSION)
    removed = lake.clean(keep_ms)
    done: list[Merged] = []
    for group in groups(lake.known_listing().files, target_bytes):
        if stopping is not None and stopping.is_set():
            break
        merged = _merge(spark, lake, group)
        if merged is None:
            continue
        done.append(merged)
        if on_merged is not None:
            on_merged(merged)
    if done:
        removed += lake.clean(keep_ms)
    return Compacted(sum(each.files for each in done), len(done), removed)


def groups(files: Iterable[DataFile], target_bytes: int) -> Iterator[list[DataFile]]:
    """Group small files of one partition and one version of the columns into files of about the target size."""
    partitions: dict[tuple[str, int], list[DataFile]] = {}
    for each in files:
        if each.size < target_bytes * _LARGE:
            partitions.setdefault((each.partition, each.schema), []).append(each)
    for small in partitions.values():
        group: list[DataFile] = []
        size = 0
        for each in small:
            if group and size + each.size > target_bytes:
                if len(group) > 1:
                    yield group
                group, size = [], 0
            group.append(each)
            size += each.size
        if len(group) > 1:
            yield group


def _merge(spark: SparkSession, lake: Lake, group: list[DataFile]) -> Merged | None:
    """Merge a group. None if another compaction has replaced some of its files."""
    name = f"compacted-{uuid4().hex}"
    paths = [f"{lake.files.place}/{each.path}" for each in group]
    # In the order of sequence numbers rows compress better, and readers find a range of numbers faster.
    rows = spark.read.schema(IN_FILES).parquet(*paths).coalesce(1).sortWithinPartitions("sequence_number")
    partition = group[0].partition
    new = lake.write(rows, name, below=partition)
    replaced = lake.replace(group, new)
    if not replaced:
        lake.discard(new)
    lake.settle(name)
    if not replaced:
        return None
    return Merged(partition, len(group), sum(each.size for each in group), sum(each.size for each in new))
