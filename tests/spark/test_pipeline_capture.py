"""Capture: every message once in the files, whatever happens, and gone from its entity only then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from pipeline_fixtures import Capturing, numbered
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from commands import environment
from peeklock.amqp.types import Int, Symbol, Timestamp
from peeklock.cli.pipeline_session import error_summary
from peeklock.client import Message, connect
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from peeklock.spark.pipelines import capture
from peeklock.spark.pipelines.capture import Batch, Gate, Stopped, Target, checkpoint_of
from peeklock.spark.pipelines.columns import SCHEMA_VERSION, captured
from peeklock.spark.pipelines.columns import SOURCE as COLUMNS
from peeklock.spark.pipelines.entities import entity_options
from peeklock.spark.pipelines.lake import Lake
from peeklock.spark.texts import plain_text, typed_text
from serving import SOURCE, ServedBroker

SECONDS = 600
PROGRAM = SOURCE / "peeklock" / "cli" / "pipeline.py"
"""What `peeklock pipeline file` names."""
MakeQueue = Callable[..., str]


def as_messages(given: DataFrame) -> DataFrame:
    """With all columns of messages; those that are not given are null."""
    absent = [field for field in COLUMNS.fields if field.name not in given.columns]
    return given.selectExpr("*", *(f"CAST(NULL AS {each.dataType.simpleString()}) AS `{each.name}`" for each in absent))


# --- rows


def test_rows_have_the_date_and_hour_of_the_moment_in_utc_whatever_the_session_thinks(spark: SparkSession) -> None:
    moment = datetime(2026, 3, 1, 23, 59, tzinfo=UTC)
    messages = spark.createDataFrame([(b"x", moment, "orders")], "body binary, enqueued_time timestamp, entity string")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    try:
        (row,) = captured(as_messages(messages)).selectExpr("string(date) AS date", "hour", "schema_version").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert (row.date, row.hour, row.schema_version) == ("2026-03-01", 23, SCHEMA_VERSION)


def test_the_code_that_spark_generates_is_the_same_for_every_batch(spark: SparkSession) -> None:
    messages = as_messages(spark.createDataFrame([(b"x",)], "body binary"))
    assert "current_timestamp" not in captured(messages)._jdf.queryExecution().analyzed().toString()


def test_a_message_without_a_time_is_filed_under_the_time_it_was_captured(spark: SparkSession) -> None:
    read = datetime(2026, 3, 1, 23, 59, tzinfo=UTC)
    messages = spark.createDataFrame([(b"x", read)], "body binary, captured_at timestamp")
    (row,) = captured(as_messages(messages)).selectExpr("string(date) AS date", "hour", "captured_at").collect()
    assert (row.date, row.hour, row.captured_at.astimezone(UTC)) == ("2026-03-01", 23, read)


def test_properties_are_plain_text_and_those_that_are_none_keep_their_types(capturing: Capturing) -> None:
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
    with connect(capturing.bus.connection_string) as connection:
        connection.sender(capturing.entities[0]).send_all([Message(application_properties=properties)])
    capturing.run()
    (row,) = capture.read(capturing.spark, str(capturing.folder)).collect()
    typed = {name: typed_text(value) for name, value in properties.items()}
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
def test_an_address_is_passed_to_the_data_source(address: str, options: dict[str, str]) -> None:
    assert entity_options(address) == options


# --- capturing


def test_messages_are_captured_once_and_removed_and_a_second_run_captures_newer_ones(capturing: Capturing) -> None:
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


def test_readers_can_skip_rows_by_time_and_the_users_session_stays_as_it_is(capturing: Capturing) -> None:
    settings = ("spark.sql.maxConcurrentOutputFileWriters", "spark.sql.parquet.outputTimestampType")
    before = [capturing.spark.conf.get(name) for name in settings]
    capturing.send(numbered(0, 5))
    capturing.run()
    for path in capturing.folder.glob("entity=*/*/*/*.parquet"):
        columns = pq.read_metadata(path).row_group(0)
        index = pq.read_schema(path).get_field_index("enqueued_time")
        assert columns.column(index).statistics.has_min_max
    assert [capturing.spark.conf.get(name) for name in settings] == before


def test_a_run_that_dies_after_keeping_a_batch_does_not_keep_it_twice(capturing: Capturing) -> None:
    capturing.send(numbered(0, 15))

    def die(batch: Batch) -> None:
        raise RuntimeError("the power is gone")

    with pytest.raises(Exception, match="the power is gone"):
        capturing.run(on_batch=die)
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
        broken.setattr("peeklock.spark.pipelines.listing.CommitLog.append", lambda *_: 1 / 0)
        with pytest.raises(Exception, match="division by zero"):
            capturing.run()
    assert capturing.captured() == []
    assert capturing.left() == 5
    placed = {str(path.relative_to(capturing.folder)) for path in capturing.folder.glob("entity=*/*/*/*.parquet")}
    assert len(placed) == 2
    capturing.tasks = 1  # fewer files: what was left of the first attempt is not simply written over
    capturing.run()
    assert capturing.captured() == numbered(0, 5)
    (kept,) = Lake(capturing.spark, str(capturing.folder), 1).listing().files
    files = {str(path.relative_to(capturing.folder)) for path in capturing.folder.rglob("*.parquet")}
    assert files == {kept.path}
    assert not list((capturing.folder / "_peeklock" / "unfinished").iterdir())
    assert not list((capturing.folder / "_peeklock" / "staging").iterdir())


def test_a_capture_runs_until_it_is_stopped_and_leaves_no_claim(capturing: Capturing) -> None:
    stopping = threading.Event()
    rows = 0

    def on_batch(batch: Batch) -> None:
        nonlocal rows
        rows += batch.rows
        if rows < 20:
            capturing.send(numbered(rows, rows + 10))
        else:
            stopping.set()

    capturing.send(numbered(0, 10))
    target = Target(folder=str(capturing.folder), interval_s=0.5)
    capture.capture(capturing.spark, capturing.entities, capturing.options, target, on_batch, stopping)
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


def test_the_error_for_an_unknown_entity_names_it(capturing: Capturing) -> None:
    target = Target(folder=str(capturing.folder), until_empty=True)
    with pytest.raises(PySparkException) as failure:
        capture.capture(capturing.spark, ["nothing-here"], capturing.options, target)
    said = error_summary(failure.value)
    assert "nothing-here" in said
    assert "\n" not in said
    assert "Traceback" not in said


def test_a_table_format_commits_batches_and_they_are_reported(capturing: Capturing) -> None:
    capturing.send(numbered(0, 15))
    folder = str(capturing.folder)
    target = Target(folder=folder, format="orc", until_empty=True)  # type: ignore[arg-type]  # a sink that Spark has
    capture.capture(capturing.spark, capturing.entities, capturing.options, target, capturing.batches.append)
    assert [(batch.number, batch.rows, batch.files) for batch in capturing.batches] == [(0, 10, 0), (1, 5, 0)]
    rows = capture.read(capturing.spark, folder, "orc").collect()  # type: ignore[arg-type]
    assert sorted(row.body.decode() for row in rows) == numbered(0, 15)
    assert {row.schema_version for row in rows} == {SCHEMA_VERSION}
    assert capturing.left() == 0


def test_what_spark_remembers_is_found_again_however_an_entity_is_written(spark: SparkSession) -> None:
    target = Target(folder="/lake")
    names = {checkpoint_of(spark, name, target) for name in ("Orders/Subscriptions/All", "orders/subscriptions/all")}
    assert len(names) == 1
    assert checkpoint_of(spark, "orders-subscriptions-all", target) not in names
    assert checkpoint_of(spark, "q", Target(folder="x", checkpoint="hdfs://c/")).startswith("hdfs://c/q-")
    with pytest.raises(ValueError, match="requires a folder for Spark's checkpoint"):
        checkpoint_of(spark, "q", Target(folder="catalog.messages.q", format="iceberg"))


def test_where_a_run_ends_after_one_batch_there_are_as_many_as_it_takes(
    capturing: Capturing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "HAS_AVAILABLE_NOW", False)
    capturing.send(numbered(0, 10))

    def more(batch: Batch) -> None:
        capturing.batches.append(batch)
        if len(capturing.batches) == 1:
            capturing.send(numbered(10, 12))

    capturing.run(on_batch=more)
    assert capturing.captured() == numbered(0, 12)
    assert capturing.left() == 0


# --- the command


def program(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """As a process of its own."""
    return subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_the_command_captures_by_spark_submit_and_compacts_without(bus: ServedBroker, capturing: Capturing) -> None:
    capturing.send(numbered(0, 25))
    (entity,) = capturing.entities
    folder = str(capturing.folder)
    submit = str(Path(sys.executable).with_name("spark-submit"))
    more = {"PEEKLOCK_CONNECTION_STRING": bus.connection_string, "PYSPARK_PYTHON": sys.executable}
    arguments = ("capture", entity, "--to", folder, "--until-empty", "--batch-size", "20", "--json")
    ran = program(submit, "--master", "local[2]", str(PROGRAM), *arguments, **more, SPARK_LOCAL_IP="127.0.0.1")
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [line["messages"] for line in lines[:-1]] == [20, 5]
    assert lines[-1]["captured"] == 25
    assert "SAS_KEY_VALUE" not in ran.stderr
    ran = program(sys.executable, "-m", "peeklock", "pipeline", "capture", "compact", folder, "--keep", "0s", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["merged"] == lines[-1]["files"]
    assert capturing.captured() == numbered(0, 25)
    assert capturing.left() == 0


def test_without_java_the_error_names_what_to_install(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "peeklock", "pipeline", "capture", "queue", "--to", str(tmp_path))
    ran = program(*command, PATH=os.devnull, JAVA_HOME="")
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert line.startswith("peeklock: pipelines require Java 17 or newer")
