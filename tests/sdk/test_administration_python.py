"""azure-servicebus for Python: the administration client, unmodified, over TLS with the local authority."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import (
    AccessRights,
    ApiVersion,
    AuthorizationRule,
    CorrelationRuleFilter,
    EntityStatus,
    FalseRuleFilter,
    QueueProperties,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from admin.atom import AtomClient
from peeklock.amqp.types import Int
from peeklock.client import connect
from serving import ServedBroker

UTC = datetime.UTC
FOREVER = datetime.timedelta(days=10675199, seconds=10085, microseconds=477581)
"""As Python reads the longest time that .NET can say."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    broker = ServedBroker(tmp_path_factory.mktemp("broker"), "--admin-port", "0")
    yield broker
    broker.stop()


def client_for(broker: ServedBroker, **options: Any) -> ServiceBusAdministrationClient:
    # One try: what a test expects to fail should fail at once.
    options = {"connection_verify": str(broker.authority), "retry_total": 0, **options}
    return ServiceBusAdministrationClient.from_connection_string(broker.connection_string, **options)


@pytest.fixture
def client(broker: ServedBroker) -> Iterator[ServiceBusAdministrationClient]:
    """Of a namespace without entities."""
    with client_for(broker) as client:
        for found in list(client.list_queues()):
            client.delete_queue(found.name)
        for found in list(client.list_topics()):
            client.delete_topic(found.name)
        yield client


@pytest.fixture
def news(client: ServiceBusAdministrationClient) -> ServiceBusAdministrationClient:
    """With a topic and a subscription."""
    client.create_topic("news")
    client.create_subscription("news", "all")
    return client


# --- queues ---


def test_a_queue_without_settings_has_the_defaults_of_the_service(
    client: ServiceBusAdministrationClient,
) -> None:
    client.create_queue("orders")
    found = client.get_queue("orders")
    assert dict(found.items()) == {
        "name": "orders",
        "lock_duration": datetime.timedelta(minutes=1),
        "max_size_in_megabytes": 1024,
        "requires_duplicate_detection": False,
        "requires_session": False,
        "default_message_time_to_live": FOREVER,
        "dead_lettering_on_message_expiration": False,
        "duplicate_detection_history_time_window": datetime.timedelta(minutes=10),
        "max_delivery_count": 10,
        "enable_batched_operations": True,
        "authorization_rules": None,
        "status": EntityStatus.ACTIVE,
        "auto_delete_on_idle": FOREVER,
        "enable_partitioning": False,
        "availability_status": "Available",
        "enable_express": False,
        "forward_to": None,
        "user_metadata": None,
        "forward_dead_lettered_messages_to": None,
        "max_message_size_in_kilobytes": 256,
    }


def test_a_queue_has_every_setting_it_was_created_with(
    broker: ServedBroker, client: ServiceBusAdministrationClient
) -> None:
    settings: dict[str, Any] = {
        "lock_duration": datetime.timedelta(seconds=33),
        "max_size_in_megabytes": 2048,
        "requires_duplicate_detection": True,
        "requires_session": True,
        "default_message_time_to_live": datetime.timedelta(hours=5),
        "dead_lettering_on_message_expiration": True,
        "duplicate_detection_history_time_window": datetime.timedelta(minutes=3),
        "max_delivery_count": 14,
        "enable_batched_operations": False,
        "auto_delete_on_idle": datetime.timedelta(minutes=10),
        "enable_express": True,
        "user_metadata": "who & <what>",
    }
    client.create_queue("letters")
    client.create_queue("orders", forward_dead_lettered_messages_to="letters", **settings)
    found = client.get_queue("orders")
    assert {name: found[name] for name in settings} == settings
    assert found.forward_dead_lettered_messages_to == f"https://127.0.0.1:{broker.port}/letters"


