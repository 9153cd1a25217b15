"""Tests of what all commands share: connection options, errors and exit codes, help texts."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from commands import Commands, environment
from peeklock.cli.connecting import LOCAL, error_text, exit_code
from peeklock.cli.failing import Exit
from peeklock.cli.main import COMMANDS, GROUPS
from peeklock.client import ClientError, LinkClosed, RequestRefused, Timeout, parse_endpoint
from raw_client import HOST

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "features" / "command-line.md"


# --- where ---


def test_the_option_goes_before_the_environment(commands: Commands) -> None:
    nowhere = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    ended = commands.run(
        "send", "queue", "x", "--connection-string", commands.connection_string, PEEKLOCK_CONNECTION_STRING=nowhere
    )
    assert ended.returncode == 0
    assert commands.refused("send", "queue", "x", "--connection-string", nowhere)[0] == 6


def test_without_a_connection_string_a_broker_on_this_machine_is_meant() -> None:
    endpoint = parse_endpoint(LOCAL)
    assert (endpoint.host, endpoint.port, endpoint.tls) == ("localhost", 5672, False)
    assert (endpoint.key_name, endpoint.key) == ("RootManageSharedAccessKey", "SAS_KEY_VALUE")


def test_everything_works_over_tls_with_the_brokers_own_authority(commands: Commands) -> None:
    secure = commands.connection_string.replace("UseDevelopmentEmulator=true;", "")
    trusting = {"PEEKLOCK_CONNECTION_STRING": secure, "PEEKLOCK_CA_FILE": str(commands.broker.authority)}
    queue = commands.queue()
    assert commands.run("send", queue, "x", **trusting).returncode == 0
    assert commands.run("queue", "show", queue, **trusting).returncode == 0
    for command in (("send", queue, "x"), ("queue", "show", queue)):
        code, sentence = commands.refused(*command, PEEKLOCK_CONNECTION_STRING=secure)
        assert code == 6
        assert "certificate" in sentence


def test_a_key_that_only_sends_may_not_administer(commands: Commands) -> None:
    wrong = commands.connection_string.replace("SAS_KEY_VALUE", "another")
    for command in (("send", "queue", "x"), ("queue", "list"), ("watch", "--count", "1")):
        code, sentence = commands.refused(*command, PEEKLOCK_CONNECTION_STRING=wrong)
        assert code == 5
        assert "signature" in sentence


# --- how it fails ---


@pytest.mark.parametrize("command", [("send", "queue", "x"), ("queue", "list"), ("dead-letter", "list", "queue")])
def test_an_unreachable_service_is_reported(commands: Commands, command: tuple[str, ...]) -> None:
    nowhere = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    code, sentence = commands.refused(*command, PEEKLOCK_CONNECTION_STRING=nowhere)
    assert code == 6
    assert "127.0.0.1:1" in sentence


@pytest.mark.parametrize("command", [("send", "queue", "x"), ("queue", "list")])
def test_a_peer_that_is_not_a_service_bus_is_reported(commands: Commands, command: tuple[str, ...]) -> None:
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            stream, _ = server.accept()
            with stream:
                stream.recv(1000)
                stream.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        there = f"Endpoint=sb://{HOST}:{server.getsockname()[1]};SharedAccessKeyName=a;SharedAccessKey=b;"
        code, sentence = commands.refused(*command, PEEKLOCK_CONNECTION_STRING=f"{there}UseDevelopmentEmulator=true")
        thread.join()
    assert code == 6
    assert sentence


@pytest.mark.parametrize(
    ("connection_string", "named"),
    [
        ("nonsense", "connection string"),
        ("Endpoint=sb://h;Colour=blue", "Colour"),
        ("Endpoint=sb://h;SharedAccessKey=x", "SharedAccessKeyName"),
    ],
)
@pytest.mark.parametrize("command", [("peek", "queue"), ("topic", "list")])
def test_a_connection_string_with_a_mistake_is_refused(
    commands: Commands, command: tuple[str, ...], connection_string: str, named: str
) -> None:
    code, sentence = commands.refused(*command, PEEKLOCK_CONNECTION_STRING=connection_string)
    assert code == 2
    assert named in sentence


def test_an_authority_that_cannot_be_read_is_refused(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("not a certificate")
    for path in ("/nowhere.pem", str(tmp_path / "no.pem")):
        code, sentence = commands.refused("peek", "queue", "--ca-file", path)
        assert code == 2
        assert path in sentence


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("amqp:not-found", Exit.NOT_FOUND),
        ("com.microsoft:entity-already-exists", Exit.EXISTS),
        ("amqp:unauthorized-access", Exit.UNAUTHORIZED),
        ("amqp:resource-limit-exceeded", Exit.FAILED),
        ("com.microsoft:timeout", Exit.FAILED),
        ("com.example:unheard-of", Exit.FAILED),
    ],
)
def test_the_exit_code_follows_the_condition(condition: str, code: Exit) -> None:
    assert exit_code(LinkClosed(condition, "")) is code
    assert exit_code(RequestRefused(400, condition, "")) is code
    assert exit_code(Timeout("nothing came")) is Exit.UNREACHABLE


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ("There is no queue. TrackingId:1, SystemTracker:2, Timestamp:3", "There is no queue."),
        ("SubCode=40900. Conflict. It is there.", "It is there."),
        ("Two\n  lines", "Two lines"),
        ("A mistake\n  x =\n     ^", "A mistake\n  x =\n     ^"),
        ("\x1b[2J", "\\x1b[2J"),
        ("", "amqp:not-found"),
    ],
)
def test_people_read_what_is_for_them(description: str, said: str) -> None:
    assert error_text(ClientError("amqp:not-found", description)) == said


# --- what it says about itself ---


def peeklock(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "peeklock", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_help_names_every_command_and_the_exit_codes() -> None:
    shown = peeklock("--help").stdout
    for command in COMMANDS:
        assert f"\n  {command} " in shown
    for code in Exit:
        assert re.search(rf"\b{int(code)}\s", shown)


def test_the_documentation_has_every_command_and_every_exit_code() -> None:
    text = DOCUMENTATION.read_text()
    for command in COMMANDS:
        assert f"peeklock {command}" in text
    for code in Exit:
        assert f"| {int(code)} |" in text


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_a_group_without_a_command_shows_its_help(group: str) -> None:
    ended = peeklock(group)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Commands:" in ended.stdout


def test_the_example_in_the_documentation_works(commands: Commands) -> None:
    (example,) = re.findall(r"```sh\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    lines = [line for line in example.splitlines() if " serve " not in line]  # there is a broker already
    printed = [
        commands.ok(*shlex.split(line.removeprefix("peeklock "), comments=True)).splitlines()
        for line in lines
        if line.startswith("peeklock ")
    ]
    assert len(printed) == len(lines)
    created, sent, peeked, received, listed, resubmitted, all_received, deleted = printed
    assert created == ["created the queue orders"]
    assert sent == ["sent 2 messages to orders"]
    assert len(peeked) == 4
    assert any('{"id": 1}' in line for line in received)
    assert "NoCustomer" in listed[2]
    assert resubmitted == ["resubmitted 1 message to orders"]
    assert [json.loads(line)["body"] for line in all_received] == ['{"id": 2}', '{"id": 1}']
    assert deleted == ["deleted the queue orders"]


def test_it_runs_as_a_module_of_the_command_line_too() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "peeklock.cli.main", "version"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
