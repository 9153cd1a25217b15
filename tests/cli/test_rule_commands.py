"""Tests of `peeklock rule`: filters, actions, and their effect on messages."""

from __future__ import annotations

import pytest

from commands import Commands

ONE = "one"


@pytest.fixture
def topic(commands: Commands) -> str:
    return commands.topic(ONE)


def test_the_default_rule_of_a_new_subscription_matches_every_message(commands: Commands, topic: str) -> None:
    assert commands.json("rule", "list", topic, ONE) == [{"Name": "$Default", "Properties": {"FilterType": "True"}}]
    assert commands.ok("rule", "list", topic, ONE).splitlines()[2].split() == ["$Default", "all"]


def test_a_rule_selects_messages_and_changes_their_properties(commands: Commands, topic: str) -> None:
    arguments = ("--sql", "size > @least", "--parameter", "@least:int=100", "--action", "SET label = 'large'")
    assert commands.ok("rule", "create", topic, ONE, "large", *arguments).startswith("created the rule large")
    assert commands.ok("rule", "delete", topic, ONE, "$Default", "--yes").startswith("deleted the rule $Default")
    commands.ok("send", topic, "small", "--property", "size:int=5")
    commands.ok("send", topic, "large", "--property", "size:int=500")
    (found,) = commands.json_lines("receive", topic, "--subscription", ONE, "--max", "0", "--wait", "0.5")
    assert found["body"] == "large"
    assert commands.json("rule", "show", topic, ONE, "large") == {
        "Name": "large",
        "Properties": {
            "FilterType": "Sql",
            "SqlFilter": {"SqlExpression": "size > @least", "Parameters": {"@least": 100}},
            "Action": {"SqlExpression": "SET label = 'large'"},
        },
    }


def test_a_correlation_rule_compares_the_named_properties(commands: Commands, topic: str) -> None:
    commands.ok("rule", "delete", topic, ONE, "$Default", "--yes")
    arguments = ("--correlation", "subject=order", "--property", "size:int=5", "--property", "colour=blue")
    made = commands.json("rule", "create", topic, ONE, "mine", *arguments)
    assert made == {
        "Name": "mine",
        "Properties": {
            "FilterType": "Correlation",
            "CorrelationFilter": {"Label": "order", "Properties": {"size": 5, "colour": "blue"}},
        },
    }
    properties = ("--property", "size:int=5", "--property", "colour=blue")
    commands.ok("send", topic, "yes", "--subject", "order", *properties)
    commands.ok("send", topic, "no", "--subject", "other", *properties)
    commands.ok("send", topic, "no", "--subject", "order", "--property", "size:int=5")
    arguments = ("--subscription", ONE, "--max", "0", "--body-only", "--wait", "0.5")
    assert commands.ok("receive", topic, *arguments) == "yes\n"
    row = commands.ok("rule", "list", topic, ONE).splitlines()[2]
    assert "Label = 'order', size = 5, colour = 'blue'" in row


def test_values_keep_their_types(commands: Commands, topic: str) -> None:
    given = {
        "a:long": "5000000000",
        "b:double": "1.5",
        "c:bool": "true",
        "d:datetime": "2030-01-01T00:00:00Z",
        "e:duration": "PT5M",
    }
    options = [part for name, value in given.items() for part in ("--property", f"{name}={value}")]
    made = commands.json("rule", "create", topic, ONE, "typed", *options)
    assert made["Properties"]["CorrelationFilter"]["Properties"] == {
        "a": 5000000000,
        "b": 1.5,
        "c": True,
        "d": "2030-01-01T00:00:00+00:00",
        "e": "PT5M",
    }


def test_an_update_changes_the_filter_the_action_or_both(commands: Commands, topic: str) -> None:
    commands.ok("rule", "create", topic, ONE, "mine", "--none", "--action", "SET a = 1")
    found = commands.json("rule", "update", topic, ONE, "mine", "--sql", "a = 1")["Properties"]
    assert (found["SqlFilter"]["SqlExpression"], found["Action"]["SqlExpression"]) == ("a = 1", "SET a = 1")
    found = commands.json("rule", "update", topic, ONE, "mine", "--action", "")["Properties"]
    assert found == {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "a = 1"}}
    found = commands.json("rule", "update", topic, ONE, "mine", "--all")["Properties"]
    assert found == {"FilterType": "True"}


def test_a_mistake_in_sql_is_shown_with_its_position(commands: Commands, topic: str) -> None:
    ended = commands.run("rule", "create", topic, ONE, "mine", "--sql", "size > ")
    assert ended.returncode == 1
    first, *_, expression, caret = ended.stderr.decode().splitlines()
    assert first.startswith("peeklock: ")
    assert "size >" in expression
    assert caret.strip() == "^"


def test_a_rule_that_is_there_or_is_not_there(commands: Commands, topic: str) -> None:
    commands.ok("rule", "create", topic, ONE, "mine", "--all")
    assert commands.refused("rule", "create", topic, ONE, "mine", "--all") == (
        4,
        f"the rule mine of {topic}/Subscriptions/{ONE} already exists",
    )
    for command in (("show",), ("update", "--all"), ("delete", "--yes")):
        assert commands.refused("rule", command[0], topic, ONE, "nowhere", *command[1:])[0] == 3
    assert commands.refused("rule", "list", topic, "nobody")[0] == 3


def test_deleting_needs_a_yes(commands: Commands, topic: str) -> None:
    code, sentence = commands.refused("rule", "delete", topic, ONE, "$Default")
    assert code == 2
    assert "--yes" in sentence
    assert len(commands.json("rule", "list", topic, ONE)) == 1


def test_a_subscription_without_rules_is_no_failure(commands: Commands, topic: str) -> None:
    commands.ok("rule", "delete", topic, ONE, "$Default", "--yes")
    ended = commands.run("rule", "list", topic, ONE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"no rules\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("create", "t", "s", "r"), ("needs a filter", "--sql")),
        (("create", "t", "s", "r", "--sql", "a = 1", "--all"), ("one filter",)),
        (("create", "t", "s", "r", "--sql", "a = 1", "--property", "a=1"), ("one filter",)),
        (("create", "t", "s", "r", "--correlation", "colour=blue"), ("colour", "content-type")),
        (("create", "t", "s", "r", "--property", "a:shape=1"), ("--property", "shape", "datetime")),
        (("create", "t", "s", "r", "--property", "a:guid=1"), ("--property", "guid")),
        (("update", "t", "s", "r"), ("nothing to update",)),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    commands: Commands, arguments: tuple[str, ...], named: tuple[str, ...]
) -> None:
    code, sentence = commands.refused("rule", *arguments)
    assert code == 2
    for each in named:
        assert each in sentence
