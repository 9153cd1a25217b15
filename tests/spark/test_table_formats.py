"""Captures into Delta and Iceberg: which build is for which Spark, and that each message is in the table once.

What needs a build from Maven Central is run by `make test-table-formats`, and so are the kills of `test_faults`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from formats import FORMAT
from pipeline_fixtures import Capturing, Pipeline, numbered

from commands import environment
from peeklock.spark.pipelines import capture
from peeklock.spark.pipelines.capture import Target
from peeklock.spark.pipelines.table_formats import BUILDS, NoBuild, build_of, settings_of
from serving import ServedBroker

SECONDS = 600
needs_build = pytest.mark.skipif(
    FORMAT == "parquet", reason="left out: the newest Spark has no build of Delta or Iceberg: make test-table-formats"
)


@pytest.mark.parametrize(
    ("format", "version", "build"),
    [
        ("delta", "4.2.1", "io.delta:delta-spark_4.2_2.13:"),
        ("delta", "4.0.5", "io.delta:delta-spark_4.0_2.13:"),
        ("iceberg", "4.1.4", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:"),
    ],
)
def test_the_build_of_the_table_format_matches_the_spark_version(format: str, version: str, build: str) -> None:
    assert build_of(format, version).startswith(build)
    assert settings_of(format, version, {})["spark.jars.packages"] == build_of(format, version)


def test_the_error_for_a_spark_without_a_build_lists_supported_versions() -> None:
    with pytest.raises(NoBuild, match=r"no known build of iceberg for Spark 4\.2, only for 4\.0, 4\.1: install"):
        build_of("iceberg", "4.2.1")


def test_settings_of_the_user_are_kept() -> None:
    given = {
        "spark.jars.packages": "org.example:other:1",
        "spark.sql.extensions": "org.example.Other",
        "spark.sql.catalog.spark_catalog": "org.example.Catalog",
    }
    settings = settings_of("delta", "4.2.1", given)
    assert settings["spark.jars.packages"] == f"org.example:other:1,{build_of('delta', '4.2.1')}"
    assert settings["spark.sql.extensions"].startswith("org.example.Other,io.delta")
    assert "spark.sql.catalog.spark_catalog" not in settings
    own = {"spark.jars.packages": "io.delta:delta-spark_9.9_2.13:1"}
    assert "spark.jars.packages" not in settings_of("delta", "9.9.0", own)
    assert settings_of("parquet", "9.9.0", {}) == {}


@pytest.mark.usefixtures("no_spark")
def test_a_missing_build_is_reported_before_spark_starts(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.setattr("pyspark.__version__", "9.9.0")
    ended = pipeline("capture", "orders", "--to", str(tmp_path), "--format", "delta")
    assert ended.returncode == 2
    assert "there is no known build of delta for Spark 9.9, only for" in ended.stderr


@pytest.mark.skipif(FORMAT != "parquet", reason="this Spark has the format")
def test_the_error_for_a_session_without_the_format_names_the_missing_package(
    capturing: Capturing, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = ".".join(pyspark.__version__.split(".")[:2])
    for format in ("delta", "iceberg"):
        monkeypatch.setitem(BUILDS, format, {series: "the:build"})  # type: ignore[arg-type]
        target = Target(folder=str(capturing.folder / format), format=format, until_empty=True)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"no '{format}': start it with --conf spark.jars.packages=the:build"):
            capture.capture(capturing.spark, capturing.entities, capturing.options, target)


@needs_build
def test_each_message_is_in_the_table_once_and_the_commands_read_it(
    bus: ServedBroker, capturing: Capturing, tmp_path: Path
) -> None:
    (entity,) = capturing.entities
    folder = str(tmp_path / "a table")
    variables = {"PEEKLOCK_CONNECTION_STRING": bus.connection_string, "PYSPARK_PYTHON": sys.executable}
    kept = {name: value for name, value in environment(**variables).items() if not name.startswith("PYSPARK_GATEWAY")}

    def run(*arguments: str) -> list[dict[str, object]]:
        command = [sys.executable, "-m", "peeklock", "pipeline", *arguments, "--format", FORMAT, "--json"]
        path = os.pathsep.join(filter(None, (kept.get("PYTHONPATH"), os.environ.get("PYTHONPATH"))))
        ended = subprocess.run(
            command, env={**kept, "PYTHONPATH": path}, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return [json.loads(line) for line in ended.stdout.splitlines()]

    capturing.send(numbered(0, 25))
    said = run("capture", entity, "--to", folder, "--until-empty", "--batch-size", "10")
    assert [line["messages"] for line in said[:-1]] == [10, 10, 5]
    capturing.send(numbered(25, 30))
    run("capture", entity, "--to", folder, "--until-empty")
    rows = capture.read(capturing.spark, folder, FORMAT).collect()
    assert sorted(row.body.decode() for row in rows) == numbered(0, 30)
    assert {row.entity for row in rows} == {entity}
    assert capturing.left() == 0
    assert run("report", folder, "--output", str(tmp_path / "report"))[0]["messages"] == 30
    assert run("replay", folder, entity)[0]["sent"] == 30
    assert capturing.left() == 30


@needs_build
def test_a_table_that_is_read_by_its_folder_has_the_same_rows(capturing: Capturing) -> None:
    capturing.send(numbered(0, 5))
    target = Target(folder=str(capturing.folder), format=FORMAT, until_empty=True)
    capture.capture(capturing.spark, capturing.entities, capturing.options, target)
    rows = capture.read(capturing.spark, str(capturing.folder), FORMAT)
    assert sorted(row.body.decode() for row in rows.collect()) == numbered(0, 5)
    again = [batch.rows for batch in capturing.batches]
    capture.capture(capturing.spark, capturing.entities, capturing.options, target, capturing.batches.append)
    assert [batch.rows for batch in capturing.batches] == again
    assert rows.count() == 5
