"""The administration client: documents as services write them, what is sent for each call, and failures."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest

from client.atom_server import Answer, AtomServer
from peeklock.amqp.message import Message
from peeklock.amqp.types import Int
from peeklock.atom.descriptions import AuthorizationRule
from peeklock.client import AuthenticationFailed, ConnectionLost, RequestRefused, Timeout, connect
from peeklock.client.administration import PAGE, AdministrationClient
from peeklock.client.descriptions import (
    Duration,
    Entity,
    FilterKind,
    Kind,
    Rule,
)
from serving import SOURCE, ServedBroker

ROOT = Path(__file__).parents[2]
Client = Callable[..., tuple[AdministrationClient, AtomServer]]

ENTRY = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><id>https://ns/{name}?api-version=2021-05</id>'
    '<title type="text">{name}</title><published>2026-01-01T00:00:00Z</published>'
    "<author><name>ns</name></author>"
    '<content type="application/xml">{content}</content></entry>'
)
FEED = (
    '<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">Queues</title><id>https://ns/$Resources/queues</id>'
    '<link rel="self" href="https://ns/$Resources/queues"/>{entries}</feed>'
)
SB = 'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"'
XSI = 'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'
QUEUE = (
    f"<QueueDescription {SB} {XSI}>"
    "<LockDuration>PT30S</LockDuration><MaxSizeInMegabytes>1024</MaxSizeInMegabytes>"
    "<RequiresDuplicateDetection>false</RequiresDuplicateDetection><RequiresSession>true</RequiresSession>"
    "<MaxDeliveryCount>10</MaxDeliveryCount><SizeInBytes>17</SizeInBytes><MessageCount>9</MessageCount>"
    "<IsAnonymousAccessible>false</IsAnonymousAccessible>"
    '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule">'
    "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
    "<Rights><AccessRights>Send</AccessRights><AccessRights>Listen</AccessRights></Rights>"
    "<CreatedTime>2026-01-01T00:00:00Z</CreatedTime><KeyName>mine</KeyName><PrimaryKey>k1</PrimaryKey>"
    "<SecondaryKey>k2</SecondaryKey></AuthorizationRule></AuthorizationRules>"
    "<Status>Active</Status><ForwardTo>https://ns.example:5300/other/queue</ForwardTo>"
    "<CreatedAt>2026-01-01T00:00:00.1234567Z</CreatedAt>"
    '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
    "<d2p1:ActiveMessageCount>4</d2p1:ActiveMessageCount><d2p1:DeadLetterMessageCount>5</d2p1:DeadLetterMessageCount>"
    "<d2p1:SomethingNew>6</d2p1:SomethingNew></CountDetails><SomethingElse><Nested/></SomethingElse>"
    "</QueueDescription>"
)
RULE = (
    f'<RuleDescription {SB} {XSI}><Filter i:type="CorrelationFilter"><CorrelationId>c</CorrelationId><Label>l</Label>'
    "<Properties>{values}</Properties></Filter>"
    '<Action i:type="SqlRuleAction"><SqlExpression>SET a = @p</SqlExpression>'
    "<CompatibilityLevel>20</CompatibilityLevel><Parameters><KeyValueOfstringanyType><Key>@p</Key>"
    '<Value i:type="d6p1:int" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">7</Value>'
    "</KeyValueOfstringanyType></Parameters></Action><CreatedAt>2026-01-01T00:00:00Z</CreatedAt><Name>r</Name>"
    "</RuleDescription>"
)


def entry(name: str, content: str) -> str:
    return ENTRY.format(name=name, content=content)


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of a server with prepared answers, and the server."""
    started: list[tuple[AdministrationClient, AtomServer]] = []

    def start(*answers: Answer, **options: Any) -> tuple[AdministrationClient, AtomServer]:
        server = AtomServer(*answers)
        server.__enter__()
        made = AdministrationClient.from_connection_string(server.connection_string, **options)
        started.append((made, server))
        return made, server

    yield start
    for made, server in started:
        made.close()
        server.__exit__()


# --- the table ---


# --- reading ---


