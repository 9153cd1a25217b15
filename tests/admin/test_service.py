"""The ATOM interface over plain HTTP: what is asked and what is answered."""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Callable

import pytest

from admin.atom import A, Answer, AtomClient, queue, rule, subscription, topic
from broker.world import FlakyStore
from peeklock.admin.resources import Resources
from peeklock.entities.definitions import QueueDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.settings import PROFILES
from peeklock.store.base import StoreError, StoreFull
from raw_client import dial, eventually
from server.held_store import HeldStore
from serving import BrokerThread, ServedBroker, StartBroker

NEXT_PAGE = "http://127.0.0.1:{port}/$Resources/Queues?api-version=2021-05&$skip=2&$top=2"


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(data=None)


@pytest.fixture
def atom(broker: BrokerThread) -> AtomClient:
    return AtomClient(broker.broker.port)


@pytest.fixture
def news(atom: AtomClient) -> AtomClient:
    """With a topic and a subscription."""
    assert atom.put("/news", topic()).status == 201
    assert atom.put("/news/subscriptions/all", subscription()).status == 201
    return atom


# --- resources ---


def test_a_queue_is_created_shown_updated_and_deleted(atom: AtomClient) -> None:
    created = atom.put("/orders", queue("<LockDuration>PT30S</LockDuration>"))
    assert (created.status, created.said("LockDuration")) == (201, "PT30S")
    assert created.headers["content-type"] == "application/atom+xml;type=entry;charset=utf-8"
    shown = atom.get("/orders")
    assert (shown.status, shown.text, shown.etag) == (200, created.text, created.etag)
    updated = atom.put("/orders", queue("<LockDuration>PT40S</LockDuration>"), If_Match="*")
    assert (updated.status, updated.said("LockDuration")) == (200, "PT40S")
    deleted = atom.delete("/orders")
    assert (deleted.status, deleted.text) == (200, "")
    assert atom.get("/orders").status == 404


def test_topics_subscriptions_and_rules_are_created_shown_updated_and_deleted(news: AtomClient) -> None:
    sql = '<Filter i:type="SqlFilter"><SqlExpression>a = {}</SqlExpression></Filter>'
    path = "/news/subscriptions/all/rules/some"
    assert news.put(path, rule(sql.format(1))).status == 201
    updated = news.put(path, rule(sql.format(2)), If_Match="*")
    assert updated.status == 200
    assert "a = 2" in news.get(path).text
    assert news.get("/news/subscriptions/all/rules").titles == ["$Default", "some"]
    changed = subscription("<MaxDeliveryCount>3</MaxDeliveryCount>")
    assert news.put("/news/subscriptions/all", changed, If_Match="*").said("MaxDeliveryCount") == "3"
    assert news.put("/news", topic("<UserMetadata>m</UserMetadata>"), If_Match="*").said("UserMetadata") == "m"
    assert news.get("/news/subscriptions/all/rules").titles == ["$Default", "some"]
    for gone in (path, "/news/subscriptions/all", "/news"):
        assert news.delete(gone).status == 200
        assert news.get(gone).status == 404


def test_the_rule_that_a_subscription_begins_with_may_be_given(news: AtomClient) -> None:
    given = (
        '<DefaultRuleDescription><Filter i:type="FalseFilter"/><Action i:type="EmptyRuleAction"/>'
        "<Name>none</Name></DefaultRuleDescription>"
    )
    assert news.put("/news/subscriptions/few", subscription(given)).status == 201
    assert news.get("/news/subscriptions/few/rules").titles == ["none"]


def test_addresses_have_the_spelling_that_clients_cut_names_out_of(news: AtomClient) -> None:
    base = f"http://127.0.0.1:{news.port}/news/Subscriptions/all"
    shown = news.get("/NEWS/subscriptions/ALL?api-version=2024-05")
    assert shown.xml.findtext(f"{A}id") == f"{base}?api-version=2024-05"
    shown = news.get("/news/subscriptions/all/rules/%24default?api-version=2017-04")
    assert shown.xml.findtext(f"{A}id") == f"{base}/Rules/$Default?api-version=2017-04"
    assert shown.xml.findtext(f"{A}title") == "$Default"


