"""Which resource a path speaks of."""

from __future__ import annotations

import pytest

from peeklock.admin.addresses import (
    Address,
    EntitiesAddress,
    EntityAddress,
    NamespaceAddress,
    RuleAddress,
    RulesAddress,
    SubscriptionAddress,
    SubscriptionsAddress,
    owner_of,
    parse_address,
)
from peeklock.broker.errors import EntityNotFound


@pytest.mark.parametrize(
    ("path", "address", "owner"),
    [
        ("/$namespaceinfo", NamespaceAddress(), None),
        ("/$NamespaceInfo/", NamespaceAddress(), None),
        ("/$Resources/queues", EntitiesAddress(topics=False), None),
        ("/$Resources/Queues/", EntitiesAddress(topics=False), None),
        ("/$resources/Topics", EntitiesAddress(topics=True), None),
        ("/orders", EntityAddress("orders"), "orders"),
        ("/Orders/", EntityAddress("Orders"), "Orders"),
        ("/shop/orders/new", EntityAddress("shop/orders/new"), "shop/orders/new"),
        ("/subscriptions", EntityAddress("subscriptions"), "subscriptions"),
        ("/rules/rules", EntityAddress("rules/rules"), "rules/rules"),
        ("/news/subscriptions", SubscriptionsAddress("news"), "news"),
        ("/news/Subscriptions/", SubscriptionsAddress("news"), "news"),
        ("/a/b/SUBSCRIPTIONS/c", SubscriptionAddress("a/b", "c"), "a/b"),
        ("/subscriptions/subscriptions/c", SubscriptionAddress("subscriptions", "c"), "subscriptions"),
        ("/news/subscriptions/all/rules", RulesAddress("news", "all"), "news"),
        ("/news/Subscriptions/all/Rules/", RulesAddress("news", "all"), "news"),
        ("/news/subscriptions/all/rules/$Default", RuleAddress("news", "all", "$Default"), "news"),
        ("/a/b/subscriptions/rules/rules/rules", RuleAddress("a/b", "rules", "rules"), "a/b"),
    ],
)
def test_a_path_is_the_address_of_a_resource(path: str, address: Address, owner: str | None) -> None:
    assert parse_address(path) == address
    assert owner_of(address) == owner


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "//",
        "/$resources",
        "/$Resources/relays",
        "/$namespaceinfo/more",
        "/$management",
        "/$x/subscriptions/y",
        "/news/subscriptions/all/messages",
        "/news/subscriptions/all/rules/one/more",
        "/news/subscriptions/all/filters/one",
    ],
)
def test_where_nothing_can_be_nothing_is_found(path: str) -> None:
    with pytest.raises(EntityNotFound):
        parse_address(path)
