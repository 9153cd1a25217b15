"""azure-messaging-servicebus for Java, unmodified: the scenarios of `java/*Scenarios.java`, each as a test.

One Java process runs them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.sdks import SDKS
from scenario_runner import Runner, answers_of

from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.rules import CorrelationFilter, FilterKind, RuleDefinition
from peeklock.entities.settings import Status
from peeklock.server.certificates import ensure_certificates
from serving import StartBroker

FOLDER = Path(__file__).parent / "java"
# Read from the text so that the names are known, and shown, without Java.
SCENARIOS = [
    name
    for file in sorted(FOLDER.glob("*Scenarios.java"))
    for name in re.findall(r'^        ALL\.put\("(.+)",', file.read_text(), re.MULTILINE)
]

MARK = "SET sys.Label = 'big'; SET half = amount / 2.0; REMOVE secret"


def sql(name: str, expression: str, action: str | None = None) -> RuleDefinition:
    return RuleDefinition(name=name, filter_kind=FilterKind.SQL, sql_expression=expression, action=action)


def label(name: str, text: str) -> RuleDefinition:
    tested = CorrelationFilter(label=text)
    return RuleDefinition(name=name, filter_kind=FilterKind.CORRELATION, correlation=tested)


NAMESPACE = NamespaceDefinition(
    queues=(
        QueueDefinition(name="queue", lock_duration_ms=60_000),
        QueueDefinition(name="other", lock_duration_ms=60_000),
        QueueDefinition(name="sessions", requires_session=True, lock_duration_ms=60_000),
        QueueDefinition(name="first", forward_to="second"),
        QueueDefinition(name="second", forward_to="other"),
        QueueDefinition(name="letters", forward_dead_lettered_messages_to="other"),
        QueueDefinition(name="astray", forward_to="sessions"),
        QueueDefinition(name="unique", requires_duplicate_detection=True),
        QueueDefinition(name="closed", status=Status.DISABLED),
    ),
    topics=(
        TopicDefinition(
            name="topic",
            subscriptions=(
                SubscriptionDefinition(name="all"),
                SubscriptionDefinition(name="red", rules=(sql("red", "color = 'red'"),)),
                SubscriptionDefinition(name="orders", rules=(label("orders", "order"),)),
                SubscriptionDefinition(name="big", rules=(sql("mark", "amount > 10", MARK),)),
            ),
        ),
        TopicDefinition(name="talks", subscriptions=(SubscriptionDefinition(name="all", requires_session=True),)),
        TopicDefinition(
            name="relay",
            subscriptions=(
                SubscriptionDefinition(name="all"),
                SubscriptionDefinition(name="onward", forward_to="other"),
                SubscriptionDefinition(name="astray", forward_to="sessions", rules=(label("astray", "astray"),)),
            ),
        ),
        TopicDefinition(
            name="news",
            requires_duplicate_detection=True,
            subscriptions=(
                SubscriptionDefinition(name="all"),
                SubscriptionDefinition(name="closed", status=Status.DISABLED),
            ),
        ),
    ),
)
"""What each scenario finds."""


@pytest.fixture(scope="module")
def tls_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the authority lives that Java trusts; it reads that only when it starts."""
    return tmp_path_factory.mktemp("authority")


@pytest.fixture(scope="module")
def runner(tls_folder: Path) -> Iterator[Runner]:
    runner = Runner(SDKS["java"].prepare(ensure_certificates(tls_folder, ["127.0.0.1"]).authority))
    yield runner
    runner.stop()


def test_the_scenarios_that_are_run_are_all_there_are(runner: Runner) -> None:
    assert runner.scenarios == SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(runner: Runner, start_broker: StartBroker, tls_folder: Path, scenario: str) -> None:
    broker = start_broker(namespace=NAMESPACE, tls_folder=tls_folder)

    def counters(asked: dict[str, Any]) -> dict[str, int]:
        found = broker.counters(asked["queue"])
        return {"active": found.active, "deferred": found.deferred, "scheduled": found.scheduled}

    error = runner.run(scenario, {"plain": broker.connection_string}, answers_of(broker) | {"counters": counters})
    assert error is None, error
