"""Tests of `peeklock token`: the access that the token gives, and its expiry."""

from __future__ import annotations

import time
from urllib.parse import parse_qs

import pytest

from commands import Commands
from rest.asking import RestClient


def fields(token: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(token.removeprefix("SharedAccessSignature ")).items()}


def test_a_token_opens_the_entity_that_it_is_for_and_no_other(commands: Commands) -> None:
    first, second = commands.queue(), commands.queue()
    token = commands.ok("token", first).strip()
    rest = RestClient(commands.broker.port)
    assert rest.ask("POST", f"/{first}/messages", "x", Authorization=token).status == 201
    assert rest.ask("POST", f"/{second}/messages", "x", Authorization=token).status == 401
    everything = commands.ok("token").strip()
    assert rest.ask("POST", f"/{second}/messages", "x", Authorization=everything).status == 201


def test_a_token_is_for_a_subscription_where_one_is_named(commands: Commands) -> None:
    token = commands.ok("token", "events", "--subscription", "audit").strip()
    assert fields(token)["sr"].endswith("/events/Subscriptions/audit")


def test_a_token_is_valid_for_an_hour_or_the_given_duration(commands: Commands) -> None:
    for arguments, seconds in (((), 3600), (("--expires-in", "60"), 60)):
        left = int(fields(commands.ok("token", "queue", *arguments))["se"]) - time.time()
        assert seconds - 30 < left <= seconds


@pytest.mark.parametrize("connection_string", ["Endpoint=sb://localhost;SharedAccessSignature=x", "amqp://localhost"])
def test_without_a_key_there_is_no_token(commands: Commands, connection_string: str) -> None:
    code, sentence = commands.refused("token", "queue", "--connection-string", connection_string)
    assert (code, "has no SharedAccessKey" in sentence) == (2, True)


def test_a_token_is_not_made_for_no_time(commands: Commands) -> None:
    assert commands.refused("token", "queue", "--expires-in", "0")[0] == 2
