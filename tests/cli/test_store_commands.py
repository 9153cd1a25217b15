"""Tests of `peeklock store`: inspect, check, repair, back up and restore a data folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue

from commands import SECONDS, Commands, environment, on_a_terminal
from peeklock.client.descriptions import Kind
from serving import ServedBroker

LONG = "a body that subscriptions share " * 100


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a broker that was stopped, with messages in every state."""
    broker = ServedBroker(tmp_path_factory.mktemp("store"))
    commands = Commands(broker)
    with commands.administration() as administration:
        administration.create(Kind.QUEUE, "plain")
        administration.create(Kind.QUEUE, "sessions", {"RequiresSession": True})
        administration.create(Kind.QUEUE, "once", {"RequiresDuplicateDetection": True})
        administration.create(Kind.QUEUE, "gone")
        administration.create(Kind.TOPIC, "events")
        for name in ("first", "second"):
            administration.create(Kind.SUBSCRIPTION, name, topic="events")
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        fill(client)
    with commands.administration() as administration:
        administration.delete(Kind.QUEUE, "gone")
    assert broker.stop() == 0
    return broker.data


def fill(client: ServiceBusClient) -> None:
    with client.get_queue_sender("plain") as sender:
        sender.send_messages([ServiceBusMessage(f"plain {number}") for number in range(10)])
        sender.schedule_messages(ServiceBusMessage("scheduled"), datetime.now(UTC) + timedelta(days=1))
        sender.send_messages(ServiceBusMessage("expires", time_to_live=timedelta(days=1)))
    with client.get_queue_receiver("plain") as receiver:
        first, second, third, fourth = receiver.receive_messages(max_message_count=4, max_wait_time=5)
        receiver.complete_message(first)
        receiver.defer_message(second)
        receiver.dead_letter_message(third, reason="bad", error_description="very " * 100)
        receiver.abandon_message(fourth)
    with client.get_queue_receiver("plain", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        assert receiver.peek_messages()
    with client.get_queue_sender("sessions") as sender:
        sender.send_messages(
            [ServiceBusMessage(f"of {number % 2}", session_id=f"s{number % 2}") for number in range(6)]
        )
    with client.get_queue_receiver("sessions", session_id=NEXT_AVAILABLE_SESSION) as receiver:
        receiver.session.set_state("state " * 50)
        (taken,) = receiver.receive_messages(max_message_count=1, max_wait_time=5)
        receiver.complete_message(taken)
    with client.get_queue_sender("once") as sender:
        for number in (1, 2, 2):
            sender.send_messages(ServiceBusMessage(f"once {number}", message_id=str(number)))
    with client.get_topic_sender("events") as sender:
        sender.send_messages([ServiceBusMessage(f"{LONG}{number}") for number in range(3)])
    with client.get_subscription_receiver("events", "first") as receiver:
        one, other = receiver.receive_messages(max_message_count=2, max_wait_time=5)
        receiver.complete_message(one)
        receiver.dead_letter_message(other)
    with client.get_queue_sender("gone") as sender:
        sender.send_messages([ServiceBusMessage("gone") for _ in range(20)])


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    copied = tmp_path / "data"
    shutil.copytree(made, copied)
    return copied


def run(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    """Run the command and return its standard output and standard error."""
    ended = subprocess.run(
        [sys.executable, "-m", "peeklock", "store", *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout, ended.stderr


def as_json(*arguments: str | Path, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code)[0])


def flip(folder: Path, content: bytes) -> None:
    (file,) = [file for file in folder.glob("log-*") if content in file.read_bytes()]
    changed = bytearray(file.read_bytes())
    changed[changed.index(content)] ^= 1
    file.write_bytes(changed)


def test_a_folder_with_messages_in_every_state_passes_the_check(data: Path) -> None:
    found = as_json("check", "--data", data)
    assert (found["sound"], found["findings"]) == (True, [])
    assert found["messages"] > 20
    output, notes = run("check", "--data", data)
    assert output == ""
    assert notes.endswith(f"{data} is undamaged.\n")


def test_a_folder_is_described_in_a_table_and_as_json(data: Path) -> None:
    found = as_json("info", "--data", data)
    counts = {each["path"]: (each["active"], each["deferred"], each["scheduled"]) for each in found["entities"]}
    assert counts["plain"] == (8, 1, 1)
    assert counts["plain/$DeadLetterQueue"] == (1, 0, 0)
    assert (found["version"], found["applied_commit"]) == (1, found["synced_commit"])
    output, _ = run("info", "--data", data)
    assert "plain" in output
    assert "log bytes" in output


def test_a_damaged_message_is_found_and_moved_to_a_file_and_the_broker_continues(data: Path, tmp_path: Path) -> None:
    flip(data, b"plain 5")
    (found,) = as_json("check", "--data", data, code=7)["findings"]
    assert (found["kind"], found["path"], found["sequence_number"]) == ("message", "plain", 6)
    output, notes = run("check", "--data", data, code=7)
    assert "plain" in output
    assert notes.endswith(f"peeklock: {data} is damaged: 1 finding\n")

    assert not as_json("repair", "--data", data, "--dry-run")["changed"]
    assert "--yes" in run("repair", "--data", data, code=2)[1]
    output, notes = run("repair", "--data", data, "--yes")
    assert "1 message and 0 commits were removed." in notes
    (file,) = data.glob("damaged-*.jsonl")
    assert str(file) in notes
    (row,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert (row["entity"], row["sequence_number"]) == ("plain", 6)
    assert b"lain 5" in b64decode(row["payload"])
    assert as_json("check", "--data", data)["sound"]
    assert not as_json("repair", "--data", data, "--yes")["changed"]

    broker = ServedBroker(tmp_path)
    assert set(Commands(broker).bodies("plain")) >= {"plain 4", "plain 6", "scheduled"}
    assert broker.stop() == 0


def test_a_damaged_body_is_reported_with_each_message_that_has_it(data: Path) -> None:
    flip(data, LONG.encode() + b"2")
    repaired = as_json("repair", "--data", data, "--yes")
    paths = [each["path"] for each in repaired["messages"]]
    assert sorted(paths) == ["events/Subscriptions/first", "events/Subscriptions/second"]
    assert as_json("check", "--data", data)["sound"]


def test_a_backup_is_made_while_the_broker_runs_and_is_restored_elsewhere(data: Path, tmp_path: Path) -> None:
    broker = ServedBroker(tmp_path)
    commands = Commands(broker)
    commands.ok("send", "plain", "the last one")
    made = as_json("backup", tmp_path / "backup", "--data", data)
    assert made["checked"]["sound"]
    held = f"The data folder {data} is in use by process {broker.process.pid}."
    for command in (("check",), ("repair", "--yes"), ("restore", str(tmp_path / "backup"), "--force")):
        assert held in run(*command, "--data", data, code=1)[1]
    bodies = commands.bodies("plain")
    assert broker.stop() == 0

    assert "exists and is not an empty folder" in run("backup", tmp_path / "backup", "--data", data, code=1)[1]
    assert "exists and is not an empty folder" in run("restore", tmp_path / "backup", "--data", data, code=1)[1]
    assert "through commit" in run("restore", tmp_path / "backup", "--data", tmp_path / "other" / "data")[1]
    other = ServedBroker(tmp_path / "other")
    assert Commands(other).bodies("plain") == bodies
    assert "the last one" in bodies
    assert other.stop() == 0

    restored = as_json("restore", tmp_path / "backup", "--data", data, "--force")
    assert restored["restored"]
    assert Path(restored["moved_to"], "peeklock.db").exists()
    assert as_json("check", "--data", data)["sound"]


def test_a_damaged_backup_is_reported_and_cannot_be_restored(data: Path, tmp_path: Path) -> None:
    flip(data, b"plain 5")
    assert "and so is the copy" in run("backup", tmp_path / "backup", "--data", data, code=7)[1]
    run("backup", tmp_path / "unchecked", "--data", data, "--no-verify")
    target = tmp_path / "target"
    assert "was not restored" in run("restore", tmp_path / "backup", "--data", target, code=7)[1]
    assert not as_json("restore", tmp_path / "unchecked", "--data", target, code=7)["restored"]
    assert not target.exists()
    run("repair", "--yes", "--data", tmp_path / "backup")
    run("restore", tmp_path / "backup", "--data", target)
    assert as_json("check", "--data", target)["sound"]


@pytest.mark.parametrize("command", [("info",), ("check",), ("repair", "--yes"), ("backup", "target")])
def test_a_folder_that_is_not_a_data_folder_is_refused_and_unchanged(tmp_path: Path, command: tuple[str, ...]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    words = [str(tmp_path / word) if word == "target" else word for word in command]
    assert f"{empty} is not a data folder" in run(*words, "--data", empty, code=1)[1]
    assert {file.name for file in empty.iterdir()} <= {"lock"}
    assert str(tmp_path / "absent") in run(*words, "--data", tmp_path / "absent", code=3)[1]
    assert {file.name for file in tmp_path.iterdir()} == {"empty"}


def test_bars_are_shown_on_a_terminal(data: Path) -> None:
    command = [sys.executable, "-m", "peeklock", "store", "check", "--data", str(data)]
    code, shown = on_a_terminal(command, environment())
    assert code == 0
    assert "Reading messages" in shown
    assert "is undamaged." in shown
