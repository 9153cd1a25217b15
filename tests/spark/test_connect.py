"""Through Spark Connect: a client without access to the driver's Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from pipeline_rows import captured, message
from pyspark.sql import SparkSession
from test_pipeline_dead_letters import dead_letter, send

from commands import Commands, environment
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from peeklock.spark.pipelines.capture import PARTITIONS
from peeklock.spark.pipelines.lake import Lake
from serving import ServedBroker

DRIVER = Path(__file__).with_name("connect_driver.py")
NEEDED = ("grpc", "grpc_status", "google.rpc", "zstandard", "pandas")
SECONDS = 300


def installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.skipif(
    not all(map(installed, NEEDED)),
    reason="left out: Spark Connect needs more packages: make test-spark-connect has them",
)
def test_the_source_and_all_pipelines_work_through_spark_connect(
    spark: SparkSession, bus: ServedBroker, tmp_path: Path
) -> None:
    commands = Commands(bus)
    queue = commands.queue()
    with AdministrationClient.from_connection_string(bus.connection_string) as administration:
        administration.create(Kind.QUEUE, f"{queue}-copies")
    dead_letter(commands, queue, *[("north", "Bad", "no customer")] * 3)
    send(commands, queue, "north", "south")
    rows = captured(spark, [message(message_id=f"c{number}") for number in range(5)])
    Lake(spark, str(tmp_path / "lake"), 1).add_batch(rows, PARTITIONS, "query", 0)
    # Spark's variables would have the program take the Spark of this process for its own.
    kept = {name: value for name, value in environment().items() if not name.startswith(("PYSPARK_GATEWAY", "SPARK_"))}
    path = os.pathsep.join((kept["PYTHONPATH"], os.environ.get("PYTHONPATH", "")))
    ended = subprocess.run(
        [sys.executable, str(DRIVER), bus.connection_string, queue, str(tmp_path)],
        env={**kept, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said == {
        "session": "pyspark.sql.connect.session",
        "read": 2,
        "written": 3,
        "drained": ["copy 0", "copy 1", "copy 2"],
        "left": 0,
        "streams": {"peek": 2, "receiveAndDelete": 4},
        "written by a stream": 2,
        "failed": 3,
        "report": 5,
        "small": 5,
        "replayed": 5,
        "default tasks": 2,
        "captured": [5, 5],
        "captured again": [5, 5],
        "compacted": [True, 5],
        "not captured": 0,
    }
