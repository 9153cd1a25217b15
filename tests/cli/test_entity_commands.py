"""Tests of `peeklock queue`, `topic` and `subscription`: all commands with their tables, JSON and errors."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest

from commands import Commands, on_a_terminal
from peeklock.amqp.message import Message
from peeklock.client.descriptions import SETTINGS, Kind

MAX = "P10675199DT2H48M5.4775807S"


def new_name() -> str:
    return f"entity-{uuid4().hex[:8]}"


def options(settings: dict[str, str]) -> list[str]:
    """Return the options for settings, named after the settings."""
    found = []
    for name, value in settings.items():
        flag = re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
        if value in ("true", "false"):
            found.append(f"--{flag}" if value == "true" else f"--no-{flag}")
        else:
            found += [f"--{flag}", value]
    return found


QUEUE = {
    "LockDuration": "30s",
    "MaxSizeInMegabytes": "2048",
    "RequiresDuplicateDetection": "true",
    "RequiresSession": "true",
    "DefaultMessageTimeToLive": "14d",
    "DeadLetteringOnMessageExpiration": "true",
    "DuplicateDetectionHistoryTimeWindow": "PT5M",
    "MaxDeliveryCount": "7",
    "EnableBatchedOperations": "false",
    "Status": "SendDisabled",
    "UserMetadata": "ours",
    "AutoDeleteOnIdle": "1h30m",
    "ForwardDeadLetteredMessagesTo": "queue",
}
QUEUE_FOUND = {
    **QUEUE,
    "LockDuration": "PT30S",
    "MaxSizeInMegabytes": 2048,
    "DefaultMessageTimeToLive": "P14D",
    "MaxDeliveryCount": 7,
    "AutoDeleteOnIdle": "PT1H30M",
    **{name: value == "true" for name, value in QUEUE.items() if value in ("true", "false")},
}


# --- queues ---


def test_a_queue_is_created_with_the_settings_that_are_given(commands: Commands) -> None:
    name = new_name()
    made = commands.json("queue", "create", name, *options(QUEUE))
    assert made["Name"] == name
    assert {setting: made[setting] for setting in QUEUE_FOUND} == QUEUE_FOUND
    shown = commands.json("queue", "show", name)
    # AccessedAt is a difference of two clocks, each read in whole milliseconds.
    assert {**shown, "AccessedAt": made["AccessedAt"]} == made


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_an_entity_that_orders_by_priority_is_created(commands: Commands, kind: str) -> None:
    name = new_name()
    assert commands.json(kind, "create", name, "--order-by-priority")["OrderByPriority"] is True
    assert "--order-by-priority" not in commands.ok(kind, "update", "--help")


def test_a_queue_without_settings_has_the_services_defaults(commands: Commands) -> None:
    name = new_name()
    assert commands.ok("queue", "create", name) == f"created the queue {name}\n"
    found = commands.json("queue", "show", name)
    assert (found["LockDuration"], found["MaxDeliveryCount"], found["RequiresSession"]) == ("PT1M", 10, False)
    assert found["DefaultMessageTimeToLive"] == MAX
    assert "ForwardTo" not in found
    assert found["ActiveMessageCount"] == 0
    assert found["CreatedAt"] == found["UpdatedAt"]


def test_a_queue_is_shown_to_people_line_by_line(commands: Commands) -> None:
    queue = commands.queue(MaxDeliveryCount=4)
    lines = dict(line.split(maxsplit=1) for line in commands.ok("queue", "show", queue).splitlines())
    assert lines["Name"].strip() == queue
    assert lines["MaxDeliveryCount"].strip() == "4"
    assert lines["RequiresSession"].strip() == "false"


def test_queues_are_listed_with_their_counts(commands: Commands) -> None:
    queue = commands.queue()
    with commands.connection() as connection, connection.sender(queue) as sender:
        sender.send_all(Message(data=[b"x"]) for _ in range(3))
    header, _, *rows = commands.ok("queue", "list").splitlines()
    assert header.split()[:4] == ["Name", "Status", "Active", "Dead-letter"]
    (row,) = [row.split() for row in rows if row.startswith(queue)]
    assert row[:4] == [queue, "Active", "3", "0"]
    (found,) = [each for each in commands.json("queue", "list") if each["Name"] == queue]
    assert (found["ActiveMessageCount"], found["Status"]) == (3, "Active")


def test_only_the_given_settings_are_updated(commands: Commands) -> None:
    name, other = new_name(), commands.queue()
    before = commands.json("queue", "create", name, "--max-delivery-count", "7", "--user-metadata", "ours")
    assert commands.ok("queue", "update", name, "--lock-duration", "45s", "--forward-to", other).startswith("updated")
    after = commands.json("queue", "show", name)
    assert (after.pop("LockDuration"), after.pop("ForwardTo")) == ("PT45S", other)
    changing = {"LockDuration", "UpdatedAt", "AccessedAt"}
    assert {k: v for k, v in after.items() if k not in changing} == {
        k: v for k, v in before.items() if k not in changing
    }


def test_an_empty_destination_ends_forwarding(commands: Commands) -> None:
    name = commands.queue(ForwardTo=commands.queue())
    assert "ForwardTo" not in commands.json("queue", "update", name, "--forward-to", "")


def test_no_limit_can_be_said(commands: Commands) -> None:
    name = commands.queue(DefaultMessageTimeToLive="PT1H")
    assert (
        commands.json("queue", "update", name, "--default-message-time-to-live", "max")["DefaultMessageTimeToLive"]
        == MAX
    )


def test_a_queue_is_deleted_with_its_messages(commands: Commands) -> None:
    queue = commands.queue()
    assert commands.ok("queue", "delete", queue, "--yes") == f"deleted the queue {queue}\n"
    code, sentence = commands.refused("queue", "show", queue)
    assert code == 3
    assert queue in sentence


def test_deleting_must_be_confirmed_on_a_terminal_and_is_refused_elsewhere(commands: Commands) -> None:
    queue = commands.queue()
    code, sentence = commands.refused("queue", "delete", queue)
    assert code == 2
    assert "--yes" in sentence
    code, shown = on_a_terminal(commands.command("queue", "delete", queue), commands.environment(), "n\n")
    assert code == 1
    assert f"Delete the queue {queue} with all its messages?" in shown
    code, shown = on_a_terminal(commands.command("queue", "delete", queue), commands.environment(), "y\n")
    assert code == 0
    assert commands.refused("queue", "show", queue)[0] == 3


# --- topics and subscriptions ---


def test_a_topic_is_created_shown_updated_and_deleted(commands: Commands) -> None:
    name = new_name()
    settings = {"MaxSizeInMegabytes": "2048", "RequiresDuplicateDetection": "true", "UserMetadata": "ours"}
    made = commands.json("topic", "create", name, *options(settings))
    assert (made["MaxSizeInMegabytes"], made["RequiresDuplicateDetection"]) == (2048, True)
    commands.ok("subscription", "create", name, "one")
    assert commands.json("topic", "show", name)["SubscriptionCount"] == 1
    assert commands.json("topic", "update", name, "--status", "Disabled")["Status"] == "Disabled"
    header, _, *rows = commands.ok("topic", "list").splitlines()
    assert header.split() == ["Name", "Status", "Subscriptions", "Scheduled", "Bytes"]
    assert [name, "Disabled", "1"] in [row.split()[:3] for row in rows]
    commands.ok("topic", "delete", name, "--yes")
    assert commands.refused("topic", "show", name)[0] == 3
    assert commands.refused("subscription", "show", name, "one")[0] == 3


def test_a_subscription_is_created_shown_updated_and_deleted(commands: Commands) -> None:
    topic = commands.topic()
    settings = {"LockDuration": "1m30s", "DeadLetteringOnFilterEvaluationExceptions": "false", "MaxDeliveryCount": "3"}
    made = commands.json("subscription", "create", topic, "mine", *options(settings))
    assert (made["Name"], made["Topic"]) == ("mine", topic)
    assert (made["LockDuration"], made["DeadLetteringOnFilterEvaluationExceptions"]) == ("PT1M30S", False)
    assert commands.json("subscription", "show", topic, "mine")["MaxDeliveryCount"] == 3
    assert commands.json("subscription", "update", topic, "mine", "--max-delivery-count", "4")["MaxDeliveryCount"] == 4
    with commands.connection() as connection:
        connection.sender(topic).send(Message(data=[b"x"]))
    assert [(each["Name"], each["ActiveMessageCount"]) for each in commands.json("subscription", "list", topic)] == [
        ("mine", 1)
    ]
    assert commands.ok("subscription", "list", topic).splitlines()[2].split()[:3] == ["mine", "Active", "1"]
    assert commands.ok("subscription", "delete", topic, "mine", "--yes").startswith("deleted the subscription")
    ended = commands.run("subscription", "list", topic)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"no subscriptions\n")


def test_more_than_a_page_is_listed(commands: Commands) -> None:
    topic = commands.topic(*(f"s{number:03}" for number in range(205)))
    names = [each["Name"] for each in commands.json("subscription", "list", topic)]
    assert names == [f"s{number:03}" for number in range(205)]


# --- refusals ---


def test_creating_an_existing_entity_is_an_error(commands: Commands) -> None:
    queue, topic = commands.queue(), commands.topic("mine")
    assert commands.refused("queue", "create", queue) == (4, f"the queue {queue} already exists")
    assert commands.refused("topic", "create", topic)[0] == 4
    assert commands.refused("topic", "create", queue)[0] == 4
    assert commands.refused("subscription", "create", topic, "mine") == (
        4,
        f"the subscription mine of {topic} already exists",
    )


def test_a_queue_is_no_topic(commands: Commands) -> None:
    queue, topic = commands.queue(), commands.topic()
    assert commands.refused("topic", "show", queue) == (3, f"'{queue}' is a queue, not a topic.")
    assert commands.refused("queue", "delete", topic, "--yes") == (3, f"'{topic}' is a topic, not a queue.")
    assert commands.json("topic", "show", topic)["Name"] == topic


@pytest.mark.parametrize("command", [("show",), ("update", "--lock-duration", "30s"), ("delete", "--yes")])
def test_an_unknown_entity_is_not_found(commands: Commands, command: tuple[str, ...]) -> None:
    code, sentence = commands.refused("queue", command[0], "nowhere", *command[1:])
    assert code == 3
    assert "nowhere" in sentence


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("create", "with blank"), 1, ("with blank",)),
        (("create", "x", "--lock-duration", "10h"), 1, ("LockDuration", "PT10H", "PT5M")),
        (("create", "x", "--forward-to", "nowhere"), 1, ("ForwardTo", "nowhere")),
        (("create", "x", "--lock-duration", "soon"), 2, ("--lock-duration", "soon")),
        (("create", "x", "--max-delivery-count", "many"), 2, ("--max-delivery-count",)),
        (("create", "x", "--max-delivery-count", "-1"), 2, ("--max-delivery-count", "-1")),
        (("create", "x", "--status", "Asleep"), 2, ("--status", "Asleep", "SendDisabled")),
        (("create", "x", "--colour", "blue"), 2, ("--colour",)),
        (("create",), 2, ("name",)),
        (("update", "queue"), 2, ("nothing to update",)),
        (("update", "queue", "--requires-session"), 2, ("--requires-session",)),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    commands: Commands, arguments: tuple[str, ...], code: int, named: tuple[str, ...]
) -> None:
    found, sentence = commands.refused("queue", *arguments)
    assert found == code
    for each in named:
        assert each in sentence


@pytest.mark.parametrize("kind", list(Kind))
def test_every_setting_has_an_option_with_a_help_text(kind: Kind, commands: Commands) -> None:
    shown = commands.ok(kind.lower(), "create", "--help")
    for name in SETTINGS[kind]:
        assert "--" + re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower() in shown
