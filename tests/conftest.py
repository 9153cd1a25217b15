"""Fixtures that many tests share: running brokers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from serving import BrokerThread, ServedBroker, StartBroker
from toolchains import SHORT_LIVED_JAVA

CLASSES = Path(__file__).parents[1] / "build" / "spark.jsa"
"""`make test` has Spark's classes written there, see spark/archive_classes.py."""
QUIETLY = ("-Xlog:disable", "-Xlog:all=error:stderr")
FROM_CLASSES = (f"-XX:SharedArchiveFile={CLASSES}", *QUIETLY) if CLASSES.exists() else ()
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join((*SHORT_LIVED_JAVA, *FROM_CLASSES)))

# A shell script starts background commands with SIGINT ignored, and programs inherit that. Tests send SIGINT to
# programs that they start, so those get the default back, however the tests were started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST = "tests/hostile/test_hostile.py::test_the_broker_passes_all_checks_after_all_attacks"
"""Takes minutes, most of them waiting."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest test first: it would otherwise run for minutes after all others have ended."""
    items.sort(key=lambda item: item.nodeid != LONGEST)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker as a user starts it, with the default namespace."""
    broker = ServedBroker(tmp_path)
    yield broker
    broker.stop()


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Starts brokers in threads, with a clock that tests move."""
    running: list[BrokerThread] = []

    def start(*queues: QueueDefinition, **options: object) -> BrokerThread:
        namespace = NamespaceDefinition(queues=queues or (QueueDefinition(name="queue"),))
        options.setdefault("data", tmp_path / "data")
        options.setdefault("tls_folder", tmp_path / "data")
        broker = BrokerThread(**{"namespace": namespace, **options})
        running.append(broker)
        return broker

    yield start
    for broker in running:
        broker.stop()
