"""Tests of `peeklock watch`: message counts at an interval."""

from __future__ import annotations

import json
import signal
import subprocess

from commands import Commands, on_a_terminal
from peeklock.amqp.message import Message


def test_all_queues_and_subscriptions_are_shown(commands: Commands) -> None:
    queue, topic = commands.queue(), commands.topic("one")
    header, _, *rows = commands.ok("watch", "--count", "1").splitlines()
    assert header.split()[:3] == ["Entity", "Active", "Dead-letter"]
    assert {row.split()[0] for row in rows} >= {queue, f"{topic}/Subscriptions/one"}


def test_only_the_named_entities_are_shown(commands: Commands) -> None:
    queue, topic, other = commands.queue(), commands.topic("one", "two"), commands.topic("one", "two")
    found = commands.json("watch", queue, topic, f"{other}/Subscriptions/two", "--count", "1")
    assert [each["entity"] for each in found["entities"]] == [
        queue,
        f"{topic}/Subscriptions/one",
        f"{topic}/Subscriptions/two",
        f"{other}/Subscriptions/two",
    ]


def test_json_is_a_line_each_time_with_the_counts_of_then(commands: Commands) -> None:
    queue = commands.queue()
    process = subprocess.Popen(
        commands.command("watch", queue, "--json", "--interval", "0.1"),
        env=commands.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert first["entities"][0]["ActiveMessageCount"] == 0
    with commands.connection() as connection:
        connection.sender(queue).send(Message(data=[b"x"]))
    while json.loads(process.stdout.readline())["entities"][0]["ActiveMessageCount"] != 1:
        pass
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=10)
    assert (process.returncode, told) == (130, b"")


def test_the_table_is_updated_at_the_given_interval(commands: Commands) -> None:
    assert len(commands.json_lines("watch", commands.queue(), "--count", "3", "--interval", "0.1")) == 3


def test_on_a_terminal_the_table_is_updated_in_place(commands: Commands) -> None:
    queue = commands.queue()
    arguments = commands.command("watch", queue, "--count", "2", "--interval", "0.1")
    code, shown = on_a_terminal(arguments, {**commands.environment(), "TERM": "xterm", "COLUMNS": "120"})
    assert code == 0
    assert queue in shown
    assert "\x1b[1A" in shown  # back up to where the first one began


def test_an_unknown_entity_is_not_found(commands: Commands) -> None:
    code, sentence = commands.refused("watch", "nowhere", "--count", "1")
    assert code == 3
    assert "nowhere" in sentence
