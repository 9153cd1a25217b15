"""A folder of Parquet files: what readers see of it while it is changed."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from peeklock.spark.pipelines.files import HadoopFiles
from peeklock.spark.pipelines.lake import REPLACED, UNFINISHED, Lake
from peeklock.spark.pipelines.listing import DataFile

SCHEMA = StructType(
    [StructField("id", LongType()), StructField("kind", StringType()), StructField("hour", IntegerType())]
)
HOUR_MS = 3600 * 1000


class World:
    """`address` is where Spark finds the folder."""

    def __init__(self, spark: SparkSession, folder: Path, address: str | None = None) -> None:
        self.spark = spark
        self.folder = folder
        self.address = address or str(folder)
        self.lake = self.another()

    def another(self, version: int = 1) -> Lake:
        """Somebody else at the same folder."""
        return Lake(self.spark, self.address, version)

    def rows(self, ids: Iterable[int], kind: str = "a/b é%") -> DataFrame:
        return self.spark.createDataFrame([(each, kind, 5) for each in ids], SCHEMA).coalesce(1)

    def add(self, ids: Iterable[int], batch: int, query: str = "q") -> list[DataFile] | None:
        return self.lake.add_batch(self.rows(ids), ("kind", "hour"), query, batch)

    def plain(self) -> list[int]:
        """What Spark reads that knows nothing of us."""
        return sorted(row.id for row in self.spark.read.parquet(self.address).collect())

    def read(self) -> list[int]:
        return sorted(row.id for row in self.lake.read(SCHEMA).collect())

    def parquet(self) -> set[str]:
        return {str(each.relative_to(self.folder)) for each in self.folder.rglob("*.parquet")}


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    folder = tmp_path / "a folder é"
    folder.mkdir()
    return World(spark, folder)


@pytest.fixture(params=["local", "hadoop"])
def any_world(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> World:
    """On this machine, and behind one of Hadoop's file systems, which shows the same folder under another name."""
    if request.param == "local":
        return world
    mount = f"m{uuid4().hex}"
    settings = world.spark._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    settings.set(f"fs.viewfs.mounttable.{mount}.link./here", tmp_path.as_uri())
    there = World(world.spark, tmp_path / "a b", f"viewfs://{mount}/here/a b")
    assert isinstance(there.lake.files, HadoopFiles)
    return there


def test_a_batch_is_read_by_any_spark_with_its_partitions(any_world: World) -> None:
    world = any_world
    world.add([1, 2], 0)
    world.add([3], 1)
    assert world.plain() == [1, 2, 3]
    assert {(row.kind, row.hour) for row in world.lake.read(SCHEMA).collect()} == {("a/b é%", 5)}
    assert not list((world.folder / "_peeklock").rglob("*.*"))


def test_a_batch_that_is_run_again_is_not_added_again(world: World) -> None:
    world.add([1, 2], 0)
    assert world.add([1, 2], 0) is None
    assert world.plain() == [1, 2]


def test_batches_of_two_queries_are_distinguished(world: World) -> None:
    world.add([1], 0, "one")
    world.add([2], 0, "other")
    assert world.plain() == [1, 2]


def test_an_empty_batch_stores_nothing(world: World) -> None:
    assert world.add([], 0) == []
    assert world.read() == []
    assert world.parquet() == set()


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_a_batch_that_was_killed_halfway_is_not_seen_and_replaced_when_it_is_run_again(
    any_world: World, moved: int
) -> None:
    world = any_world
    world.add([1], 0)
    lake, moves = world.lake, [moved]
    move = lake.files.move

    def dying(source: str, target: str) -> None:
        if not moves[0]:
            raise KeyboardInterrupt
        moves[0] -= 1
        move(source, target)

    lake.files.move = dying  # type: ignore[method-assign]
    rows = world.rows([2]).unionByName(world.rows([3], kind="other"))
    if moved == 2:
        lake.log.append = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        lake.add_batch(rows, ("kind", "hour"), "q", 1)
    assert world.plain() == [1]
    world.lake = world.another()
    world.add([2, 3], 1)
    assert world.plain() == [1, 2, 3]
    assert world.parquet() == {each.path for each in world.lake.listing().files}


def test_readers_that_began_before_a_replacement_of_files_continue(any_world: World) -> None:
    world = any_world
    old = [*(world.add([1], 0) or ()), *(world.add([2], 1) or ())]
    before = world.spark.read.parquet(world.address)
    new = world.lake.write(world.rows([1, 2]).drop("kind", "hour"), "merged", below=old[0].partition)
    assert world.plain() == [1, 2]
    assert world.lake.replace(old, new)
    world.lake.settle("merged")
    assert world.plain() == [1, 2]
    assert sorted(row.id for row in before.collect()) == [1, 2]
    assert world.lake.clean(HOUR_MS) == 0
    assert sorted(row.id for row in before.collect()) == [1, 2]
    now = json.loads(next((world.folder / "_peeklock" / "replaced").glob("*.json")).read_text())["at"]
    assert world.lake.clean(HOUR_MS, now + HOUR_MS) == 2
    assert world.plain() == [1, 2]
    assert world.parquet() == {new[0].path}
    assert world.add([1], 0) is None