def test_an_entity_is_read_as_a_service_writes_it(client: Client) -> None:
    administration, server = client(Answer(200, entry("orders", QUEUE)))
    found = administration.get(Kind.QUEUE, "orders")
    assert found == Entity(
        kind=Kind.QUEUE,
        name="orders",
        settings={
            "LockDuration": "PT30S",
            "MaxSizeInMegabytes": 1024,
            "RequiresDuplicateDetection": False,
            "RequiresSession": True,
            "MaxDeliveryCount": 10,
            "Status": "Active",
            "ForwardTo": "other/queue",
        },
        authorization_rules=(
            AuthorizationRule(name="mine", rights=("Send", "Listen"), primary_key="k1", secondary_key="k2"),
        ),
        runtime={
            "ActiveMessageCount": 4,
            "DeadLetterMessageCount": 5,
            "MessageCount": 9,
            "SizeInBytes": 17,
            "CreatedAt": "2026-01-01T00:00:00.1234567Z",
        },
    )
    assert "k1" not in repr(found)
    assert server.asked[0].target == "/orders?api-version=2021-05"


def test_the_token_is_for_the_requested_path(client: Client) -> None:
    administration, server = client(Answer(200, entry("a", QUEUE)))
    administration.get(Kind.QUEUE, "my/orders")
    token = server.asked[0].headers["Authorization"]
    assert token.startswith("SharedAccessSignature sr=")
    assert unquote_plus(token).startswith("SharedAccessSignature sr=https://127.0.0.1/my/orders&sig=")
    assert token.endswith("&skn=Root")
    assert "secret" not in token


def test_a_rule_is_read_with_the_types_of_its_values(client: Client) -> None:
    xsd = "http://www.w3.org/2001/XMLSchema"
    texts = {
        "string": "text",
        "int": "5",
        "long": "5000000000",
        "double": "1.5",
        "boolean": "true",
        "dateTime": "2030-01-01T00:00:00Z",
        "duration": "PT5M",
        "unheardOf": "x",
    }
    values = "".join(
        f"<KeyValueOfstringanyType><Key>{kind}</Key>"
        f'<Value i:type="p:{kind}" xmlns:p="{xsd}">{text}</Value></KeyValueOfstringanyType>'
        for kind, text in texts.items()
    )
    administration, _ = client(Answer(200, entry("r", RULE.format(values=values))))
    found = administration.get_rule("t", "s", "r")
    assert found == Rule(
        name="r",
        filter=FilterKind.CORRELATION,
        correlation={"CorrelationId": "c", "Label": "l"},
        properties={
            "string": "text",
            "int": 5,
            "long": 5_000_000_000,
            "double": 1.5,
            "boolean": True,
            "dateTime": datetime(2030, 1, 1, tzinfo=UTC),
            "duration": "PT5M",
            "unheardOf": "x",
        },
        action="SET a = @p",
        action_parameters={"@p": 7},
    )
    assert [type(found.properties[name]) for name in ("int", "long", "duration")] == [Int, int, Duration]


@pytest.mark.parametrize("kind", [FilterKind.TRUE, FilterKind.FALSE])
def test_a_filter_for_everything_or_nothing_has_no_expression(client: Client, kind: FilterKind) -> None:
    description = (
        f'<RuleDescription {SB} {XSI}><Filter i:type="{kind}"><SqlExpression>1=1</SqlExpression></Filter>'
        '<Action i:type="EmptyRuleAction"/><Name>r</Name></RuleDescription>'
    )
    administration, _ = client(Answer(200, entry("r", description)))
    assert administration.get_rule("t", "s", "r") == Rule(name="r", filter=kind)


def test_lists_are_read_page_by_page(client: Client) -> None:
    pages = [[f"q{number}" for number in range(PAGE)], ["last"]]
    answers = [Answer(200, FEED.format(entries="".join(entry(name, QUEUE) for name in page))) for page in pages]
    administration, server = client(*answers)
    assert [each.name for each in administration.entities(Kind.QUEUE)] == pages[0] + pages[1]
    assert [asked.target for asked in server.asked] == [
        f"/%24Resources/queues?api-version=2021-05&$skip={skip}&$top={PAGE}" for skip in (0, PAGE)
    ]


def test_the_namespace_has_its_properties(client: Client) -> None:
    content = f"<NamespaceInfo {SB}><MessagingSKU>Standard</MessagingSKU><Name>ns</Name></NamespaceInfo>"
    administration, server = client(Answer(200, entry("ns", content)))
    assert administration.namespace() == {"MessagingSKU": "Standard", "Name": "ns"}
    assert server.asked[0].target.startswith("/%24namespaceinfo?")