def test_a_queue_that_was_read_can_be_updated_and_read_again(client: ServiceBusAdministrationClient) -> None:
    client.create_queue("other")
    found = client.create_queue("orders")
    found.max_delivery_count = 3
    found.status = EntityStatus.SEND_DISABLED
    found.lock_duration = "PT2M"  # type: ignore[assignment]
    found.forward_to = "other"
    client.update_queue(found)
    updated = client.get_queue("orders")
    assert (updated.max_delivery_count, updated.status) == (3, EntityStatus.SEND_DISABLED)
    assert updated.lock_duration == datetime.timedelta(minutes=2)
    assert str(updated.forward_to).endswith("/other")
    client.update_queue(updated, user_metadata="once more")
    again = client.get_queue("orders")
    assert (again.user_metadata, again.forward_to) == ("once more", updated.forward_to)
    again.forward_to = None
    client.update_queue(again)
    assert client.get_queue("orders").forward_to is None


def test_a_queue_may_forward_to_itself(client: ServiceBusAdministrationClient) -> None:
    found = client.create_queue("orders")
    found.forward_to = found.forward_dead_lettered_messages_to = "orders"
    client.update_queue(found)
    updated = client.get_queue("orders")
    assert str(updated.forward_to).endswith("/orders")
    assert updated.forward_to == updated.forward_dead_lettered_messages_to


def test_a_queue_with_sessions_may_have_forward_to(client: ServiceBusAdministrationClient) -> None:
    client.create_queue("other")
    client.create_queue("orders", requires_session=True, forward_to="other")
    found = client.get_queue("orders")
    assert found.requires_session
    assert str(found.forward_to).endswith("/other")


def test_a_queue_is_deleted_and_starts_empty_when_created_again(
    broker: ServedBroker, client: ServiceBusAdministrationClient
) -> None:
    client.create_queue("orders")
    send(broker, "orders", "old")
    client.delete_queue("orders")
    with pytest.raises(ResourceNotFoundError):
        client.get_queue("orders")
    client.create_queue("orders")
    assert client.get_queue_runtime_properties("orders").total_message_count == 0


def test_names_may_contain_slashes_and_are_case_insensitive(client: ServiceBusAdministrationClient) -> None:
    client.create_queue("Shop/Orders.new-1_2")
    assert [found.name for found in client.list_queues()] == ["Shop/Orders.new-1_2"]
    assert client.get_queue("shop/orders.NEW-1_2").max_delivery_count == 10
    client.delete_queue("SHOP/orders.new-1_2")
    assert list(client.list_queues()) == []


def test_authorization_rules_are_stored_and_effective(
    broker: ServedBroker, client: ServiceBusAdministrationClient
) -> None:
    rules = [
        AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            claim_type="SharedAccessKey",
            claim_value="None",
            rights=[AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN],
            key_name="mine",
            primary_key="the-first-key",
            secondary_key="the-second-key",
        ),
        AuthorizationRule(type="SharedAccessAuthorizationRule", rights=[AccessRights.SEND], key_name="sender"),
    ]
    client.create_queue("orders", authorization_rules=rules)
    mine, sender = client.get_queue("orders").authorization_rules or []
    assert (mine.key_name, mine.primary_key, mine.secondary_key) == ("mine", "the-first-key", "the-second-key")
    assert mine.rights == [AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN]
    assert (sender.rights, len(sender.primary_key or "")) == ([AccessRights.SEND], 44)
    owner = broker.connection_string.replace("RootManageSharedAccessKey", "mine").replace(
        "SAS_KEY_VALUE", "the-second-key"
    )
    with ServiceBusAdministrationClient.from_connection_string(
        owner, connection_verify=str(broker.authority), retry_total=0
    ) as limited:
        assert limited.get_queue("orders").name == "orders"
        with pytest.raises(ClientAuthenticationError):
            limited.get_queue("queue")
        with pytest.raises(ClientAuthenticationError):
            list(limited.list_queues())


# --- topics and subscriptions ---


def test_topics_are_created_read_updated_listed_and_deleted(client: ServiceBusAdministrationClient) -> None:
    client.create_topic(
        "news",
        max_size_in_megabytes=3072,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=datetime.timedelta(minutes=2),
        support_ordering=False,
        user_metadata="m",
    )
    found = client.get_topic("news")
    assert (found.max_size_in_megabytes, found.requires_duplicate_detection) == (3072, True)
    assert found.support_ordering is False
    assert found.duplicate_detection_history_time_window == datetime.timedelta(minutes=2)
    found.default_message_time_to_live = datetime.timedelta(days=1)
    client.update_topic(found)
    assert client.get_topic("news").default_message_time_to_live == datetime.timedelta(days=1)
    assert [topic.name for topic in client.list_topics()] == ["news"]
    client.delete_topic("news")
    with pytest.raises(ResourceNotFoundError):
        client.get_topic("news")


