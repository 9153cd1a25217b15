"""Tests of `peeklock config`: check files, print the schema, export a running namespace."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from commands import SECONDS, Commands, environment, on_a_terminal
from peeklock.client.descriptions import Duration, Entity, FilterKind, Kind, Rule
from serving import ServedBroker

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "examples" / "config.json"


def peeklock(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that requires no broker."""
    return subprocess.run(
        [sys.executable, "-m", "peeklock", "config", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


# --- check ---


def test_a_file_that_can_be_used_is_summed_up() -> None:
    ended = peeklock("check", str(SAMPLE))
    assert (ended.returncode, ended.stderr) == (0, f"{SAMPLE} can be used in the standard profile.\n")
    rows = [line.split() for line in ended.stdout.splitlines()]
    assert rows[0] == ["Kind", "Name", "Settings", "Rules"]
    assert ["queue", "queue.1"] in [row[:2] for row in rows]
    (sql,) = [row for row in rows if row[1:2] == ["topic.1/subscription.4"]]
    assert (sql[0], sql[-1]) == ("subscription", "sql-filter-1")


def test_for_programs_the_summary_is_json() -> None:
    found = json.loads(peeklock("check", str(SAMPLE), "--json").stdout)
    assert found["problems"] == []
    assert found["entities"][0] == {
        "kind": "queue",
        "name": "queue.1",
        "settings": {
            "DuplicateDetectionHistoryTimeWindow": "PT20S",
            "DefaultMessageTimeToLive": "PT1H",
            "MaxDeliveryCount": 3,
        },
        "rules": [],
    }


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    file = tmp_path / "bad.json"
    file.write_text(
        """{ "UserConfig": { "Namespaces": [ {
  "Queues": [ { "Name": "q", "Properties": { "LockDuration": "PT1H" } } ],
  "Topics": [ { "Name": "t", "Subscriptions": [ { "Name": "s", "Rules": [
    { "Name": "r", "Properties": { "SqlFilter": { "SqlExpression": "price > > 5" } } } ] } ] } ]
} ] } }"""
    )
    return file


def test_every_mistake_in_a_file_is_reported(bad: Path) -> None:
    ended = peeklock("check", str(bad))
    assert (ended.returncode, ended.stdout) == (2, "")
    first, second, expression, caret = ended.stderr.splitlines()
    assert first.startswith(f"peeklock: {bad}:2: Namespaces[0].Queues[0].Properties.LockDuration: PT1H must be")
    assert second.startswith(f"{bad}:4: Namespaces[0].Topics[0].Subscriptions[0].Rules[0].Properties.SqlFilter.")
    assert expression[caret.index("^")] == ">"


def test_with_json_the_mistakes_are_json(bad: Path) -> None:
    ended = peeklock("check", str(bad), "--json")
    assert (ended.returncode, ended.stderr) == (2, "")
    assert len(json.loads(ended.stdout)["problems"]) == 2


def test_a_profile_is_checked_against(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    properties = {"MaxDeliveryCount": 1, "MaxSizeInMegabytes": 81920}
    namespace = {"Queues": [{"Name": "q", "Properties": properties}]}
    file.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    ended = peeklock("check", str(file))
    assert ended.returncode == 2
    assert "81920 must be from 1024 to 5120 in the standard profile" in ended.stderr
    ended = peeklock("check", str(file), "--profile", "premium")
    assert ended.returncode == 0
    assert "MaxDeliveryCount 1" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("check",), "Missing argument"),
        (("check", "nowhere.json"), "nowhere.json: the configuration file does not exist"),
        (("check", "nowhere.json", "--profile", "gold"), "gold"),
        (("schema", "--profile", "gold"), "gold"),
        (("chekc",), "chekc"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple[str, ...], named: str) -> None:
    ended = peeklock(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("peeklock: ")
    assert named in line


# --- schema ---


def test_the_schema_is_printed() -> None:
    assert peeklock("schema").stdout == (ROOT / "docs" / "config.schema.json").read_text("utf-8")
    made = json.loads(peeklock("schema", "--profile", "emulator").stdout)
    assert made["definitions"]["namespace"]["properties"]["Queues"]["maxItems"] == 50


# --- export ---


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """A broker whose namespace has every kind of entity, setting and rule."""
    broker = ServedBroker(tmp_path_factory.mktemp("filled"))
    commands = Commands(broker)
    with commands.administration() as client:
        client.create(Kind.QUEUE, "last")
        client.create(
            Kind.QUEUE,
            "orders/Eu",
            {
                "LockDuration": "PT30S",
                "MaxDeliveryCount": 7,
                "RequiresDuplicateDetection": True,
                "DuplicateDetectionHistoryTimeWindow": "PT1M",
                "DefaultMessageTimeToLive": "P1DT0.5S",
                "ForwardTo": "last",
                "ForwardDeadLetteredMessagesTo": "topic",
                "UserMetadata": 'with "quotes", ümlauts and\na second line',
                "Status": "SendDisabled",
            },
        )
        client.create(Kind.TOPIC, "events", {"MaxSizeInMegabytes": 2048, "EnableBatchedOperations": False})
        client.create(Kind.SUBSCRIPTION, "silent", topic="events", settings={"RequiresSession": True})
        client.delete_rule("events", "silent", "$Default")
        client.create(Kind.SUBSCRIPTION, "all", topic="events", settings={"AutoDeleteOnIdle": "PT1H"})
        rule = Rule(
            name="cheap",
            filter=FilterKind.SQL,
            expression="price < @limit AND since > @since AND waits > @waits",
            parameters={"@limit": 5, "@since": datetime(2026, 1, 31, tzinfo=UTC), "@waits": Duration("-PT1.000001S")},
            action="SET rank = @rank; REMOVE price",
            action_parameters={"@rank": 1.0},
        )
        client.create(Kind.SUBSCRIPTION, "cheap", topic="events", rule=rule)
        tested: dict[str, Any] = {"region": "eu", "level": 3, "share": 0.5, "urgent": True, "wait": Duration("PT1M")}
        for name, properties in (("typed", tested), ("fields", {})):
            correlation = {"Label": "order", "ContentType": "text/plain"}
            client.create_rule(
                "events",
                "cheap",
                Rule(name=name, filter=FilterKind.CORRELATION, correlation=correlation, properties=properties),
            )
    yield commands
    broker.stop()


def described(commands: Commands) -> list[Any]:
    """Return what the administration API returns on a namespace, without counts and times."""
    with commands.administration() as client:
        topics = list(client.entities(Kind.TOPIC))
        subscriptions = [each for topic in topics for each in client.entities(Kind.SUBSCRIPTION, topic=topic.name)]
        entities: list[Entity] = [*client.entities(Kind.QUEUE), *topics, *subscriptions]
        found: list[Any] = [(each.path, dict(each.settings), each.authorization_rules) for each in entities]
        for each in subscriptions:
            assert each.topic is not None
            rules = sorted(client.rules(each.topic, each.name), key=lambda rule: rule.name)
            found.append((each.path, rules))
    # Destinations are told as addresses on the broker's own port.
    return json.loads(json.dumps(found, default=str).replace(f":{commands.broker.port}/", "/"))


def test_a_broker_that_starts_from_an_export_has_the_same_namespace(filled: Commands, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    ended = filled.run("config", "export", "--output", str(file))
    assert (ended.returncode, ended.stdout) == (0, b"")
    assert f"Wrote 4 queues and 2 topics to {file}." in ended.stderr.decode()
    copy = ServedBroker(tmp_path, "--config", str(file))
    try:
        expected, found = described(filled), described(Commands(copy))
        # Without rules a subscription gets nothing; a file says so by a rule that lets nothing pass.
        silent = expected.index(["events/Subscriptions/silent", []])
        assert "FalseFilter" in found[silent][1][0]
        del expected[silent], found[silent]
        assert found == expected
        assert Commands(copy).ok("config", "export") == file.read_text("utf-8")
    finally:
        copy.stop()


def test_an_export_goes_to_standard_output_if_no_file_is_named(filled: Commands) -> None:
    (namespace,) = json.loads(filled.ok("config", "export"))["UserConfig"]["Namespaces"]
    assert namespace["Name"] == "sbemulatorns"
    assert [queue["Name"] for queue in namespace["Queues"]] == ["last", "orders/Eu", "queue", "session-queue"]
    assert namespace["Queues"][1]["Properties"]["ForwardTo"] == "last"


def test_keys_are_exported_only_on_request_and_readable_by_the_owner_only(tmp_path: Path) -> None:
    def key(right: str) -> Any:
        return {"Name": "mine", "Rights": [right], "PrimaryKey": f"{right}-secret", "SecondaryKey": "other-secret"}

    namespace = {
        "AuthorizationRules": [{"Name": "root", "Rights": ["Manage"], "PrimaryKey": "root-secret"}],
        "Queues": [
            {"Name": "q", "AuthorizationRules": [{"Name": "s", "Rights": ["Send"], "PrimaryKey": "its-secret"}]}
        ],
        "Topics": [
            {"Name": "t", "AuthorizationRules": [{"Name": "l", "Rights": ["Listen"], "PrimaryKey": "2nd-secret"}]}
        ],
    }
    (tmp_path / "config.json").write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    broker = ServedBroker(tmp_path, "--config", str(tmp_path / "config.json"))
    try:
        commands = Commands(broker)
        commands.connection_string += "SharedAccessKey=root-secret;"  # which the broker does not print
        ended = commands.run("config", "export")
        assert b"secret" not in ended.stdout
        assert "--with-keys" in ended.stderr.decode()
        file = tmp_path / "exported.json"
        commands.ok("config", "export", "--with-keys", "-o", str(file))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        (found,) = json.loads(file.read_text())["UserConfig"]["Namespaces"]
        for kind in ("Queues", "Topics"):
            assert found[kind][0]["AuthorizationRules"] == namespace[kind][0]["AuthorizationRules"]
    finally:
        broker.stop()


def test_an_existing_file_is_replaced_only_on_request(filled: Commands, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("mine")
    code, sentence = filled.refused("config", "export", "-o", str(file))
    assert (code, file.read_text()) == (2, "mine")
    assert "--yes" in sentence
    arguments = ("config", "export", "-o", str(file))
    code, shown = on_a_terminal(filled.command(*arguments), filled.environment(), "n\n")
    assert (code, file.read_text()) == (1, "mine")
    assert "exists. Replace it?" in shown
    filled.ok(*arguments, "--yes")
    assert "UserConfig" in file.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json"]


def test_a_missing_destination_is_omitted_and_reported(tmp_path: Path) -> None:
    broker = ServedBroker(tmp_path)
    try:
        commands = Commands(broker)
        with commands.administration() as client:
            client.create(Kind.QUEUE, "target")
            client.create(Kind.QUEUE, "source", {"ForwardTo": "target"})
            client.delete(Kind.QUEUE, "target")
        ended = commands.run("config", "export")
        assert "Left out ForwardTo of 'source': 'target' does not exist." in ended.stderr.decode()
        (tmp_path / "config.json").write_bytes(ended.stdout)
        assert peeklock("check", str(tmp_path / "config.json")).returncode == 0
    finally:
        broker.stop()


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("--connection-string", "nonsense"), 2, "connection string"),
        (
            (
                "--connection-string",
                "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true;",
            ),
            6,
            "127.0.0.1:1",
        ),
        (("--output", "/nowhere/at/all.json"), 1, "/nowhere/at/all.json cannot be written: No such file"),
    ],
)
def test_an_impossible_export_is_reported_in_one_line(
    filled: Commands, arguments: tuple[str, ...], code: int, named: str
) -> None:
    ended = filled.run("config", "export", *arguments)
    assert (ended.returncode, ended.stdout) == (code, b"")
    assert named in ended.stderr.decode().splitlines()[-1]
    assert "Traceback" not in ended.stderr.decode()


def test_a_key_that_may_not_manage_exports_nothing(filled: Commands) -> None:
    wrong = filled.connection_string.replace("SAS_KEY_VALUE", "wrong")
    code, _ = filled.refused("config", "export", "--connection-string", wrong)
    assert code == 5