# --- writing ---


def content_of(body: bytes) -> str:
    """What is inside the content of an entry."""
    (found,) = re.findall(r'<content type="application/xml">(.*)</content>', body.decode())
    return str(found)


def test_a_created_entity_has_its_settings_in_the_services_order(client: Client) -> None:
    administration, server = client(Answer(201, entry("orders", QUEUE)))
    settings = {"ForwardTo": "b", "RequiresSession": True, "UserMetadata": "<&>", "LockDuration": "PT1M"}
    administration.create(Kind.QUEUE, "orders", settings)
    (asked,) = server.asked
    assert (asked.method, asked.target) == ("PUT", "/orders?api-version=2021-05")
    assert "If-Match" not in asked.headers
    assert asked.headers["Content-Type"].startswith("application/atom+xml")
    assert "/b&sig" in unquote_plus(asked.headers["ServiceBusSupplementaryAuthorization"])
    assert content_of(asked.body) == (
        f"<QueueDescription {SB} {XSI}><LockDuration>PT1M</LockDuration><RequiresSession>true</RequiresSession>"
        "<ForwardTo>sb://127.0.0.1/b</ForwardTo><UserMetadata>&lt;&amp;&gt;</UserMetadata></QueueDescription>"
    )


def test_an_update_sends_all_that_there_is_with_the_changes(client: Client) -> None:
    administration, server = client(Answer(200, entry("orders", QUEUE)))
    administration.update(Kind.QUEUE, "orders", {"MaxDeliveryCount": 3, "ForwardTo": ""})
    get, put = server.asked
    assert (get.method, put.method, put.headers["If-Match"]) == ("GET", "PUT", "*")
    assert content_of(put.body) == (
        f"<QueueDescription {SB} {XSI}><LockDuration>PT30S</LockDuration><MaxSizeInMegabytes>1024</MaxSizeInMegabytes>"
        "<RequiresDuplicateDetection>false</RequiresDuplicateDetection><RequiresSession>true</RequiresSession>"
        "<MaxDeliveryCount>3</MaxDeliveryCount>"
        '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        "<Rights><AccessRights>Send</AccessRights><AccessRights>Listen</AccessRights></Rights>"
        "<KeyName>mine</KeyName><PrimaryKey>k1</PrimaryKey><SecondaryKey>k2</SecondaryKey>"
        "</AuthorizationRule></AuthorizationRules>"
        "<Status>Active</Status><ForwardTo /></QueueDescription>"
    )


def test_a_rule_is_written_with_the_types_of_its_values(client: Client) -> None:
    administration, server = client(Answer(201, entry("r", RULE.format(values=""))))
    rule = Rule(
        name="r",
        filter=FilterKind.CORRELATION,
        correlation={"Label": "l", "CorrelationId": "c"},
        properties={"a": Int(5), "b": True, "c": Duration("PT5M"), "d": datetime(2030, 1, 1, tzinfo=UTC)},
        action="SET a = @p",
        action_parameters={"@p": "x"},
    )
    administration.create_rule("t", "s", rule)
    (asked,) = server.asked
    assert asked.target.startswith("/t/Subscriptions/s/Rules/r?")

    def value(key: str, kind: str, text: str, namespace: str = "http://www.w3.org/2001/XMLSchema") -> str:
        return (
            f"<KeyValueOfstringanyType><Key>{key}</Key>"
            f'<Value i:type="d6p1:{kind}" xmlns:d6p1="{namespace}">{text}</Value></KeyValueOfstringanyType>'
        )

    serialization = "http://schemas.microsoft.com/2003/10/Serialization/"
    properties = (
        value("a", "int", "5")
        + value("b", "boolean", "true")
        + value("c", "duration", "PT5M", serialization)
        + value("d", "dateTime", "2030-01-01T00:00:00Z")
    )
    assert content_of(asked.body) == (
        f'<RuleDescription {SB} {XSI}><Filter i:type="CorrelationFilter"><CorrelationId>c</CorrelationId>'
        f"<Label>l</Label><Properties>{properties}</Properties></Filter>"
        '<Action i:type="SqlRuleAction"><SqlExpression>SET a = @p</SqlExpression>'
        f"<CompatibilityLevel>20</CompatibilityLevel><Parameters>{value('@p', 'string', 'x')}</Parameters></Action>"
        "<Name>r</Name></RuleDescription>"
    )


