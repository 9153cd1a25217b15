"""Messages as rows: the columns, and encoded messages into Arrow record batches of them.

This is where a read spends its time, so it takes from a message's bytes only what the columns hold. What values look
like as text is `texts`' business, where the bytes come from that of the readers, and the way back that of `outgoing`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from peeklock.amqp.decoders import FAILURES, READERS, new_budget
from peeklock.amqp.errors import DecodeError
from peeklock.amqp.message import Message
from peeklock.amqp.sections import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    compound_body,
    value_end,
)
from peeklock.spark.texts import plain_bytes, plain_json, plain_text, typed_text

CLAIM_PROPERTY: Final = "peeklock-claim"
"""The application property that marks a claimed message; it is none of the sender's, and no row shows it."""
REASON, DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"

_TEXTS = MapType(StringType(), StringType(), valueContainsNull=True)
_COLUMNS: Final[Mapping[str, DataType]] = {
    "body": BinaryType(),
    "message_id": StringType(),
    "session_id": StringType(),
    "partition_key": StringType(),
    "subject": StringType(),
    "content_type": StringType(),
    "correlation_id": StringType(),
    "reply_to": StringType(),
    "reply_to_session_id": StringType(),
    "to": StringType(),
    "sequence_number": LongType(),
    "enqueued_sequence_number": LongType(),
    "enqueued_time": TimestampType(),
    "scheduled_enqueue_time": TimestampType(),
    "expires_at": TimestampType(),
    "delivery_count": IntegerType(),
    "state": StringType(),
    "dead_letter_reason": StringType(),
    "dead_letter_error_description": StringType(),
    "dead_letter_source": StringType(),
    "application_properties": _TEXTS,
    "entity": StringType(),
}
COLUMNS: Final = tuple(_COLUMNS)
SCHEMA: Final = StructType([StructField(name, kind, nullable=True) for name, kind in _COLUMNS.items()])

_ARROW: Final[Mapping[type[DataType], Any]] = {
    BinaryType: pa.binary(),
    StringType: pa.string(),
    LongType: pa.int64(),
    IntegerType: pa.int32(),
    TimestampType: pa.timestamp("us", tz="UTC"),
    MapType: pa.map_(pa.string(), pa.string()),
}
ARROW_SCHEMA: Final = pa.schema([pa.field(name, _ARROW[type(kind)]) for name, kind in _COLUMNS.items()])

STATES: Final = ("active", "deferred", "scheduled")


class UnreadableMessage(ValueError):
    """A message's bytes are none; the text names it by its sequence number, as far as that could be read."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns a user asked for, in that order; ValueError names one that a message does not have."""
    for field in schema.fields:
        kind = _COLUMNS.get(field.name)
        if kind is None:
            raise ValueError(f"a message has no column '{field.name}'; there are {', '.join(COLUMNS)}")
        if kind != field.dataType:
            raise ValueError(
                f"the column '{field.name}' is of type {kind.simpleString()}, not {field.dataType.simpleString()}"
            )
    return pa.schema([ARROW_SCHEMA.field(field.name).with_nullable(field.nullable) for field in schema.fields])


