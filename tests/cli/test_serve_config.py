"""Tests of `peeklock serve` with a configuration file: the emulator's sample, SIGHUP, pruning, the environment."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError

from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from peeklock.client.errors import RequestRefused
from raw_client import HOST, eventually, get, health
from serving import SOURCE, ServedBroker

SAMPLE = Path(__file__).parents[2] / "examples" / "config.json"
FOLLOWED = "the namespace is as configured"
REFUSED = "the configuration cannot be used; nothing was changed"

Entity = dict[str, Any]
Configured = Callable[..., "ConfiguredBroker"]


def text_of(namespace: Entity) -> str:
    return json.dumps({"UserConfig": {"Namespaces": [namespace]}}, indent=1)


class ConfiguredBroker(ServedBroker):
    """A broker with a configuration file that tests rewrite."""

    def __init__(self, folder: Path, namespace: Entity, *arguments: str) -> None:
        self.file = folder / "config.json"
        self.write(namespace)
        super().__init__(folder, "--config", str(self.file), *arguments)

    def write(self, namespace: Entity) -> None:
        self.file.write_text(text_of(namespace))

    def reload(self, namespace: Entity, outcome: str = FOLLOWED) -> str:
        """Rewrite the file, send SIGHUP, and return the log line with the outcome."""
        self.write(namespace)
        before = self.log.count(outcome)
        self.process.send_signal(signal.SIGHUP)
        eventually(lambda: self.log.count(outcome) > before)
        return [line for line in self.log.splitlines() if outcome in line][-1]

    @property
    def client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.connection_string, retry_total=0)

    @property
    def administration(self) -> AdministrationClient:
        return AdministrationClient.from_connection_string(self.connection_string)

    def names(self, kind: Kind = Kind.QUEUE) -> list[str]:
        with self.administration as client:
            return [entity.name for entity in client.entities(kind)]

    def rules(self, topic: str, subscription: str) -> list[str]:
        with self.administration as client:
            return sorted(rule.name for rule in client.rules(topic, subscription))


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[Configured]:
    started: list[ConfiguredBroker] = []

    def start(namespace: Entity, *arguments: str) -> ConfiguredBroker:
        started.append(ConfiguredBroker(tmp_path, namespace, *arguments))
        return started[-1]

    yield start
    for broker in started:
        broker.stop()


def send(broker: ConfiguredBroker, entity: str, *bodies: str, **properties: Any) -> None:
    with broker.client as client, client.get_queue_sender(entity) as sender:
        sender.send_messages([ServiceBusMessage(body, **properties) for body in bodies])


def receive(broker: ConfiguredBroker, entity: str, subscription: str | None = None) -> list[Any]:
    """Receive all messages of an entity."""
    with broker.client as client:
        receiver = (
            client.get_queue_receiver(entity)
            if subscription is None
            else client.get_subscription_receiver(entity, subscription)
        )
        with receiver:
            number = len(receiver.peek_messages(max_message_count=10))
            messages: list[Any] = []
            while len(messages) < number:
                messages += receiver.receive_messages(max_message_count=number - len(messages), max_wait_time=10)
            for message in messages:
                receiver.complete_message(message)
            return messages


def sql_rule(name: str, expression: str) -> Entity:
    return {"Name": name, "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}}


# --- the sample ---


def test_the_emulators_sample_starts_and_works_through_the_sdk(configured: Configured, tmp_path: Path) -> None:
    broker = configured({})
    broker.stop()
    broker.file.write_text(SAMPLE.read_text("utf-8"))
    broker.start()
    send(broker, "queue.1", "hello")
    assert [str(message) for message in receive(broker, "queue.1")] == ["hello"]
    with broker.client as client, client.get_topic_sender("topic.1") as sender:
        sender.send_messages(
            [
                ServiceBusMessage("by property", application_properties={"prop1": "value1"}),
                ServiceBusMessage("by sql", message_id="123456", application_properties={"userProp1": "value1"}),
                ServiceBusMessage(
                    "by everything",
                    message_id="msgid1",
                    correlation_id="id1",
                    subject="subject1",
                    to="xyz",
                    reply_to="someQueue",
                    session_id="session1",
                    reply_to_session_id="sessionId",
                    content_type="application/text",
                ),
            ]
        )
    found = {name: receive(broker, "topic.1", f"subscription.{name}") for name in "1234"}
    assert {name: [str(message) for message in messages] for name, messages in found.items()} == {
        "1": ["by everything"],
        "2": ["by property"],
        "3": ["by property", "by sql", "by everything"],
        "4": ["by sql"],
    }
    assert found["4"][0].to == "Entity"
    assert found["3"][1].to is None


# --- SIGHUP ---


def test_sighup_adds_and_updates_and_deletes_nothing(configured: Configured) -> None:
    broker = configured({"Queues": [{"Name": "a"}, {"Name": "b"}]})
    send(broker, "a", "kept")
    line = broker.reload(
        {
            "Queues": [
                {"Name": "c", "Properties": {"ForwardTo": "d"}},
                {"Name": "d"},
                {"Name": "a", "Properties": {"MaxDeliveryCount": 7}},
            ],
            "Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [sql_rule("r", "price > 5")]}]}],
        }
    )
    assert line.endswith("created=4 updated=1 deleted=0")
    assert "queue created as configured entity=c" in broker.log
    assert "queue updated as configured entity=a" in broker.log
    assert "subscription created as configured entity=t/s" in broker.log
    assert broker.names() == ["a", "b", "c", "d"]
    with broker.administration as client:
        assert client.get(Kind.QUEUE, "a").settings["MaxDeliveryCount"] == 7
    assert [str(message) for message in receive(broker, "a")] == ["kept"]
    send(broker, "c", "forwarded")
    assert [str(message) for message in receive(broker, "d")] == ["forwarded"]
    with broker.client as client, client.get_topic_sender("t") as sender:
        for price in (1, 9):
            sender.send_messages(ServiceBusMessage(str(price), application_properties={"price": price}))
    assert [str(message) for message in receive(broker, "t", "s")] == ["9"]


def test_sighup_changes_the_rules_of_a_live_subscription(configured: Configured) -> None:
    def topic(*rules: Entity) -> Entity:
        return {"Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": list(rules)}]}]}

    broker = configured(topic())
    assert broker.rules("t", "s") == ["$Default"]
    broker.reload(topic(sql_rule("r", "price > 5")))
    assert broker.rules("t", "s") == ["r"]
    broker.reload(topic(sql_rule("r", "price > 6"), sql_rule("more", "price < 0")))
    assert broker.rules("t", "s") == ["more", "r"]
    with broker.administration as client:
        assert client.get_rule("t", "s", "r").expression == "price > 6"
    broker.reload(topic())
    assert broker.rules("t", "s") == ["more", "r"]


def test_a_start_changes_the_rules_of_a_subscription_that_is_there(configured: Configured) -> None:
    def restart(*rules: Entity) -> list[str]:
        broker.stop()
        broker.write({"Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": list(rules)}]}]})
        broker.start()
        return broker.rules("t", "s")

    broker = configured({})
    assert restart() == ["$Default"]
    assert restart(sql_rule("r", "price > 5")) == ["r"]
    assert restart(sql_rule("more", "price > 5")) == ["more", "r"]
    assert restart() == ["more", "r"]


def test_a_receiver_stays_connected_while_the_file_is_reloaded(configured: Configured) -> None:
    broker = configured({"Queues": [{"Name": "a"}]})
    with broker.client as client, client.get_queue_receiver("a", max_wait_time=10) as receiver:
        broker.reload({"Queues": [{"Name": "a", "Properties": {"MaxDeliveryCount": 5}}, {"Name": "b"}]})
        send(broker, "a", "after")
        assert [str(message) for message in receiver.receive_messages()] == ["after"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Colour": "red"}, r"config\.json:\d+: Namespaces\[0\].Colour: is not a known key"),
        ({"Topics": [{"Name": "no good"}]}, "no good must be letters"),
        ({"Topics": [{"Name": "A"}]}, "A: is the name of an existing queue"),
        ({"Name": "other"}, "other: must stay sbemulatorns: the name of a running namespace cannot change"),
        (
            {"Queues": [{"Name": "n"}, {"Name": "a", "Properties": {"RequiresSession": True}}]},
            "RequiresSession of 'a' true: cannot be changed once the entity exists",
        ),
    ],
)
def test_an_invalid_file_changes_nothing_and_the_broker_continues(
    configured: Configured, changes: Entity, reason: str
) -> None:
    broker = configured({"Queues": [{"Name": "a"}]})
    assert re.search(reason, broker.reload({"Queues": [{"Name": "n"}], **changes}, REFUSED))
    assert broker.log.count(REFUSED) == 1
    assert broker.names() == ["a"]
    send(broker, "a", "still here")
    assert [str(message) for message in receive(broker, "a")] == ["still here"]
    # And the next file is read as if nothing had been.
    broker.reload({"Queues": [{"Name": "b"}]})
    assert broker.names() == ["a", "b"]
    assert "Traceback" not in broker.log


def test_sighup_changes_the_keys_of_the_namespace(configured: Configured) -> None:
    broker = configured({"Queues": [{"Name": "a"}]})
    broker.reload(
        {
            "Queues": [{"Name": "a"}],
            "AuthorizationRules": [{"Name": "root", "Rights": ["Manage"], "PrimaryKey": "another"}],
        }
    )
    with pytest.raises(ServiceBusAuthenticationError):
        send(broker, "a", "with the old key")
    with pytest.raises(RequestRefused):
        broker.names()
    host = broker.connection_string.split(";")[0]
    broker.connection_string = f"{host};SharedAccessKeyName=root;SharedAccessKey=another;UseDevelopmentEmulator=true;"
    send(broker, "a", "with the new one")
    assert len(receive(broker, "a")) == 1
    assert "another" not in broker.log


def test_a_key_of_ones_own_is_in_no_output(tmp_path: Path) -> None:
    secret = "a-key-of-our-own"
    rules = [{"Name": "root", "Rights": ["Manage"], "PrimaryKey": secret, "SecondaryKey": secret + "-2"}]
    broker = ConfiguredBroker(tmp_path, {"Name": "ns", "AuthorizationRules": rules}, "--log-level", "debug")
    assert broker.connection_string.endswith(";SharedAccessKeyName=root;UseDevelopmentEmulator=true;")
    assert broker.process.stdout is not None
    assert broker.process.stdout.readline() == (
        f"The key of root is not printed: it is the PrimaryKey in {broker.file}.\n"
    )
    broker.connection_string = f"{broker.connection_string}SharedAccessKey={secret}"
    assert broker.names() == []
    broker.stop()
    assert secret not in broker.log


def test_sighup_opens_a_new_audit_log_that_has_the_changes_of_the_file(configured: Configured, tmp_path: Path) -> None:
    path, moved = tmp_path / "audit.jsonl", tmp_path / "audit.1"
    broker = configured({"Queues": [{"Name": "a"}]}, "--audit", str(path))
    with broker.administration as client:
        client.delete(Kind.QUEUE, "a")
    path.rename(moved)
    broker.reload({"Queues": [{"Name": "b"}]})
    broker.stop()
    (deleted,) = [json.loads(line) for line in moved.read_text().splitlines()]
    assert (deleted["action"], deleted["entity"], deleted["outcome"]) == ("delete queue", "a", "ok")
    created = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(each["connection"], each["action"], each["entity"]) for each in created] == [
        ("configuration", "create queue", "b")
    ]


def test_settings_of_the_server_in_the_file_apply(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    server = {"AllowedHosts": ["bus.internal"], "RequireTls": True, "Audit": "audit.jsonl", "MaxConnections": 7}
    path.write_text(json.dumps({"UserConfig": {"Namespaces": [{}], "Server": server}}))
    broker = ServedBroker(tmp_path, "--config", str(path))
    try:
        assert get(broker.port, "/health")[0] == 426
        assert get(broker.port, "/health", broker.authority, Host="bus.internal")[0] == 200
        assert get(broker.port, "/health", broker.authority, Host="bus.example")[0] == 403
        assert "requires TLS" in (tmp_path / "audit.jsonl").read_text()
    finally:
        broker.stop()


def test_a_file_with_keys_that_others_can_read_is_warned_of(configured: Configured) -> None:
    rules = [{"Name": "root", "Rights": ["Manage"], "PrimaryKey": "own"}]
    broker = configured({"Name": "ns", "AuthorizationRules": rules})
    assert "a file with keys can be read by other users" in broker.log
    assert f"file={broker.file} mode=0644" in broker.log


def test_a_broker_that_other_machines_can_reach_refuses_the_well_known_key_at_reload(configured: Configured) -> None:
    keys = [{"Name": "root", "Rights": ["Manage"], "PrimaryKey": "my-own"}]
    broker = configured({"AuthorizationRules": keys}, "--host", "0.0.0.0")
    assert "well-known default key" in broker.reload({"Queues": [{"Name": "n"}]}, REFUSED)
    broker.connection_string += "SharedAccessKey=my-own;"
    assert broker.names() == []


def test_without_a_file_sighup_is_only_noted(served: ServedBroker) -> None:
    served.process.send_signal(signal.SIGHUP)
    eventually(lambda: "there is no configuration file to reload" in served.log)
    assert health(served.port)[0] == 200


# --- pruning ---


def test_with_prune_sighup_deletes_entities_missing_in_the_file(configured: Configured) -> None:
    first = {
        "Queues": [{"Name": "a"}, {"Name": "b"}],
        "Topics": [{"Name": "t", "Subscriptions": [{"Name": "s"}, {"Name": "u"}]}, {"Name": "v"}],
    }
    broker = configured(first, "--prune")
    send(broker, "b", "goes with it")
    line = broker.reload({"Queues": [{"Name": "a"}], "Topics": [{"Name": "t", "Subscriptions": [{"Name": "s"}]}]})
    assert line.endswith("created=0 updated=0 deleted=3")
    assert (broker.names(), broker.names(Kind.TOPIC)) == (["a"], ["t"])
    with broker.administration as client:
        assert [each.name for each in client.entities(Kind.SUBSCRIPTION, topic="t")] == ["s"]
    broker.reload(first)
    assert receive(broker, "b") == []


def test_a_start_deletes_with_prune_only(configured: Configured, tmp_path: Path) -> None:
    broker = configured({"Queues": [{"Name": "a"}, {"Name": "b"}]})
    broker.stop()
    broker.write({"Queues": [{"Name": "a"}]})
    broker.start()
    assert broker.names() == ["a", "b"]
    broker.stop()
    again = configured({"Queues": [{"Name": "a"}]}, "--prune")
    assert again.names() == ["a"]


# --- the environment, and the emulator's place ---


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "peeklock", *arguments],
        cwd=folder,
        env=environment(folder, variables),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def environment(folder: Path, variables: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "XDG_STATE_HOME": str(folder / "state"), **variables}


def free_port() -> int:
    with socket.create_server((HOST, 0)) as taken:
        return int(taken.getsockname()[1])


class Started:
    """A broker that is configured by environment variables only."""

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "peeklock", "serve", *arguments],
            cwd=folder,
            env=environment(folder, variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.connection_string = self.process.stdout.readline().strip()

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)


def names(connection_string: str) -> list[str]:
    with AdministrationClient.from_connection_string(connection_string) as client:
        return [entity.name for entity in client.entities(Kind.QUEUE)]


def test_every_option_of_serve_can_be_given_in_the_environment(tmp_path: Path) -> None:
    said = run(tmp_path, "serve", "--help", COLUMNS="300").stdout
    options = set(re.findall(r"--([a-z-]+)", said)) - {"help"}
    assert {"config", "prune", "data", "memory", "host", "port", "profile", "emulator", "log-level"} <= options
    for option in options:
        assert f"PEEKLOCK_{option.upper().replace('-', '_')}" in said, option


def test_options_in_the_environment_count_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(text_of({"Queues": [{"Name": "mine"}]}))
    port, other = free_port(), free_port()
    variables = {"PEEKLOCK_CONFIG": "mine.json", "PEEKLOCK_DATA": "there", "PEEKLOCK_PORT": str(port)}
    with Started(tmp_path, **variables) as broker:
        assert f":{port};" in broker.connection_string
        assert names(broker.connection_string) == ["mine"]
        assert (tmp_path / "there").is_dir()
    with Started(tmp_path, "--port", str(other), **variables) as broker:
        assert f":{other};" in broker.connection_string


@pytest.mark.parametrize(
    ("arguments", "variables", "named"),
    [
        ((), {"PEEKLOCK_PORT": "high"}, "--port"),
        ((), {"PEEKLOCK_PROFILE": "gold"}, "gold"),
        (("--prune",), {}, "--prune requires --config"),
        (
            ("--emulator",),
            {"EMULATOR_HTTP_PORT": "http"},
            "EMULATOR_HTTP_PORT must be a port from 0 to 65535, not 'http'",
        ),
        (("--emulator",), {"CONFIG_PATH": "nowhere.json"}, "nowhere.json: the configuration file does not exist"),
        (("--emulator", "--memory", "--data", "there"), {}, "--memory and --data exclude each other"),
    ],
)
def test_invalid_arguments_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], variables: dict[str, str], named: str
) -> None:
    ended = run(tmp_path, "serve", *arguments, **variables)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("peeklock: ")
    assert named in line


def test_with_emulator_the_emulators_variables_ports_and_limits_apply(tmp_path: Path) -> None:
    (tmp_path / "Config.json").write_text(text_of({"Queues": [{"Name": "mine"}]}))
    second = free_port()
    variables = {
        "CONFIG_PATH": "Config.json",
        "EMULATOR_HTTP_PORT": str(second),
        "ACCEPT_EULA": "N",
        "SQL_SERVER": "nowhere",
        "MSSQL_SA_PASSWORD": "none",
        "SQL_WAIT_INTERVAL": "15",
    }
    with Started(tmp_path, "--emulator", "--port", "0", **variables) as broker:
        assert health(second)[0] == 200
        there = re.sub(r":\d+;", f":{second};", broker.connection_string, count=1)
        with AdministrationClient.from_connection_string(there) as client:
            (queue,) = client.entities(Kind.QUEUE)
            assert (queue.name, queue.settings["MaxDeliveryCount"]) == ("mine", 3)
            with pytest.raises(RequestRefused, match="in the emulator profile"):
                client.create(Kind.QUEUE, "slow", {"DefaultMessageTimeToLive": "P1D"})
    # Nothing is kept, unless a folder is named.
    assert not list(tmp_path.rglob("*.db"))


def test_other_options_win_over_emulator(tmp_path: Path) -> None:
    arguments = ("--emulator", "--port", "0", "--admin-port", "0", "--data", "there", "--profile", "standard")
    with Started(tmp_path, *arguments, EMULATOR_HTTP_PORT="1") as broker:
        assert names(broker.connection_string) == ["queue", "session-queue"]
        with AdministrationClient.from_connection_string(broker.connection_string) as client:
            client.create(Kind.QUEUE, "slow", {"DefaultMessageTimeToLive": "P1D"})
    assert list((tmp_path / "there").glob("*.db"))


def test_without_emulator_its_variables_mean_nothing(tmp_path: Path) -> None:
    with Started(tmp_path, "--memory", "--port", "0", CONFIG_PATH="nowhere.json", EMULATOR_HTTP_PORT="http") as broker:
        assert "queue" in names(broker.connection_string)
