"""What a method and a path ask for."""

from __future__ import annotations

import pytest

from peeklock.entities.authorization import Right
from peeklock.rest.addresses import Action, parse_request

TOKEN = "7da9cfd5-40d5-4bb1-8d64-ec5a52e1c547"


@pytest.mark.parametrize(
    ("method", "path", "action", "entity", "owner"),
    [
        ("POST", "/q/messages", Action.SEND, "q", "q"),
        ("POST", "/Q/Messages/", Action.SEND, "Q", "q"),
        ("POST", "/a/b/messages", Action.SEND, "a/b", "a/b"),
        ("POST", "/a%2Fb/messages", Action.SEND, "a/b", "a/b"),
        ("POST", "/messages/messages", Action.SEND, "messages", "messages"),
        ("POST", "/q/messages/messages", Action.SEND, "q/messages", "q/messages"),
        ("POST", "/q/messages/head", Action.PEEK_LOCK, "q", "q"),
        ("DELETE", "/q/messages/HEAD", Action.RECEIVE_AND_DELETE, "q", "q"),
        ("DELETE", "/q/messages/messages/head", Action.RECEIVE_AND_DELETE, "q/messages", "q/messages"),
        ("POST", "/T/Subscriptions/s/messages/head", Action.PEEK_LOCK, "T/Subscriptions/s", "t"),
        ("POST", "/q/$DeadLetterQueue/messages/head", Action.PEEK_LOCK, "q/$DeadLetterQueue", "q"),
        ("POST", "/q/%24deadletterqueue/messages/head", Action.PEEK_LOCK, "q/$deadletterqueue", "q"),
        (
            "POST",
            "/t/subscriptions/s/$Transfer/$DeadLetterQueue/messages/head",
            Action.PEEK_LOCK,
            "t/subscriptions/s/$Transfer/$DeadLetterQueue",
            "t",
        ),
        ("PUT", f"/q/messages/5/{TOKEN}", Action.UNLOCK, "q", "q"),
        ("POST", f"/q/messages/an%2Fid/{TOKEN}", Action.RENEW_LOCK, "q", "q"),
        ("DELETE", f"/q/messages/5/{TOKEN}", Action.COMPLETE, "q", "q"),
    ],
)
def test_a_path_is_read_from_its_end(method: str, path: str, action: Action, entity: str, owner: str) -> None:
    asked = parse_request(method, path)
    assert asked is not None
    assert (asked.action, asked.entity, asked.owner) == (action, entity, owner)
    assert asked.right is (Right.SEND if action is Action.SEND else Right.LISTEN)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/messages"),
        ("POST", "/"),
        ("POST", "/messages/head"),
        ("DELETE", "/messages/head"),
        ("DELETE", "/q/messages"),
        ("PUT", "/q/messages"),
        ("PUT", "/q/messages/head"),
        ("GET", "/q/messages"),
        ("GET", "/q/messages/head"),
        ("GET", f"/q/messages/5/{TOKEN}"),
        ("PUT", f"/messages/5/{TOKEN}"),
        ("POST", "/q/subscriptions"),
    ],
)
def test_other_requests_have_nothing_to_do_with_messages(method: str, path: str) -> None:
    assert parse_request(method, path) is None


def test_a_locked_message_is_named_by_its_id_and_its_lock_token() -> None:
    asked = parse_request("DELETE", f"/q/messages/an%2Fid%20/{TOKEN}")
    assert asked is not None
    assert (asked.message, asked.lock_token) == ("an/id ", TOKEN)
    assert TOKEN not in asked.redacted_path
