"""Tests of `peeklock send`: sources of messages, their properties, and batches."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from commands import Commands, on_a_terminal
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.types import Int, Timestamp
from peeklock.client.descriptions import Kind


def peeked(commands: Commands, address: str) -> list[Message]:
    with commands.connection() as connection, connection.management(address) as management:
        return management.peek(1, 1000)


def test_each_text_is_a_message(commands: Commands) -> None:
    queue = commands.queue()
    assert commands.ok("send", queue, "one", "two") == f"sent 2 messages to {queue}\n"
    assert commands.bodies(queue) == ["one", "two"]


def test_each_line_of_standard_input_is_a_message(commands: Commands) -> None:
    queue = commands.queue()
    assert commands.json("send", queue, "-", stdin="a\nb\r\n\nd") == {"sent": 4}
    assert commands.json("send", queue, "--stdin", stdin="e\n") == {"sent": 1}
    assert commands.bodies(queue) == ["a", "b", "", "d", "e"]


def test_standard_input_without_lines_is_nothing_to_send(commands: Commands) -> None:
    assert commands.json("send", commands.queue(), "-") == {"sent": 0}


def test_lines_are_sent_while_standard_input_is_open(commands: Commands) -> None:
    queue = commands.queue()
    process = subprocess.Popen(
        commands.command("send", queue, "-"),
        env=commands.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()
    with commands.connection() as connection, connection.receiver(queue) as receiver:
        (message,) = receiver.receive(timeout=10)
        assert message.body == b"first"
    out, _ = process.communicate(b"second\n", timeout=10)
    assert out == f"sent 2 messages to {queue}\n".encode()


def test_a_file_of_any_content_is_a_message(commands: Commands, tmp_path: Path) -> None:
    queue = commands.queue()
    (tmp_path / "a").write_bytes(b"\x00\xff\n")
    (tmp_path / "b").write_bytes(b"")
    commands.ok("send", queue, "--file", str(tmp_path / "a"), "--file", str(tmp_path / "b"))
    assert [message.data for message in peeked(commands, queue)] == [[b"\x00\xff\n"], [b""]]


def test_options_become_properties_of_the_message(commands: Commands) -> None:
    queue = commands.queue()
    options = {
        "subject": "greeting",
        "content-type": "text/plain",
        "message-id": "id-1",
        "correlation-id": "id-0",
        "reply-to": "answers",
        "to": "you",
        "session": "s",
        "partition-key": "s",
        "time-to-live": "5m",
    }
    commands.ok("send", queue, "hello", *(f"--{name}={value}" for name, value in options.items()))
    (message,) = peeked(commands, queue)
    assert message.header is not None
    assert message.header.ttl == 300_000
    properties = message.properties
    assert isinstance(properties, Properties)
    assert (properties.subject, properties.content_type) == ("greeting", "text/plain")
    assert (properties.message_id, properties.correlation_id) == ("id-1", "id-0")
    assert (properties.reply_to, properties.to, properties.group_id) == ("answers", "you", "s")
    assert (message.message_annotations or {})["x-opt-partition-key"] == "s"


def test_application_properties_have_types(commands: Commands) -> None:
    queue = commands.queue()
    given = {
        "plain": ("text=with=signs", "text=with=signs"),
        "a:int": ("-5", Int(-5)),
        "b:long": ("5", 5),
        "c:double": ("1.5", 1.5),
        "d:bool": ("true", True),
        "e:datetime": ("2030-01-01T00:00:00Z", Timestamp(1_893_456_000_000)),
        "f:guid": ("12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678")),
        "g:h:string": ("7", "7"),
    }
    commands.ok("send", queue, "x", *(f"--property={name}={text}" for name, (text, _) in given.items()))
    (message,) = peeked(commands, queue)
    found: dict[str, Any] = message.application_properties or {}
    expected = {name.rpartition(":")[0] or name: value for name, (_, value) in given.items()}
    assert found == expected
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in expected.items()
    }


def test_messages_without_an_id_get_one_each(commands: Commands) -> None:
    queue = commands.queue()
    commands.ok("send", queue, "a", "b")
    ids = {message.properties.message_id for message in peeked(commands, queue) if message.properties}
    assert len(ids) == 2


def test_everything_can_be_sent_many_times(commands: Commands) -> None:
    queue = commands.queue()
    assert commands.json("send", queue, "a", "b", "--count", "1500") == {"sent": 3000}
    assert commands.bodies(queue)[:3] == ["a", "b", "a"]
    with commands.administration() as client:
        assert client.get(Kind.QUEUE, queue).runtime["ActiveMessageCount"] == 3000


def test_messages_with_a_time_are_scheduled_and_their_numbers_printed(commands: Commands) -> None:
    queue = commands.queue()
    before = int(time.time() * 1000)
    numbers = [int(line) for line in commands.ok("send", queue, "a", "b", "--schedule", "+1h").splitlines()]
    assert commands.json("send", queue, "c", "--schedule", "2100-01-01T00:00:00Z") == {
        "sent": 1,
        "sequence_numbers": [max(numbers) + 1],
    }
    found = {int((m.message_annotations or {})["x-opt-sequence-number"]): m for m in peeked(commands, queue)}
    times = [int((found[number].message_annotations or {})["x-opt-scheduled-enqueue-time"]) for number in numbers]
    assert all(before + 3_600_000 <= each <= time.time() * 1000 + 3_600_000 for each in times)
    assert all((message.message_annotations or {})["x-opt-message-state"] == 2 for message in found.values())


def test_a_topic_is_sent_to_as_a_queue_is(commands: Commands) -> None:
    topic = commands.topic("one", "two")
    commands.ok("send", topic, "a", "b")
    assert commands.bodies(f"{topic}/Subscriptions/one") == commands.bodies(f"{topic}/Subscriptions/two") == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), ("nothing to send", "--file")),
        (("x", "--property", "novalue"), ("--property", "novalue")),
        (("x", "--property", "a:colour=red"), ("--property", "colour", "string")),
        (("x", "--property", "a:int=red"), ("--property", "red", "int")),
        (("x", "--property", "a:int=3000000000"), ("--property", "3000000000", "int")),
        (("x", "--property", "a:bool=1"), ("--property", "bool")),
        (("x", "--property", "a=1", "--property", "a=2"), ("--property", "'a' twice")),
        (("x", "--property", "a=1", "--property", "a:int=2"), ("--property", "a:int")),
        (("x", "--schedule", "tomorrow"), ("--schedule", "tomorrow")),
        (("x", "--schedule", "+soon"), ("--schedule", "soon")),
        (("x", "--time-to-live", "0s"), ("--time-to-live",)),
        (("x", "--time-to-live", "long"), ("--time-to-live", "long")),
        (("x", "--count", "0"), ("--count",)),
        (("-", "--count", "2"), ("--count", "standard input")),
        (("--file", "/nowhere/at/all"), ("/nowhere/at/all",)),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    commands: Commands, arguments: tuple[str, ...], named: tuple[str, ...]
) -> None:
    code, sentence = commands.refused("send", "queue", *arguments)
    assert code == 2
    for each in named:
        assert each in sentence


def test_a_refusal_is_reported_with_the_number_of_sent_messages(commands: Commands, tmp_path: Path) -> None:
    queue = commands.queue()
    (tmp_path / "large").write_bytes(bytes(300_000))
    ended = commands.run("send", queue, "small", "--file", str(tmp_path / "large"))
    assert ended.returncode == 1
    assert ended.stdout == b""
    told = ended.stderr.decode().splitlines()
    assert len(told) == 2
    assert "1 messages were sent" in told[0]
    assert "300" in told[1]
    assert commands.bodies(queue) == ["small"]


def test_messages_sent_before_an_interrupt_stay(commands: Commands) -> None:
    queue = commands.queue()
    process = subprocess.Popen(
        commands.command("send", queue, "-"), env=commands.environment(), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stderr is not None
    with commands.connection() as connection, connection.receiver(queue) as receiver:
        for line in (b"first\n", b"second\n"):  # which is sent when the broker has answered for the first
            process.stdin.write(line)
            process.stdin.flush()
            assert receiver.receive(timeout=10)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
    told = process.stderr.read().decode()
    process.stdin.close()
    process.stderr.close()
    assert re.fullmatch(r"peeklock: [12] messages were sent before the command stopped\n", told)


def test_long_work_shows_a_bar_on_a_terminal_and_nowhere_else(commands: Commands) -> None:
    queue = commands.queue()
    arguments = commands.command("send", queue, "x", "--count", "2000")
    code, shown = on_a_terminal(arguments, {**commands.environment(), "TERM": "xterm", "COLUMNS": "100"})
    assert code == 0
    assert "sending" in shown
    assert f"sent 2000 messages to {queue}" in shown
    assert commands.run("send", queue, "x", "--count", "2000").stderr == b""


def test_the_broker_is_not_loaded_to_send(commands: Commands) -> None:
    script = (
        "import sys\nfrom peeklock.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted(name for name in sys.modules if name in ('peeklock.server.broker', 'aiohttp', 'rich.console')))"
    )
    ended = subprocess.run(
        [commands.command()[0], "-c", script, "send", "queue", "x"],
        env=commands.environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.stdout.splitlines()[-1] == "[]", ended.stderr
