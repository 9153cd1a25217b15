"""Decode valid messages to rows by the codec, as a reference for `columns`."""

from __future__ import annotations

from typing import Any

from peeklock.amqp.codec import decode_value
from peeklock.amqp.message import Message
from peeklock.amqp.sections import value_end
from peeklock.amqp.service_bus import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from peeklock.spark.property_maps import CLAIM_PROPERTY
from peeklock.spark.rows import STATES
from peeklock.spark.texts import plain_bytes, plain_json, plain_text, typed_text

FIELDS = (
    "message_id",
    None,
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    None,
    "expiry",
    None,
    "session_id",
    None,
    "reply_to_session_id",
)


def plain_row(payload: bytes, entity: str, typed: bool) -> dict[str, Any]:
    """Convert Arrow values for comparison, with times as microseconds."""
    header: list[Any] = []
    marks: dict[Any, Any] = {}
    fields: dict[str | None, Any] = {}
    properties: dict[Any, Any] = {}
    data: list[bytes] = []
    sequences: list[Any] = []
    value = None
    for code, content in sections(payload):
        if code == 0x70:
            header = content
        elif code == 0x72:
            marks |= content
        elif code == 0x73:
            fields = dict(zip(FIELDS, content, strict=False))
        elif code == 0x74:
            properties = dict(content)
        elif code == 0x75:
            data.append(content)
        elif code == 0x76:
            sequences.append(content)
        elif code == 0x77:
            value = content
    header += [None] * (5 - len(header))
    properties.pop(CLAIM_PROPERTY, None)
    reason, description = properties.pop(DEAD_LETTER_REASON, None), properties.pop(DEAD_LETTER_DESCRIPTION, None)
    enqueued = number(marks.get("x-opt-enqueued-time"))
    expiry = number(fields.get("expiry"))
    if expiry is None and header[2] is not None and enqueued is not None:
        expiry = enqueued + header[2]
    text = typed_text if typed else plain_text
    body = b"".join(data) if data else plain_bytes(value)
    if sequences:
        body = plain_json([each for sequence in sequences for each in sequence]).encode()
    state = number(marks.get("x-opt-message-state")) or 0
    return {
        "body": body,
        **{name: plain_text(fields.get(name)) for name in FIELDS if name not in (None, "expiry")},
        "partition_key": plain_text(marks.get("x-opt-partition-key")),
        "sequence_number": number(marks.get("x-opt-sequence-number")),
        "enqueued_sequence_number": number(marks.get("x-opt-enqueue-sequence-number")),
        "enqueued_time": micros(enqueued),
        "scheduled_enqueue_time": micros(number(marks.get("x-opt-scheduled-enqueue-time"))),
        "expires_at": micros(expiry),
        "delivery_count": min(header[4] or 0, (1 << 31) - 1),
        "state": STATES[state] if 0 <= state < len(STATES) else None,
        "dead_letter_reason": plain_text(reason),
        "dead_letter_error_description": plain_text(description),
        "dead_letter_source": plain_text(marks.get("x-opt-deadletter-source")),
        "application_properties": {str(plain_text(key)): text(each) for key, each in properties.items()},
        "entity": entity,
    }


def sections(payload: bytes) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(payload):
        if payload[at : at + 2] != b"\x00\x53":
            return sections(Message.decode(payload).encode())
        content, end = decode_value(payload, at + 3)
        assert end == value_end(payload, at + 3)
        found.append((payload[at + 2], content))
        at = end
    return found


def number(value: Any) -> int | None:
    is_one = isinstance(value, int) and not isinstance(value, bool) and -1 << 63 <= value < 1 << 63
    return int(value) if is_one else None


def micros(ms: int | None) -> int | None:
    return None if ms is None or not -62_135_596_800_000 <= ms <= 253_402_300_799_999 else ms * 1000
