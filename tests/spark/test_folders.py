"""A checkpoint that only Spark reaches."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from peeklock.spark.checkpoints import batches_done
from peeklock.spark.folders import SparkFolder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """As Spark writes it: with checksums beside the files."""
    for name, text in (("0", "v1\n{}"), ("1", 'v1\n{"ü":1}\n'), (".1.crc", "")):
        (tmp_path / "commits").mkdir(exist_ok=True)
        (tmp_path / "commits" / name).write_text(text, encoding="utf-8")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_files_are_listed_and_read_as_they_are(spark: SparkSession, checkpoint: Path) -> None:
    folder = SparkFolder(spark, f"{checkpoint.as_uri()}/")
    assert sorted(folder.names("commits")) == ["0", "1"]
    assert folder.read("commits/1") == 'v1\n{"ü":1}\n'
    assert batches_done(folder) == 2


def test_a_folder_that_is_not_there_has_no_files(spark: SparkSession, checkpoint: Path) -> None:
    folder = SparkFolder(spark, checkpoint.as_uri())
    assert (folder.names("offsets"), folder.names("empty")) == ([], [])


def test_storage_that_cannot_be_reached_is_not_an_empty_folder(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="nowhere") as caught:
        SparkFolder(spark, "nowhere://bucket/checkpoint").names("commits")
    assert not isinstance(caught.value, AnalysisException) or caught.value.getCondition() != "PATH_NOT_FOUND"
