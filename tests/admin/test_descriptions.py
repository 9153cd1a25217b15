"""Queues, topics and subscriptions as each SDK sends them, and as each of them reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree.ElementTree import Element

import pytest

from admin.atom import queue, sent, subscription
from peeklock.admin.descriptions import (
    EntityState,
    describe,
    describe_namespace,
    read_settings,
)
from peeklock.atom.entries import description_of
from peeklock.atom.markup import parse, to_text
from peeklock.broker.administration import Runtime
from peeklock.entities.authorization import AuthorizationRule, Right
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.names import DefinitionError
from peeklock.entities.settings import PROFILES, Status

RUNTIME = Runtime(
    active=3,
    deferred=1,
    scheduled=2,
    dead_letter=4,
    transfer_dead_letter=5,
    size_in_bytes=1234,
    subscription_count=7,
    created_at=1_767_225_600_000,
    updated_at=1_767_225_601_500,
    accessed_at=0,
)


def inner(description: Element) -> str:
    """The elements of a description."""
    return "".join(map(to_text, description))


def read(
    data: bytes | str, kind: type = QueueDefinition, former: Any = None, version: str = "2024-05"
) -> dict[str, Any]:
    text = data.encode() if isinstance(data, str) else data
    return read_settings(kind, description_of(parse(text)), version, former)


def test_descriptions_from_the_python_sdk_are_read() -> None:
    found = read(sent("python_entity"))
    (rule,) = found.pop("authorization_rules")
    assert found == {
        "lock_duration_ms": 30_000,
        "forward_to": "other/one",
        "forward_dead_lettered_messages_to": None,
        "user_metadata": "x<y",
    }
    assert (rule.name, rule.primary_key, rule.rights) == ("n", "pppppppppp", {Right.SEND})


def test_descriptions_from_the_javascript_sdk_are_read() -> None:
    assert QueueDefinition(name="q", **read(sent("javascript_entity"))) == QueueDefinition(
        name="q",
        lock_duration_ms=45_000,
        max_size_in_megabytes=2048,
        requires_duplicate_detection=True,
        default_message_ttl_ms=2 * 86_400_000,
        dead_lettering_on_message_expiration=True,
        duplicate_detection_window_ms=60_000,
        max_delivery_count=8,
        enable_batched_operations=False,
        authorization_rules=(
            AuthorizationRule(
                name="all", primary_key="primary", secondary_key="secondary", rights=frozenset({Right.MANAGE})
            ),
        ),
        status=Status.RECEIVE_DISABLED,
        forward_to="target",
        auto_delete_on_idle_ms=3_600_000,
        forward_dead_lettered_messages_to="letters",
        enable_express=True,
        max_message_size_in_kilobytes=256,
    )


def test_descriptions_from_the_dotnet_sdk_are_read() -> None:
    assert SubscriptionDefinition(
        name="s", **read(sent("dotnet_entity"), SubscriptionDefinition)
    ) == SubscriptionDefinition(
        name="s",
        requires_session=True,
        dead_lettering_on_filter_evaluation_exceptions=False,
        max_delivery_count=5,
    )


def test_what_is_not_said_is_not_found_but_for_what_clients_clear_by_leaving_it_out() -> None:
    cleared = {"forward_to": None, "forward_dead_lettered_messages_to": None, "user_metadata": None}
    assert read(queue()) == cleared
    assert read(queue("<LockDuration/><Status> </Status><UserMetadata/><ForwardTo/>")) == cleared


def test_unknown_elements_are_ignored() -> None:
    found = read(queue("<Colour>red</Colour><MaxDeliveryCount>2</MaxDeliveryCount><SizeInBytes>many</SizeInBytes>"))
    assert found["max_delivery_count"] == 2
    assert "Colour" not in str(found)


@pytest.mark.parametrize("address", ["a/b", "/a/b/", "sb://host:5672/a/b", "https://host/a%2Fb", "HTTP://host//a/b"])
def test_a_destination_is_a_name_or_an_address(address: str) -> None:
    assert read(queue(f"<ForwardTo>{address}</ForwardTo>"))["forward_to"] == "a/b"


def test_the_size_of_messages_is_known_since_a_version_of_the_interface() -> None:
    data = queue("<MaxMessageSizeInKilobytes>256</MaxMessageSizeInKilobytes>")
    assert read(data, version="2021-05")["max_message_size_in_kilobytes"] == 256
    with pytest.raises(DefinitionError, match="requires the api-version 2021-05"):
        read(data, version="2017-04")
    assert "max_message_size_in_kilobytes" not in read(queue(), version="2017-04")
    state = EntityState(QueueDefinition(name="q"), RUNTIME, PROFILES["premium"], "https://h", "2021-05")
    assert "<MaxMessageSizeInKilobytes>102400</MaxMessageSizeInKilobytes>" in inner(describe(state))
    assert "MaxMessageSize" not in inner(describe(replace(state, api_version="2017-04")))


@pytest.mark.parametrize(
    ("inner", "setting"),
    [
        ("<LockDuration>60</LockDuration>", "LockDuration"),
        ("<MaxDeliveryCount>ten</MaxDeliveryCount>", "MaxDeliveryCount"),
        ("<MaxDeliveryCount>1.5</MaxDeliveryCount>", "MaxDeliveryCount"),
        (f"<MaxDeliveryCount>{'9' * 5000}</MaxDeliveryCount>", "MaxDeliveryCount"),
        ("<MaxDeliveryCount>0</MaxDeliveryCount>", "MaxDeliveryCount"),
        ("<RequiresSession>perhaps</RequiresSession>", "RequiresSession"),
        ("<Status>Deleting</Status>", "Status"),
        ("<ForwardTo>sb://host/</ForwardTo>", "ForwardTo"),
        ("<ForwardTo>$management</ForwardTo>", "ForwardTo"),
        (f"<UserMetadata>{'x' * 1025}</UserMetadata>", "UserMetadata"),
        ("<AuthorizationRules><AuthorizationRule/></AuthorizationRules>", "Name"),
        (
            "<AuthorizationRules><AuthorizationRule><KeyName>k</KeyName></AuthorizationRule></AuthorizationRules>",
            "Rights",
        ),
        (
            "<AuthorizationRules><AuthorizationRule><KeyName>k</KeyName><Rights><AccessRights>Own</AccessRights></Rights>"
            "</AuthorizationRule></AuthorizationRules>",
            "Rights",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_the_name_of_its_setting(inner: str, setting: str) -> None:
    with pytest.raises(DefinitionError) as refusal:
        QueueDefinition(name="q", **read(queue(inner)))
    assert refusal.value.setting == setting


KEYLESS = queue(
    "<AuthorizationRules><AuthorizationRule><KeyName>K</KeyName><Rights><AccessRights>Listen</AccessRights></Rights>"
    "</AuthorizationRule></AuthorizationRules>"
)


def test_missing_keys_of_a_new_rule_are_generated() -> None:
    first, second = (read(KEYLESS)["authorization_rules"][0] for _ in range(2))
    assert len({first.primary_key, first.secondary_key, second.primary_key, second.secondary_key}) == 4
    assert len(first.primary_key) == 44


def test_missing_keys_are_unchanged() -> None:
    known = AuthorizationRule(name="k", primary_key="one", rights=frozenset({Right.SEND}))
    (rule,) = read(KEYLESS, former=QueueDefinition(name="q", authorization_rules=(known,)))["authorization_rules"]
    assert (rule.primary_key, rule.secondary_key, rule.rights) == ("one", None, {Right.LISTEN})


def test_an_empty_list_removes_rules_and_a_missing_list_keeps_them() -> None:
    assert read(queue("<AuthorizationRules/>"))["authorization_rules"] == ()
    assert "authorization_rules" not in read(queue())


def test_a_subscription_has_no_rules_of_authorization() -> None:
    assert "authorization_rules" not in read(subscription("<AuthorizationRules/>"), SubscriptionDefinition)


# --- writing ---


def test_a_queue_is_written_whole_and_in_order() -> None:
    definition = QueueDefinition(
        name="q",
        forward_to="a/b",
        user_metadata="<&>",
        authorization_rules=(
            AuthorizationRule(name="k", primary_key="one", secondary_key="two", rights=frozenset({Right.MANAGE})),
        ),
    )
    state = EntityState(definition, RUNTIME, PROFILES["standard"], "https://host:5300", "2024-05")
    assert inner(describe(state)) == (
        "<LockDuration>PT1M</LockDuration>"
        "<MaxSizeInMegabytes>1024</MaxSizeInMegabytes>"
        "<RequiresDuplicateDetection>false</RequiresDuplicateDetection>"
        "<RequiresSession>false</RequiresSession>"
        "<DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive>"
        "<DeadLetteringOnMessageExpiration>false</DeadLetteringOnMessageExpiration>"
        "<DuplicateDetectionHistoryTimeWindow>PT10M</DuplicateDetectionHistoryTimeWindow>"
        "<MaxDeliveryCount>10</MaxDeliveryCount>"
        "<EnableBatchedOperations>true</EnableBatchedOperations>"
        "<SizeInBytes>1234</SizeInBytes>"
        "<MessageCount>15</MessageCount>"
        "<IsAnonymousAccessible>false</IsAnonymousAccessible>"
        '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue><Rights><AccessRights>Manage</AccessRights>"
        "<AccessRights>Send</AccessRights><AccessRights>Listen</AccessRights></Rights>"
        "<CreatedTime>2026-01-01T00:00:00Z</CreatedTime><ModifiedTime>2026-01-01T00:00:01.500Z</ModifiedTime>"
        "<KeyName>k</KeyName><PrimaryKey>one</PrimaryKey><SecondaryKey>two</SecondaryKey>"
        "</AuthorizationRule></AuthorizationRules>"
        "<Status>Active</Status>"
        "<CreatedAt>2026-01-01T00:00:00Z</CreatedAt>"
        "<UpdatedAt>2026-01-01T00:00:01.500Z</UpdatedAt>"
        "<AccessedAt>0001-01-01T00:00:00Z</AccessedAt>"
        "<SupportOrdering>true</SupportOrdering>"
        '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
        "<d2p1:ActiveMessageCount>3</d2p1:ActiveMessageCount>"
        "<d2p1:DeadLetterMessageCount>4</d2p1:DeadLetterMessageCount>"
        "<d2p1:ScheduledMessageCount>2</d2p1:ScheduledMessageCount>"
        "<d2p1:TransferMessageCount>0</d2p1:TransferMessageCount>"
        "<d2p1:TransferDeadLetterMessageCount>5</d2p1:TransferDeadLetterMessageCount></CountDetails>"
        "<AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle>"
        "<EnablePartitioning>false</EnablePartitioning>"
        "<EntityAvailabilityStatus>Available</EntityAvailabilityStatus>"
        "<EnableExpress>false</EnableExpress>"
        "<ForwardTo>https://host:5300/a/b</ForwardTo>"
        "<UserMetadata>&lt;&amp;&gt;</UserMetadata>"
        "<MaxMessageSizeInKilobytes>256</MaxMessageSizeInKilobytes>"
    )


@pytest.mark.parametrize(
    "definition",
    [
        QueueDefinition(
            name="e",
            lock_duration_ms=7_000,
            requires_duplicate_detection=True,
            default_message_ttl_ms=3_661_001,
            status=Status.SEND_DISABLED,
            user_metadata="two\r\nlines ",
            forward_to="other",
            max_message_size_in_kilobytes=256,
            enable_partitioning=True,
            support_ordering=False,
            order_by_priority=True,
            authorization_rules=(AuthorizationRule(name="k", primary_key="p", rights=frozenset({Right.SEND})),),
        ),
        TopicDefinition(
            name="e",
            max_size_in_megabytes=2048,
            duplicate_detection_window_ms=30_000,
            auto_delete_on_idle_ms=600_000,
            filtering_messages_before_publishing=True,
            enable_subscription_partitioning=True,
            max_message_size_in_kilobytes=256,
        ),
        SubscriptionDefinition(
            name="e",
            requires_session=True,
            dead_lettering_on_filter_evaluation_exceptions=False,
            forward_dead_lettered_messages_to="letters/all",
            enable_batched_operations=False,
        ),
    ],
)
def test_written_descriptions_are_read_unchanged(definition: Any) -> None:
    kind = type(definition)
    state = EntityState(definition, RUNTIME, PROFILES["standard"], "http://[::1]:5300", "2024-05")
    found = read_settings(kind, parse(to_text(describe(state)).encode()), "2024-05", definition)
    assert replace(definition, **found) == definition
    assert kind(name="e", **found) == definition


@pytest.mark.parametrize(
    ("profile", "sku", "units"),
    [
        ("standard", "Standard", ""),
        ("emulator", "Standard", ""),
        ("premium", "Premium", "<MessagingUnits>1</MessagingUnits>"),
    ],
)
def test_a_namespace_passes_for_the_tier_whose_limits_it_has(profile: str, sku: str, units: str) -> None:
    assert inner(describe_namespace("ns", PROFILES[profile], 1_767_225_600_000)) == (
        f"<CreatedTime>2026-01-01T00:00:00Z</CreatedTime><MessagingSKU>{sku}</MessagingSKU>{units}"
        "<ModifiedTime>2026-01-01T00:00:00Z</ModifiedTime><Name>ns</Name><NamespaceType>Messaging</NamespaceType>"
    )