def test_a_request_without_a_version_gets_addresses_without_a_version(news: AtomClient) -> None:
    base = f"http://127.0.0.1:{news.port}/news/subscriptions/all"
    assert news.get("/news/subscriptions/all").xml.findtext(f"{A}id") == base
    (entry,) = news.get("/news/subscriptions/all/rules").xml.findall(f"{A}entry")
    assert entry.findtext(f"{A}id") == f"{base}/rules/$Default"


@pytest.mark.parametrize("path", ["/shop/orders", "/shop%2Forders", "/SHOP%2forders/", "/shop/orders/"])
def test_a_slash_in_a_name_may_be_percent_encoded_or_not(atom: AtomClient, path: str) -> None:
    assert atom.put(path, queue()).status == 201
    assert atom.get("/Shop/Orders").xml.findtext(f"{A}title", "").lower() == "shop/orders"
    assert atom.delete("/shop%2Forders").status == 200


def test_what_is_not_said_is_the_profiles_for_a_new_entity_and_as_before_for_an_old_one(
    start_broker: StartBroker,
) -> None:
    atom = AtomClient(start_broker(data=None, profile=PROFILES["emulator"]).broker.port)
    assert atom.put("/orders", queue("<LockDuration>PT2M</LockDuration>")).said("MaxDeliveryCount") == "3"
    updated = atom.put("/orders", queue("<MaxDeliveryCount>5</MaxDeliveryCount>"), If_Match="*")
    assert (updated.said("LockDuration"), updated.said("MaxDeliveryCount")) == ("PT2M", "5")


def test_the_maximum_delivery_count_may_be_the_one_of_nservicebus(atom: AtomClient) -> None:
    created = atom.put("/orders", queue(f"<MaxDeliveryCount>{2**31 - 1}</MaxDeliveryCount>"))
    assert (created.status, created.said("MaxDeliveryCount")) == (201, "2147483647")
    assert atom.put("/more", queue(f"<MaxDeliveryCount>{2**31}</MaxDeliveryCount>")).status == 400


def test_a_text_is_cleared_by_leaving_it_out(atom: AtomClient) -> None:
    atom.put("/orders", queue("<UserMetadata>m</UserMetadata><ForwardTo>queue</ForwardTo>"))
    updated = atom.put("/orders", queue(), If_Match="*")
    assert (updated.said("UserMetadata"), updated.said("ForwardTo")) == (None, None)


def test_an_update_without_order_by_priority_keeps_it(atom: AtomClient) -> None:
    created = atom.put("/orders", queue("<OrderByPriority>true</OrderByPriority>"))
    assert (created.status, created.said("OrderByPriority")) == (201, "true")
    updated = atom.put("/orders", queue("<LockDuration>PT40S</LockDuration>"), If_Match="*")
    assert (updated.status, updated.said("OrderByPriority")) == (200, "true")
    refused = atom.put("/orders", queue("<OrderByPriority>false</OrderByPriority>"), If_Match="*")
    assert refused.status == 400
    assert "OrderByPriority of 'orders' false: cannot be changed once the entity exists" in refused.detail


def test_descriptions_omit_a_setting_that_azure_does_not_have(atom: AtomClient) -> None:
    assert "OrderByPriority" not in atom.put("/orders", queue()).text
    assert "OrderByPriority" not in atom.put("/shop", topic()).text


def test_a_destination_is_returned_as_an_address_of_the_namespace(atom: AtomClient) -> None:
    created = atom.put("/orders", queue("<ForwardTo>sb://elsewhere/queue</ForwardTo>"))
    assert created.said("ForwardTo") == f"http://127.0.0.1:{atom.port}/queue"


