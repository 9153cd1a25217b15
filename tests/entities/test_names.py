"""Paths of subscriptions, as every package makes and splits them."""

from __future__ import annotations

import pytest

from peeklock.entities.names import split_subscription, subscription_path


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("topic/Subscriptions/sub", ("topic", "sub")),
        ("a/b/SUBSCRIPTIONS/sub", ("a/b", "sub")),
        ("topic/subscriptions/sub/$DeadLetterQueue", ("topic", "sub/$DeadLetterQueue")),
        ("subscriptions/subscriptions/sub", ("subscriptions", "sub")),
        ("İ/subscriptions/sub", ("İ", "sub")),  # longer in lower case
        ("queue", None),
        ("a/b", None),
        ("topic/subscriptions", None),
        ("/subscriptions/sub", None),
        ("", None),
    ],
)
def test_the_path_of_a_subscription_is_split_whatever_its_case(path: str, parts: tuple[str, str] | None) -> None:
    assert split_subscription(path) == parts


def test_a_path_that_is_made_is_split_into_its_parts() -> None:
    assert split_subscription(subscription_path("a/b", "c")) == ("a/b", "c")
