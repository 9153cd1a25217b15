"""Convert encoded messages to rows: the columns of a message, and Arrow record batches of them.

`columns` decodes the messages, and this module makes Arrow arrays of the result. The readers provide the messages, and
`outgoing` converts rows to messages.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
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

from peeklock.spark.columns import NUMBERS, Columns, Unfit, messages_of, starts_of
from peeklock.spark.columns import UnreadableMessage as UnreadableMessage
from peeklock.spark.heads import micros, salvaged
from peeklock.spark.property_maps import CLAIM_PROPERTY as CLAIM_PROPERTY

if TYPE_CHECKING:
    from peeklock.spark.options import Options

Page = bytes | list[bytes]
"""Encoded messages: packed, with the length of each in four bytes before it, or as a list."""

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
TYPED_PROPERTIES: Final = StructField("typed_properties", _TEXTS, nullable=True)
"""An optional column: the application properties that are not text, as JSON with their types."""
CAPTURED_AT: Final = StructField("captured_at", TimestampType(), nullable=True)
"""An optional column: when the message was read."""
_FURTHER: Final[Mapping[str, DataType]] = {field.name: field.dataType for field in (TYPED_PROPERTIES, CAPTURED_AT)}
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


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema for selected columns. Raises ValueError for a column that messages do not have."""
    for field in schema.fields:
        kind = _COLUMNS.get(field.name) or _FURTHER.get(field.name)
        if kind is None:
            raise ValueError(f"a message has no column '{field.name}'; use {', '.join(COLUMNS)}")
        if kind != field.dataType:
            raise ValueError(
                f"the column '{field.name}' is of type {kind.simpleString()}, not {field.dataType.simpleString()}"
            )
    return pa.schema([pa.field(field.name, _ARROW[type(field.dataType)], field.nullable) for field in schema.fields])


def batch_of(
    payloads: Sequence[bytes],
    entity: str,
    typed_json: bool = False,
    *,
    schema: pa.Schema = ARROW_SCHEMA,
    keep_unreadable: bool = False,
) -> pa.RecordBatch:
    """Convert encoded messages, with the annotations of the service, to rows.

    Only the columns of the schema are decoded. A message that cannot be decoded raises UnreadableMessage. With
    `keep_unreadable` its bytes become the body of a row, whose other columns have only what the service added.
    """
    return _batch(
        len(payloads), lambda columns: columns.read_all(payloads), entity, typed_json, schema, keep_unreadable
    )


def batch_of_page(
    page: bytes,
    entity: str,
    typed_json: bool = False,
    *,
    schema: pa.Schema = ARROW_SCHEMA,
    keep_unreadable: bool = False,
) -> pa.RecordBatch:
    """Convert a packed page of messages to rows, as `batch_of` does."""
    starts = starts_of(page, entity)

    def read(columns: Columns) -> None:
        if columns.checks:  # one message at a time, so that an error does not depend on the bytes after it
            columns.read_all(messages_of(page, starts))
        else:
            columns.read_page(page, starts)

    return _batch(len(starts), read, entity, typed_json, schema, keep_unreadable)


