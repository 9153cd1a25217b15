"""Compaction: small files become large ones, and nobody who reads or captures notices."""

from __future__ import annotations

import threading

import pytest
from pipeline_fixtures import Capturing, numbered

from peeklock.spark.pipelines.columns import SCHEMA_VERSION
from peeklock.spark.pipelines.compaction import compact, groups
from peeklock.spark.pipelines.lake import Lake
from peeklock.spark.pipelines.listing import DataFile


def test_small_files_of_a_partition_become_one_of_about_the_size() -> None:
    def file(partition: str, number: int, size: int) -> DataFile:
        return DataFile(f"{partition}/{number}.parquet", size, 0, 1)

    files = [file("a", 1, 40), file("b", 2, 10), file("a", 3, 40), file("a", 4, 75), file("a", 5, 40), file("a", 6, 30)]
    found = [[each.path for each in group] for group in groups(files, 100)]
    assert found == [["a/1.parquet", "a/3.parquet"], ["a/5.parquet", "a/6.parquet"]]


def test_compaction_merges_files_and_readers_and_captures_do_not_notice(capturing: Capturing) -> None:
    spark, folder = capturing.spark, str(capturing.folder)
    capturing.send(numbered(0, 25))
    capturing.run()
    before = spark.read.parquet(folder)
    expected = sorted(before.drop("hour").collect(), key=lambda row: row.sequence_number)
    done = compact(spark, folder)
    assert done.merged >= 3
    assert done.into in (1, 2)  # two when the hour has changed meanwhile
    assert sorted(before.drop("hour").collect(), key=lambda row: row.sequence_number) == expected
    after = spark.read.parquet(folder)
    assert sorted(after.drop("hour").collect(), key=lambda row: row.sequence_number) == expected
    assert len(after.inputFiles()) == done.into
    capturing.send(numbered(25, 27))
    capturing.run()
    assert capturing.captured() == numbered(0, 27)
    assert compact(spark, folder, keep_ms=0).removed >= done.merged
    assert capturing.captured() == numbered(0, 27)
    assert len(list(capturing.folder.glob("entity=*/*/*/*.parquet"))) == len(spark.read.parquet(folder).inputFiles())


def test_files_with_columns_of_a_newer_version_are_not_merged_without_them(capturing: Capturing) -> None:
    lake = Lake(capturing.spark, str(capturing.folder), SCHEMA_VERSION + 1)
    new = [DataFile(f"entity=q/date=2030-01-31/hour=1/{number}.parquet", 1, 0, SCHEMA_VERSION + 1) for number in (1, 2)]
    lake.log.append(new, "q", 0)
    with pytest.raises(ValueError, match="use a newer version"):
        compact(capturing.spark, str(capturing.folder))


def test_a_stopped_compaction_begins_no_other_file(capturing: Capturing) -> None:
    capturing.send(numbered(0, 20))
    capturing.run()
    stopping = threading.Event()
    stopping.set()
    assert compact(capturing.spark, str(capturing.folder), stopping=stopping).into == 0


def test_files_merged_by_another_compaction_are_not_merged_again(
    capturing: Capturing, monkeypatch: pytest.MonkeyPatch
) -> None:
    capturing.send(numbered(0, 20))
    capturing.run()
    first = Lake.replace

    def overtaken(lake: Lake, old: list[DataFile], new: list[DataFile]) -> bool:
        monkeypatch.setattr(Lake, "replace", first)
        compact(capturing.spark, str(capturing.folder))
        return lake.replace(old, new)

    monkeypatch.setattr(Lake, "replace", overtaken)
    assert compact(capturing.spark, str(capturing.folder)).into == 0
    assert capturing.captured() == numbered(0, 20)
