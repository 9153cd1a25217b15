"""Fixtures for the tests of the data source: a local Spark session, and brokers as processes."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyspark
import pytest
from formats import FORMAT
from pipeline_fixtures import capturing, no_spark, pipeline  # noqa: F401
from pyspark.sql import SparkSession

from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from peeklock.spark.pipelines.table_formats import settings_of
from serving import SOURCE, ServedBroker
from toolchains import toolchain

CONFIG = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


STARTS_SPARK = ("cluster", "demo", "examples_spark", "faults", "pipeline_", "session", "source", "table_formats")
"""Parts of the names of test modules that start Spark in another process."""
TAKE_LONG = ("faults", "cluster")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that start Spark last, in few processes, one module at a time."""
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents and (_is_of(item, STARTS_SPARK) or "spark" in getattr(item, "fixturenames", ())):
            item.add_marker("spark")
    items.sort(key=lambda item: not _is_of(item, TAKE_LONG))  # first, so that nobody waits for them at the end


def _is_of(item: pytest.Item, modules: Iterable[str]) -> bool:
    return any(item.path.name.startswith(f"test_{part}") for part in modules)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session for all tests, as its start takes seconds. Its workers find the sources by this path."""
    toolchain("java")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("peeklock")
    for name, value in {**CONFIG, **settings_of(FORMAT, pyspark.__version__, CONFIG)}.items():
        builder = builder.config(name, value)
    folder = tmp_path_factory.mktemp("spark")
    session = (
        builder.config("spark.sql.warehouse.dir", str(folder)).config("spark.local.dir", str(folder)).getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """A broker for the tests of a module; each test has its own entities."""
    broker = ServedBroker(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


@pytest.fixture
def make_queue(bus: ServedBroker) -> Iterator[Callable[..., str]]:
    """Create a queue for one test, with settings of the administration API, and return its name."""
    with AdministrationClient.from_connection_string(bus.connection_string) as administration:

        def make(**settings: object) -> str:
            name = f"queue-{next(_numbers)}"
            administration.create(Kind.QUEUE, name, settings)
            return name

        yield make


_numbers = itertools.count(1)
