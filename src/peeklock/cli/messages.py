"""Format messages as JSON and as text, with the names that Service Bus uses."""

from __future__ import annotations

import base64
import math
import sys
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from peeklock.amqp.message import NO_VALUE, Header, Message, Properties
from peeklock.amqp.service_bus import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from peeklock.amqp.types import Described, Timestamp
from peeklock.cli.output import print_pairs, print_table

_STATES = {0: "active", 1: "deferred", 2: "scheduled"}
_PROPERTIES = {
    "message_id": "message_id",
    "correlation_id": "correlation_id",
    "subject": "subject",
    "content_type": "content_type",
    "to": "to",
    "reply_to": "reply_to",
    "session_id": "group_id",
    "reply_to_session_id": "reply_to_group_id",
}
_ANNOTATIONS = {
    "partition_key": "x-opt-partition-key",
    "enqueued_at": "x-opt-enqueued-time",
    "scheduled_for": "x-opt-scheduled-enqueue-time",
    "locked_until": "x-opt-locked-until",
    "enqueued_sequence_number": "x-opt-enqueue-sequence-number",
    "dead_letter_source": "x-opt-deadletter-source",
}
_WIDTH = 60
"""The most characters of a body in a table."""


def sequence_number(message: Message) -> int:
    """The sequence number; 0 if the message has none."""
    return int(annotation(message, "x-opt-sequence-number") or 0)


def annotation(message: Message, name: str) -> Any:
    return (message.message_annotations or {}).get(name)


def dead_letter_reason(message: Message) -> str:
    return str((message.application_properties or {}).get(DEAD_LETTER_REASON) or "")


def describe(message: Message) -> dict[str, Any]:
    """All fields of a message as JSON values, without the fields that it does not have."""
    header, properties = message.header or Header(), message.properties or Properties()
    state = annotation(message, "x-opt-message-state")
    applied = dict(message.application_properties or {})
    found: dict[str, Any] = {"sequence_number": annotation(message, "x-opt-sequence-number")}
    found |= {name: getattr(properties, field) for name, field in _PROPERTIES.items()}
    found |= {name: annotation(message, key) for name, key in _ANNOTATIONS.items()}
    found |= {
        "state": _STATES.get(state) if state is not None else None,
        "delivery_count": header.delivery_count,
        "time_to_live_ms": header.ttl,
        "dead_letter_reason": applied.pop(DEAD_LETTER_REASON, None),
        "dead_letter_description": applied.pop(DEAD_LETTER_DESCRIPTION, None),
        "properties": applied or None,
    }
    shown = {name: _plain(value) for name, value in found.items() if value is not None}
    return shown | _body(message)


def print_whole(message: Message) -> None:
    """Print a message as text, with all its fields."""
    found = describe(message)
    kind = found.pop("body_type")
    body = found.pop("body") if "body" in found else f"base64 {found.pop('body_base64')}"
    for name, value in found.pop("properties", {}).items():
        found[f"property {name}"] = value
    found["body" if kind == "data" else f"body ({kind})"] = body
    print_pairs((name.replace("_", " "), value) for name, value in found.items())
    print(flush=True)


def print_overview(messages: list[Message]) -> None:
    """Print messages as a table with a row for each."""
    columns = ("Number", "State", "Enqueued", "Message id", "Session", "Subject", "Deliveries", "Body")
    rows = []
    for message in messages:
        found = describe(message)
        enqueued = found.get("enqueued_at", "").replace("T", " ").removesuffix("Z")
        names = ("message_id", "session_id", "subject", "delivery_count")
        row = [found.get("sequence_number"), found.get("state"), enqueued, *(found.get(name) for name in names)]
        rows.append([*row, summary(found)])
    print_table(columns, rows, ("Number", "Deliveries"))


def summary(found: dict[str, Any]) -> str:
    """The start of the body on one line, for a message as `describe` returns it."""
    if "body_base64" in found:
        return f"({len(base64.b64decode(found['body_base64']))} bytes)"
    text = " ".join(str(found.get("body", "")).split())
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def write_body(message: Message) -> None:
    """Write the body and a line end to standard output, without encoding bytes as text."""
    if message.data:
        body = b"".join(message.data)
    else:
        shown = _body(message)["body"]
        body = (shown if isinstance(shown, str) else repr(shown)).encode()
    sys.stdout.buffer.write(body + b"\n")
    sys.stdout.buffer.flush()


def _body(message: Message) -> dict[str, Any]:
    if message.value is not NO_VALUE:
        return {"body_type": "value", "body": _plain(message.value)}
    if message.sequences:
        return {"body_type": "sequence", "body": _plain(message.sequences)}
    data = b"".join(message.data)
    try:
        return {"body_type": "data", "body": data.decode()}
    except UnicodeDecodeError:
        return {"body_type": "data", "body_base64": base64.b64encode(data).decode()}


def _plain(value: Any) -> Any:
    """Convert an AMQP value to a JSON value."""
    match value:
        case Timestamp():
            return format_moment(value)
        case bool() | int() | None:
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case UUID():
            return str(value)
        case Described():
            return _plain(value.value)
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
    return str(value)


def format_moment(ms: int) -> str:
    """Format Unix milliseconds as RFC 3339, or as a number if the time is outside the range of `datetime`."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(int(ms))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
