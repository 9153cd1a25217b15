"""Tests of `peeklock dead-letter` and `peeklock purge`: list, resubmit and delete messages."""

from __future__ import annotations

import pytest

from commands import Commands, on_a_terminal
from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.types import Symbol
from peeklock.client.descriptions import Kind


def dead_lettered(commands: Commands, address: str, *messages: tuple[str, str], to: str | None = None) -> None:
    """Send messages and dead-letter each one, given as (body, reason)."""
    with commands.connection() as connection:
        sender = connection.sender(to or address)
        for body, _ in messages:
            sender.send(
                Message(
                    header=Header(durable=True),
                    message_annotations={Symbol("x-opt-mine"): "kept"},
                    properties=Properties(message_id=f"id-{body}", subject=body),
                    application_properties={"body": body, "n": len(body)},
                    data=[body.encode()],
                )
            )
        receiver = connection.receiver(address, credit=0)
        for body, reason in messages:
            (message,) = receiver.receive(timeout=10)
            assert message.body == body.encode()
            info = {"DeadLetterReason": reason, "DeadLetterErrorDescription": f"{body} is {reason}"}
            receiver.reject(message, "com.microsoft:dead-letter", info=info, wait=True)


def dead(commands: Commands, owner: str) -> list[str]:
    return commands.bodies(f"{owner}/$DeadLetterQueue")


# --- list ---


def test_dead_letters_are_counted_by_reason_with_samples(commands: Commands) -> None:
    queue = commands.queue()
    dead_lettered(commands, queue, ("a", "Late"), ("b", "Broken"), ("c", "Late"), ("d", "Late"))
    found = commands.json("dead-letter", "list", queue, "--samples", "2")
    assert found["entity"] == f"{queue}/$DeadLetterQueue"
    assert found["count"] == 4
    assert [(each["reason"], each["count"]) for each in found["reasons"]] == [("Late", 3), ("Broken", 1)]
    assert [sample["body"] for sample in found["reasons"][0]["samples"]] == ["a", "c"]
    header, _, *rows = commands.ok("dead-letter", "list", queue, "--samples", "2").splitlines()
    assert header.split()[:3] == ["Reason", "Count", "Number"]
    assert [row.split()[0] for row in rows] == ["Late", "3", "Broken"]
    assert "a is Late" in rows[0]
    assert len(dead(commands, queue)) == 4


@pytest.mark.parametrize(
    ("where", "bodies"),
    [
        (["reason=Late"], ["a", "c"]),
        (["description=b is Broken"], ["b"]),
        (["reason=Late", "subject=c"], ["c"]),
        (["message-id=id-b"], ["b"]),
        (["body=a"], ["a"]),
        (["n=1"], ["a", "b", "c"]),
        (["colour=blue"], []),
    ],
)
def test_messages_are_selected_by_their_properties(commands: Commands, where: list[str], bodies: list[str]) -> None:
    queue = commands.queue()
    dead_lettered(commands, queue, ("a", "Late"), ("b", "Broken"), ("c", "Late"))
    options = [part for each in where for part in ("--where", each)]
    found = commands.json("dead-letter", "list", queue, *options)
    assert sorted(sample["body"] for reason in found["reasons"] for sample in reason["samples"]) == bodies


def test_an_empty_dead_letter_queue_is_no_failure(commands: Commands) -> None:
    ended = commands.run("dead-letter", "list", commands.queue())
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"no messages\n")


# --- resubmit ---


def test_dead_letters_are_resubmitted_as_they_were_sent(commands: Commands) -> None:
    queue = commands.queue()
    dead_lettered(commands, queue, ("a", "Late"), ("b", "Late"))
    assert commands.ok("dead-letter", "resubmit", queue) == f"resubmitted 2 messages to {queue}\n"
    assert dead(commands, queue) == []
    with commands.connection() as connection, connection.receiver(queue, credit=0) as receiver:
        first, _ = receiver.receive(2, timeout=10)
        message = first.message
    assert message.properties == Properties(message_id="id-a", subject="a")
    assert message.application_properties == {"body": "a", "n": 1}
    annotations = dict(message.message_annotations or {})
    assert annotations["x-opt-mine"] == "kept"
    assert "x-opt-deadletter-source" not in annotations
    assert message.header is not None
    assert message.header.delivery_count == 0


