"""Audiences of tokens: an unknown entity is 404 for a client with a valid token, and 401 for other clients."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import World, topic
from nodes.wire import Wire
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.performatives import Attach, Detach
from peeklock.amqp.types import Int, Symbol
from peeklock.broker.access import Grants
from peeklock.client import sas_token
from peeklock.entities.authorization import DEFAULT_KEY, DEFAULT_KEY_NAME, AuthorizationRule, Right
from peeklock.entities.definitions import QueueDefinition

OWN = AuthorizationRule(name="own", primary_key="own-key", rights=frozenset({Right.MANAGE}))


@pytest.fixture
def world() -> World:
    return World(
        QueueDefinition(name="Queue"),
        QueueDefinition(name="dir/deep/queue"),
        QueueDefinition(name="mine", authorization_rules=(OWN,)),
        QueueDefinition(name="mine/theirs"),
        topic("topic", "sub"),
    )


class UnauthenticatedClient(Wire):
    """A client without claims."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.peer.grants = Grants()
        self._requests, self._replies = self.sender("$cbs"), self.receiver("$cbs")

    def token(
        self, scope: str = "", rule: str = DEFAULT_KEY_NAME, key: str = DEFAULT_KEY, seconds: float = 3600
    ) -> str:
        return sas_token(f"sb://host/{scope}", rule, key, self.world.clock() / 1000 + seconds)

    def put(self, audience: str, token: Any = None) -> dict[Any, Any]:
        """Put a token, by default one for the whole namespace, and return the properties of the answer."""
        request = Message(
            properties=Properties(message_id="m"),
            application_properties={"operation": "put-token", "name": f"sb://host:5671/{audience}"},
            value=self.token() if token is None else token,
        )
        self.send(self._requests, request.encode())
        ((_, reply),) = self.received(self._replies)
        return Message.decode(reply).application_properties or {}

    def may_attach(self, address: str) -> bool:
        self.heard.clear()
        self.receiver(address)
        assert self.take(Attach)
        return not self.take(Detach)


@pytest.mark.parametrize(
    "audience",
    [
        "",
        "/",
        "$cbs",
        "$management",
        "Queue",
        "QUEUE/",
        "queue?x=y",
        "queue/$management",
        "queue/$DeadLetterQueue",
        "queue/$deadletterqueue/$management",
        "queue/$Transfer/$DeadLetterQueue",
        "queue/anything",
        "dir/deep/queue",
        "dir%2Fdeep%2fqueue",
        "topic",
        "topic/Subscriptions/sub",
        "topic/subscriptions/sub/$management",
        "topic/Subscriptions/not-yet",
    ],
)
def test_a_token_is_accepted_for_an_entity_and_its_sub_entities(audience: str, world: World) -> None:
    assert UnauthenticatedClient(world).put(audience) == {"status-code": Int(202), "status-description": "Accepted"}


@pytest.mark.parametrize(
    ("audience", "said"),
    [
        ("nowhere", "nowhere"),
        ("NoWhere/", "NoWhere"),
        ("nowhere/$management", "nowhere/$management"),
        ("nowhere/$DeadLetterQueue", "nowhere/$DeadLetterQueue"),
        ("nowhere/Subscriptions/sub", "nowhere/Subscriptions/sub"),
        ("queue2", "queue2"),
        ("queu", "queu"),
        ("dir", "dir"),
        ("dir/deep", "dir/deep"),
    ],
)
def test_a_valid_token_for_an_unknown_entity_is_answered_404(audience: str, said: str, world: World) -> None:
    answer = UnauthenticatedClient(world).put(audience)
    assert answer == {
        "status-code": Int(404),
        "status-description": f"The messaging entity 'sb://peeklock/{said}' could not be found.",
        "error-condition": "amqp:not-found",
    }
    assert type(answer["error-condition"]) is Symbol


def test_a_token_that_was_answered_404_gives_no_right_later(world: World) -> None:
    client = UnauthenticatedClient(world)
    assert client.put("later")["status-code"] == 404
    world.namespace.administration.create_queue(QueueDefinition(name="later"), lambda error: None)
    world.run()
    assert not client.may_attach("later")
    assert client.put("later")["status-code"] == 202
    assert client.may_attach("later")


def test_a_token_for_a_subscription_that_is_made_later_is_good_for_it(world: World) -> None:
    client = UnauthenticatedClient(world)
    assert client.put("topic/Subscriptions/later")["status-code"] == 202
    assert not client.may_attach("topic/Subscriptions/later")
    definition = topic("x", "later").subscriptions[0]
    world.namespace.administration.create_subscription("topic", definition, lambda error: None)
    world.run()
    assert client.may_attach("topic/Subscriptions/later")


def test_a_404_costs_a_client_none_of_its_rights(world: World) -> None:
    client = UnauthenticatedClient(world)
    assert client.put("queue")["status-code"] == 202
    assert client.put("nowhere")["status-code"] == 404
    assert client.may_attach("queue")


@pytest.mark.parametrize(
    "token",
    [
        {"key": "guessed"},
        {"rule": "nobody"},
        {"rule": "own", "key": "own-key"},
        {"seconds": -1},
        {"scope": "elsewhere"},
    ],
    ids=str,
)
def test_without_a_valid_token_known_and_unknown_entities_get_the_same_error(
    token: dict[str, Any], world: World
) -> None:
    client = UnauthenticatedClient(world)
    answers = [client.put(audience, client.token(**token)) for audience in ("queue", "nowhere", "topic", "dir")]
    assert answers[0]["status-code"] == 401
    assert answers == [answers[0]] * 4


def test_a_key_of_one_entity_does_not_reveal_entities_below_its_name(world: World) -> None:
    client = UnauthenticatedClient(world)
    own = client.token("mine", "own", "own-key")
    answers = [client.put(audience, own) for audience in ("mine/theirs", "mine/nothing", "mine/nothing/$management")]
    assert answers == [answers[0]] * 3
    for address in ("mine/theirs", "mine/nothing"):
        assert not client.may_attach(address)
    assert client.put("mine", own)["status-code"] == 202
    assert client.may_attach("mine")


def test_keys_of_a_deleted_entity_are_unknown(world: World) -> None:
    client = UnauthenticatedClient(world)
    own = client.token("mine", "own", "own-key")
    assert client.put("mine", own)["status-code"] == 202
    world.namespace.administration.delete_queue("mine", lambda error: None)
    world.run()
    assert client.put("mine", own)["status-code"] == 401
    assert client.put("mine")["status-code"] == 404