def rows_of(page: Page, options: Options, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a page to rows according to the options."""
    keep_unreadable = options.on_bad_message == "raw"
    make: Callable[..., pa.RecordBatch] = batch_of_page if isinstance(page, bytes) else batch_of
    return make(page, options.address, options.typed_json, schema=schema, keep_unreadable=keep_unreadable)


def numbers_of(page: bytes, entity: str) -> list[int]:
    """Return the sequence numbers of the messages in a packed page."""
    return [number_of(payload) for payload in messages_of(page, starts_of(page, entity))]


def number_of(payload: bytes) -> int:
    """Return the sequence number of an encoded message. Raises UnreadableMessage if it has none."""
    # The service writes it before the sender's sections, so the first match is the sequence number.
    at = payload.find(_TO_NUMBER) + len(_TO_NUMBER)
    if at >= len(_TO_NUMBER) and payload[at : at + 1] == b"\x81" and len(payload) >= at + 9:
        return int(_long_at(payload, at + 1)[0])
    return head_of(payload).number


class Head(NamedTuple):
    """The sequence number and enqueued time that the service wrote in front of a message."""

    number: int
    enqueued_ms: int


def head_of(payload: bytes) -> Head:
    """Return number and time of an encoded message. Raises UnreadableMessage if it has no sequence number."""
    head = salvaged(payload)
    if head.number is None:
        raise UnreadableMessage("a message has no sequence number")
    in_calendar = head.enqueued is not None and micros(head.enqueued) is not None
    return Head(head.number, head.enqueued if in_calendar and head.enqueued is not None else 0)


_TO_NUMBER: Final = b"\xa3\x15x-opt-sequence-number"
_long_at = struct.Struct(">q").unpack_from


def _batch(
    count: int,
    read: Callable[[Columns], None],
    entity: str,
    typed_json: bool,
    schema: pa.Schema,
    keep_unreadable: bool,
) -> pa.RecordBatch:
    def arrays(checks: bool) -> list[pa.Array]:
        columns = Columns(schema.names, count, typed_json, checks, keep_unreadable, entity)
        read(columns)
        found = _arrays(columns, schema)
        if CAPTURED_AT.name in schema.names:
            found[CAPTURED_AT.name] = pa.repeat(pa.scalar(time.time_ns() // 1000, _ARROW[TimestampType]), count)
        return [found[field.name] if field.name in found else constant(entity, count) for field in schema]

    # Arrow checks text, a column at a time. If it finds an error, a second pass finds the first invalid message.
    with suppress(Unfit, UnreadableMessage, pa.ArrowInvalid):
        return pa.RecordBatch.from_arrays(arrays(checks=False), schema=schema)
    return pa.RecordBatch.from_arrays(arrays(checks=True), schema=schema)


def _arrays(columns: Columns, schema: pa.Schema) -> dict[str, pa.Array]:
    count = columns.count
    found: dict[str, pa.Array] = {}
    for name, texts in columns.texts.items():
        kind = ARROW_SCHEMA.field(name).type
        found[name] = pa.nulls(count, kind) if texts.count(None) == count else pa.array(texts, kind)
    if columns.body_sizes is not None:
        found["body"] = _bodies(columns.body, columns.body_sizes, columns.bodiless)
    integers: tuple[tuple[str, list[Any] | None], ...] = (
        ("enqueued_sequence_number", columns.first_numbers),
        ("scheduled_enqueue_time", columns.scheduled),
        ("expires_at", columns.expiries),
        ("delivery_count", columns.delivery_counts),
    )
    for name, values in integers:
        if values is not None:
            kind = ARROW_SCHEMA.field(name).type
            found[name] = pa.nulls(count, kind) if values.count(None) == count else pa.array(values, kind)
    if columns.has_numbers:
        numbers, states = columns.numbers()
        for name, octets, missing in zip(NUMBERS, numbers, columns.unnumbered, strict=True):
            found[name] = _numbers(name, octets, missing, count)
        found["state"] = _states(states)
    maps = columns.maps
    if maps.sizes is not None:
        found["application_properties"] = _maps(maps.entries, maps.sizes, maps.keys, maps.values)
    if maps.typed_sizes is not None:
        found[TYPED_PROPERTIES.name] = _maps(maps.entries, maps.typed_sizes, maps.typed_keys, maps.typed_values)
    return found


def _maps(entries: list[int], sizes: list[int], keys: list[bytes], values: list[bytes | None]) -> pa.Array:
    """Make the column of maps from the maps of the entries."""
    offsets = pa.Array.from_buffers(pa.int32(), len(sizes) + 1, [None, _offsets(sizes)])
    maps = pa.MapArray.from_arrays(offsets, pa.array(keys, pa.string()), pa.array(values, pa.string()))
    count = len(entries)
    if len(sizes) == count + 1 and entries == list(range(1, count + 1)):
        return maps.slice(1)  # all are different
    return maps.take(pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(array("i", entries))]))


def _bodies(body: bytearray, sizes: list[int], bodiless: set[int]) -> pa.Array:
    count = len(sizes)
    bodies = pa.Array.from_buffers(pa.binary(), count, [None, _offsets(sizes), pa.py_buffer(body)])
    if bodiless:
        bodies = pc.if_else(pa.array([row in bodiless for row in range(count)]), None, bodies)
    return bodies


def _offsets(sizes: list[int]) -> pa.Buffer:
    return pa.py_buffer(array("i", [0, *accumulate(sizes)]))


def _numbers(name: str, octets: bytearray, missing: set[int], count: int) -> pa.Array:
    numbers = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(octets)])
    if missing:
        numbers = pc.if_else(pa.array([row in missing for row in range(count)]), None, numbers)
    if name != "enqueued_time":
        return numbers
    extremes = pc.min_max(numbers).as_py()
    if any(each is not None and micros(each) is None for each in extremes.values()):
        return pa.array(
            [None if each is None else micros(each) for each in numbers.to_pylist()], ARROW_SCHEMA.field(name).type
        )
    return pc.multiply(numbers, _THOUSAND).view(ARROW_SCHEMA.field(name).type)


def _states(states: bytes) -> pa.Array:
    if states.count(0) != len(states):
        return pa.array([_STATE_NAMES.get(state) for state in states], pa.string())
    return constant(STATES[0], len(states))


def constant(text: str, count: int) -> pa.Array:
    """Make a column with the same text in every row."""
    return _repeated(text, 1 << max(0, count - 1).bit_length()).slice(0, count)


@lru_cache(maxsize=8)
def _repeated(text: str, count: int) -> pa.Array:
    return pa.array([text] * count, pa.string())


_STATE_NAMES: Final = dict(enumerate(STATES))
_THOUSAND: Final = pa.scalar(1000, pa.int64())
"""An Arrow scalar: with a Python number, Arrow takes ten times as long."""
