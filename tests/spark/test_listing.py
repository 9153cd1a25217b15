"""The log of a captured folder: commits that are never lost, made twice or seen in part, and that cost the same."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from peeklock.spark.pipelines.files import LocalFiles
from peeklock.spark.pipelines.listing import CHECKPOINTS_KEPT, INTERVAL, CommitLog, DataFile, Listing


def file(name: str) -> DataFile:
    return DataFile(f"hour=1/{name}.parquet", 1, 1, 1)


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = self.another()

    def another(self) -> CommitLog:
        """Another process at the same folder."""
        return CommitLog(LocalFiles(self.path))

    def names(self) -> list[str]:
        return sorted(each.name for each in (self.path / "_spark_metadata").iterdir())

    def files(self) -> list[str]:
        return [Path(each.path).stem for each in self.another().listing().files]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "lake")


def add(log: CommitLog, numbers: Sequence[int], query: str = "q") -> None:
    for number in numbers:
        log.append([file(f"{query}-{number}")], query, number)


def swap(log: CommitLog, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
    def change(found: Listing) -> Listing:
        return replace(found, files=(*(each for each in found.files if each not in old), *new))

    log.rewrite(change)


def test_a_commit_writes_only_the_added_files(folder: Folder) -> None:
    add(folder.log, range(40))
    sizes = [len((folder.path / "_spark_metadata" / name).read_text().splitlines()) for name in folder.names()]
    assert sorted(sizes) == [1, 2, *[2] * 39]  # the form, and one file; the first checkpoint has none
    assert folder.files() == [f"q-{number}" for number in range(40)]


def test_versions_before_the_last_checkpoints_are_dropped(folder: Folder) -> None:
    add(folder.log, range(10 * INTERVAL))
    assert len(folder.names()) <= CHECKPOINTS_KEPT * INTERVAL
    assert folder.files() == [f"q-{number}" for number in range(10 * INTERVAL)]


def test_a_batch_counts_once_whichever_process_commits_it_again(folder: Folder) -> None:
    add(folder.log, range(3 * INTERVAL))
    stale = folder.another()
    add(stale, [3 * INTERVAL])
    add(folder.log, range(3 * INTERVAL + 1))
    add(folder.another(), range(3 * INTERVAL + 1))
    add(stale, [3 * INTERVAL])
    assert folder.files() == [f"q-{number}" for number in range(3 * INTERVAL + 1)]
    assert folder.log.last_batch("q") == 3 * INTERVAL
    assert folder.log.last_batch("another") == -1


def test_concurrent_commits_and_replacements_are_all_effective(folder: Folder) -> None:
    first = file("first-0")
    folder.log.append([first], "first", 0)

    def adding(query: str) -> None:
        log = folder.another()
        for number in range(60):
            add(log, [number], query)

    def replacing() -> None:
        log = folder.another()
        for number in range(20):
            swap(log, [first if not number else file(f"merged-{number - 1}")], [file(f"merged-{number}")])

    threads = [threading.Thread(target=adding, args=(name,)) for name in "abc"]
    threads.append(threading.Thread(target=replacing))
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(folder.files()) == sorted(["merged-19", *(f"{name}-{n}" for name in "abc" for n in range(60))])


def test_only_the_checkpoint_follows_a_seal(folder: Folder) -> None:
    add(folder.log, range(3))
    dying = folder.another()
    dying._checkpoint = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        swap(dying, [file("q-0")], [file("merged")])
    assert folder.files() == ["q-0", "q-1", "q-2"]
    add(folder.log, [3])
    assert folder.names()[-1].endswith(".compact")
    assert folder.files() == ["q-0", "q-1", "q-2", "q-3"]


def test_a_first_commit_that_was_killed_halfway_is_made_by_the_next(folder: Folder) -> None:
    dying = folder.another()
    dying._create = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        add(dying, [0])
    assert folder.files() == []
    add(folder.log, range(2))
    assert folder.files() == ["q-0", "q-1"]
    assert len([name for name in folder.names() if name.endswith(".compact")]) == 2  # Spark asks for two


@pytest.mark.parametrize("more", [0, INTERVAL // 2, INTERVAL - 1])
def test_a_process_delayed_for_many_commits_does_not_restore_a_dropped_version(folder: Folder, more: int) -> None:
    add(folder.log, range(more))
    slow, files = folder.another(), LocalFiles(folder.path)
    add(slow, [0], "slow")

    class Standing(LocalFiles):
        def create(self, path: str, text: str) -> bool:
            slow._files = files
            add(folder.log, range(more, more + 5 * INTERVAL))
            return super().create(path, text)

    slow._files = Standing(folder.path)
    add(slow, [1], "slow")
    assert sorted(folder.files()) == sorted(["slow-0", "slow-1", *(f"q-{n}" for n in range(more + 5 * INTERVAL))])


def test_spark_reads_exactly_the_committed_files_after_any_number_of_commits(
    spark: SparkSession, folder: Folder
) -> None:
    spark.range(1).coalesce(1).write.parquet(str(folder.path / "_one"))
    (one,) = (folder.path / "_one").glob("*.parquet")
    log, there = folder.log, []
    (folder.path / "hour=1").mkdir()

    def placed(name: str) -> DataFile:
        new = DataFile(f"hour=1/{name}.parquet", one.stat().st_size, 1, 1)
        shutil.copy(one, folder.path / new.path)
        return new

    for number in range(2 * INTERVAL + 4):
        there.append(placed(f"b{number}"))
        log.append(there[-1:], "q", number)
        if number in (0, INTERVAL // 2, INTERVAL + 20, 2 * INTERVAL):  # also right before and after a checkpoint
            merged = placed(f"m{number}")
            swap(log, there[-1:], [merged])
            there[-1] = merged
        if number in (0, 1, INTERVAL - 2, INTERVAL - 1, INTERVAL, 2 * INTERVAL + 3):
            read = spark.read.parquet(str(folder.path))
            assert read.count() == len(there)
            assert {Path(each).stem for each in read.inputFiles()} == {Path(each.path).stem for each in there}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["0", "1"], "another Spark stream"),
        (["9.compact", "10"], "another Spark stream"),
        (["99.compact", "100"], "another Spark stream"),
        (["7.compact"], "before the first release"),
        (["98.compact", "99.compact"], "before the first release"),
    ],
)
def test_a_log_in_another_format_is_refused(folder: Folder, names: list[str], said: str) -> None:
    (folder.path / "_spark_metadata").mkdir(parents=True)
    entry = '{"path":"x"}' if said == "another Spark stream" else '{"path":"x","file":"x"}'
    for name in names:
        (folder.path / "_spark_metadata" / name).write_text(f"v1\n{entry}")
    with pytest.raises(ValueError, match=said):
        folder.log.listing()
    with pytest.raises(ValueError, match=said):
        add(folder.log, [0])


def test_a_list_of_an_unknown_form_is_named(folder: Folder) -> None:
    add(folder.log, [0])
    (folder.path / "_spark_metadata" / f"{2 * INTERVAL}").write_text("v2")
    with pytest.raises(ValueError, match="has the unknown format 'v2'"):
        folder.another().listing()