def test_the_namespace_document_has_name_and_tier(atom: AtomClient) -> None:
    shown = atom.get("/$namespaceinfo?api-version=2021-05")
    assert (shown.said("Name"), shown.said("MessagingSKU")) == ("sbemulatorns", "Standard")


@pytest.mark.parametrize("name", ["health", "metrics"])
def test_an_entity_may_have_the_name_of_a_page(atom: AtomClient, name: str) -> None:
    assert atom.put(f"/{name}?api-version=2021-05", queue()).status == 201
    assert atom.get(f"/{name}?api-version=2021-05").xml.findtext(f"{A}title") == name
    assert "<entry" not in atom.get(f"/{name}").text


def test_entities_survive_a_restart(served: ServedBroker) -> None:
    atom = AtomClient(served.port)
    atom.put("/news", topic())
    atom.put("/news/subscriptions/all", subscription("<RequiresSession>true</RequiresSession>"))
    atom.put("/news/subscriptions/all/rules/none", rule('<Filter i:type="FalseFilter"/>'))
    paths = ("/news", "/news/subscriptions/all", "/news/subscriptions/all/rules/none")
    before = [atom.get(path).etag for path in paths]
    served.stop()
    served.start()
    assert [atom.get(path).etag for path in paths] == before


# --- lists ---


def test_a_list_is_given_in_pages_until_there_is_no_next(atom: AtomClient) -> None:
    for name in ("a", "B", "c", "d"):
        atom.put(f"/{name}", queue())
    first = atom.get("/$Resources/Queues?api-version=2021-05&$top=2")
    assert first.headers["content-type"] == "application/atom+xml;type=feed;charset=utf-8"
    assert first.titles == ["a", "B"]
    assert first.links[1] == ("next", NEXT_PAGE.format(port=atom.port))
    second = atom.get("/$resources/queues/?%24skip=2&%24top=2")
    assert second.titles == ["c", "d"]
    third = atom.get("/$Resources/queues?$skip=4&$top=2")
    assert third.titles == ["queue"]
    assert len(third.links) == 1


def test_a_page_that_is_just_full_has_no_next(atom: AtomClient) -> None:
    assert len(atom.get("/$Resources/queues?$top=1").links) == 1
    assert atom.get("/$Resources/queues?$skip=1").titles == []


def test_a_page_has_no_more_than_a_hundred(start_broker: StartBroker) -> None:
    queues = [QueueDefinition(name=f"q{number:03}") for number in range(101)]
    atom = AtomClient(start_broker(*queues, data=None).broker.port)
    page = atom.get("/$Resources/queues?$top=1000")
    assert len(page.titles) == 100
    assert page.links[1][1] is not None
    assert page.links[1][1].endswith("$skip=100&$top=100")


def test_topics_and_subscriptions_are_lists_of_their_own(news: AtomClient) -> None:
    news.put("/news/subscriptions/Any", subscription())
    assert news.get("/$Resources/topics").titles == ["news"]
    assert news.get("/$Resources/queues").titles == ["queue"]
    assert news.get("/news/Subscriptions/").titles == ["all", "Any"]
    assert news.get("/queue/subscriptions").status == 404
    assert news.get("/news/subscriptions/none/rules").status == 404


@pytest.mark.parametrize("query", ["$skip=-1", "$skip=x", "$top=0", "$top=1.5", "$top=99999999999"])
def test_an_invalid_page_is_refused(atom: AtomClient, query: str) -> None:
    answer = atom.get(f"/$Resources/queues?{query}")
    assert answer.status == 400
    assert "must be a whole number" in answer.detail


# --- If-Match ---


def test_a_create_of_an_existing_entity_is_a_conflict(news: AtomClient) -> None:
    for path, body in (
        ("/queue", queue()),
        ("/QUEUE", topic()),
        ("/news/subscriptions/ALL", subscription()),
        ("/news/subscriptions/all/rules/$default", rule()),
    ):
        answer = news.put(path, body)
        assert answer.status == 409
        assert answer.detail.startswith("SubCode=40900. ")