def batch_of(
    payloads: Sequence[bytes],
    entity: str,
    typed_json: bool = False,
    *,
    schema: pa.Schema = ARROW_SCHEMA,
    keep_unreadable: bool = False,
) -> pa.RecordBatch:
    """Encoded messages, with the annotations of the service, as rows.

    A message that cannot be read is an UnreadableMessage; with `keep_unreadable` its bytes are the body of a row that
    has nothing else but what the service wrote in front of them.
    """
    text = typed_text if typed_json else plain_text
    rows = []
    for payload in payloads:
        try:
            rows.append(_row(payload, text))
        except _UNREADABLE as error:
            salvaged = _salvage(payload)
            if not keep_unreadable:
                number = salvaged[_NUMBER]
                raise UnreadableMessage(f"message {number} of '{entity}' cannot be read: {error}") from error
            rows.append(salvaged)
    values = dict(zip(_ROW, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(_ROW, ())
    return pa.RecordBatch.from_arrays([_array(field, values, entity, len(rows)) for field in schema], schema=schema)


def number_of(payload: bytes) -> int:
    """The sequence number of an encoded message; UnreadableMessage when the service wrote none."""
    # The service writes it before anything of the sender's, so the first place that looks like it is it.
    at = payload.find(_TO_NUMBER) + len(_TO_NUMBER)
    if at >= len(_TO_NUMBER) and payload[at : at + 1] == b"\x81" and len(payload) >= at + 9:
        return int(_long_at(payload, at + 1)[0])
    return head_of(payload).number


class Head(NamedTuple):
    """What the service wrote in front of a message, as far as it is asked for by itself."""

    number: int
    enqueued_ms: int


def head_of(payload: bytes) -> Head:
    """The sequence number and time of an encoded message; UnreadableMessage when the service wrote no number."""
    salvaged = _salvage(payload)
    number, enqueued = salvaged[_NUMBER], salvaged[_ENQUEUED]
    if number is None:
        raise UnreadableMessage("a message came without a sequence number")
    return Head(number, (enqueued or 0) // 1000)


def _array(field: pa.Field, values: Mapping[str, Sequence[Any]], entity: str, count: int) -> pa.Array:
    if field.name == "entity":
        return pa.array([entity] * count, field.type)
    column = values[field.name]
    if field.name != "application_properties":
        return pa.array(column, field.type)
    # Three flat arrays: a third of the time that a list of pairs for each row takes.
    offsets: list[int] = [0]
    keys: list[str] = []
    texts: list[str | None] = []
    for each in column:
        if each:
            keys += each
            texts += each.values()
        offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(texts, pa.string())
    )


_ROW: Final = COLUMNS[: COLUMNS.index("entity")]
"""What `_row` gives, in this order."""
_NUMBER: Final = _ROW.index("sequence_number")
_ENQUEUED: Final = _ROW.index("enqueued_time")
_UNREADABLE: Final = (DecodeError, *FAILURES)

_uint_at = struct.Struct(">I").unpack_from
_long_at = struct.Struct(">q").unpack_from
_MOST_DELIVERIES: Final = (1 << 31) - 1
_LEAST_MS: Final = -62_135_596_800_000
_MOST_MS: Final = 253_402_300_799_999

_ANNOTATIONS: Final = {
    b"x-opt-sequence-number": 0,
    b"x-opt-enqueued-time": 1,
    b"x-opt-enqueue-sequence-number": 2,
    b"x-opt-message-state": 3,
    b"x-opt-scheduled-enqueue-time": 4,
    b"x-opt-partition-key": 5,
    b"x-opt-deadletter-source": 6,
}
# What each must be; None where no column holds it.
_MARK_KINDS: Final = (int, int, int, int, int, str, str)
_FIELD_KINDS: Final = (str, None, str, str, str, str, str, None, int, None, str, None, str)
_TO_NUMBER: Final = b"\xa3\x15x-opt-sequence-number"
_NOTHING: Final[dict[str, str | None]] = {}
_STATE_NAMES: Final = dict(enumerate(STATES))

# Most headers are one of a few; each is read once. Bounded, as they come from outside.
_headers: dict[bytes, tuple[int, int | None]] = {}


def _row(data: bytes, text: Callable[[Any], str | None]) -> tuple[Any, ...]:
    """One message. Written out at length: a call for each section and field would double its time."""
    delivery_count, ttl = 0, None
    marks: list[Any] = [None] * 7
    fields: list[Any] = [None] * 13
    applied = _NOTHING
    body: bytes | None = None
    parts: list[bytes] | None = None
    sequence: list[Any] | None = None
    reason = description = None
    odd = False
    budget = new_budget()
    at, size = 0, len(data)
    while at < size:
        if data[at] or data[at + 1] != 0x53:
            return _row(_usual(data), text)
        code, kind = data[at + 2], data[at + 3]
        if kind == 0xB0:
            end = at + 8 + _uint_at(data, at + 4)[0]
        elif kind == 0xC0 or kind == 0xC1 or kind == 0xA0:
            end = at + 5 + data[at + 4]
        else:
            end = value_end(data, at + 3)
        if end > size:
            raise DecodeError("the message ends in the middle of a section")
        if code == DATA:
            if kind != 0xB0 and kind != 0xA0:
                raise DecodeError("a data section is not binary")
            piece = data[at + 8 if kind == 0xB0 else at + 5 : end]
            if body is None:
                body = piece
            elif parts is None:
                parts = [body, piece]
            else:
                parts.append(piece)
        elif code == MESSAGE_ANNOTATIONS:
            i, count = (at + 6, data[at + 5]) if kind == 0xC1 else compound_body(data, at + 3)
            for _ in range(count >> 1):
                if data[i] == 0xA3:
                    behind = i + 2 + data[i + 1]
                    slot = _ANNOTATIONS.get(data[i + 2 : behind])
                else:
                    key, behind = READERS[data[i]](data, i + 1, 1, budget)
                    slot = _ANNOTATIONS.get(key.encode()) if isinstance(key, str) else None
                constructor = data[behind]
                if constructor == 0x81 or constructor == 0x83:
                    value, i = _long_at(data, behind + 1)[0], behind + 9
                elif constructor == 0x54:
                    value, i = data[behind + 1], behind + 2
                else:
                    value, i = READERS[constructor](data, behind + 1, 1, budget)
                    odd = True
                if slot is not None:
                    marks[slot] = value
            if i != end:
                raise DecodeError("the annotations do not fill exactly their size")
        elif code == PROPERTIES:
            i, count = (at + 6, data[at + 5]) if kind == 0xC0 else compound_body(data, at + 3)
            for index in range(count):
                constructor = data[i]
                if constructor == 0x40:
                    i += 1
                elif constructor == 0xA1 or constructor == 0xA3:
                    behind = i + 2 + data[i + 1]
                    fields[index] = data[i + 2 : behind].decode()
                    i = behind
                else:
                    fields[index], i = READERS[constructor](data, i + 1, 1, budget)
                    odd = True
            if i != end:
                raise DecodeError("the properties do not fill exactly their size")
        elif code == HEADER:
            encoded = data[at + 3 : end]
            known = _headers.get(encoded)
            delivery_count, ttl = known if known is not None else _read_header(encoded)
        elif code == APPLICATION_PROPERTIES:
            value, _ = READERS[kind](data, at + 4, 1, budget)
            if not isinstance(value, dict):
                raise DecodeError("the application-properties section is not a map")
            if CLAIM_PROPERTY in value:
                del value[CLAIM_PROPERTY]
            if REASON in value:
                reason = plain_text(value.pop(REASON))
            if DESCRIPTION in value:
                description = plain_text(value.pop(DESCRIPTION))
            applied = {str(plain_text(name)): text(each) for name, each in value.items()}
        elif code == AMQP_VALUE:
            value, _ = READERS[kind](data, at + 4, 1, budget)
            body = plain_bytes(value)
        elif code == AMQP_SEQUENCE:
            value, _ = READERS[kind](data, at + 4, 1, budget)
            sequence = value if sequence is None else sequence + value
        at = end
    if parts is not None:
        body = b"".join(parts)
    elif sequence is not None:
        body = plain_json(sequence).encode()
    if odd:
        _make_fit(fields, _FIELD_KINDS)
        _make_fit(marks, _MARK_KINDS)
    number, enqueued, first_number, state, scheduled, partition_key, source = marks
    message_id, _, to, subject, reply_to, correlation_id, content_type, _, expiry, _, session_id, _, reply_id = fields
    if expiry is None and ttl is not None and enqueued is not None:
        expiry = enqueued + ttl
    return (
        body,
        message_id,
        session_id,
        partition_key,
        subject,
        content_type,
        correlation_id,
        reply_to,
        reply_id,
        to,
        number,
        first_number,
        None if enqueued is None else _micros(enqueued),
        None if scheduled is None else _micros(scheduled),
        None if expiry is None else _micros(expiry),
        delivery_count,
        _STATE_NAMES.get(state or 0),
        reason,
        description,
        source,
        applied,
    )


def _make_fit(values: list[Any], kinds: Sequence[type | None]) -> None:
    """Ids of another type as text, and nothing for what is no number, where a sender was free to write anything."""
    for index, kind in enumerate(kinds):
        value = values[index]
        if value is None or kind is None:
            continue
        if kind is str:
            values[index] = str(plain_text(value))
        elif not isinstance(value, int) or not -1 << 63 <= value < 1 << 63:
            values[index] = None


def _micros(ms: int) -> int | None:
    """None for a moment that no calendar has, which senders may write all the same."""
    return ms * 1000 if _LEAST_MS <= ms <= _MOST_MS else None


def _usual(data: bytes) -> bytes:
    """Legal but unusual descriptors (a long code, a symbol): the message is written anew, then they are not."""
    rewritten = Message.decode(data).encode()
    if rewritten == data:
        raise DecodeError("a message section has no descriptor")
    return rewritten


def _read_header(encoded: bytes) -> tuple[int, int | None]:
    fields, _ = READERS[encoded[0]](encoded, 1, 1, new_budget())
    if not isinstance(fields, list):
        raise DecodeError("the header section is not a list")
    fields += [None] * (5 - len(fields))
    ttl, count = fields[2], fields[4]
    count = min(int(count), _MOST_DELIVERIES) if isinstance(count, int) else 0
    found = (count, int(ttl) if isinstance(ttl, int) else None)
    if len(_headers) < 1024 and len(encoded) < 64:
        _headers[encoded] = found
    return found


def _salvage(data: bytes) -> tuple[Any, ...]:
    """A row of a message that cannot be read: its bytes, and what the service wrote in front of them."""
    cut = 0
    try:
        while data[cut : cut + 2] == b"\x00\x53" and data[cut + 2] < PROPERTIES:
            cut = value_end(data, cut + 3)
        row = _row(data[:cut], plain_text)
    except _UNREADABLE:
        row = _row(b"", plain_text)
    return (data, *row[1:])
