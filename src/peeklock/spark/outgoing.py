"""Convert rows to messages: the columns and types that a writer accepts, and the messages of a record batch.

The writers group and send the messages, and handle rows that cannot be converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from peeklock.amqp.message import Message, Properties
from peeklock.amqp.types import Byte, Float, Int, Short, Symbol, Timestamp
from peeklock.spark.rows import COLUMNS
from peeklock.spark.texts import milliseconds, parse_typed

SCHEDULED_TIME: Final = Symbol("x-opt-scheduled-enqueue-time")
PARTITION_KEY: Final = Symbol("x-opt-partition-key")

_TEXT: Final = (StringType,)
WRITABLE: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "body": (BinaryType, StringType),
    "message_id": _TEXT,
    "session_id": _TEXT,
    "partition_key": _TEXT,
    "subject": _TEXT,
    "content_type": _TEXT,
    "correlation_id": _TEXT,
    "reply_to": _TEXT,
    "reply_to_session_id": _TEXT,
    "to": _TEXT,
    "scheduled_enqueue_time": (TimestampType,),
    "application_properties": (MapType,),
    "entity": _TEXT,
}
"""The columns that a writer uses. The service fills the others, which are ignored."""

_PROPERTIES: Final = {
    "message_id": "message_id",
    "session_id": "group_id",
    "subject": "subject",
    "content_type": "content_type",
    "correlation_id": "correlation_id",
    "reply_to": "reply_to",
    "reply_to_session_id": "reply_to_group_id",
    "to": "to",
}
_MAP_VALUES: Final[Mapping[type[DataType], Callable[[Any], Any]]] = {
    StringType: str,
    BooleanType: bool,
    ByteType: Byte,
    ShortType: Short,
    IntegerType: Int,
    LongType: int,
    FloatType: Float,
    DoubleType: float,
    BinaryType: bytes,
    TimestampType: lambda moment: Timestamp(milliseconds(moment)),
}


class Outgoing(NamedTuple):
    """A row to send: its message, or the reason why it cannot be a message."""

    row: int
    """Index in its record batch."""
    message: Message | None
    entity: str | None
    session_id: str | None
    partition_key: str | None
    problem: str | None = None


def check_columns(schema: StructType, *, typed_json: bool = False) -> None:
    """Check the schema; ValueError names a column that messages do not have, or one of the wrong type."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise ValueError(f"a message has no column '{field.name}'; use {', '.join(COLUMNS)}")
        kinds = WRITABLE.get(field.name)
        if kinds is not None and not isinstance(field.dataType, kinds):
            wanted = " or ".join(kind.typeName() for kind in kinds)
            raise ValueError(f"column '{field.name}' is of type {field.dataType.simpleString()}, but must be {wanted}")
        if isinstance(field.dataType, MapType) and kinds is not None:
            _check_map(field.dataType, typed_json)
    if "body" not in schema.fieldNames():
        raise ValueError("column 'body' is missing: binary, or a string")


def _check_map(kind: MapType, typed_json: bool) -> None:
    values = (StringType,) if typed_json else tuple(_MAP_VALUES)
    if not isinstance(kind.keyType, StringType) or not isinstance(kind.valueType, values):
        wanted = ", ".join(value.typeName() for value in values)
        raise ValueError(
            f"column 'application_properties' is of type {kind.simpleString()}, but must be a map of string to {wanted}"
        )


def messages_of(
    batch: pa.RecordBatch,
    schema: StructType,
    *,
    typed_json: bool = False,
) -> Iterator[Outgoing]:
    """Convert the rows of a record batch to messages. A message whose row has no id gets one later.

    `check_columns` must have accepted `schema`.
    """
    columns: dict[str, Sequence[Any]] = {}
    nothing = [None] * batch.num_rows
    for name in WRITABLE:
        index = batch.schema.get_field_index(name)
        columns[name] = nothing if index < 0 else _READ.get(name, _values_of)(batch.column(index))
    convert = _values(schema, typed_json)
    named = [columns[name] for name in _PROPERTIES]
    others = (columns[name] for name in ("body", "partition_key", "scheduled_enqueue_time", "entity"))
    applied = columns["application_properties"]
    for row, (texts, body, partition_key, scheduled, entity, pairs) in enumerate(
        zip(zip(*named, strict=True), *others, applied, strict=True)
    ):
        given = dict(zip(_PROPERTIES.values(), texts, strict=True))
        message, problem = None, None
        try:
            message = Message(
                message_annotations=_annotations(partition_key, scheduled),
                properties=Properties(**given),
                application_properties=_applied(pairs, convert),
                data=[body or b""],
            )
        except ValueError as error:
            problem = str(error)
        yield Outgoing(row, message, entity, given["group_id"], partition_key, problem)


def _values_of(column: pa.Array) -> list[Any]:
    return column.to_pylist()  # type: ignore[no-any-return]


def _bytes_of(column: pa.Array) -> list[Any]:
    """Return text as bytes without decoding it: Arrow stores it in UTF-8."""
    if pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    elif pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    return _values_of(column)


def _ms_of(column: pa.Array) -> list[Any]:
    """Convert timestamps to numbers, since datetime has a smaller range than Spark."""
    return [None if micros is None else micros // 1000 for micros in column.cast(pa.int64()).to_pylist()]


_READ: Final[Mapping[str, Callable[[pa.Array], list[Any]]]] = {"body": _bytes_of, "scheduled_enqueue_time": _ms_of}


def _annotations(partition_key: str | None, scheduled_ms: int | None) -> dict[Any, Any] | None:
    found: dict[Any, Any] = {}
    if partition_key is not None:
        found[PARTITION_KEY] = partition_key
    if scheduled_ms is not None:
        found[SCHEDULED_TIME] = Timestamp(scheduled_ms)
    return found or None


def _values(schema: StructType, typed_json: bool) -> Callable[[Any], Any]:
    """Return the function that converts a value of a map to an AMQP value."""
    if typed_json:
        return parse_typed
    kind = next((field.dataType for field in schema.fields if field.name == "application_properties"), None)
    return _MAP_VALUES[type(kind.valueType)] if isinstance(kind, MapType) else str


def _applied(pairs: Iterable[tuple[str, Any]] | None, convert: Callable[[Any], Any]) -> dict[Any, Any] | None:
    if not pairs:
        return None
    found: dict[Any, Any] = {}
    for name, value in pairs:
        try:
            found[name] = None if value is None else convert(value)
        except ValueError as error:
            raise ValueError(f"application property '{name}': {error}") from None
    return found