def test_an_update_of_an_unknown_entity_is_not_found(atom: AtomClient) -> None:
    for path, body in (
        ("/none", queue()),
        ("/none/subscriptions/s", subscription()),
        ("/none/subscriptions/s/rules/r", rule()),
    ):
        assert atom.put(path, body, If_Match="*").status == 404
        assert atom.delete(path).status == 404
        assert atom.get(path).status == 404
    assert atom.put("/none/subscriptions/s", subscription()).status == 404


def test_an_update_with_another_etag_fails(atom: AtomClient) -> None:
    first = atom.get("/queue").etag
    changed = queue("<MaxDeliveryCount>2</MaxDeliveryCount>")
    assert atom.put("/queue", changed, If_Match=f'"other", {first}').status == 200
    second = atom.get("/queue").etag
    assert second != first
    late = atom.put("/queue", queue("<MaxDeliveryCount>3</MaxDeliveryCount>"), If_Match=first)
    assert late.status == 412
    assert "is not the one in If-Match" in late.detail
    assert atom.get("/queue").said("MaxDeliveryCount") == "2"
    assert atom.delete("/queue", If_Match=first).status == 412
    assert atom.delete("/queue", If_Match=second).status == 200


def test_the_error_of_a_refused_rule_says_that_its_subscription_has_no_rule(news: AtomClient) -> None:
    path, wrong = (
        "/news/subscriptions/all/rules/",
        rule('<Filter i:type="SqlFilter"><SqlExpression>a =</SqlExpression></Filter>'),
    )
    left = "The subscription 'news/Subscriptions/all' has no rules now and receives no messages until one is added."
    before = news.put(f"{path}mine", wrong)
    assert before.status == 400
    assert left not in before.text
    news.delete(f"{path}$Default")
    after = news.put(f"{path}mine", wrong)
    assert after.status == 400
    assert left in after.text
    assert left not in news.get(f"{path}mine").text
    assert news.put("/news/subscriptions/none/rules/mine", wrong).status == 404


def test_a_rule_has_a_state_of_its_own(news: AtomClient) -> None:
    path = "/news/subscriptions/all/rules/$Default"
    of_rule, of_subscription = news.get(path).etag, news.get("/news/subscriptions/all").etag
    changed = news.put(path, rule('<Filter i:type="FalseFilter"/>'), If_Match=of_rule)
    assert changed.status == 200
    assert changed.etag != of_rule
    assert news.get("/news/subscriptions/all").etag == of_subscription


# --- what is refused ---


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/orders", "", "is empty"),
        ("/orders", "<entry", "not well-formed"),
        ("/orders", "<!DOCTYPE entry><entry/>", "document type"),
        ("/orders", "<entry/>", "not an ATOM entry"),
        ("/orders", subscription(), "QueueDescription or a TopicDescription"),
        ("/news/subscriptions/more", queue(), "SubscriptionDescription"),
        ("/news/subscriptions/all/rules/more", queue(), "RuleDescription"),
        ("/orders", queue("<LockDuration>PT1H</LockDuration>"), "LockDuration PT1H: must be from PT5S to PT5M"),
        ("/orders", queue("<ForwardTo>nowhere</ForwardTo>"), "must name a queue or topic of the namespace"),
        ("/-orders", queue(), "letter or digit first"),
        ("/a//b", queue(), "two slashes in a row"),
        (f"/{'x' * 261}", queue(), "260 characters"),
        ("/news/subscriptions/all/rules/a*b", rule(), "must be printable"),
        (
            "/news/subscriptions/all/rules/more",
            rule('<Filter i:type="SqlFilter"><SqlExpression>a = = b</SqlExpression></Filter>'),
            "SqlFilter",
        ),
        (
            "/news/subscriptions/all/rules/more",
            rule('<Action i:type="SqlRuleAction"><SqlExpression>DROP a</SqlExpression></Action>'),
            "Action",
        ),
    ],
)
def test_invalid_settings_are_refused_with_the_reason(news: AtomClient, path: str, body: str, said: str) -> None:
    answer = news.put(path, body)
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/xml; charset=utf-8"
    assert answer.detail.startswith("SubCode=40000. Bad Request. ")
    assert said in answer.detail
    assert "Traceback" not in answer.text


