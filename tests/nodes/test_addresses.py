"""All spellings of addresses that clients use."""

from __future__ import annotations

import pytest

from peeklock.nodes.addresses import Address, parse_address


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("q", "q"),
        ("/q", "q"),
        ("q/", "q"),
        ("amqps://host/q", "q"),
        ("amqps://host:5671/q", "q"),
        ("amqp://127.0.0.1:5672/q", "q"),
        ("sb://host.example.org/q", "q"),
        ("AMQPS://HOST/Q", "Q"),
        ("a/b/c", "a/b/c"),
        ("amqps://host/a/b", "a/b"),
        ("/a%2Fb", "a/b"),
        ("/a%2fb", "a/b"),
        ("/name-with_all.signs~", "name-with_all.signs~"),
        ("/name%2Dwith%5Fsigns%7e", "name-with_signs~"),
    ],
)
def test_a_queue_or_topic_is_found_in_every_spelling(text: str, path: str) -> None:
    assert parse_address(text) == Address(path=path, entity=path, owner=path)


@pytest.mark.parametrize("suffix", ["$DeadLetterQueue", "$deadletterqueue", "$DEADLETTERQUEUE"])
@pytest.mark.parametrize("queue", ["q", "a/b"])
def test_a_dead_letter_queue_belongs_to_its_queue(queue: str, suffix: str) -> None:
    path = f"{queue}/{suffix}"
    assert parse_address(f"amqps://host/{path}") == Address(path=path, entity=path, owner=queue)


@pytest.mark.parametrize("suffix", ["$Transfer/$DeadLetterQueue", "$Transfer/$deadletterqueue"])
def test_a_transfer_dead_letter_queue_belongs_to_its_queue(suffix: str) -> None:
    assert parse_address(f"q/{suffix}") == Address(path=f"q/{suffix}", entity=f"q/{suffix}", owner="q")


@pytest.mark.parametrize("word", ["Subscriptions", "subscriptions", "SUBSCRIPTIONS"])
def test_a_subscription_belongs_to_its_topic(word: str) -> None:
    path = f"a/topic/{word}/s"
    assert parse_address(path) == Address(path=path, entity=path, owner="a/topic")


def test_the_dead_letter_queue_of_a_subscription_belongs_to_the_topic() -> None:
    path = "topic/Subscriptions/s/$DeadLetterQueue"
    assert parse_address(path) == Address(path=path, entity=path, owner="topic")


@pytest.mark.parametrize("suffix", ["$management", "$Management"])
@pytest.mark.parametrize(
    ("entity", "owner"),
    [
        ("q", "q"),
        ("a/b", "a/b"),
        ("q/$DeadLetterQueue", "q"),
        ("topic/Subscriptions/s", "topic"),
        ("topic/subscriptions/s/$deadletterqueue", "topic"),
    ],
)
def test_the_suffix_management_is_removed_from_any_address(entity: str, owner: str, suffix: str) -> None:
    path = f"{entity}/{suffix}"
    assert parse_address(path) == Address(path=path, entity=entity, owner=owner, is_management=True)


@pytest.mark.parametrize("text", ["$cbs", "$CBS", "/$cbs", "amqps://host:5671/$cbs", "%24cbs"])
def test_the_token_node_is_known_in_every_spelling(text: str) -> None:
    address = parse_address(text)
    assert address.is_cbs
    assert not address.is_management


@pytest.mark.parametrize("text", ["q/$cbs", "cbs", "$cbs/q"])
def test_an_address_similar_to_the_token_node_is_not_the_token_node(text: str) -> None:
    assert not parse_address(text).is_cbs


@pytest.mark.parametrize("text", ["Subscriptions/s", "subscriptions", "topic/Subscriptions", "topic/Subscriptions/s/x"])
def test_an_address_similar_to_a_subscription_is_a_name(text: str) -> None:
    assert parse_address(text).owner == text


@pytest.mark.parametrize("text", ["", "/", "///", "amqps://host", "amqps://host/", "$management", "$DeadLetterQueue"])
def test_an_address_without_an_entity_is_not_found(text: str) -> None:
    address = parse_address(text)
    assert address.entity == address.owner == address.path
    assert not address.is_management
