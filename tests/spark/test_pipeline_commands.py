"""Errors of the commands of `peeklock pipeline`: one message, the right exit code, before Spark is started."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from pipeline_fixtures import Pipeline
from pipeline_rows import captured, message
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from commands import SECONDS, environment
from peeklock.cli import pipeline_capture
from peeklock.cli.pipeline_session import error_summary
from peeklock.spark.options import MOST_MESSAGES
from peeklock.spark.pipelines.capture import PARTITIONS
from peeklock.spark.pipelines.lake import Lake
from serving import ServedBroker

MakeQueue = Callable[..., str]
CAPTURE = ("capture", "q", "--to", "x")
REPLAY = ("replay", "folder", "queue")
DEAD_LETTERS = ("dead-letters", "q")


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*CAPTURE, "--interval", "30s", "--until-empty"), "exclude each other"),
        ((*CAPTURE, "--interval", "soon"), "--interval: 'soon' is not"),
        ((*CAPTURE, "--interval", "max"), "--interval: 'max' must be a limited duration"),
        ((*CAPTURE, "--format", "csv"), "--format: 'csv' must be one of"),
        ((*CAPTURE, "Q"), "given twice"),
        ((*CAPTURE, "--cores", "none"), "--cores: 'none' must be"),
        ((*CAPTURE, "--conf", "spark.master"), "--conf: 'spark.master' is not name=value"),
        ((*CAPTURE, "--option", "MODE=peek"), "--option: 'mode' cannot be given"),
        ((*CAPTURE, "--option", "pollIntervall=1s"), "did you mean 'pollInterval'?"),
        ((*CAPTURE, "--option", "sendRetries=3"), "'sendRetries' is not for readStream"),
        (("capture", "compact", "x", "--target-size", "large"), "--target-size: 'large' is not"),
        (("capture", "compact", "x", "--keep", "max"), "--keep: 'max' is not allowed"),
        ((*REPLAY, "--timing", "later"), "--timing: 'later' must be one of at-once, original"),
        ((*REPLAY, "--ids", "old"), "--ids: 'old' must be one of keep, new"),
        ((*REPLAY, "--timing", "original", "--rate", "5"), "--rate requires --timing at-once"),
        ((*REPLAY, "--speed", "5"), "--speed requires --timing original"),
        ((*REPLAY, "--rate", "0"), "--rate: 0.0 must be more than 0"),
        ((*REPLAY, "--from", "yesterday"), "--from: 'yesterday' is not a time"),
        ((*DEAD_LETTERS, "--to", "x"), "--to requires --resubmit"),
        ((*DEAD_LETTERS, "--option", "numPartitions=0"), "option 'numPartitions' is '0'"),
        (("report", "x", "--output", "s3a://bucket/report"), "--page is required"),
        (("report", "x", "--output", "hdfs:/report"), "--page is required"),
        (("report", "x", "--format", "csv"), "--format: 'csv' must be one of"),
    ],
)
def test_wrong_arguments_are_reported_before_spark_starts(
    pipeline: Pipeline, arguments: tuple[str, ...], said: str
) -> None:
    ended = pipeline(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("peeklock: ")
    assert said in line


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("arguments", [CAPTURE, REPLAY, DEAD_LETTERS, ("dead-letters",)])
def test_an_unreachable_broker_is_reported_before_spark_starts(pipeline: Pipeline, arguments: tuple[str, ...]) -> None:
    ended = pipeline(*arguments)
    assert (ended.returncode, ended.stdout) == (6, "")
    (line,) = ended.stderr.splitlines()
    assert "127.0.0.1:1" in line


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    "arguments", [("capture", "nobody", "--to", "x"), ("replay", "folder", "nobody"), ("dead-letters", "nobody")]
)
def test_an_unknown_entity_is_reported_before_spark_starts(
    bus: ServedBroker, pipeline: Pipeline, arguments: tuple[str, ...]
) -> None:
    ended = pipeline(*arguments, bus=bus)
    assert (ended.returncode, ended.stdout) == (3, "")
    (line,) = ended.stderr.splitlines()
    assert "nobody" in line


@pytest.mark.parametrize(("more", "said"), [((), ["starting Spark …"]), (("--json",), [])])
def test_the_start_of_spark_is_reported_on_a_terminal(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: tuple[str, ...], said: list[str]
) -> None:
    def start(*_: object, **__: object) -> None:
        raise PySparkException("there is no room")

    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr("peeklock.cli.pipeline_session._is_running", lambda: False)
    monkeypatch.setattr("peeklock.spark.session.local_session", start)
    ended = pipeline("report", str(tmp_path), *more)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines() == [*said, "peeklock: Spark cannot be started: there is no room"]


JAVA = """#!/bin/sh
# A Java that tells its version, and does not start Spark until it may.
if [ "$1" = -version ]; then echo 'openjdk version "17.0.1" 2030-01-01' >&2; exit 0; fi
touch "{folder}/started"
until [ -e "{folder}/go" ]; do sleep 0.05; done
exit 1
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("capture", "QUEUE", "--to", "FOLDER/lake"),
        ("dead-letters", "QUEUE"),
        ("report", "FOLDER"),
        ("replay", "FOLDER", "QUEUE"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_first_line_of_progress_is_written_before_spark_has_started(
    bus: ServedBroker, make_queue: MakeQueue, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA.format(folder=java.parent))
    java.chmod(0o755)
    folder = tmp_path / "folder"
    folder.mkdir()
    queue = make_queue()
    given = [each.replace("QUEUE", queue).replace("FOLDER", str(folder)) for each in arguments]
    kept = {name: value for name, value in environment().items() if not name.startswith(("PYSPARK_GATEWAY", "SPARK_"))}
    variables = {"JAVA_HOME": str(tmp_path / "java"), "PEEKLOCK_CONNECTION_STRING": bus.connection_string}
    command = [sys.executable, "-m", "peeklock", "pipeline", *given]
    with subprocess.Popen(command, env=kept | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            readable = select.poll()
            readable.register(process.stderr, select.POLLIN)
            assert readable.poll(SECONDS * 1000), "no line, and Spark cannot start"
            assert process.stderr.readline().decode() == "starting Spark …\n"
            until = time.monotonic() + SECONDS
            while not (java.parent / "started").exists():
                assert time.monotonic() < until
                assert process.poll() is None
                time.sleep(0.05)
        finally:
            (java.parent / "go").touch()
            _, rest = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "peeklock: Spark cannot be started" in rest.decode()


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("arguments", [("report",), ("replay", "--dry-run", "queue"), ("capture", "compact")])
def test_a_folder_that_nothing_was_captured_into_is_named(
    pipeline: Pipeline, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "of-others").mkdir()
    (tmp_path / "of-others" / "a.parquet").touch()
    (tmp_path / "a-file").touch()
    command, *more = arguments
    for name, said in (
        ("nowhere", "does not exist"),
        ("of-others", "is not a folder with captured messages"),
        ("a-file", ""),
    ):
        # The folder comes first of what has no name.
        given = [command, *more[:1], str(tmp_path / name), *more[1:]]
        ended = pipeline(*given)
        assert (ended.returncode, ended.stdout) == (2, ""), name
        (line,) = ended.stderr.splitlines()
        assert name in line
        assert said in line


@pytest.mark.usefixtures("spark")
def test_an_empty_folder_has_no_messages(pipeline: Pipeline, tmp_path: Path) -> None:
    ended = pipeline("report", str(tmp_path), "--output", str(tmp_path / "report"))
    assert (ended.returncode, ended.stderr) == (0, "no messages\n")
    ended = pipeline("capture", "compact", str(tmp_path / "report" / "tables" / "rates"))
    assert ended.returncode == 2


def test_an_invalid_condition_is_reported_in_one_line(
    spark: SparkSession, bus: ServedBroker, make_queue: MakeQueue, pipeline: Pipeline, tmp_path: Path
) -> None:
    Lake(spark, str(tmp_path), 1).add_batch(captured(spark, [message()]), PARTITIONS, "query", 0)
    queue = make_queue()
    for arguments in (("dead-letters", queue), ("replay", str(tmp_path), queue)):
        for where, said in (("regoin = 1", "regoin"), ("region = ", "Syntax error")):
            ended = pipeline(*arguments, "--where", where, bus=bus)
            assert (ended.returncode, ended.stdout) == (2, "")
            (line,) = ended.stderr.splitlines()
            assert line.startswith("peeklock: --where: ")
            assert said in line


def test_an_unknown_storage_is_reported_in_one_line(spark: SparkSession, pipeline: Pipeline) -> None:
    for folder, said in (("nosuch://x/y", "nosuch"), ("", "empty")):
        ended = pipeline("report", folder)
        assert (ended.returncode, ended.stdout) == (1, "")
        (line,) = ended.stderr.splitlines()
        assert said in line


def test_an_error_of_spark_is_its_last_word_in_one_line() -> None:
    failure = """[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):
      File "a.py", line 1, in f
    peeklock.spark.reach.SourceFailed: peeking at 'q' failed: it is \x1b[31mgone
    SQLSTATE: XXKST"""
    assert error_summary(Exception(failure)) == "peeking at 'q' failed: it is \\x1b[31mgone"
    assert error_summary(Exception("[A.B_C] There is no `x`. SQLSTATE: 42703; line 1")) == "There is no `x`"
    assert (
        error_summary(Exception("An error occurred while calling o1.x.\n: java.io.IOException: no\n\tat a.b")) == "no"
    )
    assert error_summary(KeyError()) == "KeyError"


def test_the_help_of_capture_names_the_default_of_the_data_source() -> None:
    declared = get_args(get_type_hints(pipeline_capture.run, include_extras=True)["batch_size"])[1]
    assert declared.show_default == str(MOST_MESSAGES)