def test_the_maximum_message_size_cannot_be_set_in_a_version_without_it(atom: AtomClient) -> None:
    sized = queue("<MaxMessageSizeInKilobytes>256</MaxMessageSizeInKilobytes>")
    answer = atom.put("/orders?api-version=2017-04", sized)
    assert answer.status == 400
    assert "MaxMessageSizeInKilobytes 256: requires the api-version 2021-05 or newer, not 2017-04" in answer.detail
    assert atom.put("/orders?api-version=2017-04", queue()).status == 201
    assert atom.put("/sized?api-version=2021-05", sized).status == 201


def test_settings_fixed_at_creation_cannot_be_updated(atom: AtomClient) -> None:
    answer = atom.put("/queue", queue("<RequiresSession>true</RequiresSession>"), If_Match="*")
    assert answer.status == 400
    assert "RequiresSession" in answer.detail


def test_a_queue_does_not_become_a_topic(atom: AtomClient) -> None:
    answer = atom.put("/queue", topic(), If_Match="*")
    assert answer.status == 400
    assert "kind of an entity cannot be changed" in answer.detail


def test_a_body_that_is_too_large_is_refused(atom: AtomClient) -> None:
    answer = atom.put("/orders", queue(f"<UserMetadata>{'x' * 1024 * 1024}</UserMetadata>"))
    assert answer.status == 413
    assert "too large" in answer.detail


def test_a_body_may_be_packed_but_not_to_hide_its_size(atom: AtomClient) -> None:
    assert atom.put("/orders", gzip.compress(queue().encode()), Content_Encoding="gzip").status == 201
    assert atom.put("/more", gzip.compress(bytes(20_000_000)), Content_Encoding="gzip").status == 413
    answer = atom.put("/more", b"not packed", Content_Encoding="gzip")
    assert answer.status == 400
    assert "could not be read" in answer.detail


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/queue"), ("PATCH", "/queue"), ("PUT", "/$namespaceinfo"), ("DELETE", "/$Resources/queues")],
)
def test_an_unknown_method_is_refused(atom: AtomClient, method: str, path: str) -> None:
    answer = atom.ask(method, path, queue())
    assert answer.status == 405
    assert method in answer.detail


@pytest.mark.parametrize("path", ["/", "/$Resources", "/$nothing", "/queue/$management", "/news/subscriptions/all/x"])
def test_an_unknown_path_is_not_found(news: AtomClient, path: str) -> None:
    answer = news.get(path)
    assert answer.status == 404
    assert answer.detail.startswith("SubCode=40400. ")


def test_an_invalid_version_is_refused(atom: AtomClient) -> None:
    assert atom.get("/queue?api-version=latest").status == 400


def test_an_invalid_host_is_not_in_the_answer(start_broker: StartBroker) -> None:
    atom = AtomClient(start_broker(data=None, allowed_hosts=("*",)).broker.port)
    answer = atom.get("/queue", Host="<evil>")
    assert answer.xml.findtext(f"{A}id") == "http://localhost/queue"


def test_more_entities_than_the_profile_allows_are_a_quota(start_broker: StartBroker) -> None:
    queues = [QueueDefinition(name=f"q{number}") for number in range(50)]
    atom = AtomClient(start_broker(*queues, data=None, profile=PROFILES["emulator"]).broker.port)
    answer = atom.put("/more", queue())
    assert answer.status == 403
    assert answer.detail.startswith("SubCode=40300. ")