def test_subscriptions_are_created_read_updated_listed_and_deleted(client: ServiceBusAdministrationClient) -> None:
    client.create_queue("target")
    client.create_topic("shop/news")
    client.create_subscription(
        "shop/news",
        "all",
        lock_duration="PT20S",
        dead_lettering_on_filter_evaluation_exceptions=False,
        max_delivery_count=4,
        forward_to="target",
    )
    client.create_subscription("shop/news", "sessions", requires_session=True)
    found = client.get_subscription("shop/news", "all")
    assert (found.max_delivery_count, found.dead_lettering_on_filter_evaluation_exceptions) == (4, False)
    assert found.lock_duration == datetime.timedelta(seconds=20)
    assert str(found.forward_to).endswith("/target")
    found.max_delivery_count = 5
    client.update_subscription("shop/news", found)
    assert client.get_subscription("shop/news", "ALL").max_delivery_count == 5
    listed = list(client.list_subscriptions("shop/news"))
    assert [(each.name, each.requires_session) for each in listed] == [("all", False), ("sessions", True)]
    client.delete_subscription("shop/news", "all")
    with pytest.raises(ResourceNotFoundError):
        client.get_subscription("shop/news", "all")
    assert client.get_topic_runtime_properties("shop/news").subscription_count == 1


# --- rules ---


def test_a_new_subscription_has_a_rule_that_matches_every_message(news: ServiceBusAdministrationClient) -> None:
    (rule,) = news.list_rules("news", "all")
    assert rule.name == "$Default"
    assert isinstance(rule.filter, TrueRuleFilter)
    assert rule.action is None
    assert rule.created_at_utc is not None


def test_a_rule_by_sql_has_its_parameters_and_its_action(news: ServiceBusAdministrationClient) -> None:
    parameters = {
        "@text": "a'b",
        "@int": 7,
        "@long": 1 << 40,
        "@double": 2.5,
        "@flag": True,
        "@moment": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "@time": datetime.timedelta(hours=1, seconds=1),
    }
    news.create_rule(
        "news",
        "all",
        "some",
        filter=SqlRuleFilter("a = @text AND b < @int", parameters=parameters),
        action=SqlRuleAction("SET c = @int", parameters={"@int": 1}),
    )
    rule = news.get_rule("news", "all", "some")
    assert isinstance(rule.filter, SqlRuleFilter)
    assert (rule.filter.sql_expression, rule.filter.parameters) == ("a = @text AND b < @int", parameters)
    assert rule.action is not None
    assert (rule.action.sql_expression, rule.action.parameters) == ("SET c = @int", {"@int": 1})


def test_a_rule_by_correlation_has_every_value_with_its_type(news: ServiceBusAdministrationClient) -> None:
    texts = {
        "correlation_id": "c",
        "message_id": "m",
        "to": "t",
        "reply_to": "r",
        "label": "l",
        "session_id": "s",
        "reply_to_session_id": "rs",
        "content_type": "ct",
    }
    properties = {
        "text": "x",
        "int": -5,
        "long": -(1 << 62),
        "double": 1.25,
        "flag": False,
        "moment": datetime.datetime(2026, 1, 2, tzinfo=UTC),
        "moment without a zone": datetime.datetime(2026, 1, 2),
        "time": datetime.timedelta(days=2, microseconds=3),
    }
    news.create_rule("news", "all", "some", filter=CorrelationRuleFilter(**texts, properties=properties))  # type: ignore[arg-type]
    found = news.get_rule("news", "all", "some").filter
    assert isinstance(found, CorrelationRuleFilter)
    assert {name: getattr(found, name) for name in texts} == texts
    assert found.properties == properties
    assert {name: type(value) for name, value in (found.properties or {}).items()} == {
        name: type(value) for name, value in properties.items()
    }


