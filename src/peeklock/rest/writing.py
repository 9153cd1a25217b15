"""Conversion of a message to a response: broker properties in one header, custom properties in others, and the body.

Properties that cannot be in a header (invalid names, other types, too many or too long ones) are left out and counted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from peeklock.amqp.codec import decode_value
from peeklock.amqp.errors import DecodeError
from peeklock.amqp.message import NO_VALUE, Message, Properties
from peeklock.amqp.service_bus import SCHEDULED_ENQUEUE_TIME
from peeklock.broker.annex import Annex
from peeklock.broker.locks import Lock
from peeklock.broker.rules.conversion import identifier
from peeklock.limits.http import MAX_CONTENT_TYPE, MAX_CUSTOM_HEADERS, MAX_CUSTOM_TEXT, MAX_PROPERTY_TEXT
from peeklock.rest.headers import is_property
from peeklock.rest.reading import ANNOTATIONS, BROKER_PROPERTIES, TEXTS
from peeklock.rest.values import format_header, format_http_date
from peeklock.store.base import ACTIVE, DEFERRED, SCHEDULED, StoredMessage

OMITTED: Final = "Peeklock-Omitted-Properties"
"""The header with the number of properties that were left out."""
DEFAULT_CONTENT_TYPE: Final = "application/octet-stream"
_STATES: Final = {ACTIVE: "Active", DEFERRED: "Deferred", SCHEDULED: "Scheduled"}


@dataclass(slots=True)
class WrittenMessage:
    """The headers and the body of a response."""

    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""


def write_message(message: StoredMessage, lock: Lock | None, is_copy: bool) -> WrittenMessage:
    """Convert a message to headers and body. `is_copy`: whether it is a subscription's copy of a message."""
    try:
        decoded = Message.decode(message.content)
    except DecodeError:
        # The message was not decoded when it was sent, and is not valid AMQP: its bytes are returned as the body.
        decoded = Message(data=[message.content])
    properties = decoded.properties or Properties()
    written, omitted = WrittenMessage(body=_body(decoded)), 0
    broker_properties, omitted = _broker_properties(message, lock, properties, is_copy)
    written.headers.append((BROKER_PROPERTIES, json.dumps(broker_properties, separators=(",", ":"))))
    content_type = properties.content_type
    if content_type and content_type.isprintable() and len(content_type) <= MAX_CONTENT_TYPE:
        written.headers.append(("Content-Type", str(content_type)))
    else:
        written.headers.append(("Content-Type", DEFAULT_CONTENT_TYPE))
    custom, left_out = _custom(decoded.application_properties or {})
    written.headers += custom
    if omitted + left_out:
        written.headers.append((OMITTED, str(omitted + left_out)))
    return written


def lock_token(lock: Lock) -> str:
    return str(UUID(bytes_le=lock.tag))


def _broker_properties(
    message: StoredMessage, lock: Lock | None, properties: Properties, is_copy: bool
) -> tuple[dict[str, Any], int]:
    """Return the broker properties in the order of the hosted service, and how many were left out as too long."""
    try:
        annex = Annex.decode(message.annex)
    except (DecodeError, TypeError):
        annex = Annex()
    annotations = _annotations(annex.annotations)
    found: dict[str, Any] = {
        "DeliveryCount": message.delivery_count + 1,  # the service counts the current delivery too
        "EnqueuedSequenceNumber": annex.enqueued_number or (message.sequence_number if is_copy else 0),
        "EnqueuedTimeUtc": format_http_date(message.enqueued_at),
        "SequenceNumber": message.sequence_number,
        "State": _STATES.get(message.state, "Active"),
    }
    if lock is not None:
        found |= {"LockToken": lock_token(lock), "LockedUntilUtc": format_http_date(lock.locked_until)}
    if message.expires_at is not None:
        seconds = (message.expires_at - message.enqueued_at) / 1000
        found["TimeToLive"] = int(seconds) if seconds.is_integer() else seconds
    scheduled = annotations.get(SCHEDULED_ENQUEUE_TIME)
    if isinstance(scheduled, int):
        found["ScheduledEnqueueTimeUtc"] = format_http_date(scheduled)
    if annex.dead_letter_source is not None:
        found["DeadLetterSource"] = annex.dead_letter_source
    texts: dict[str, Any] = {name: getattr(properties, field) for name, field in TEXTS.items()}
    texts |= {name: annotations.get(annotation) for name, annotation in ANNOTATIONS.items()}
    omitted = 0
    for name, value in texts.items():
        if value is None:
            continue
        text = identifier(value)
        if len(json.dumps(text)) > MAX_PROPERTY_TEXT:
            omitted += 1
        else:
            found[name] = text
    return dict(sorted(found.items())), omitted


def _annotations(encoded: bytes) -> dict[str, Any]:
    """Decode annotations up to the first invalid one: they were not decoded when the message was sent."""
    found: dict[str, Any] = {}
    at = 0
    try:
        while at < len(encoded):
            name, at = decode_value(encoded, at)
            value, at = decode_value(encoded, at)
            if isinstance(name, str):
                found[str(name)] = value
    except DecodeError:
        pass
    return found


def _custom(properties: dict[Any, Any]) -> tuple[list[tuple[str, str]], int]:
    headers: list[tuple[str, str]] = []
    room = MAX_CUSTOM_TEXT
    for name, value in properties.items():
        text = format_header(value)
        if (
            text is not None
            and isinstance(name, str)
            and is_property(name)
            and len(text) <= MAX_PROPERTY_TEXT
            and len(name) + len(text) <= room
            and len(headers) < MAX_CUSTOM_HEADERS
        ):
            room -= len(name) + len(text)
            headers.append((str(name), text))
    return headers, len(properties) - len(headers)


def _body(message: Message) -> bytes:
    """Return data sections and binary values unchanged, a string value in UTF-8, and other values as JSON."""
    if message.data:
        return b"".join(message.data)
    value = message.value if message.value is not NO_VALUE else message.sequences
    if value is None or value == []:
        return b""
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, default=str, skipkeys=True).encode()
