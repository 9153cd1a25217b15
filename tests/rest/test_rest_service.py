"""Sending, receiving and settling over HTTP, at a running broker."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.types import Symbol, Timestamp, ULong
from peeklock.client import connect
from peeklock.entities.authorization import AuthorizationRule, Right, default_authorization_rule
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.rules import FilterKind, RuleDefinition
from peeklock.entities.settings import PROFILES, Status
from peeklock.rest.values import format_http_date
from rest.asking import Answer, RestClient
from serving import BrokerThread, ServedBroker, StartBroker

TOKEN = "7da9cfd5-40d5-4bb1-8d64-ec5a52e1c547"


def keyed(name: str, *rights: Right) -> tuple[AuthorizationRule, ...]:
    return (AuthorizationRule(name=name, primary_key=f"key-of-{name}", rights=frozenset(rights)),)


NAMESPACE = NamespaceDefinition(
    queues=(
        QueueDefinition(name="queue", max_delivery_count=3),
        QueueDefinition(name="messages"),
        QueueDefinition(name="shop/orders"),
        QueueDefinition(name="sessions", requires_session=True),
        QueueDefinition(name="keyed", authorization_rules=keyed("mine", Right.SEND, Right.LISTEN)),
        QueueDefinition(name="disabled", status=Status.DISABLED),
        QueueDefinition(name="forwards", forward_to="queue"),
        QueueDefinition(name="detects", requires_duplicate_detection=True),
    ),
    topics=(
        TopicDefinition(
            name="news",
            subscriptions=(
                SubscriptionDefinition(name="all"),
                SubscriptionDefinition(
                    name="high",
                    rules=(RuleDefinition(name="r", filter_kind=FilterKind.SQL, sql_expression="Priority = 'High'"),),
                ),
            ),
        ),
    ),
    authorization_rules=(
        default_authorization_rule(),
        *keyed("sender", Right.SEND),
        *keyed("listener", Right.LISTEN),
    ),
)


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(data=None, namespace=NAMESPACE)


@pytest.fixture
def rest(broker: BrokerThread) -> RestClient:
    return RestClient(broker.broker.port)


# --- sending ---


def test_a_message_is_sent_and_received_with_its_properties(rest: RestClient) -> None:
    properties = {"Label": "M1", "MessageId": "m", "CorrelationId": "c", "To": "t", "ReplyTo": "r", "PartitionKey": "p"}
    rest.send("Hello", properties={**properties, "TimeToLive": 10}, Content_Type="text/plain", Priority='"High"', N="5")
    answer = rest.take()
    assert (answer.status, answer.body) == (200, b"Hello")
    assert (answer.headers["Content-Type"], answer.headers["Priority"], answer.headers["N"]) == (
        "text/plain",
        '"High"',
        "5",
    )
    found = answer.broker_properties
    assert {name: found[name] for name in properties} == properties
    assert (found["SequenceNumber"], found["DeliveryCount"], found["EnqueuedSequenceNumber"]) == (1, 1, 0)
    assert (found["State"], found["TimeToLive"]) == ("Active", 10)
    assert found["EnqueuedTimeUtc"].endswith(" GMT")
    assert "LockToken" not in found
    assert "Content-Length" not in answer.headers


def test_a_message_needs_nothing_but_a_body_and_not_even_that(rest: RestClient) -> None:
    rest.send(b"")
    rest.send(b"\x00\xff")
    first = rest.take()
    assert (first.body, first.headers["Content-Type"]) == (b"", "application/octet-stream")
    UUID(first.broker_properties["MessageId"])
    assert rest.take().body == b"\x00\xff"


def test_a_batch_is_accepted_whole_or_not_at_all(rest: RestClient) -> None:
    assert rest.send_batch([{"Body": "a"}, {"Body": "b", "UserProperties": {"n": 1}}]).status == 201
    refused = rest.send_batch([{"Body": "c"}, {"Body": "d", "BrokerProperties": {"TimeToLive": -1}}])
    assert refused.status == 400
    assert "TimeToLive must be" in refused.detail
    assert rest.take_all() == [b"a", b"b"]


def test_a_message_to_a_topic_is_copied_to_matching_subscriptions(rest: RestClient) -> None:
    rest.send("one", "news", Priority='"High"')
    rest.send("two", "news")
    assert rest.take_all("news/subscriptions/all") == [b"one", b"two"]
    assert rest.take_all("news/Subscriptions/HIGH") == [b"one"]


def test_queues_may_have_slashes_and_be_called_messages(rest: RestClient) -> None:
    for path in ("messages", "shop/orders", "shop%2Forders", "SHOP/orders"):
        rest.send(path, path)
    assert rest.take_all("messages") == [b"messages"]
    assert rest.take_all("shop%2forders") == [b"shop/orders", b"shop%2Forders", b"SHOP/orders"]


def test_a_scheduled_message_is_received_when_it_is_due(broker: BrokerThread, rest: RestClient) -> None:
    due = format_http_date(broker.clock.now() + 60_000)
    rest.send("later", properties={"ScheduledEnqueueTimeUtc": due})
    assert rest.take().status == 204
    broker.advance(61)
    answer = rest.take()
    assert answer.body == b"later"
    assert answer.broker_properties["ScheduledEnqueueTimeUtc"] == due


def test_a_message_expires_after_its_time_to_live(broker: BrokerThread, rest: RestClient) -> None:
    rest.send("short", properties={"TimeToLiveTimeSpan": "0.00:00:05"})
    rest.send("long", properties={"TimeToLive": "500"})
    broker.advance(6)
    assert rest.take_all() == [b"long"]


def test_a_duplicate_is_answered_and_dropped(rest: RestClient) -> None:
    for body in ("one", "two"):
        rest.send(body, "detects", {"MessageId": "m"})
    assert rest.take_all("detects") == [b"one"]


def test_a_message_for_sessions_needs_a_session_id(broker: BrokerThread, rest: RestClient) -> None:
    refused = rest.ask("POST", "/sessions/messages", "x")
    assert (refused.status, "requires sessions: a message needs a session id" in refused.detail) == (400, True)
    rest.send("x", "sessions", {"SessionId": "s"})
    assert broker.counters("sessions").active == 1


def test_a_message_that_is_too_large_is_refused_and_so_is_what_says_that_it_will_be(rest: RestClient) -> None:
    limit = PROFILES["standard"].max_message_bytes
    rest.send(b"x" * (limit - 1000))
    for body, said in (
        (b"x" * (limit - 10), "The message is larger than"),
        (b"x" * (limit + 1), "body of the request"),
    ):
        refused = rest.ask("POST", "/queue/messages", body)
        assert (refused.status, said in refused.detail) == (403, True)
    chunked = rest.ask("POST", "/queue/messages", _pieces(limit), Transfer_Encoding="chunked")
    assert chunked.status == 403
    assert len(rest.take_all()) == 1


def _pieces(limit: int) -> bytes:
    piece = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    return piece * (limit // 0x8000 + 1) + b"0\r\n\r\n"


def test_a_send_is_answered_when_it_is_durable(served: ServedBroker) -> None:
    rest = RestClient(served.port)
    for number in range(20):
        rest.send(str(number))
    served.kill()
    served.start()
    assert rest.take_all() == [str(number).encode() for number in range(20)]


# --- receiving ---


def test_a_locked_message_has_its_address_in_location(rest: RestClient) -> None:
    rest.send("one")
    locked = rest.lock()
    assert (locked.status, locked.body) == (201, b"one")
    found = locked.broker_properties
    token = str(UUID(found["LockToken"]))
    assert locked.headers["Location"] == f"http://127.0.0.1:{rest.port}/queue/messages/1/{token}"
    assert found["LockedUntilUtc"].endswith(" GMT")
    assert rest.lock().status == 204
    assert rest.ask("DELETE", locked.location).status == 200
    assert rest.ask("DELETE", locked.location).status == 404
    assert rest.take().status == 204


def test_an_unlocked_message_is_active_again_and_counted(rest: RestClient) -> None:
    rest.send("one")
    for count in (1, 2, 3):
        locked = rest.lock()
        assert locked.broker_properties["DeliveryCount"] == count
        assert rest.ask("PUT", locked.location).status == 200
    assert rest.lock().status == 204
    letter = rest.lock("queue/$DeadLetterQueue")
    assert letter.headers["DeadLetterReason"] == '"MaxDeliveryCountExceeded"'
    assert letter.broker_properties["DeadLetterSource"] == "queue"
    assert letter.location.startswith("/queue/$DeadLetterQueue/messages/1/")
    assert rest.ask("DELETE", letter.location).status == 200


def test_a_renewed_lock_lasts_longer(broker: BrokerThread, rest: RestClient) -> None:
    rest.send("one")
    locked = rest.lock()
    broker.advance(50)
    assert rest.ask("POST", locked.location).status == 200
    broker.advance(50)
    assert rest.lock().status == 204
    broker.advance(11)
    assert rest.lock().status == 201
    gone = rest.ask("DELETE", locked.location)
    assert (gone.status, "lock supplied is invalid" in gone.detail) == (404, True)


def test_a_locked_message_is_addressed_by_number_or_id_only(rest: RestClient) -> None:
    rest.send("one", properties={"MessageId": "an/id of mine"})
    locked = rest.lock()
    token = locked.broker_properties["LockToken"]
    for name, status in (("2", 404), ("other", 404), ("an%2Fid%20of%20mine", 200), ("1", 200)):
        assert rest.ask("POST", f"/queue/messages/{name}/{token}").status == status
    assert rest.ask("DELETE", f"/queue/messages/1/{token.upper()}").status == 200


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_an_unknown_lock_is_not_found_and_an_invalid_token_is_refused(rest: RestClient, method: str) -> None:
    assert rest.ask(method, f"/queue/messages/1/{TOKEN}").status == 404
    refused = rest.ask(method, "/queue/messages/1/token")
    assert (refused.status, "must be a UUID" in refused.detail) == (400, True)


def test_a_message_of_a_subscription_is_settled_at_the_requested_address(rest: RestClient) -> None:
    """Old clients look for `/subscriptions/` in lower case."""
    rest.send("one", "news")
    locked = rest.lock("news/subscriptions/all")
    assert locked.location.startswith("/news/subscriptions/all/messages/1/")
    assert rest.ask("DELETE", locked.location).status == 200


def test_a_message_that_was_sent_over_amqp_is_received(broker: BrokerThread, rest: RestClient) -> None:
    message = Message(
        header=Header(ttl=60_000),
        properties=Properties(
            message_id=UUID(int=7),
            correlation_id=ULong(5),
            content_type="text/plain",
            subject="l",
            group_id="s",
            reply_to_group_id="rs",
        ),
        message_annotations={Symbol("x-opt-partition-key"): "s"},
        application_properties={
            "text": 'say "hi"',
            "é": "not a token",
            "Content-Length": 5,
            "moment": Timestamp(784_111_777_000),
            "guid": UUID(int=1),
            "list": [1],
            "line": "a\r\nb",
            "long": "x" * 10_000,
        },
        data=[b"one", b"two"],
    )
    with connect(broker.connection_string) as connection:
        connection.sender("queue").send(message)
    answer = rest.take()
    found = answer.broker_properties
    assert answer.body == b"onetwo"
    assert (found["MessageId"], found["CorrelationId"]) == (str(UUID(int=7)), "5")
    assert (found["Label"], found["SessionId"], found["ReplyToSessionId"], found["PartitionKey"]) == (
        "l",
        "s",
        "rs",
        "s",
    )
    assert found["TimeToLive"] == 60
    assert answer.headers["text"] == '"say \\"hi\\""'
    assert answer.headers["moment"] == '"Sun, 06 Nov 1994 08:49:37 GMT"'
    assert answer.headers["guid"] == f'"{UUID(int=1)}"'
    assert answer.headers["line"] == '"a\\r\\nb"'
    assert answer.headers["Peeklock-Omitted-Properties"] == "4"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"value": "texté"}, "texté".encode()),
        ({"value": b"\xff"}, b"\xff"),
        ({"value": None}, b""),
        ({"value": {"a": [1, b"x"]}}, b'{"a": [1, "b\'x\'"]}'),
        ({"sequences": [[1, 2]]}, b"[[1, 2]]"),
    ],
)
def test_a_body_of_another_kind_is_text_or_json(
    broker: BrokerThread, rest: RestClient, body: dict[str, Any], text: bytes
) -> None:
    with connect(broker.connection_string) as connection:
        connection.sender("queue").send(Message(**body))
    assert rest.take().body == text


def test_more_properties_than_clients_can_read_are_left_out_and_counted(broker: BrokerThread, rest: RestClient) -> None:
    properties = {f"p{number}": "x" * 1000 for number in range(100)}
    with connect(broker.connection_string) as connection:
        connection.sender("queue").send(
            Message(properties=Properties(subject="s" * 50_000), application_properties=properties, data=[b"x"])
        )
    answer = rest.take()
    assert answer.status == 200
    shown = [name for name in answer.headers if name.startswith("p")]
    assert 20 < len(shown) < 64
    assert answer.headers["Peeklock-Omitted-Properties"] == str(101 - len(shown))
    assert "Label" not in answer.broker_properties


def test_an_unreadable_message_is_received_as_its_bytes(broker: BrokerThread, rest: RestClient) -> None:
    """The broker does not look into application properties, so they may be anything."""
    encoded = Message(properties=Properties(message_id="m"), data=[b"x"]).encode()
    broken = b"\x00\x53\x74\xc1\x03\x02\xa1\xff"
    with connect(broker.connection_string) as connection:
        connection.sender("queue").send(encoded[: encoded.index(b"\x00\x53\x75")] + broken + b"\x00\x53\x75\xa0\x01x")
    answer = rest.take()
    assert (answer.status, broken in answer.body) == (200, True)


# --- what is refused ---


@pytest.mark.parametrize("timeout", ["-1", "x", "1.5", "", "9999999999"])
def test_a_timeout_is_a_whole_number_of_seconds(rest: RestClient, timeout: str) -> None:
    refused = rest.ask("POST", f"/queue/messages/head?timeout={timeout}")
    assert (refused.status, "timeout must be a whole number of seconds" in refused.detail) == (400, True)


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("POST", "/none/messages", 404, "could not be found"),
        ("POST", "/none/messages/head", 404, "could not be found"),
        ("DELETE", f"/none/messages/1/{TOKEN}", 404, "could not be found"),
        ("POST", "/news/messages/head", 400, "is a topic: its messages are in its subscriptions"),
        ("POST", "/news/subscriptions/all/messages", 400, "send to its topic"),
        ("POST", "/queue/$DeadLetterQueue/messages", 400, "cannot be sent"),
        ("POST", "/sessions/messages/head", 400, "requires sessions, which cannot be received over HTTP"),
        ("DELETE", "/sessions/messages/head", 400, "requires sessions, which cannot be received over HTTP"),
        ("PUT", f"/sessions/messages/1/{TOKEN}", 400, "requires sessions, which cannot be received over HTTP"),
        ("POST", "/disabled/messages", 400, "(status Disabled)"),
        ("POST", "/disabled/messages/head", 400, "(status Disabled)"),
        ("POST", "/forwards/messages/head", 400, "forwards its messages"),
    ],
)
def test_unsupported_requests_are_refused_with_the_reason(
    rest: RestClient, method: str, path: str, status: int, said: str
) -> None:
    refused = rest.ask(method, path)
    assert refused.status == status
    assert said in refused.detail


REQUESTS = [
    ("POST", "/keyed/messages", Right.SEND),
    ("POST", "/keyed/messages/head?timeout=0", Right.LISTEN),
    ("DELETE", "/keyed/messages/head?timeout=0", Right.LISTEN),
    ("PUT", f"/keyed/messages/1/{TOKEN}", Right.LISTEN),
    ("POST", f"/keyed/messages/1/{TOKEN}", Right.LISTEN),
    ("DELETE", f"/keyed/messages/1/{TOKEN}", Right.LISTEN),
]


@pytest.mark.parametrize(("method", "path", "right"), REQUESTS)
def test_every_request_needs_its_right(broker: BrokerThread, method: str, path: str, right: Right) -> None:
    port = broker.broker.port
    with_right, other = ("sender", "listener") if right is Right.SEND else ("listener", "sender")
    assert RestClient(port, with_right, f"key-of-{with_right}").ask(method, path).status != 401
    refused = RestClient(port, other, f"key-of-{other}").ask(method, path)
    assert (refused.status, f"'{right}' claim is required" in refused.detail) == (401, True)
    none = RestClient(port).ask(method, path, Authorization="")
    assert (none.status, "has no token" in none.detail) == (401, True)
    assert RestClient(port, key="wrong").ask(method, path).status == 401


@pytest.mark.parametrize(("method", "path", "right"), REQUESTS)
def test_a_key_of_an_entity_is_valid_for_that_entity_and_reveals_no_other(
    broker: BrokerThread, method: str, path: str, right: Right
) -> None:
    mine = RestClient(broker.broker.port, "mine", "key-of-mine")
    assert mine.ask(method, path).status != 401
    details = set()
    assert mine.ask(method, path.replace("/keyed/", "/keyed/below/")).status == 401
    for other in ("queue", "none", "below/keyed"):
        refused = mine.ask(method, path.replace("/keyed/", f"/{other}/"))
        assert refused.status == 401
        details.add(refused.detail.split(" TrackingId")[0].replace(other, "X"))
    assert len(details) == 1, "whether the other is there makes no difference"


def test_the_grace_of_http_is_for_messages_too(broker: BrokerThread, rest: RestClient) -> None:
    token = rest.token(expires_in=10)
    broker.advance(200)
    assert rest.ask("POST", "/queue/messages", "x", Authorization=token).status == 201
    broker.advance(200)
    assert rest.ask("POST", "/queue/messages", "x", Authorization=token).status == 401


def test_denied_access_is_in_the_audit_log_without_the_lock_token(
    start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = tmp_path / "audit.jsonl"
    broker = start_broker(data=None, namespace=NAMESPACE, audit=audit)
    rest = RestClient(broker.broker.port, "sender", "key-of-sender")
    with caplog.at_level(logging.INFO):
        for method, path, right in REQUESTS:
            if right is Right.LISTEN:
                rest.ask(method, path)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["action"], line["outcome"], line["entity"], line["client"]) for line in lines] == [
        (action, "denied", "keyed", "sender")
        for action in ("receive", "receive-and-delete", "unlock", "renew-lock", "complete")
    ]
    assert TOKEN not in audit.read_text()
    assert TOKEN not in caplog.text


# --- beside administration ---


def test_an_entity_with_such_a_name_is_administered_and_others_are_still_received_from(rest: RestClient) -> None:
    def put(path: str) -> Answer:
        body = (
            '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
            'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
        )
        return rest.ask("PUT", path, body)

    lock = f"/queue/messages/1/{TOKEN}"
    for path in ("/queue/messages", "/queue/messages/head", lock):
        assert put(path).status == 201
        assert rest.ask("GET", path).status == 200
    rest.send("one")
    assert rest.take().body == b"one"
    assert rest.ask("DELETE", lock).status == 404, "a message, not the entity"
    for path in ("/queue/messages", "/queue/messages/head", lock):
        assert rest.ask("DELETE", f"{path}?api-version=2021-05").status == 200
        assert rest.ask("GET", path).status == 404


def test_a_version_of_the_interface_does_not_matter_to_messages(rest: RestClient) -> None:
    assert rest.ask("POST", "/queue/messages?api-version=2013-08&timeout=60", "one").status == 201
    assert rest.ask("DELETE", "/queue/messages/head?api-version=2013-08&timeout=0").body == b"one"