def test_a_rule_is_updated_and_deleted(news: ServiceBusAdministrationClient) -> None:
    rule = news.create_rule("news", "all", "some", filter=SqlRuleFilter("a = 1"))
    rule.filter = FalseRuleFilter()
    rule.action = SqlRuleAction("REMOVE a")
    news.update_rule("news", "all", rule)
    found = news.get_rule("news", "all", "some")
    assert isinstance(found.filter, FalseRuleFilter)
    assert found.action is not None
    assert found.created_at_utc == rule.created_at_utc
    news.delete_rule("news", "all", "$Default")
    assert [rule.name for rule in news.list_rules("news", "all")] == ["some"]
    with pytest.raises(ResourceNotFoundError):
        news.get_rule("news", "all", "$Default")


def test_rules_apply_to_the_next_messages(broker: ServedBroker, news: ServiceBusAdministrationClient) -> None:
    news.create_subscription("news", "red")
    news.create_rule(
        "news",
        "red",
        "red",
        filter=SqlRuleFilter("colour = @colour", parameters={"@colour": "red"}),
        action=SqlRuleAction("SET seen = @seen", parameters={"@seen": 5}),
    )
    news.delete_rule("news", "red", "$Default")
    with ServiceBusClient.from_connection_string(broker.connection_string) as data:
        with data.get_topic_sender("news") as sender:
            for colour in ("red", "blue"):
                sender.send_messages(ServiceBusMessage(colour, application_properties={"colour": colour}))
        with data.get_subscription_receiver("news", "red", max_wait_time=5) as receiver:
            (message,) = receiver.receive_messages(max_message_count=10, max_wait_time=5)
            assert str(message) == "red"
            assert (message.application_properties or {})[b"seen"] == 5
    assert news.get_subscription_runtime_properties("news", "all").active_message_count == 2
    assert news.get_subscription_runtime_properties("news", "red").active_message_count == 1


# --- lists ---


def test_lists_are_read_page_by_page(client: ServiceBusAdministrationClient) -> None:
    names = [f"q{number:03}" for number in range(105)]
    for name in names:
        client.create_queue(name)
    assert [found.name for found in client.list_queues()] == names
    assert [found.name for found in client.list_queues_runtime_properties(max_page_size=10)] == names
    assert [found.name for found in client.list_queues(start_index=103)] == names[103:]
    assert list(client.list_topics()) == []


def test_rules_and_subscriptions_are_read_page_by_page(news: ServiceBusAdministrationClient) -> None:
    for number in range(5):
        news.create_rule("news", "all", f"r{number}", filter=CorrelationRuleFilter(label=str(number)))
        news.create_subscription("news", f"s{number}")
    rules = list(news.list_rules("news", "all", max_page_size=2))
    assert [rule.name for rule in rules] == ["$Default", "r0", "r1", "r2", "r3", "r4"]
    names = [found.name for found in news.list_subscriptions("news", max_page_size=2)]
    assert names == ["all", "s0", "s1", "s2", "s3", "s4"]


# --- what is the case ---


def send(broker: ServedBroker, entity: str, *bodies: str, **options: Any) -> None:
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as data,
        data.get_queue_sender(entity) as sender,
    ):
        sender.send_messages([ServiceBusMessage(body, **options) for body in bodies])


def test_the_counts_of_a_queue_are_exact(broker: ServedBroker, client: ServiceBusAdministrationClient) -> None:
    client.create_queue("orders")
    send(broker, "orders", "a", "b", "c", "d", "e")
    later = datetime.datetime.now(UTC) + datetime.timedelta(hours=1)
    send(broker, "orders", "f", "g", scheduled_enqueue_time_utc=later)
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as data,
        data.get_queue_receiver("orders") as receiver,
    ):
        first, second, third = receiver.receive_messages(max_message_count=3, max_wait_time=5)
        receiver.complete_message(first)
        receiver.dead_letter_message(second, reason="tested")
        receiver.defer_message(third)
    found = client.get_queue_runtime_properties("orders")
    assert (found.active_message_count, found.scheduled_message_count) == (2, 2)
    assert (found.dead_letter_message_count, found.total_message_count) == (1, 6)
    assert (found.transfer_message_count, found.transfer_dead_letter_message_count) == (0, 0)
    assert (found.size_in_bytes or 0) > 6
    assert found.created_at_utc is not None
    assert found.updated_at_utc == found.created_at_utc
    assert found.accessed_at_utc is not None
    assert found.accessed_at_utc >= found.created_at_utc
    client.update_queue(client.get_queue("orders"), max_delivery_count=2)
    updated = client.get_queue_runtime_properties("orders")
    assert updated.updated_at_utc is not None
    assert updated.updated_at_utc > found.created_at_utc


