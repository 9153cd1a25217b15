"""Tests of `peeklock claim`: list claims, and release claims of clients that no longer run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest

from client.engine_server import EngineServer
from commands import Commands, on_a_terminal
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.types import Int
from peeklock.client.descriptions import Kind


def send(commands: Commands, address: str, *bodies: str, sessions: str | None = None) -> None:
    with commands.connection() as connection:
        sender = connection.sender(address)
        for at, body in enumerate(bodies):
            properties = Properties(group_id=None if sessions is None else sessions[at])
            sender.send(Message(properties=properties, data=[body.encode()]))


@contextmanager
def claimed(commands: Commands, address: str, name: str = "lake", count: int = 100, claims: int = 1) -> Iterator[UUID]:
    """Make claims with a connected owner, and yield the id of the last one."""
    owner = uuid4()
    with commands.connection() as connection, connection.management(address) as management:
        for _ in range(claims):
            id = uuid4()
            body: dict[str, Any] = {"claim-name": name, "claim-id": id, "owner": owner, "message-count": Int(count)}
            assert management.request("peeklock:claim-messages", body)
        yield id


def abandoned(commands: Commands, address: str, name: str = "lake", count: int = 100, claims: int = 1) -> UUID:
    """Make claims whose owner is no longer connected, and return the id of the last one."""
    with claimed(commands, address, name, count, claims) as id:
        return id


def listed(commands: Commands, *arguments: str) -> Any:
    return commands.json("claim", "list", *arguments)


def active(commands: Commands, queue: str) -> int:
    with commands.administration() as client:
        return int(client.get(Kind.QUEUE, queue).runtime["ActiveMessageCount"])


# --- list ---


def test_claims_are_listed_oldest_first_with_their_messages(commands: Commands) -> None:
    queue = commands.queue()
    send(commands, queue, "a", "b", "c")
    first, second = abandoned(commands, queue, "lake", 2), abandoned(commands, queue, "mart")
    lake, mart = listed(commands, queue)
    assert (lake["name"], lake["id"], lake["messages"], lake["ranges"]) == ("lake", str(first), 2, [[1, 2]])
    assert (mart["name"], mart["id"], mart["messages"], mart["ranges"]) == ("mart", str(second), 1, [[3, 3]])
    assert lake["bytes"] > mart["bytes"] > 0
    assert lake["since"] <= mart["since"]
    assert listed(commands, queue, "--name", "mart") == [mart]
    assert listed(commands, queue, "--name", "other") == []


def test_claimed_messages_are_counted_by_the_commands_for_entities(commands: Commands) -> None:
    queue = commands.queue()
    send(commands, queue, "a", "b", "c")
    before = commands.json("queue", "show", queue)
    assert "ClaimedMessageCount" not in before
    claim = abandoned(commands, queue, count=2)
    shown = commands.json("queue", "show", queue)
    counts = ("ActiveMessageCount", "ClaimedMessageCount", "MessageCount")
    assert [shown[name] for name in counts] == [1, 2, 3]
    assert "ClaimedMessageCount" in commands.ok("queue", "show", queue)
    header, _, *rows = commands.ok("queue", "list").splitlines()
    (row,) = (row.split() for row in rows if row.split()[0] == queue)
    assert (header.split()[-1], row[-1]) == ("Claimed", "2")
    (reading,) = commands.json_lines("watch", queue, "--count", "1")
    assert reading["entities"][0]["ClaimedMessageCount"] == 2
    assert "Claimed" in commands.ok("watch", queue, "--count", "1")
    commands.ok("claim", "release", queue, "--id", str(claim), "--yes")
    after = commands.json("queue", "show", queue)
    assert "ClaimedMessageCount" not in after
    assert after["ActiveMessageCount"] == 3


def test_a_connected_owner_is_shown(commands: Commands) -> None:
    queue = commands.queue()
    send(commands, queue, "a", "b")
    abandoned(commands, queue, "old", 1)
    with claimed(commands, queue, "new"):
        assert [(claim["name"], claim["owner_connected"]) for claim in listed(commands, queue)] == [
            ("old", False),
            ("new", True),
        ]


def test_the_table_shows_the_first_ranges(commands: Commands) -> None:
    queue = commands.queue()
    send(commands, queue, *"abcdefghij")
    with commands.connection() as connection, connection.receiver(queue, credit=0) as receiver:
        messages = receiver.receive(10, timeout=10)
        while len(messages) < 10:
            messages += receiver.receive(10 - len(messages), timeout=10)
        receiver.accept(messages[2::2], wait=True)
        receiver.release([*messages[:2], *messages[3::2]], wait=True)
    id = abandoned(commands, queue)
    header, _, row = commands.ok("claim", "list", queue).splitlines()
    assert header.split() == ["Name", "Id", "Since", "Age", "Messages", "Bytes", "Owner", "connected", "Where"]
    assert row.split()[:2] == ["lake", str(id)]
    assert row.rstrip().endswith("1-2, 4, 6, and 2 more")


def test_where_there_are_sessions_they_are_shown(commands: Commands) -> None:
    queue = commands.queue(RequiresSession=True)
    send(commands, queue, *"abcdef", sessions="xyxvwx")
    abandoned(commands, queue)
    (claim,) = listed(commands, queue)
    assert "ranges" not in claim
    assert {each["session_id"]: each["ranges"] for each in claim["sessions"]} == {
        "x": [[1, 1], [3, 3], [6, 6]],
        "y": [[2, 2]],
        "v": [[4, 4]],
        "w": [[5, 5]],
    }
    shown = commands.ok("claim", "list", queue)
    assert "sessions " in shown
    assert "and 1 more" in shown


def test_more_claims_than_one_answer_has_are_all_listed(commands: Commands) -> None:
    queue = commands.queue()
    send(commands, queue, *(str(number) for number in range(120)))
    abandoned(commands, queue, count=1, claims=120)
    assert [claim["ranges"] for claim in listed(commands, queue)] == [[[each, each]] for each in range(1, 121)]


def test_claims_of_dead_letters_and_of_subscriptions_are_found(commands: Commands) -> None:
    topic = commands.topic("audit")
    send(commands, topic, "a")
    subscription = f"{topic}/Subscriptions/audit"
    with commands.connection() as connection, connection.receiver(subscription, credit=0) as receiver:
        receiver.reject(receiver.receive(1, timeout=10), "com.microsoft:dead-letter", wait=True)
    send(commands, topic, "b")
    dead, alive = abandoned(commands, f"{subscription}/$DeadLetterQueue"), abandoned(commands, subscription)
    assert [claim["id"] for claim in listed(commands, topic, "--subscription", "audit")] == [str(alive)]
    assert [claim["id"] for claim in listed(commands, subscription, "--dead-letter")] == [str(dead)]


def test_an_entity_without_claims_is_no_failure(commands: Commands) -> None:
    ended = commands.run("claim", "list", commands.queue())
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"no claims\n")


# --- release ---


def test_a_released_claims_messages_can_be_received(commands: Commands) -> None:
    queue = commands.queue()
    send(commands, queue, "a", "b", "c")
    first, second = abandoned(commands, queue, count=2), abandoned(commands, queue)
    assert active(commands, queue) == 0
    shown = commands.ok("claim", "release", queue, "--id", str(first), "--yes")
    assert shown == f"released 1 claim with 2 messages of {queue}\n"
    assert [claim["id"] for claim in listed(commands, queue)] == [str(second)]
    assert commands.ok("receive", queue, "--max", "0", "--wait", "1", "--body-only").split() == ["a", "b"]


def test_all_claims_of_a_name_or_all_are_released(commands: Commands) -> None:
    queue = commands.queue()
    send(commands, queue, *"abcdef")
    abandoned(commands, queue, "lake", 2, claims=2)
    abandoned(commands, queue, "mart", 2)
    assert commands.json("claim", "release", queue, "--name", "lake", "--yes") == {"claims": 2, "messages": 4}
    assert active(commands, queue) == 4
    assert commands.json("claim", "release", queue, "--all", "--yes") == {"claims": 1, "messages": 2}
    assert active(commands, queue) == 6
    assert commands.json("claim", "release", queue, "--all", "--yes") == {"claims": 0, "messages": 0}


def test_releasing_a_claim_of_a_connected_owner_prints_a_warning(commands: Commands) -> None:
    queue = commands.queue()
    send(commands, queue, "a")
    with claimed(commands, queue):
        ended = commands.run("claim", "release", queue, "--all", "--yes")
        assert ended.returncode == 0
        assert b"the client that claims under 'lake' is connected" in ended.stderr
    assert active(commands, queue) == 1
    abandoned(commands, queue)
    assert commands.run("claim", "release", queue, "--all", "--yes").stderr == b""


@pytest.mark.parametrize(("typed", "back"), [("y\n", 1), ("n\n", 0)])
def test_on_a_terminal_a_release_must_be_confirmed(commands: Commands, typed: str, back: int) -> None:
    queue = commands.queue()
    send(commands, queue, "a")
    id = abandoned(commands, queue)
    arguments = ("claim", "release", queue, "--all")
    code, shown = on_a_terminal(commands.command(*arguments), commands.environment(COLUMNS="200"), typed)
    assert f"Release the claim {id} with the name 'lake' in {queue}, with 1 message? [y/N]" in shown
    assert code == (0 if back else 1)
    assert active(commands, queue) == back


def test_without_a_terminal_nothing_is_released(commands: Commands) -> None:
    queue = commands.queue()
    send(commands, queue, "a")
    abandoned(commands, queue)
    code, sentence = commands.refused("claim", "release", queue, "--all")
    assert code == 2
    assert "--yes" in sentence
    assert active(commands, queue) == 0


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        ((), 2, "--id, --name and --all"),
        (("--all", "--name", "lake"), 2, "--id, --name and --all"),
        (("--id", "seven"), 2, "seven"),
        (("--id", str(UUID(int=7))), 3, str(UUID(int=7))),
        (("--name", "lake"), 3, "lake"),
    ],
)
def test_invalid_choices_of_claims_are_refused(
    commands: Commands, options: tuple[str, ...], code: int, named: str
) -> None:
    refused, sentence = commands.refused("claim", "release", commands.queue(), *options, "--yes")
    assert refused == code
    assert named in sentence


@pytest.mark.parametrize("command", [("list", "nowhere"), ("release", "nowhere", "--all", "--yes")])
def test_an_entity_that_is_not_there_has_no_claims(commands: Commands, command: tuple[str, ...]) -> None:
    code, sentence = commands.refused("claim", *command)
    assert code == 3
    assert "nowhere" in sentence


@pytest.mark.parametrize("command", [("list", "queue"), ("release", "queue", "--all", "--yes")])
def test_a_service_without_claims_is_reported(commands: Commands, command: tuple[str, ...]) -> None:
    with EngineServer() as server:
        there = f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessKeyName=a;SharedAccessKey=b;"
        there += "UseDevelopmentEmulator=true"
        code, sentence = commands.refused("claim", *command, PEEKLOCK_CONNECTION_STRING=there)
    assert code == 1
    assert sentence == "127.0.0.1 does not offer claims; only Peeklock does"
