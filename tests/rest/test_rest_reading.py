"""What a client sends, as the message that the broker takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peeklock.amqp.message import Message
from peeklock.amqp.service_bus import END_OF_TIME, PARTITION_KEY, SCHEDULED_ENQUEUE_TIME, VIA_PARTITION_KEY
from peeklock.amqp.types import Int, Symbol, Timestamp
from peeklock.broker.annex import Annex
from peeklock.broker.errors import BrokerError, InvalidMessage, InvalidProperty, MessageSizeExceeded
from peeklock.limits.http import MAX_REST_BATCH_MESSAGES
from peeklock.rest.reading import read_batch, read_one

LIMIT = 256 * 1024


def read(body: bytes = b"x", limit: int = LIMIT, wants_session: bool = True, **headers: Any) -> Any:
    """Headers by their names, with `_` for `-`; what is no text is written as JSON."""
    raw = [
        (name.replace("_", "-").encode(), (value if isinstance(value, str) else json.dumps(value)).encode())
        for name, value in headers.items()
    ]
    return read_one(raw, body, limit, wants_session)


def message_of(incoming: Any) -> Message:
    return Message.decode(incoming.bare)


def test_broker_properties_are_those_of_the_message() -> None:
    incoming = read(
        Content_Type="text/plain",
        BrokerProperties={
            "MessageId": "m",
            "CorrelationId": "c",
            "SessionId": "s",
            "Label": "l",
            "To": "t",
            "ReplyTo": "r",
            "ReplyToSessionId": "rs",
            "ForcePersistence": True,
            "Unknown": [],
            "SequenceNumber": 5,
        },
    )
    message = message_of(incoming)
    properties = message.properties
    assert properties is not None
    assert (properties.message_id, properties.correlation_id, properties.group_id) == ("m", "c", "s")
    assert (properties.subject, properties.to, properties.reply_to, properties.reply_to_group_id) == (
        "l",
        "t",
        "r",
        "rs",
    )
    assert properties.content_type == "text/plain"
    assert (message.data, incoming.session_id, incoming.ttl_ms, incoming.scheduled_at) == ([b"x"], "s", None, None)


def test_a_number_where_a_text_is_expected_is_its_text_and_an_empty_text_is_none() -> None:
    properties = message_of(read(BrokerProperties={"CorrelationId": 7, "Label": "", "To": None})).properties
    assert properties is not None
    assert (properties.correlation_id, properties.subject, properties.to) == ("7", None, None)


def test_keys_and_the_time_of_a_scheduled_message_are_annotations() -> None:
    incoming = read(
        BrokerProperties={
            "PartitionKey": "p",
            "ViaPartitionKey": "v",
            "ScheduledEnqueueTimeUtc": "Sun, 06 Nov 1994 08:49:37 GMT",
        }
    )
    assert incoming.scheduled_at == 784_111_777_000
    annotations = Annex.decode(incoming.annex).annotations
    for name in (PARTITION_KEY, VIA_PARTITION_KEY, SCHEDULED_ENQUEUE_TIME):
        assert name.encode() in annotations


@pytest.mark.parametrize(
    ("properties", "ttl_ms"),
    [
        ({"TimeToLive": 10}, 10_000),
        ({"TimeToLive": "1.5"}, 1500),
        ({"TimeToLiveTimeSpan": "0.00:00:40"}, 40_000),
        ({"TimeToLiveTimeSpan": "0.00:00:40", "TimeToLive": 10}, 40_000),
        ({"TimeToLive": 60 * 86400 * 1000}, 60 * 86400 * 1_000_000),
        ({"TimeToLive": 922337203685.47754}, END_OF_TIME),
        ({"TimeToLive": "", "TimeToLiveTimeSpan": None}, None),
    ],
)
def test_a_time_to_live_is_a_number_of_seconds_or_a_span(properties: dict[str, Any], ttl_ms: int | None) -> None:
    assert read(BrokerProperties=properties).ttl_ms == ttl_ms


def test_custom_properties_are_headers_with_values() -> None:
    message = message_of(
        read(
            Priority='"High"',
            Count="5",
            Done="true",
            When='"Sun, 06 Nov 1994 08:49:37 GMT"',
            Unquoted="of a proxy",
            User_Agent="curl",
            X_Forwarded_Port="443",
        )
    )
    found = message.application_properties
    assert found == {"Priority": "High", "Count": 5, "Done": True, "When": 784_111_777_000}
    assert [type(value) for value in found.values()] == [str, Int, bool, Timestamp]


@pytest.mark.parametrize(
    ("headers", "failure", "said"),
    [
        (
            {"BrokerProperties": "{"},
            InvalidProperty,
            "BrokerProperties cannot be read as JSON: Expecting property name",
        ),
        ({"BrokerProperties": "[1]"}, InvalidProperty, "BrokerProperties must be a JSON object"),
        ({"BrokerProperties": '{"TimeToLive": NaN}'}, InvalidProperty, "cannot be read as JSON"),
        ({"BrokerProperties": '{"a": ' + "1" * 5000 + "}"}, InvalidProperty, "cannot be read as JSON"),
        ({"BrokerProperties": "[" * 100_000}, InvalidProperty, "cannot be read as JSON"),
        ({"BrokerProperties": {"MessageId": ["x"]}}, InvalidProperty, "MessageId must be a string"),
        ({"BrokerProperties": {"MessageId": True}}, InvalidProperty, "MessageId must be a string"),
        ({"BrokerProperties": {"MessageId": "x" * 129}}, InvalidProperty, "at most 128 are allowed"),
        ({"BrokerProperties": {"SessionId": "x" * 129}}, InvalidProperty, "at most 128 are allowed"),
        ({"BrokerProperties": {"PartitionKey": "x" * 129}}, InvalidProperty, "at most 128 are allowed"),
        ({"BrokerProperties": {"SessionId": "a", "PartitionKey": "b"}}, InvalidProperty, "must be equal"),
        ({"BrokerProperties": {"TimeToLive": 0}}, InvalidProperty, "above 0"),
        ({"BrokerProperties": {"ScheduledEnqueueTimeUtc": 5}}, InvalidProperty, "must be a date and time"),
        ({"BrokerProperties": '{"Label": "\\ud800"}'}, InvalidProperty, "cannot be encoded"),
        ({"BrokerProperties": {"ContentType": "é"}}, InvalidProperty, "printable ASCII"),
        ({"BrokerProperties": {"ContentType": "a\r\nb"}}, InvalidProperty, "printable ASCII"),
        ({"Priority": '"\\ud800"'}, InvalidProperty, "cannot be encoded"),
        ({"Count": "9" * 20}, InvalidProperty, "64 bits"),
    ],
)
def test_an_invalid_message_is_refused_with_the_reason(headers: Any, failure: type[BrokerError], said: str) -> None:
    with pytest.raises(failure, match=said):
        read(**headers)


def test_a_header_that_comes_twice_is_refused() -> None:
    for name, value in ((b"BrokerProperties", b"{}"), (b"Priority", b'"High"')):
        with pytest.raises(InvalidProperty, match="two headers"):
            read_one([(name, value), (name.lower(), value)], b"", LIMIT, False)


def test_a_header_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidProperty, match="not UTF-8"):
        read_one([(b"BrokerProperties", b'{"Label": "\xff"}')], b"", LIMIT, False)


def test_a_message_is_measured_with_its_properties() -> None:
    read(b"x" * 900, limit=1024)
    with pytest.raises(MessageSizeExceeded, match="larger than 1024 bytes"):
        read(b"x" * 900, limit=1024, BrokerProperties={"Label": "l" * 200})


# --- batches ---


def batch(*items: Any, limit: int = LIMIT) -> list[Any]:
    return read_batch(json.dumps(items).encode(), limit, True)


def test_a_batch_is_an_array_of_messages() -> None:
    first, second, third = batch(
        {"Body": "one", "BrokerProperties": {"Label": "M1", "TimeToLiveTimeSpan": "0.00:00:40"}},
        {"Body": "zwölf", "UserProperties": {"Priority": "Low", "n": 1, "x": 1.5, "b": True, "none": None}},
        {"Body": "AAE=", "IsBodyBase64": True, "BrokerProperties": None, "UserProperties": None},
    )
    message = message_of(first)
    assert message.properties is not None
    assert (message.data, message.properties.subject, first.ttl_ms) == ([b"one"], "M1", 40_000)
    message = message_of(second)
    assert message.data == ["zwölf".encode()]
    assert message.application_properties == {"Priority": "Low", "n": 1, "x": 1.5, "b": True, "none": None}
    assert message_of(third).data == [b"\0\1"]


def test_a_content_type_stands_with_the_broker_properties_of_a_batch() -> None:
    (incoming,) = batch({"BrokerProperties": {"ContentType": "text/plain"}})
    properties = message_of(incoming).properties
    assert properties is not None
    assert properties.content_type == Symbol("text/plain")


@pytest.mark.parametrize(
    ("text", "failure", "said"),
    [
        (b"", InvalidProperty, "cannot be read as JSON"),
        (b"{}", InvalidMessage, "must be a JSON array"),
        (b"[]", InvalidMessage, "array of at least one message"),
        (b"[1]", InvalidProperty, "must be a JSON object"),
        (b"\xff", InvalidMessage, "not UTF-8"),
        (b'[{"Body": 5}]', InvalidMessage, "must be a string"),
        (b'[{"Body": "x", "IsBodyBase64": true}]', InvalidMessage, "not Base64"),
        (b'[{"Body": "\\ud800"}]', InvalidMessage, "surrogate"),
        (b'[{"BrokerProperties": "x"}]', InvalidProperty, "BrokerProperties must be a JSON object"),
        (b'[{"UserProperties": ["x"]}]', InvalidProperty, "UserProperties must be a JSON object"),
        (b'[{"UserProperties": {"a": []}}]', InvalidProperty, "'a' must be a string"),
        (b'[{"UserProperties": {"\\ud800": 1}}]', InvalidProperty, "cannot be encoded"),
        (b"[" * 500_000, InvalidProperty, "cannot be read as JSON"),
        (b"[" + b"{}," * MAX_REST_BATCH_MESSAGES + b"{}]", MessageSizeExceeded, "at most 4096 are allowed"),
    ],
)
def test_a_batch_that_cannot_be_sent_is_refused_with_why(text: bytes, failure: type[BrokerError], said: str) -> None:
    with pytest.raises(failure, match=said):
        read_batch(text, LIMIT, False)