def test_claimed_messages_count_in_the_total(broker: ServedBroker, client: ServiceBusAdministrationClient) -> None:
    client.create_queue("orders")
    send(broker, "orders", "a", "b", "c")
    with connect(broker.connection_string) as connection:
        claim = {"claim-name": "lake", "claim-id": uuid4(), "owner": uuid4(), "message-count": Int(2)}
        assert connection.management("orders").request("peeklock:claim-messages", claim)
    for found in (client.get_queue_runtime_properties("orders"), next(client.list_queues_runtime_properties())):
        assert (found.active_message_count, found.total_message_count) == (1, 3)
        assert (found.scheduled_message_count, found.dead_letter_message_count) == (0, 0)
        assert (found.transfer_message_count, found.transfer_dead_letter_message_count) == (0, 0)
    assert client.get_queue("orders").max_delivery_count == 10


def test_the_counts_of_topics_and_subscriptions_are_exact(
    broker: ServedBroker, news: ServiceBusAdministrationClient
) -> None:
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as data,
        data.get_topic_sender("news") as sender,
    ):
        sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        sender.schedule_messages(ServiceBusMessage("c"), datetime.datetime.now(UTC) + datetime.timedelta(hours=1))
    topic = news.get_topic_runtime_properties("news")
    assert (topic.subscription_count, topic.scheduled_message_count) == (1, 1)
    assert (topic.size_in_bytes or 0) > 0
    (found,) = news.list_subscriptions_runtime_properties("news")
    assert (found.active_message_count, found.total_message_count) == (2, 2)


def test_the_namespace_has_its_name_and_tier(client: ServiceBusAdministrationClient) -> None:
    found = client.get_namespace_properties()
    assert (found.name, found.messaging_sku, found.namespace_type) == ("sbemulatorns", "Standard", "Messaging")
    assert found.created_at_utc is not None


# --- what is refused ---


def test_creating_an_existing_entity_is_a_conflict(news: ServiceBusAdministrationClient) -> None:
    news.create_queue("orders")
    for create in (
        lambda: news.create_queue("ORDERS"),
        lambda: news.create_topic("orders"),
        lambda: news.create_topic("news"),
        lambda: news.create_subscription("news", "all"),
        lambda: news.create_rule("news", "all", "$Default"),
    ):
        with pytest.raises(ResourceExistsError):
            create()


def test_an_unknown_entity_is_not_found(news: ServiceBusAdministrationClient) -> None:
    queue = news.create_queue("orders")
    rule = news.create_rule("news", "all", "some")
    news.delete_queue("orders")
    news.delete_rule("news", "all", "some")
    for ask in (
        lambda: news.get_queue("orders"),
        lambda: news.get_queue_runtime_properties("orders"),
        lambda: news.update_queue(queue),
        lambda: news.delete_queue("orders"),
        lambda: news.get_topic("orders"),
        lambda: news.get_subscription("news", "none"),
        lambda: list(news.list_subscriptions("none")),
        lambda: news.create_subscription("none", "s"),
        lambda: list(news.list_rules("news", "none")),
        lambda: news.get_rule("news", "all", "none"),
        lambda: news.update_rule("news", "all", rule),
        lambda: news.delete_rule("news", "all", "none"),
        lambda: news.create_rule("news", "none", "r"),
    ):
        with pytest.raises(ResourceNotFoundError):
            ask()


def test_an_invalid_setting_is_refused_with_the_reason(news: ServiceBusAdministrationClient) -> None:
    with pytest.raises(HttpResponseError, match="LockDuration PT10M: must be from PT5S to PT5M") as refusal:
        news.create_queue("orders", lock_duration=datetime.timedelta(minutes=10))
    assert refusal.value.status_code == 400
    with pytest.raises(HttpResponseError, match="ForwardTo"):
        news.create_queue("orders", forward_to="nowhere")
    with pytest.raises(HttpResponseError, match="SqlFilter"):
        news.create_rule("news", "all", "bad", filter=SqlRuleFilter("a ="))
    with pytest.raises(HttpResponseError, match="Action"):
        news.create_rule("news", "all", "bad", action=SqlRuleAction("SET ="))
    fixed = news.create_queue("fixed")
    fixed.requires_session = True
    with pytest.raises(HttpResponseError, match="RequiresSession"):
        news.update_queue(fixed)


