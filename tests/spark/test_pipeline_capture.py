"""Capture: every message once in the files, whatever happens, and gone from its entity only then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from commands import environment
from peeklock.amqp.types import Int, Symbol, Timestamp
from peeklock.cli.pipeline_session import sentence_of
from peeklock.client import Message, Properties, connect
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from peeklock.spark.pipelines import capture
from peeklock.spark.pipelines.capture import Batch, Gate, Stopped, Target
from peeklock.spark.pipelines.columns import SCHEMA_VERSION, captured
from peeklock.spark.pipelines.compaction import compact, groups
from peeklock.spark.pipelines.entities import entity_options
from peeklock.spark.pipelines.lake import DataFile, Lake
from peeklock.spark.rows import SCHEMA as MESSAGES
from peeklock.spark.texts import plain_text, typed_text
from serving import ServedBroker

SECONDS = 240
MakeQueue = Callable[..., str]


class Capturing:
    """A queue, a folder, and what is in them."""

    def __init__(self, spark: SparkSession, bus: ServedBroker, folder: Path, *entities: str) -> None:
        self.spark = spark
        self.bus = bus
        self.folder = folder
        self.entities = entities
        self.batches: list[Batch] = []

    @property
    def options(self) -> dict[str, str]:
        return {"connectionString": self.bus.connection_string, "maxMessagesPerTrigger": "10", "numPartitions": "2"}

    def send(self, bodies: Iterable[str], to: str | None = None, session: str | None = None) -> None:
        with connect(self.bus.connection_string) as connection:
            properties = Properties(group_id=session)
            connection.sender(to or self.entities[0]).send_all(
                Message(properties=properties, data=[each.encode()]) for each in bodies
            )

    def run(self, told: Callable[[Batch], None] | None = None) -> None:
        target = Target(folder=str(self.folder), until_empty=True)
        capture.capture(self.spark, self.entities, self.options, target, told or self.batches.append)

    def captured(self) -> list[str]:
        return sorted(row.body.decode() for row in capture.read(self.spark, str(self.folder)).collect())

    def left(self) -> int:
        """Messages in any state."""
        with connect(self.bus.connection_string) as connection:
            return sum(len(connection.management(each).peek(1, 100)) for each in self.entities)


@pytest.fixture
def capturing(spark: SparkSession, bus: ServedBroker, make_queue: MakeQueue, tmp_path: Path) -> Capturing:
    return Capturing(spark, bus, tmp_path / "captured", make_queue())


def numbered(first: int, last: int) -> list[str]:
    return [f"message {number:03}" for number in range(first, last)]


# --- rows


def test_rows_have_the_date_and_hour_of_the_moment_in_utc_whatever_the_session_thinks(spark: SparkSession) -> None:
    moment = datetime(2026, 3, 1, 23, 59, tzinfo=UTC)
    messages = spark.createDataFrame([(b"x", moment, "orders")], "body binary, enqueued_time timestamp, entity string")
    for name in MESSAGES.fieldNames():
        if name not in messages.columns:
            messages = messages.selectExpr("*", f"CAST(NULL AS {MESSAGES[name].dataType.simpleString()}) AS `{name}`")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    try:
        (row,) = captured(messages).selectExpr("string(date) AS date", "hour", "schema_version").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert (row.date, row.hour, row.schema_version) == ("2026-03-01", 23, SCHEMA_VERSION)


def test_properties_are_plain_text_and_those_that_are_none_keep_their_types(spark: SparkSession) -> None:
    properties = {
        "text": 'a "quoted" é',
        "empty": "",
        "int": Int(5),
        "long": -7,
        "yes": True,
        "half": 0.5,
        "when": Timestamp(1893456000123),
        "id": UUID(int=1),
        "bytes": b"\x00\xff",
        "symbol": Symbol("s"),
        "nothing": None,
    }
    typed = {name: typed_text(value) for name, value in properties.items()}
    messages = spark.createDataFrame([(typed,)], "application_properties map<string,string>")
    for name in MESSAGES.fieldNames():
        if name not in messages.columns:
            messages = messages.selectExpr("*", f"CAST(NULL AS {MESSAGES[name].dataType.simpleString()}) AS `{name}`")
    (row,) = captured(messages).select("application_properties", "typed_properties").collect()
    assert row.application_properties == {name: plain_text(value) for name, value in properties.items()}
    assert row.typed_properties == {name: typed[name] for name in properties if name not in ("text", "empty")}


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("orders", {"queue": "orders"}),
        ("a/b", {"queue": "a/b"}),
        ("t/Subscriptions/s", {"topic": "t", "subscription": "s"}),
        ("t/subscriptions/s/$deadletterqueue", {"topic": "t", "subscription": "s", "subQueue": "deadLetter"}),
        ("q/$DeadLetterQueue", {"queue": "q", "subQueue": "deadLetter"}),
        ("q/$Transfer/$DeadLetterQueue", {"queue": "q", "subQueue": "transferDeadLetter"}),
    ],
)
def test_an_address_is_told_to_the_data_source(address: str, options: dict[str, str]) -> None:
    assert entity_options(address) == options


# --- capturing


def test_what_is_there_is_captured_once_and_gone_and_a_second_run_takes_what_came_since(capturing: Capturing) -> None:
    capturing.send(numbered(0, 25))
    capturing.run()
    assert capturing.captured() == numbered(0, 25)
    assert capturing.left() == 0
    assert [batch.rows for batch in capturing.batches] == [10, 10, 5]
    (entity,) = capturing.entities
    hours = {path.parent.relative_to(capturing.folder) for path in capturing.folder.glob("entity=*/*/*/*.parquet")}
    assert {str(path).split("/")[0] for path in hours} == {f"entity={entity}"}
    capturing.run()
    assert capturing.captured() == numbered(0, 25)
    capturing.send(numbered(25, 30))
    capturing.run()
    assert capturing.captured() == numbered(0, 30)
    assert capturing.left() == 0


def test_several_entities_go_into_one_folder(
    spark: SparkSession, bus: ServedBroker, make_queue: MakeQueue, tmp_path: Path
) -> None:
    with AdministrationClient.from_connection_string(bus.connection_string) as administration:
        administration.create(Kind.TOPIC, "several")
        administration.create(Kind.SUBSCRIPTION, "all", topic="several")
    queue = make_queue(RequiresSession=True)
    capturing = Capturing(spark, bus, tmp_path / "captured", queue, "several/Subscriptions/all")
    capturing.send(["a1", "a2"], session="a")
    capturing.send(["b1"], session="b")
    capturing.send(["t1", "t2"], to="several")
    capturing.run()
    rows = capture.read(spark, str(capturing.folder)).collect()
    assert sorted((row.entity, row.session_id, row.body.decode()) for row in rows if row.session_id) == [
        (queue, "a", "a1"),
        (queue, "a", "a2"),
        (queue, "b", "b1"),
    ]
    others = sorted((row.entity, row.body.decode()) for row in rows if not row.session_id)
    assert others == [("several/Subscriptions/all", "t1"), ("several/Subscriptions/all", "t2")]
    assert capturing.left() == 0
    assert spark.read.parquet(str(capturing.folder)).count() == 5


def test_a_run_that_dies_after_keeping_a_batch_does_not_keep_it_twice(capturing: Capturing) -> None:
    capturing.send(numbered(0, 15))

    def die(batch: Batch) -> None:
        raise RuntimeError("the power is gone")

    with pytest.raises(Exception, match="the power is gone"):
        capturing.run(told=die)
    assert capturing.captured() == numbered(0, 10)
    assert capturing.left() == 15
    capturing.run()
    assert capturing.captured() == numbered(0, 15)
    assert capturing.left() == 0


def test_a_run_that_dies_before_keeping_a_batch_keeps_it_later(
    capturing: Capturing, monkeypatch: pytest.MonkeyPatch
) -> None:
    capturing.send(numbered(0, 5))
    with monkeypatch.context() as broken:
        broken.setattr("peeklock.spark.pipelines.lake.Lake.commit", lambda *_: 1 / 0)
        with pytest.raises(Exception, match="division by zero"):
            capturing.run()
    assert capturing.captured() == []
    assert capturing.left() == 5
    capturing.run()
    assert capturing.captured() == numbered(0, 5)
    files = {str(path.relative_to(capturing.folder)) for path in capturing.folder.rglob("*.parquet")}
    lake = Lake(capturing.spark, str(capturing.folder), 1)
    assert files == {each.path for each in lake.listing().files}


def test_a_capture_goes_on_until_it_is_told_to_stop_and_leaves_nothing_claimed(capturing: Capturing) -> None:
    stopping = threading.Event()
    rows = 0

    def told(batch: Batch) -> None:
        nonlocal rows
        rows += batch.rows
        if rows < 20:
            capturing.send(numbered(rows, rows + 10))
        else:
            stopping.set()

    capturing.send(numbered(0, 10))
    target = Target(folder=str(capturing.folder), interval_s=0.5)
    capture.capture(capturing.spark, capturing.entities, capturing.options, target, told, stopping)
    assert capturing.captured() == numbered(0, 20)
    assert capturing.left() == 0


def test_a_gate_that_is_closed_waits_for_the_batch_that_has_begun_and_lets_no_other_begin() -> None:
    gate, begun, go_on = Gate(), threading.Event(), threading.Event()

    def batch() -> None:
        with gate.passing("orders", 7):
            begun.set()
            go_on.wait()

    running, closing = threading.Thread(target=batch), threading.Thread(target=gate.close)
    running.start()
    begun.wait()
    closing.start()

    def others() -> None:
        while True:  # until it has begun to close
            with gate.passing("early", 8):
                pass

    with pytest.raises(Stopped):
        others()
    assert closing.is_alive()
    go_on.set()
    closing.join()
    running.join()
    assert gate.last("orders") == 7
    assert gate.last("others") == -1


def test_an_entity_that_is_not_there_is_named_in_one_sentence(capturing: Capturing) -> None:
    target = Target(folder=str(capturing.folder), until_empty=True)
    with pytest.raises(PySparkException) as failure:
        capture.capture(capturing.spark, ["nothing-here"], capturing.options, target)
    said = sentence_of(failure.value)
    assert "nothing-here" in said
    assert "\n" not in said
    assert "Traceback" not in said


def test_a_table_format_that_spark_does_not_have_is_named(capturing: Capturing) -> None:
    target = Target(folder=str(capturing.folder), format="delta", until_empty=True)
    with pytest.raises(ValueError, match="this Spark has no 'delta'"):
        capture.capture(capturing.spark, capturing.entities, capturing.options, target)


# --- compaction


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


def test_what_another_compaction_has_merged_is_left_alone(
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


# --- the command


def peeklock(bus: ServedBroker | None, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    known = {} if bus is None else {"PEEKLOCK_CONNECTION_STRING": bus.connection_string}
    return subprocess.run(
        [sys.executable, "-m", "peeklock", "pipeline", *arguments],
        env=environment(**known, **more),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_the_command_captures_and_compacts(bus: ServedBroker, capturing: Capturing) -> None:
    capturing.send(numbered(0, 25))
    (entity,) = capturing.entities
    ran = peeklock(
        bus, "capture", entity, "--to", str(capturing.folder), "--until-empty", "--batch-size", "20", "--json"
    )
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [line["messages"] for line in lines[:-1]] == [20, 5]
    assert lines[-1]["captured"] == 25
    assert "SAS_KEY_VALUE" not in ran.stderr
    ran = peeklock(bus, "capture", "compact", str(capturing.folder), "--keep", "0s", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["merged"] == lines[-1]["files"]
    assert capturing.captured() == numbered(0, 25)
    assert capturing.left() == 0


def test_without_java_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    ran = peeklock(None, "capture", "queue", "--to", str(tmp_path), PATH=os.devnull, JAVA_HOME="")
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert line.startswith("peeklock: pipelines need Java 17 or newer")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["capture", "q", "--to", "x", "--interval", "30s", "--until-empty"], "exclude each other"),
        (["capture", "q", "--to", "x", "--format", "csv"], "--format: 'csv' is none of"),
        (["capture", "q", "Q", "--to", "x"], "named twice"),
        (["capture", "q", "--to", "x", "--interval", "soon"], "--interval: 'soon' is not"),
        (["capture", "compact", "x", "--target-size", "large"], "--target-size: 'large' is not"),
        (["capture", "q", "--to", "x", "--cores", "none"], "--cores: 'none' is not"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_started(arguments: list[str], said: str) -> None:
    ran = peeklock(None, *arguments)
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert said in line