def test_those_that_are_not_meant_stay_and_are_not_locked(commands: Commands) -> None:
    queue = commands.queue()
    messages = [(f"{number}", "Late" if number % 2 else "Broken") for number in range(100)]
    dead_lettered(commands, queue, *messages)
    assert commands.json("dead-letter", "resubmit", queue, "--where", "reason=Late") == {"resubmitted": 50, "to": queue}
    assert commands.bodies(queue) == [body for body, reason in messages if reason == "Late"]
    arguments = ("--dead-letter", "--max", "50", "--body-only", "--wait", "1")
    assert commands.ok("receive", queue, *arguments).split() == [body for body, why in messages if why == "Broken"]


def test_at_most_the_requested_number_is_resubmitted(commands: Commands) -> None:
    queue = commands.queue()
    dead_lettered(commands, queue, ("a", "Late"), ("b", "Late"), ("c", "Late"))
    assert commands.json("dead-letter", "resubmit", queue, "--max", "2")["resubmitted"] == 2
    assert (commands.bodies(queue), dead(commands, queue)) == (["a", "b"], ["c"])


def test_they_can_go_elsewhere(commands: Commands) -> None:
    queue, other = commands.queue(), commands.queue()
    dead_lettered(commands, queue, ("a", "Late"))
    assert commands.json("dead-letter", "resubmit", queue, "--to", other) == {"resubmitted": 1, "to": other}
    assert (commands.bodies(queue), commands.bodies(other), dead(commands, queue)) == ([], ["a"], [])


def test_dead_letters_of_a_subscription_are_sent_to_its_topic_with_a_notice(commands: Commands) -> None:
    topic = commands.topic("one", "two")
    dead_lettered(commands, f"{topic}/Subscriptions/one", ("a", "Late"), to=topic)
    ended = commands.run("dead-letter", "resubmit", topic, "--subscription", "one", "--json")
    assert ended.returncode == 0
    assert f"the topic {topic}" in ended.stderr.decode()
    assert dead(commands, f"{topic}/Subscriptions/one") == []
    assert commands.bodies(f"{topic}/Subscriptions/one") == ["a"]
    assert commands.bodies(f"{topic}/Subscriptions/two") == ["a", "a"]


def test_a_destination_with_duplicate_detection_requires_a_decision(commands: Commands) -> None:
    queue = commands.queue(RequiresDuplicateDetection=True)
    dead_lettered(commands, queue, ("a", "Late"))
    code, sentence = commands.refused("dead-letter", "resubmit", queue)
    assert code == 2
    assert "--new-message-ids" in sentence
    assert dead(commands, queue) == ["a"]
    commands.ok("dead-letter", "resubmit", queue, "--new-message-ids")
    assert (commands.bodies(queue), dead(commands, queue)) == (["a"], [])


def test_with_an_unknown_destination_dead_letters_stay(commands: Commands) -> None:
    queue = commands.queue()
    dead_lettered(commands, queue, ("a", "Late"))
    code, sentence = commands.refused("dead-letter", "resubmit", queue, "--to", "nowhere")
    assert code == 3
    assert "nowhere" in sentence
    assert dead(commands, queue) == ["a"]


def test_dead_letters_that_the_destination_refuses_stay(commands: Commands) -> None:
    queue, sessions = commands.queue(), commands.queue(RequiresSession=True)
    dead_lettered(commands, queue, ("a", "Late"), ("b", "Late"))
    ended = commands.run("dead-letter", "resubmit", queue, "--to", sessions)
    assert ended.returncode == 1
    assert b"session" in ended.stderr
    assert b"Traceback" not in ended.stderr
    assert (dead(commands, queue), commands.bodies(sessions)) == (["a", "b"], [])
    # And leaves nothing locked.
    assert commands.ok("receive", queue, "--dead-letter", "--max", "2", "--body-only") == "a\nb\n"


def test_messages_that_could_not_be_forwarded_have_a_queue_of_their_own(commands: Commands) -> None:
    found = commands.json("dead-letter", "list", commands.queue(), "--transfer")
    assert found["entity"].endswith("/$Transfer/$DeadLetterQueue")


# --- purge ---


