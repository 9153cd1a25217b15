"""The data source as Spark finds it: by itself, with early errors, and without showing the key."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict

from peeklock.spark.options import OptionError
from peeklock.spark.rows import SCHEMA
from peeklock.spark.source import ServiceBusDataSource
from serving import SOURCE, ServedBroker

KEY = "a2V5LW9mLXRoZS10ZXN0cy1vbmx5"
WHERE = f"Endpoint=sb://localhost;SharedAccessKeyName=Root;SharedAccessKey={KEY};UseDevelopmentEmulator=true"


def run(program: str, *arguments: str) -> str:
    """A Python program in a process of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_spark_finds_the_source_without_registration(bus: ServedBroker) -> None:
    shown = run(
        """
        import sys
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        found = spark.read.format("servicebus").option("connectionString", sys.argv[1]).option("queue", "queue").load()
        print(found.count(), "peeklock" in sys.modules)
        spark.stop()
        """,
        bus.connection_string,
    )
    assert shown.split() == ["0", "False"]


def test_the_data_source_does_not_import_the_broker() -> None:
    shown = run(
        """
        import sys
        import pyspark_servicebus
        from peeklock.spark import claiming, deleting, peeking, writing

        print(pyspark_servicebus.DefaultSource.name())
        above = ("broker", "nodes", "server", "admin", "store", "cli")
        print([name for name in sys.modules if name.startswith("peeklock.") and name.split(".")[1] in above])
        """
    )
    assert shown.split("\n")[:2] == ["servicebus", "[]"]


def test_finding_the_source_loads_no_reader_or_writer() -> None:
    shown = run(
        """
        import sys
        import pyspark_servicebus

        later = ("peeking", "claiming", "deleting", "writing")
        print([name for name in later if f"peeklock.spark.{name}" in sys.modules], "pyarrow" in sys.modules)
        """
    )
    assert shown.strip() == "[] False"


def load(spark: SparkSession, **options: object) -> Any:
    return spark.read.format("servicebus").options(**options).load()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"queu": "q"}, "option 'queu' is not known; did you mean 'queue'"),
        ({"queue": "q", "numPartitions": "0"}, "option 'numPartitions' is '0', but must be a number from 1 to"),
        ({"connectionString": "nonsense"}, "option 'connectionString' must be a connection string"),
    ],
)
def test_load_reports_a_mistake_in_an_option(spark: SparkSession, options: dict[str, str], problem: str) -> None:
    with pytest.raises(PySparkException, match=problem):
        load(spark, **options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"queue": "q"}, "option 'connectionString' is required"),
        ({"connectionString": WHERE}, "option 'queue' or 'topic' is required"),
        ({"connectionString": WHERE, "queue": "q", "mode": "claim"}, "for read it must be peek"),
    ],
)
def test_a_mistake_that_depends_on_the_use_is_reported_by_the_query(
    spark: SparkSession, options: dict[str, str], problem: str
) -> None:
    with pytest.raises(PySparkException, match=problem):
        load(spark, **options).collect()


def test_a_column_that_no_message_has_is_named(spark: SparkSession, bus: ServedBroker) -> None:
    reader = spark.read.format("servicebus").schema("colour STRING")
    with pytest.raises(PySparkException, match="a message has no column 'colour'"):
        reader.options(connectionString=bus.connection_string, queue="queue").load().collect()


def test_chosen_columns_are_read_alone(spark: SparkSession, bus: ServedBroker) -> None:
    reader = spark.read.format("servicebus").schema("entity STRING, body BINARY")
    found = reader.options(connectionString=bus.connection_string, queue="queue").load()
    assert (found.columns, found.collect()) == (["entity", "body"], [])


def key_of(bus: ServedBroker) -> str:
    return bus.connection_string.split("SharedAccessKey=")[1].split(";")[0]


def test_no_plan_shows_the_key(
    spark: SparkSession, bus: ServedBroker, capsys: pytest.CaptureFixture[str], make_queue: Callable[..., str]
) -> None:
    found = load(spark, connectionString=bus.connection_string, queue=make_queue()).filter("sequence_number > 5")
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        found.explain(mode=mode)
    shown = capsys.readouterr().out + str(found._jdf.queryExecution()) + found._jdf.queryExecution().toString()
    assert "servicebus" in shown
    assert key_of(bus) not in shown


def test_no_error_shows_the_key(spark: SparkSession, bus: ServedBroker) -> None:
    for options in ({"queue": "nowhere"}, {"queue": "q", "mode": "claim"}, {"queue": "q", "maxWait": "1s"}):
        with pytest.raises(PySparkException) as error:
            load(spark, connectionString=bus.connection_string, **options).collect()
        assert key_of(bus) not in str(error.value)


def source(**options: str) -> ServiceBusDataSource:
    return ServiceBusDataSource(CaseInsensitiveDict(options))


def test_nothing_can_be_overwritten() -> None:
    made = source(connectionString=WHERE, queue="q")
    with pytest.raises(OptionError, match="can only be appended"):
        made.writer(SCHEMA, overwrite=True)
    with pytest.raises(OptionError, match="can only be appended"):
        made.streamWriter(SCHEMA, overwrite=True)


@pytest.mark.parametrize(
    ("mode", "reader"),
    [
        (None, "ClaimReader"),
        ("claim", "ClaimReader"),
        ("peek", "PeekStreamReader"),
        ("receiveAndDelete", "DeletingReader"),
    ],
)
def test_each_mode_of_a_stream_has_its_reader(mode: str | None, reader: str) -> None:
    given = {"connectionString": WHERE, "queue": "q"} | ({} if mode is None else {"mode": mode})
    assert type(source(**given).streamReader(SCHEMA)).__name__ == reader


def test_a_reader_that_looks_as_if_it_took_filters_is_made_only_where_spark_pushes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = source(connectionString=WHERE, queue="q")
    assert type(made.reader(SCHEMA)).__name__ == "PeekReader"
    monkeypatch.setattr("peeklock.spark.peeking.pushes_filters", lambda: True)
    assert type(made.reader(SCHEMA)).__name__ == "FilteringPeekReader"
