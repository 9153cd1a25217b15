"""Conversion of HTTP requests to encoded AMQP messages: one message with headers, or a batch in JSON."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from peeklock.amqp.errors import EncodeError
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.service_bus import PARTITION_KEY, SCHEDULED_ENQUEUE_TIME, VIA_PARTITION_KEY
from peeklock.amqp.types import Symbol
from peeklock.broker.errors import InvalidMessage, InvalidProperty, MessageSizeExceeded
from peeklock.broker.incoming import Incoming, read_incoming
from peeklock.limits.http import MAX_CONTENT_TYPE, MAX_REST_BATCH_MESSAGES
from peeklock.rest.headers import is_property
from peeklock.rest.values import NotAProperty, parse_moment, parse_seconds, parse_time_span, read_header, read_json

BROKER_PROPERTIES: Final = "BrokerProperties"
BATCH_TYPE: Final = "application/vnd.microsoft.servicebus.json"

TEXTS: Final = {
    "MessageId": "message_id",
    "CorrelationId": "correlation_id",
    "SessionId": "group_id",
    "Label": "subject",
    "To": "to",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_group_id",
}
"""The text broker properties, with the fields of the message's properties section."""
ANNOTATIONS: Final = {"PartitionKey": PARTITION_KEY, "ViaPartitionKey": VIA_PARTITION_KEY}


def read_one(headers: Iterable[tuple[bytes, bytes]], body: bytes, limit: int, reads_session_ids: bool) -> Incoming:
    """Convert a request with one message. Raise InvalidProperty, InvalidMessage or MessageSizeExceeded."""
    broker_properties: Mapping[str, Any] = {}
    content_type: str | None = None
    custom: dict[str, Any] = {}
    seen: set[str] = set()
    for raw_name, raw_value in headers:
        name, text = raw_name.decode("ascii", "replace"), _text_of(raw_value)
        folded = name.lower()
        if folded == BROKER_PROPERTIES.lower():
            if folded in seen:
                raise InvalidProperty(f"The request has two headers {BROKER_PROPERTIES}.")
            broker_properties = _object(BROKER_PROPERTIES, _load(text, BROKER_PROPERTIES))
        elif folded == "content-type":
            content_type = text
        elif is_property(name):
            try:
                value = read_header(name, text)
            except NotAProperty:
                continue
            if folded in seen:
                raise InvalidProperty(f"The request has two headers {name}.")
            custom[name] = value
        seen.add(folded)
    return _incoming(broker_properties, content_type, custom, body, limit, reads_session_ids)


def read_batch(body: bytes, limit: int, reads_session_ids: bool) -> list[Incoming]:
    """Convert a JSON batch. Raise InvalidProperty, InvalidMessage or MessageSizeExceeded."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidMessage("The batch is not UTF-8.") from None
    items = _load(text, "The batch")
    if not isinstance(items, list) or not items:
        raise InvalidMessage("The batch must be a JSON array of at least one message.")
    if len(items) > MAX_REST_BATCH_MESSAGES:
        raise MessageSizeExceeded(
            f"The batch has {len(items)} messages; at most {MAX_REST_BATCH_MESSAGES} are allowed."
        )
    return [_read_item(item, limit, reads_session_ids) for item in items]


def _read_item(item: Any, limit: int, reads_session_ids: bool) -> Incoming:
    found = _object("A message of the batch", item)
    text = found.get("Body", "")
    if not isinstance(text, str):
        raise InvalidMessage("The Body of a message must be a string.")
    if found.get("IsBodyBase64") in (True, "true"):
        try:
            body = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidMessage("The Body of a message is not Base64.") from None
    else:
        body = _bytes_of(text)
    broker_properties = _object(BROKER_PROPERTIES, found.get(BROKER_PROPERTIES) or {})
    user_properties = _object("UserProperties", found.get("UserProperties") or {})
    custom = {name: read_json(name, value) for name, value in user_properties.items()}
    return _incoming(broker_properties, None, custom, body, limit, reads_session_ids)


def _incoming(
    broker_properties: Mapping[str, Any],
    content_type: str | None,
    custom: dict[str, Any],
    body: bytes,
    limit: int,
    reads_session_ids: bool,
) -> Incoming:
    texts = {name: _text(name, broker_properties.get(name)) for name in (*TEXTS, *ANNOTATIONS, "ContentType")}
    session_id, partition_key = texts["SessionId"], texts["PartitionKey"]
    if session_id is not None and partition_key is not None and session_id != partition_key:
        raise InvalidProperty("If both SessionId and PartitionKey are given, they must be equal.")
    annotations: dict[Any, Any] = {
        Symbol(annotation): texts[name] for name, annotation in ANNOTATIONS.items() if texts[name] is not None
    }
    scheduled = broker_properties.get("ScheduledEnqueueTimeUtc")
    if scheduled not in (None, ""):
        annotations[Symbol(SCHEDULED_ENQUEUE_TIME)] = parse_moment("ScheduledEnqueueTimeUtc", scheduled)
    properties = Properties(content_type=_content_type(texts["ContentType"] or content_type))
    for name, field in TEXTS.items():
        setattr(properties, field, texts[name])
    message = Message(
        message_annotations=annotations or None,
        properties=properties,
        application_properties=custom or None,
        data=[body],
    )
    ttl_ms = _ttl(broker_properties)
    try:
        encoded = message.encode()
    except EncodeError as error:
        raise InvalidProperty(f"The message cannot be encoded: {error.description}.") from error
    if len(encoded) > limit:
        raise MessageSizeExceeded(f"The message is larger than {limit} bytes, the limit of the entity.")
    incoming = read_incoming(encoded, reads_session_ids)
    incoming.ttl_ms = ttl_ms
    return incoming


def _ttl(broker_properties: Mapping[str, Any]) -> int | None:
    span, seconds = broker_properties.get("TimeToLiveTimeSpan"), broker_properties.get("TimeToLive")
    if span not in (None, ""):
        return parse_time_span("TimeToLiveTimeSpan", span)
    return None if seconds in (None, "") else parse_seconds("TimeToLive", seconds)


def _text(name: str, value: Any) -> str | None:
    """Return a broker property as text; None if it is missing or empty. Clients may also send a number."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InvalidProperty(f"{name} must be a string.")


def _content_type(text: str | None) -> str | None:
    if text and not (text.isascii() and text.isprintable() and len(text) <= MAX_CONTENT_TYPE):
        raise InvalidProperty(f"The content type must be at most {MAX_CONTENT_TYPE} printable ASCII characters.")
    return text or None


def _object(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidProperty(f"{what} must be a JSON object.")
    return value


def _load(text: str, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, json.JSONDecodeError) else "it has an invalid number or too many levels"
        raise InvalidProperty(f"{what} cannot be read as JSON: {why}.") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _text_of(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidProperty("A header of the request is not UTF-8.") from None


def _bytes_of(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage("The Body of a message contains an unpaired surrogate.") from None