def fill(commands: Commands, address: str, *bodies: str, session: str | None = None) -> None:
    with commands.connection() as connection, connection.sender(address) as sender:
        sender.send_all(Message(properties=Properties(group_id=session), data=[body.encode()]) for body in bodies)


def test_all_messages_are_deleted(commands: Commands) -> None:
    queue = commands.queue()
    fill(commands, queue, *(str(number) for number in range(1200)))
    assert commands.ok("purge", queue, "--yes") == f"deleted 1200 messages from {queue}\n"
    assert commands.bodies(queue) == []
    assert commands.json("purge", queue, "--yes") == {"deleted": 0}


def test_scheduled_messages_stay(commands: Commands) -> None:
    queue = commands.queue()
    fill(commands, queue, "now")
    commands.ok("send", queue, "later", "--schedule", "+1h")
    assert commands.json("purge", queue, "--yes") == {"deleted": 1}
    assert commands.bodies(queue) == ["later"]


def test_a_queue_with_sessions_is_emptied_session_by_session(commands: Commands) -> None:
    queue = commands.queue(RequiresSession=True)
    fill(commands, queue, "a", "b", session="one")
    fill(commands, queue, "c", session="two")
    assert commands.json("purge", queue, "--yes") == {"deleted": 3}
    assert commands.bodies(queue) == []


def test_a_subscription_is_emptied_without_its_neighbours(commands: Commands) -> None:
    topic = commands.topic("one", "two")
    fill(commands, topic, "a")
    assert commands.json("purge", topic, "--subscription", "one", "--yes") == {"deleted": 1}
    assert commands.bodies(f"{topic}/Subscriptions/two") == ["a"]


def test_dead_letters_are_deleted_by_two_commands(commands: Commands) -> None:
    queue = commands.queue()
    dead_lettered(commands, queue, ("a", "Late"))
    fill(commands, queue, "stays")
    assert commands.json("dead-letter", "purge", queue, "--yes") == {"deleted": 1}
    dead_lettered_again = commands.queue()
    dead_lettered(commands, dead_lettered_again, ("a", "Late"))
    assert commands.json("purge", dead_lettered_again, "--dead-letter", "--yes") == {"deleted": 1}
    assert (commands.bodies(queue), dead(commands, queue), dead(commands, dead_lettered_again)) == (["stays"], [], [])


def test_some_dead_letters_are_deleted(commands: Commands) -> None:
    queue = commands.queue()
    dead_lettered(commands, queue, ("a", "Late"), ("b", "Broken"), ("c", "Late"))
    assert commands.json("dead-letter", "purge", queue, "--where", "reason=Late", "--yes") == {"deleted": 2}
    assert dead(commands, queue) == ["b"]


@pytest.mark.parametrize("command", [("purge",), ("dead-letter", "purge")])
def test_without_a_terminal_deleting_requires_the_option_yes(commands: Commands, command: tuple[str, ...]) -> None:
    queue = commands.queue()
    fill(commands, queue, "a")
    code, sentence = commands.refused(*command, queue, stdin="y\n")
    assert code == 2
    assert "--yes" in sentence
    assert commands.bodies(queue) == ["a"]


@pytest.mark.parametrize(("typed", "left"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("\x04", 1)])
def test_on_a_terminal_the_command_asks_for_confirmation(commands: Commands, typed: str, left: int) -> None:
    queue = commands.queue()
    fill(commands, queue, "a")
    code, shown = on_a_terminal(commands.command("purge", queue), commands.environment(), typed)
    assert f"Delete all active messages in {queue}? [y/N]" in shown
    assert code == (1 if left else 0)
    with commands.administration() as client:
        assert client.get(Kind.QUEUE, queue).runtime["ActiveMessageCount"] == left


def test_purging_an_unknown_entity_is_an_error(commands: Commands) -> None:
    code, sentence = commands.refused("purge", "nowhere", "--yes")
    assert code == 3
    assert "nowhere" in sentence


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("list", "queue", "--where", "reason"), "--where"),
        (("resubmit", "queue", "--where", "=x"), "--where"),
        (("purge", "queue", "--where", "reason", "--yes"), "--where"),
        (("frobnicate", "queue"), "frobnicate"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(commands: Commands, arguments: tuple[str, ...], named: str) -> None:
    code, sentence = commands.refused("dead-letter", *arguments)
    assert code == 2
    assert named in sentence