def test_a_wrong_key_is_an_authentication_error(broker: ServedBroker) -> None:
    wrong = broker.connection_string.replace("SAS_KEY_VALUE", "guessed")
    with (
        ServiceBusAdministrationClient.from_connection_string(wrong, connection_verify=str(broker.authority)) as client,
        pytest.raises(ClientAuthenticationError),
    ):
        client.get_queue("queue")


def test_an_update_with_another_etag_raises_the_sdks_error(
    broker: ServedBroker, client: ServiceBusAdministrationClient
) -> None:
    found = client.create_queue("orders")
    errors = {412: ResourceModifiedError}
    etag = AtomClient(broker.port).get("/orders").etag
    with client_for(broker, headers={"If-Match": etag}) as one:
        one.update_queue(found, max_delivery_count=2, error_map=errors)
        with pytest.raises(ResourceModifiedError):
            one.update_queue(found, max_delivery_count=3, error_map=errors)
    assert client.get_queue("orders").max_delivery_count == 2


# --- other ways in ---


@pytest.mark.parametrize("version", [ApiVersion.V2017_04, ApiVersion.V2021_05])
def test_older_versions_of_the_interface_are_supported(broker: ServedBroker, version: ApiVersion) -> None:
    with client_for(broker, api_version=version) as client:
        name = f"orders-{version.value}"
        client.create_queue(name)
        size = client.get_queue(name).max_message_size_in_kilobytes
        assert size == (None if version is ApiVersion.V2017_04 else 256)
        client.delete_queue(name)


def test_the_oldest_version_of_the_interface_has_no_maximum_message_size(broker: ServedBroker) -> None:
    with client_for(broker, api_version=ApiVersion.V2017_04) as client:
        with pytest.raises(HttpResponseError, match="requires the api-version 2021-05"):
            client.create_topic("sized", max_message_size_in_kilobytes=256)
        with pytest.raises(ResourceNotFoundError):
            client.get_topic("sized")


def test_the_further_port_administers_too(broker: ServedBroker, client: ServiceBusAdministrationClient) -> None:
    client.create_queue("orders")
    ports = [int(line.split("port=")[1]) for line in broker.log.splitlines() if " listening " in line]
    (further,) = set(ports) - {broker.port}
    elsewhere = broker.connection_string.replace(str(broker.port), str(further))
    with ServiceBusAdministrationClient.from_connection_string(
        elsewhere, connection_verify=str(broker.authority)
    ) as other:
        assert other.get_queue("orders").name == "orders"
    assert AtomClient(further).get("/orders").status == 200


def test_the_asynchronous_client_administers(broker: ServedBroker, client: ServiceBusAdministrationClient) -> None:
    async def administer(authority: Path) -> list[str]:
        async with AsyncAdministrationClient.from_connection_string(
            broker.connection_string, connection_verify=str(authority), retry_total=0
        ) as admin:
            found: QueueProperties = await admin.create_queue("orders")
            found.max_delivery_count = 2
            await admin.update_queue(found)
            assert (await admin.get_queue("orders")).max_delivery_count == 2
            await admin.create_topic("news")
            await admin.create_subscription("news", "all")
            await admin.create_rule("news", "all", "some", filter=SqlRuleFilter("a = @p", parameters={"@p": 1}))
            assert [rule.name async for rule in admin.list_rules("news", "all")] == ["$Default", "some"]
            with pytest.raises(ResourceExistsError):
                await admin.create_queue("orders")
            with pytest.raises(ResourceNotFoundError):
                await admin.get_topic("none")
            names = [found.name async for found in admin.list_queues(max_page_size=1)]
            await admin.delete_topic("news")
            return names

    client.create_queue("another")
    assert asyncio.run(administer(broker.authority)) == ["another", "orders"]
