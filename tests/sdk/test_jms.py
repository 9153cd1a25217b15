"""Qpid JMS and azure-servicebus-jms, unmodified: the scenarios of `jms/*Scenarios.java`, each as a test.

One Java process runs them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.sdks import PASSWORD, Command, trust_store
from scenario_runner import Answer, Runner

from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.server.certificates import ensure_certificates
from serving import BrokerThread, StartBroker
from toolchains import SHORT_LIVED_JAVA, java_classpath, toolchain

FOLDER = Path(__file__).parent / "jms"
# Read from the text so that the names are known, and shown, without Java.
SCENARIOS = [
    name
    for file in sorted(FOLDER.glob("*Scenarios.java"))
    for name in re.findall(r'^        ALL\.put\("(.+)",', file.read_text(), re.MULTILINE)
]
NAMESPACE = NamespaceDefinition(
    queues=(
        QueueDefinition(name="queue", lock_duration_ms=60_000),
        QueueDefinition(name="other", lock_duration_ms=60_000),
        QueueDefinition(name="urgent", order_by_priority=True),
    ),
    topics=(
        TopicDefinition(name="topic", subscriptions=(SubscriptionDefinition(name="all"),)),
        TopicDefinition(name="news"),
        TopicDefinition(name="alarms", order_by_priority=True),
    ),
)
"""What each scenario finds."""


@pytest.fixture(scope="module")
def tls_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the authority lives that Java trusts; it reads that only when it starts."""
    return tmp_path_factory.mktemp("authority")


@pytest.fixture(scope="module")
def runner(tls_folder: Path) -> Iterator[Runner]:
    store = trust_store(ensure_certificates(tls_folder, ["127.0.0.1", "localhost"]).authority)
    options = (
        *SHORT_LIVED_JAVA,
        "-Xshare:auto",
        f"-Djavax.net.ssl.trustStore={store}",
        f"-Djavax.net.ssl.trustStorePassword={PASSWORD}",
    )
    runner = Runner(Command((toolchain("java"), *options, "-cp", java_classpath(FOLDER), "Run"), {}))
    yield runner
    runner.stop()


def answers(broker: BrokerThread) -> dict[str, Answer]:
    def counters(asked: dict[str, Any]) -> dict[str, int]:
        while not broker.call(lambda: broker.broker.namespace.journal.idle):
            pass
        found = broker.call(lambda: broker.broker.namespace.entity(asked["queue"]).counters)
        return {"active": found.active, "scheduled": found.scheduled}

    def entities(_: dict[str, Any]) -> list[str]:
        found = broker.call(lambda: broker.broker.namespace.entities)
        return sorted(each.path for each in found if not each.is_dead_letter_queue)

    def rules(asked: dict[str, Any]) -> list[str]:
        definition = broker.call(lambda: broker.broker.namespace.queue(asked["subscription"]).definition)
        assert isinstance(definition, SubscriptionDefinition)
        return [rule.sql_expression or "" for rule in definition.rules]

    return {
        "advance": lambda asked: broker.advance(asked["seconds"]),
        "counters": counters,
        "entities": entities,
        "rules": rules,
    }


def test_the_scenarios_that_are_run_are_all_there_are(runner: Runner) -> None:
    assert runner.scenarios == SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(runner: Runner, start_broker: StartBroker, tls_folder: Path, scenario: str) -> None:
    broker = start_broker(namespace=NAMESPACE, tls_folder=tls_folder)
    brokers = {"plain": broker.connection_string, "endpoint": f"localhost:{broker.broker.port}"}
    error = runner.run(scenario, brokers, answers(broker))
    assert error is None, error