def test_a_subscription_can_begin_with_a_rule(client: Client) -> None:
    content = f"<SubscriptionDescription {SB}><LockDuration>PT1M</LockDuration></SubscriptionDescription>"
    administration, server = client(Answer(201, entry("s", content)))
    made = administration.create(Kind.SUBSCRIPTION, "s", {"MaxDeliveryCount": 3}, topic="t", rule=Rule(name="first"))
    assert made.path == "t/Subscriptions/s"
    assert content_of(server.asked[0].body) == (
        f'<SubscriptionDescription {SB} {XSI}><DefaultRuleDescription><Filter i:type="TrueFilter">'
        "<SqlExpression>1=1</SqlExpression><CompatibilityLevel>20</CompatibilityLevel></Filter>"
        '<Action i:type="EmptyRuleAction" /><Name>first</Name></DefaultRuleDescription>'
        "<MaxDeliveryCount>3</MaxDeliveryCount></SubscriptionDescription>"
    )


def test_an_unknown_setting_is_refused_here() -> None:
    administration = AdministrationClient.from_connection_string("Endpoint=sb://nowhere.invalid")
    with pytest.raises(ValueError, match="a topic has no setting 'LockDuration'; it has DefaultMessageTimeToLive"):
        administration.create(Kind.TOPIC, "t", {"LockDuration": "PT1M"})


# --- failures ---


@pytest.mark.parametrize(
    ("status", "detail", "condition"),
    [
        (400, "Bad Request", "com.microsoft:argument-error"),
        (401, "Manage is needed", "amqp:unauthorized-access"),
        (404, "No such thing", "amqp:not-found"),
        (409, "SubCode=40900. Conflict", "com.microsoft:entity-already-exists"),
        (409, "SubCode=40901. Another change", "amqp:resource-locked"),
        (429, "Slow down", "com.microsoft:server-busy"),
        (500, "Oh", "amqp:internal-error"),
    ],
)
def test_a_refusal_has_the_error_text_of_the_service(client: Client, status: int, detail: str, condition: str) -> None:
    administration, _ = client(Answer(status, f"<Error><Code>{status}</Code><Detail>{detail}</Detail></Error>"))
    with pytest.raises(RequestRefused) as refused:
        administration.get(Kind.QUEUE, "orders")
    assert (refused.value.status, refused.value.condition, refused.value.description) == (status, condition, detail)


def test_a_refusal_without_words_has_its_status(client: Client) -> None:
    administration, _ = client(Answer(503, "<html>"))
    with pytest.raises(RequestRefused, match="The service answered 503"):
        administration.get(Kind.QUEUE, "orders")


def test_a_feed_of_nothing_means_that_there_is_no_such_thing(client: Client) -> None:
    """How the hosted service answers for a path that it does not know."""
    administration, _ = client(Answer(200, FEED.format(entries="")))
    with pytest.raises(RequestRefused) as refused:
        administration.get(Kind.QUEUE, "orders")
    assert refused.value.status == 404
    assert not administration.exists(Kind.QUEUE, "orders")


def test_a_thing_of_another_kind_is_not_the_one(client: Client) -> None:
    administration, server = client(Answer(200, entry("orders", QUEUE)))
    assert administration.exists(Kind.QUEUE, "orders")
    assert not administration.exists(Kind.TOPIC, "orders")
    with pytest.raises(RequestRefused, match="'orders' is a queue, not a topic"):
        administration.delete(Kind.TOPIC, "orders")
    assert "DELETE" not in [asked.method for asked in server.asked]


def test_whether_something_exists_is_not_guessed(client: Client) -> None:
    administration, _ = client(Answer(401, ""))
    with pytest.raises(RequestRefused):
        administration.exists(Kind.QUEUE, "orders")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("not XML", "not well-formed XML"),
        (b"\xff\xfe", "not well-formed XML"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "document type"),
        (entry("x", ""), "must have one content"),
        (entry("x", f"<Colour {SB}/>"), "describes a Colour"),
        (entry("x", QUEUE.replace(">10<", ">ten<")), "MaxDeliveryCount has the value 'ten', which is no int"),
    ],
)
def test_an_invalid_answer_is_refused(client: Client, body: str | bytes, complaint: str) -> None:
    administration, _ = client(Answer(200, body))
    with pytest.raises(RequestRefused, match=complaint) as refused:
        administration.get(Kind.QUEUE, "orders")
    assert refused.value.condition == "amqp:decode-error"


