"""Tests of `peeklock receive` and `peeklock peek`: the output, and the settlement of messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from commands import Commands
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.types import Symbol
from peeklock.client import Array
from peeklock.client.descriptions import Kind
from raw_client import eventually

QUICK = ("--wait", "0.2")


def sent(commands: Commands, *messages: str | Message, to: str | None = None, **settings: bool | int | str) -> str:
    """Send messages to a new queue, or to the given one, and return its name."""
    queue = to or commands.queue(**settings)
    with commands.connection() as connection, connection.sender(queue) as sender:
        for message in messages:
            sender.send(Message(data=[message.encode()]) if isinstance(message, str) else message)
    return queue


def counts(commands: Commands, queue: str) -> tuple[int, int]:
    """Return the numbers of active and dead-lettered messages."""
    with commands.administration() as client:
        runtime = client.get(Kind.QUEUE, queue).runtime
    return int(runtime["ActiveMessageCount"]), int(runtime["DeadLetterMessageCount"])


# --- receive ---


def test_a_message_is_printed_whole_and_completed(commands: Commands) -> None:
    message = Message(
        properties=Properties(message_id="id-1", subject="greeting"),
        application_properties={"colour": "blue"},
        data=[b"hello\nworld"],
    )
    queue = sent(commands, message, "the next")
    shown = commands.ok("receive", queue)
    lines = dict(line.split("  ", 1) for line in shown.splitlines() if "  " in line)
    found = {name.strip(): value.strip() for name, value in lines.items()}
    assert found["message id"] == "id-1"
    assert found["subject"] == "greeting"
    assert found["property colour"] == "blue"
    assert found["body"] == "hello"
    assert "world" in shown
    assert commands.bodies(queue) == ["the next"]


def test_json_is_an_object_a_line(commands: Commands) -> None:
    properties = Properties(message_id="id-1", subject="s", content_type="text/plain", group_id="session")
    message = Message(properties=properties, application_properties={"n": 5, "b": b"\xff"}, data=["ü".encode()])
    queue = sent(commands, message, Message(data=[b"\xff\x00"]), Message(value={"a": [1, None, True]}))
    first, second, third = commands.json_lines("receive", queue, "--max", "3")
    assert first["sequence_number"] == 1
    assert (first["message_id"], first["subject"], first["session_id"]) == ("id-1", "s", "session")
    assert first["properties"] == {"n": 5, "b": "/w=="}
    assert (first["body_type"], first["body"]) == ("data", "ü")
    assert first["delivery_count"] == 0
    assert first["enqueued_at"].endswith("Z")
    assert "body" not in second
    assert second["body_base64"] == "/wA="
    assert (third["body_type"], third["body"]) == ("value", {"a": [1, None, True]})


def test_bodies_alone_are_printed_as_they_are(commands: Commands) -> None:
    queue = sent(commands, Message(data=[b"\xff\x00"]), "text", Message(value="value"))
    ended = commands.run("receive", queue, "--max", "0", "--body-only", *QUICK)
    assert ended.stdout == b"\xff\x00\ntext\nvalue\n"


def test_control_characters_are_printed_escaped(commands: Commands) -> None:
    queue = sent(commands, "\x1b[2Jgone")
    assert "\\x1b[2Jgone" in commands.ok("receive", queue)


def test_at_most_the_requested_number_is_received(commands: Commands) -> None:
    queue = sent(commands, *(str(number) for number in range(250)))
    assert commands.ok("receive", queue, "--max", "230", "--body-only").split() == [str(n) for n in range(230)]
    assert counts(commands, queue) == (20, 0)
    # Nothing is left locked.
    assert commands.ok("receive", queue, "--max", "20", "--body-only").split() == [str(n) for n in range(230, 250)]


def test_nothing_to_receive_is_no_failure(commands: Commands) -> None:
    ended = commands.run("receive", commands.queue(), *QUICK)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"no messages\n")


def test_abandoned_messages_are_printed_once_and_stay(commands: Commands) -> None:
    queue = sent(commands, "a", "b", MaxDeliveryCount=3)
    assert commands.ok("receive", queue, "--max", "0", "--settle", "abandon", "--body-only", *QUICK) == "a\nb\n"
    assert [each["delivery_count"] for each in commands.json_lines("peek", queue)] == [1, 1]


def test_messages_can_be_dead_lettered_with_a_reason(commands: Commands) -> None:
    queue = sent(commands, "a")
    commands.ok("receive", queue, "--settle", "dead-letter", "--reason", "Bad", "--description", "no good")
    assert counts(commands, queue) == (0, 1)
    (found,) = commands.json_lines("receive", queue, "--dead-letter")
    assert (found["dead_letter_reason"], found["dead_letter_description"]) == ("Bad", "no good")
    assert "properties" not in found
    assert counts(commands, queue) == (0, 0)


def test_messages_can_be_deferred(commands: Commands) -> None:
    queue = sent(commands, "a")
    number = commands.json("receive", queue, "--settle", "defer")["sequence_number"]
    assert commands.json("peek", queue)["state"] == "deferred"
    with commands.connection() as connection, connection.management(queue) as management:
        body = {"sequence-numbers": Array([number], int), "receiver-settle-mode": 0}
        assert len(management.request("receive-by-sequence-number", body)["messages"]) == 1


def test_receive_and_delete_leaves_nothing_to_settle(commands: Commands) -> None:
    queue = sent(commands, "a", "b")
    assert commands.ok("receive", queue, "--delete-mode", "--body-only") == "a\n"
    assert commands.bodies(queue) == ["b"]


def test_a_subscription_is_named_in_two_ways(commands: Commands) -> None:
    topic = commands.topic("mine")
    sent(commands, "a", "b", to=topic)
    assert commands.ok("receive", topic, "--subscription", "mine", "--body-only") == "a\n"
    assert commands.ok("receive", f"{topic}/subscriptions/MINE", "--body-only") == "b\n"


# --- sessions ---


def in_session(id: str, body: str) -> Message:
    return Message(properties=Properties(group_id=id), data=[body.encode()])


def test_one_session_is_received(commands: Commands) -> None:
    queue = sent(commands, in_session("a", "a1"), in_session("b", "b1"), in_session("a", "a2"), RequiresSession=True)
    arguments = ("--max", "0", "--body-only", *QUICK)
    assert commands.ok("receive", queue, "--session", "b", *arguments) == "b1\n"
    assert commands.ok("receive", queue, "--session", "next", *arguments) == "a1\na2\n"
    ended = commands.run("receive", queue, "--session", "next", *QUICK)
    assert (ended.returncode, ended.stderr) == (0, b"no session has messages\n")


def test_a_queue_with_sessions_needs_one_to_be_named(commands: Commands) -> None:
    code, sentence = commands.refused("receive", commands.queue(RequiresSession=True))
    assert code == 1
    assert "session" in sentence


def test_a_session_that_another_holds_is_refused(commands: Commands) -> None:
    queue = sent(commands, in_session("a", "1"), RequiresSession=True)
    with commands.connection() as connection, connection.session_receiver(queue, "a"):
        code, sentence = commands.refused("receive", queue, "--session", "a", *QUICK)
    assert code == 1
    assert "session" in sentence


# --- nothing is lost ---


def held_open(commands: Commands, *arguments: str, stdout: Any = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        commands.command("receive", *arguments), env=commands.environment(), stdout=stdout, stderr=subprocess.PIPE
    )


def test_an_interrupt_releases_unsettled_messages(commands: Commands) -> None:
    queue = sent(commands, "a", "b")
    process = held_open(commands, queue, "--max", "3", "--settle", "abandon", "--wait", "60", "--json")
    assert process.stdout is not None
    assert [json.loads(process.stdout.readline())["body"] for _ in range(2)] == ["a", "b"]
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=10)
    assert (process.returncode, told) == (130, b"")
    # Given back, not abandoned: uncounted, and at once.
    with commands.connection() as connection, connection.receiver(queue, credit=0) as receiver:
        messages = receiver.receive(2, timeout=5)
        assert [message.body for message in messages] == [b"a", b"b"]
        assert all(message.message.header and message.message.header.delivery_count == 0 for message in messages)


def test_messages_stay_when_the_output_is_closed(commands: Commands) -> None:
    queue = sent(commands, *("x" * 2000 for _ in range(100)))
    read, write = os.pipe()
    process = held_open(commands, queue, "--max", "0", "--json", stdout=write)
    os.close(write)
    assert os.read(read, 1)
    os.close(read)
    _, told = process.communicate(timeout=10)
    assert process.returncode == 1
    assert b"Traceback" not in told
    eventually(lambda: counts(commands, queue) == (100, 0))
    assert len(commands.ok("receive", queue, "--max", "100", "--body-only").splitlines()) == 100


# --- peek ---


def test_peeking_prints_one_row_for_each_message_and_locks_nothing(commands: Commands) -> None:
    queue = sent(commands, *("long " * 50 + str(number) for number in range(3)))
    header, _, *rows = commands.ok("peek", queue).splitlines()
    assert header.split() == [
        "Number",
        "State",
        "Enqueued",
        "Message",
        "id",
        "Session",
        "Subject",
        "Deliveries",
        "Body",
    ]
    assert [row.split()[:2] for row in rows] == [["1", "active"], ["2", "active"], ["3", "active"]]
    assert all("…" in row for row in rows)
    assert len(commands.ok("receive", queue, "--max", "3", "--body-only").splitlines()) == 3


def test_peeking_respects_its_first_number_and_count(commands: Commands) -> None:
    queue = sent(commands, *(str(number) for number in range(1, 251)))
    found = commands.json_lines("peek", queue, "--from", "200", "--max", "2")
    assert [each["body"] for each in found] == ["200", "201"]
    assert [each["sequence_number"] for each in commands.json_lines("peek", queue, "--max", "0")] == list(range(1, 251))
    assert len(commands.json_lines("peek", queue)) == 20


def test_peeking_can_be_for_one_session(commands: Commands) -> None:
    queue = sent(commands, in_session("a", "a1"), in_session("b", "b1"), RequiresSession=True)
    assert commands.json("peek", queue, "--session", "b")["body"] == "b1"


def test_nothing_to_peek_is_no_failure(commands: Commands) -> None:
    ended = commands.run("peek", commands.queue(), "--dead-letter")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"no messages\n")


def test_annotations_of_others_do_no_harm(commands: Commands) -> None:
    message = Message(message_annotations={Symbol("x-opt-mine"): 1}, data=[b"a"], application_properties={})
    assert commands.json("peek", sent(commands, message))["body"] == "a"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("receive", "queue", "--settle", "burn"), ("--settle", "burn", "complete")),
        (("receive", "queue", "--json", "--body-only"), ("--json", "--body-only")),
        (("receive", "queue", "--delete-mode", "--settle", "defer"), ("--delete-mode", "--settle")),
        (("receive", "queue", "--reason", "x"), ("--reason", "dead-letter")),
        (("receive", "queue", "--max", "-1"), ("--max",)),
        (("receive",), ("entity",)),
        (("peek", "queue", "--from", "x"), ("--from",)),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    commands: Commands, arguments: tuple[str, ...], named: tuple[str, ...]
) -> None:
    code, sentence = commands.refused(*arguments)
    assert code == 2
    for each in named:
        assert each in sentence.lower()