def test_files_replaced_by_another_process_are_not_replaced_again(world: World) -> None:
    old = world.add([1], 0) or []
    first = world.lake.write(world.rows([1]).drop("kind", "hour"), "first", below=old[0].partition)
    second = world.lake.write(world.rows([1]).drop("kind", "hour"), "second", below=old[0].partition)
    assert world.lake.replace(old, first)
    assert not world.another().replace(old, second)
    assert world.plain() == [1]


def test_unfinished_files_are_removed_after_a_day_and_not_before(world: World) -> None:
    world.add([1], 0)
    left = world.lake.write(world.rows([9]), "left", ("kind", "hour"))
    assert world.lake.clean(0) == 0
    assert left[0].path in world.parquet()
    now = json.loads((world.folder / "_peeklock" / "unfinished" / "left.json").read_text())["at"]
    assert world.lake.clean(0, now + 24 * HOUR_MS) == 1
    assert left[0].path not in world.parquet()
    assert world.plain() == [1]


def test_staged_files_of_a_killed_process_are_removed_after_a_day_and_not_before(any_world: World) -> None:
    world = any_world
    lake = world.lake
    world.add([1], 0)
    lake.files.create = lambda path, text: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        lake.write(world.rows([9]), "left", ("kind", "hour"))
    lake = world.another()
    staged = world.folder / "_peeklock" / "staging" / "left"
    assert list(staged.rglob("*.parquet"))
    now = int(time.time() * 1000)
    lake.clean(0, now + 23 * HOUR_MS)
    assert staged.exists()
    lake.clean(0, now + 25 * HOUR_MS)
    assert not staged.exists()
    assert world.plain() == [1]


def test_files_that_are_being_added_or_replaced_survive_a_cleanup(world: World) -> None:
    lake, notes = world.lake, world.lake._notes

    def meanwhile(kind: str) -> Iterator[tuple[str, int, list[str]]]:
        if kind == REPLACED:
            added = world.add([1], 0) or []
            other = world.another()
            other.log.rewrite = lambda change: None  # type: ignore[method-assign]  # it has only noted what it will replace
            other.replace(added, [])
        return notes(kind)

    lake._notes = meanwhile  # type: ignore[method-assign]
    assert lake.clean(0) == 0
    assert world.plain() == [1]


def test_notes_removed_by_another_process_are_ignored(world: World) -> None:
    world.add([1], 0)
    world.lake.write(world.rows([9]), "left", ("kind", "hour"))
    world.lake.files.names = lambda path: ["gone.json", "left.json"]  # type: ignore[method-assign]
    assert [name for name, _, _ in world.lake._notes(UNFINISHED)] == [f"{UNFINISHED}/left.json"]


def test_a_note_of_a_batch_that_counts_never_costs_its_files(world: World) -> None:
    world.lake.settle = lambda name: None  # type: ignore[method-assign]
    world.add([1], 0)
    assert world.lake.clean(0, 1 << 60) == 0
    assert world.plain() == [1]


def test_a_folder_that_was_moved_can_still_be_read_without_changing_it(world: World, tmp_path: Path) -> None:
    world.add([1], 0)
    moved = tmp_path / "elsewhere"
    shutil.move(world.folder, moved)
    there = World(world.spark, moved)
    before = {*moved.rglob("*")}
    assert there.read() == [1]
    assert {(row.kind, row.hour) for row in there.lake.read(SCHEMA).collect()} == {("a/b é%", 5)}
    assert {*moved.rglob("*")} == before
    assert there.add([1], 0) is None
    there.add([2], 1)
    assert there.plain() == there.read() == [1, 2]


def test_rows_of_a_newer_version_are_refused(world: World) -> None:
    world.another(2).add_batch(world.rows([1]), ("kind", "hour"), "q", 0)
    with pytest.raises(ValueError, match="version 2 of the columns"):
        world.read()


def test_a_folder_of_another_stream_is_refused(world: World) -> None:
    (world.folder / "_spark_metadata").mkdir()
    (world.folder / "_spark_metadata" / "0").write_text("v1")
    with pytest.raises(ValueError, match="of another Spark stream"):
        world.add([1], 0)


def test_a_folder_within_a_captured_one_is_refused(world: World) -> None:
    (file,) = world.add([1], 0) or ()
    below = World(world.spark, world.folder / file.path.split("/")[0])
    with pytest.raises(ValueError, match="is not a folder with captured messages"):
        below.read()


def test_a_folder_that_is_not_there_is_named(world: World, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist"):
        Lake(world.spark, str(tmp_path / "nowhere"), 1).read(SCHEMA)