def test_an_answer_without_end_is_not_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peeklock.client.administration.MAX_ANSWER", 1000)
    administration, _ = client(Answer(200, "x" * 2000))
    with pytest.raises(ConnectionLost, match="larger than 1000 bytes"):
        administration.get(Kind.QUEUE, "orders")


def test_one_connection_is_kept_for_looking_and_changes_get_a_new_one(client: Client) -> None:
    administration, server = client(Answer(200, entry("orders", QUEUE)))
    for _ in range(3):
        administration.get(Kind.QUEUE, "orders")
    assert server.connections == 1
    administration.update(Kind.QUEUE, "orders", {"MaxDeliveryCount": 3})
    assert server.connections == 2


def test_a_connection_that_the_service_has_left_is_made_again(client: Client) -> None:
    administration, server = client(Answer(200, entry("orders", QUEUE), hang_up=True))
    for _ in range(3):
        administration.get(Kind.QUEUE, "orders")
    assert len(server.asked) == 3


def test_an_unreachable_service_is_reported_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        with pytest.raises(Timeout):
            AdministrationClient.from_connection_string(text, timeout=0.2).namespace()
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}"):
        AdministrationClient.from_connection_string(text).namespace()


def test_without_a_key_no_request_is_sent() -> None:
    with pytest.raises(AuthenticationFailed, match="neither a key nor a signature"):
        AdministrationClient.from_connection_string("Endpoint=sb://127.0.0.1:1").namespace()


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("Endpoint=sb://ns.example/", 443),
        ("Endpoint=sb://ns.example:5671/", 5671),
        ("Endpoint=sb://localhost;UseDevelopmentEmulator=true", 5672),
        ("Endpoint=sb://localhost:5300;UseDevelopmentEmulator=true", 5300),
    ],
)
def test_administration_is_at_a_port_of_its_own(text: str, port: int) -> None:
    assert AdministrationClient.from_connection_string(text).endpoint.http_port == port


# --- a broker ---


def test_a_namespace_is_administered_over_tls(served: ServedBroker) -> None:
    text = served.connection_string.replace("UseDevelopmentEmulator=true;", "")
    context = ssl.create_default_context(cafile=str(served.authority))
    with AdministrationClient.from_connection_string(text, tls=context) as administration:
        assert administration.namespace()["MessagingSKU"] == "Standard"
        rule = Rule(name="first", filter=FilterKind.SQL, expression="a = @b", parameters={"@b": Int(1)})
        administration.create(Kind.TOPIC, "t/x")
        administration.create(Kind.SUBSCRIPTION, "s", {"MaxDeliveryCount": 3}, topic="t/x", rule=rule)
        assert list(administration.rules("t/x", "s")) == [rule]
        other = Rule(name="other", filter=FilterKind.CORRELATION, correlation={"Label": "l"}, properties={"n": 1})
        assert administration.create_rule("t/x", "s", other) == other
        changed = Rule(name="other", filter=FilterKind.FALSE, action="SET a = 1")
        assert administration.update_rule("t/x", "s", changed) == changed
        administration.delete_rule("t/x", "s", "first")
        assert [each.name for each in administration.rules("t/x", "s")] == ["other"]
        assert [each.path for each in administration.entities(Kind.SUBSCRIPTION, topic="t/x")] == [
            "t/x/Subscriptions/s"
        ]
        administration.delete(Kind.TOPIC, "t/x")
        assert not administration.exists(Kind.TOPIC, "t/x")
        with connect(served.connection_string) as connection:
            connection.sender("queue").send(Message(data=[b"x"]))
        assert administration.get(Kind.QUEUE, "queue").runtime["ActiveMessageCount"] == 1


def test_the_example_in_the_documentation_works(served: ServedBroker, tmp_path: Path) -> None:
    (example,) = [
        each
        for each in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL)
        if "AdministrationClient" in each
    ]
    path = tmp_path / "example.py"
    path.write_text(example)
    ended = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "CONNECTION_STRING": served.connection_string},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "orders PT30S 0" in ended.stdout.splitlines()