def test_an_unknown_failure_is_logged_completely_and_reported_without_detail(
    atom: AtomClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: object) -> None:
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr(Resources, "namespace_entry", fail)
    answer = atom.get("/$namespaceinfo")
    assert answer.status == 500
    assert "secret" not in answer.text
    assert "the secret of the house" in caplog.text


# --- the store ---


def in_background(ask: Callable[[], Answer]) -> tuple[threading.Thread, list[Answer]]:
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(ask()))
    thread.start()
    return thread, answers


def is_waited_for(broker: BrokerThread) -> bool:
    """Whether a request waits for what is on its way to the store."""
    return broker.call(lambda: bool(broker.broker.namespace.journal._barriers))


def test_a_change_is_answered_when_durable_and_a_concurrent_change_is_refused(start_broker: StartBroker) -> None:
    store = HeldStore()
    broker = start_broker(data=None, make_store=lambda call: store)
    atom = AtomClient(broker.broker.port)
    broker.call(store.hold)
    changed = queue("<MaxDeliveryCount>2</MaxDeliveryCount>")
    thread, answers = in_background(lambda: atom.put("/queue", changed, If_Match="*"))
    eventually(lambda: broker.call(lambda: len(store.held or ())) == 1)
    assert atom.get("/queue").said("MaxDeliveryCount") == "10"
    second = atom.put("/queue", queue(), If_Match="*")
    assert second.status == 409
    assert second.detail.startswith("SubCode=40901. ")
    assert not answers
    broker.call(store.let_go)
    thread.join()
    assert answers[0].status == 200
    assert atom.get("/queue").said("MaxDeliveryCount") == "2"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/orders", queue()),
        ("/news", topic()),
        ("/topic/Subscriptions/mine", subscription()),
    ],
)
def test_a_conflict_is_answered_only_after_the_concurrent_creation_is_durable(
    start_broker: StartBroker, path: str, body: str
) -> None:
    store = HeldStore()
    broker = start_broker(data=None, make_store=lambda call: store)
    atom = AtomClient(broker.broker.port)
    assert atom.put("/topic", topic()).status == 201
    broker.call(store.hold)
    first, answers = in_background(lambda: atom.put(path, body))
    eventually(lambda: broker.call(lambda: len(store.held or ())) == 1)
    assert atom.get(path).status == 404
    second, refusals = in_background(lambda: atom.put(path, body))
    eventually(lambda: refusals or is_waited_for(broker))
    assert not refusals
    broker.call(store.let_go)
    first.join()
    second.join()
    assert (answers[0].status, refusals[0].status, atom.get(path).status) == (201, 409, 200)
    assert refusals[0].detail.startswith("SubCode=40900. ")


def test_a_creation_that_failed_for_one_client_succeeds_for_the_next(start_broker: StartBroker) -> None:
    store = HeldStore()
    broker = start_broker(data=None, make_store=lambda call: store)
    atom = AtomClient(broker.broker.port)
    failures: list[StoreError] = [StoreFull("There is no room.")]
    store.fails = lambda changes: failures.pop() if failures else None
    broker.call(store.hold)
    first, answers = in_background(lambda: atom.put("/orders", queue()))
    eventually(lambda: broker.call(lambda: len(store.held or ())) == 1)
    second, others = in_background(lambda: atom.put("/orders", queue()))
    eventually(lambda: others or is_waited_for(broker))
    broker.call(store.let_go)
    first.join()
    second.join()
    assert (answers[0].status, others[0].status) == (403, 201)


@pytest.mark.parametrize(
    ("error", "status"), [(StoreFull("There is no room."), 403), (StoreError("The disk is on fire."), 500)]
)
def test_a_change_that_the_store_refuses_has_not_happened(
    start_broker: StartBroker, error: StoreError, status: int
) -> None:
    store = FlakyStore()
    broker = start_broker(data=None, make_store=lambda call: store)
    atom = AtomClient(broker.broker.port)
    store.fails = lambda changes: error
    assert atom.put("/orders", queue()).status == status
    assert atom.put("/queue", queue("<MaxDeliveryCount>2</MaxDeliveryCount>"), If_Match="*").status == status
    assert atom.delete("/queue").status == status
    store.fails = lambda changes: None
    assert atom.get("/orders").status == 404
    assert atom.get("/queue").said("MaxDeliveryCount") == "10"


# --- the log ---


def test_every_change_is_one_log_line_with_client_and_change_and_no_secret(
    atom: AtomClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "peeklock.admin.service")
    atom.put(
        "/orders",
        queue(
            "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights>"
            "<KeyName>k</KeyName><PrimaryKey>hush</PrimaryKey></AuthorizationRule></AuthorizationRules>"
        ),
    )
    atom.put("/orders", queue(), If_Match="*")
    atom.put("/orders", queue())
    atom.get("/orders")
    atom.delete("/orders")
    told = [record for record in caplog.records if record.name == "peeklock.admin.service"]
    records = [record for record in told if record.getMessage() != "request refused"]
    assert [record.getMessage() for record in records] == ["queue created", "queue updated", "queue deleted"]
    assert {str(record.fields) for record in records} == {  # type: ignore[attr-defined]
        "{'entity': 'orders', 'by': 'RootManageSharedAccessKey'}"
    }


def refusals(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.message == "request refused"]


def test_a_refusal_is_one_log_line_with_client_and_request(atom: AtomClient, caplog: pytest.LogCaptureFixture) -> None:
    atom.ask("GET", "/orders?api-version=2021-05", Authorization="nonsense")
    (record,) = refusals(caplog)
    fields = record.fields  # type: ignore[attr-defined]
    assert record.levelno == logging.WARNING
    assert fields["peer"].startswith("127.0.0.1:")
    assert (fields["request"], fields["status"]) == ("GET /orders", 401)
    assert "shared access signature" in fields["reason"]


def test_a_request_for_an_unknown_entity_logs_no_warning(atom: AtomClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="peeklock")
    assert atom.get("/nowhere").status == 404
    assert [record.levelno for record in refusals(caplog)] == [logging.INFO]


def test_the_broker_does_not_wait_for_a_missing_body(
    atom: AtomClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("peeklock.admin.service.BODY_SECONDS", 0.05)
    stream = dial(atom.port)
    stream.sendall(
        f"PUT /slow?api-version=2021-05 HTTP/1.1\r\nHost: localhost\r\nAuthorization: {atom.token()}\r\n"
        "Content-Length: 100\r\n\r\n<".encode()
    )
    assert stream.recv(65536).startswith(b"HTTP/1.1 408")
    assert [record.fields["status"] for record in refusals(caplog)] == [408]  # type: ignore[attr-defined]
    assert atom.get("/slow").status == 404
    stream.close()


def test_a_topic_of_the_configuration_is_shown_like_any_other(start_broker: StartBroker) -> None:
    namespace = NamespaceDefinition(topics=(TopicDefinition(name="News"),))
    atom = AtomClient(start_broker(data=None, namespace=namespace).broker.port)
    assert atom.get("/news").said("SubscriptionCount") == "0"


def test_a_topic_has_the_number_of_filters_of_its_subscriptions(news: AtomClient) -> None:
    tested = '<Filter i:type="CorrelationFilter"><Label>a</Label></Filter>'
    assert news.put("/news/subscriptions/all/rules/one", rule(tested)).status == 201
    assert news.put("/news/subscriptions/all/rules/two", rule('<Filter i:type="FalseFilter"/>')).status == 201
    found = news.get("/news")
    assert (found.said("SqlFilterCount"), found.said("CorrelationFilterCount")) == ("2", "1")
