"""Encodes the messages of a record batch all together: sections are columns of bytes, joined by Arrow.

Constant bytes are made once, heads once for each size, keys and typed values of maps once for each that differs. No
step runs for each row, except the digests of rows without an id. A batch with a bad row, or with a value that this
module does not know, gives None: then `outgoing` encodes its rows one by one, to the same bytes, and names what is
wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from struct import Struct
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
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

from peeklock.amqp.encoders import FAILURES, write_value
from peeklock.amqp.errors import EncodeError
from peeklock.amqp.types import Byte, Float, Int, Short, Timestamp
from peeklock.limits.amqp import MAX_VALUE_ELEMENTS
from peeklock.limits.broker import MAX_ID_LENGTH
from peeklock.spark.outgoing import PARTITION_KEY, SCHEDULED_TIME, WRITABLE
from peeklock.spark.stamping import SIZE, Stamps
from peeklock.spark.texts import parse_typed

MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest size of rows that are encoded together; offsets in a column of bytes have 32 bits."""
_FIELDS: Final = {
    0: "message_id",
    2: "to",
    3: "subject",
    4: "reply_to",
    5: "correlation_id",
    6: "content_type",
    10: "session_id",
    12: "reply_to_session_id",
}
"""Places in the properties section (3.2.4)."""
SAID: Final = tuple(_FIELDS.values())[1:]
"""The properties of a row besides the id, in the order in which they enter into its id."""
_LIMITED: Final = ("message_id", "session_id", "partition_key", "reply_to_session_id")
_NULL: Final = pa.scalar(b"\x40", pa.binary())
_NOTHING: Final = pa.scalar(b"", pa.binary())
_ANNOTATIONS, _PROPERTIES, _APPLICATION, _DATA = b"\x00\x53\x72", b"\x00\x53\x73", b"\x00\x53\x74", b"\x00\x53\x75"
_LIST, _MAP, _BINARY, _STRING, _SYMBOL = 0xC0, 0xC1, 0xA0, 0xA1, 0xA3
_uint: Final = Struct(">I").pack


class Encoded(NamedTuple):
    """The encoded messages of a record batch, one for each row."""

    items: pa.BinaryArray
    """Each message as a data section of a batch envelope."""
    ids: pa.StringArray
    payload_bytes: int


class Unusual(Exception):
    """A row cannot be encoded together with others."""


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split into parts of at most MAX_BYTES; a larger row is a separate part."""
    if batch.num_rows > 1 and batch.nbytes > MAX_BYTES:
        half = batch.num_rows // 2
        yield from pieces(batch.slice(0, half))
        yield from pieces(batch.slice(half))
    else:
        yield batch


def encode(
    batch: pa.RecordBatch, schema: StructType, stamps: Stamps, *, entity: str | None, typed_json: bool = False
) -> Encoded | None:
    """Encode the messages; None, with no id taken from `stamps`, when a row is unusual.

    `entity` is the destination of all rows; if it is None, the column `entity` has it for each row.
    """
    try:
        return _encode(batch, schema, stamps, entity, typed_json)
    except (Unusual, pa.ArrowInvalid, pa.ArrowCapacityError):
        return None


def _encode(
    batch: pa.RecordBatch, schema: StructType, stamps: Stamps, entity: str | None, typed_json: bool
) -> Encoded | None:
    columns = _columns(batch)
    _check(columns, batch.num_rows, is_routed=entity is None)
    annotations = _annotations(columns)
    kind = next((field.dataType for field in schema.fields if field.name == "application_properties"), None)
    content = [*_application_properties(columns.get("application_properties"), kind, typed_json), *_data(columns)]
    ids = columns.get("message_id")
    if ids is None or ids.null_count:
        # The content becomes one column, because its bytes are hashed for the ids.
        content = [_joined(*content)]
        made = _stamped(columns, ids, stamps, entity, annotations, content[0])
        ids = made if ids is None else pc.coalesce(ids, made)
    parts = [*annotations, *_properties({**columns, "message_id": ids}), *content]
    sizes = _lengths(parts)
    items = _joined(_heads(sizes, lambda size: _DATA + _sized(_BINARY, size)), *parts)
    return Encoded(items, ids, pc.sum(sizes).as_py() or 0)


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns with values, with offsets of 32 bits."""
    found = {}
    for name in WRITABLE:
        index = batch.schema.get_field_index(name)
        if index >= 0 and (name == "body" or batch.column(index).null_count < batch.num_rows):
            found[name] = _narrow(batch.column(index))
    return found


def _narrow(column: pa.Array) -> pa.Array:
    """Cast a column to offsets of 32 bits, which suffice for what `pieces` returns."""
    if pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_large_binary(column.type) else column


def _check(columns: Mapping[str, pa.Array], count: int, *, is_routed: bool) -> None:
    """Raise Unusual when the service would refuse or misread a row."""
    for name, column in columns.items():
        if pa.types.is_string(column.type) and name != "body":
            column.validate(full=True)  # Spark's text may be no UTF-8
    for name in _LIMITED:
        if name in columns and (pc.max(pc.utf8_length(columns[name])).as_py() or 0) > MAX_ID_LENGTH:
            raise Unusual
    if "content_type" in columns and not pc.all(pc.string_is_ascii(columns["content_type"])).as_py():
        raise Unusual
    session_id, partition_key = columns.get("session_id"), columns.get("partition_key")
    has_both = session_id is not None and partition_key is not None
    if has_both and pc.any(pc.not_equal(session_id, partition_key)).as_py():
        raise Unusual
    if is_routed:
        entity = columns.get("entity")
        if entity is None or entity.null_count or (count and pc.min(pc.binary_length(entity)).as_py() == 0):
            raise Unusual


# --- sections, each as columns to be joined ---


def _annotations(columns: Mapping[str, pa.Array]) -> list[Any]:
    partition_key, scheduled = columns.get("partition_key"), columns.get("scheduled_enqueue_time")
    entries: list[Any] = []
    counts: Any = 0
    if partition_key is not None:
        entries.append(
            _joined(_constant(write_value(PARTITION_KEY, 2)), _texts(_STRING, partition_key), nulls="emit_null")
        )
    if scheduled is not None:
        moments = _each(scheduled.cast(pa.int64()), lambda micros: Timestamp(micros // 1000))
        entries.append(_joined(_constant(write_value(SCHEDULED_TIME, 2)), moments, nulls="emit_null"))
    for entry in entries:
        counts = pc.add(counts, pc.multiply(pc.cast(entry.is_valid(), pa.int64()), 2))
    return _compound(_ANNOTATIONS, _MAP, _joined(*entries), counts) if entries else []


def _properties(columns: Mapping[str, pa.Array]) -> list[Any]:
    """Leave out nulls after the last value."""
    fields = {place: columns[name] for place, name in _FIELDS.items() if name in columns}
    elements: list[Any] = []
    counts: Any = None
    later: Any = False
    """Whether a row has a value in a later column: for all rows, or for each."""
    for place in range(max(fields), -1, -1):
        column = fields.get(place)
        if column is None:
            elements.append(_NULL if later is True else pc.if_else(later, _NULL, _NOTHING))
            continue
        element = _texts(_SYMBOL if _FIELDS[place] == "content_type" else _STRING, column)
        counts = pa.scalar(place + 1, pa.int64()) if counts is None else pc.if_else(later, counts, place + 1)
        if not column.null_count:
            later = True
        else:
            element = pc.coalesce(element, _NULL if later is True else pc.if_else(later, _NULL, _NOTHING))
            if later is not True:
                later = pc.or_(column.is_valid(), later)
        elements.append(element)
    return _compound(_PROPERTIES, _LIST, _joined(*reversed(elements)), counts)


def _application_properties(column: pa.MapArray | None, kind: DataType | None, typed_json: bool) -> list[Any]:
    if column is None or not isinstance(kind, MapType):
        return []
    offsets = column.offsets
    first = offsets[0].as_py()
    keys = _narrow(column.keys.slice(first, offsets[-1].as_py() - first))
    values = _narrow(column.items.slice(first, len(keys)))
    offsets = pc.subtract(offsets, first)
    pairs = pc.subtract(offsets.slice(1), offsets.slice(0, len(column)))
    if not len(keys):
        return []
    keys.validate(full=True)
    names = keys.dictionary_encode()
    in_nulls = pc.max(pc.if_else(column.is_null(), pairs, 0)).as_py()
    if in_nulls or keys.null_count or pc.max(pairs).as_py() * 2 > MAX_VALUE_ELEMENTS:
        raise Unusual
    rows = pc.list_parent_indices(pa.ListArray.from_arrays(offsets, keys))
    places = pc.add(pc.multiply(rows, len(names.dictionary)), names.indices.cast(pa.int64()))
    if pc.count_distinct(places).as_py() < len(keys):
        raise Unusual  # the last of equal keys counts
    entries = _joined(_distinct(names, lambda name: write_value(name, 2)), _values(values, kind.valueType, typed_json))
    ends = pa.Array.from_buffers(pa.int32(), len(entries) + 1, [None, entries.buffers()[1]], offset=entries.offset)
    bodies = pa.Array.from_buffers(
        pa.binary(), len(column), [None, ends.take(offsets).buffers()[1], entries.buffers()[2]]
    )
    counts = pc.multiply(pairs.cast(pa.int64()), 2)
    return _compound(_APPLICATION, _MAP, bodies, counts)


def _data(columns: Mapping[str, pa.Array]) -> list[Any]:
    body = _bytes(columns["body"])
    sizes = pc.fill_null(pc.binary_length(body), 0)
    return [_heads(sizes, lambda size: _DATA + _sized(_BINARY, size)), body]


def _compound(section: bytes, code: int, bodies: pa.Array, counts: Any) -> list[Any]:
    """Join heads and bodies; a compound without elements is left out."""

    def head(both: int) -> bytes:
        count, size = divmod(both, 1 << 32)
        if count < 256 and size < 255:
            return section + bytes((code, size + 1, count))
        return section + bytes((code + 0x10,)) + _uint(size + 4) + _uint(count)

    counts = pc.if_else(pc.equal(counts, 0), None, counts)
    both = pc.add(pc.multiply(counts, 1 << 32), pc.binary_length(bodies).cast(pa.int64()))
    return [_heads(both, head), bodies]


# --- values ---

_FLOATS: Final[Mapping[type[DataType], tuple[str, str, Any, Callable[[float], Any]]]] = {
    FloatType: ("f", "i", pa.int32(), Float),
    DoubleType: ("d", "q", pa.int64(), float),
}
_WHOLE: Final[Mapping[type[DataType], Callable[[int], Any]]] = {
    ByteType: Byte,
    ShortType: Short,
    IntegerType: Int,
    LongType: int,
}


def _values(column: pa.Array, kind: DataType, typed_json: bool) -> pa.Array:
    """Encode the values of maps, null included."""
    column.validate(full=True)
    if typed_json:
        found = _each(column, parse_typed)
    elif isinstance(kind, StringType):
        found = _texts(_STRING, column)
    elif isinstance(kind, BinaryType):
        found = _texts(_BINARY, column)
    elif isinstance(kind, BooleanType):
        found = pc.if_else(column, _constant(b"\x41"), _constant(b"\x42"))
    elif isinstance(kind, TimestampType):
        found = _each(column.cast(pa.int64()), lambda micros: Timestamp(micros // 1000))
    elif type(kind) in _WHOLE:
        found = _each(column, _WHOLE[type(kind)])
    else:
        shape, bits, integer, number = _FLOATS[type(kind)]
        # By their bits: zero has a sign, and no number equals NaN.
        pack, unpack = Struct(f"<{bits}").pack, Struct(f"<{shape}").unpack
        found = _each(column.view(integer), lambda whole: number(unpack(pack(whole))[0]))
    return pc.coalesce(found, _NULL)


def _each(column: pa.Array, value: Callable[[Any], Any]) -> pa.Array:
    """Encode each distinct value once."""
    return _distinct(column.dictionary_encode(), lambda given: write_value(value(given), 2))


def _texts(code: int, column: pa.Array) -> pa.Array:
    """Strings, symbols or binaries; null where the column has null."""
    octets = _bytes(column)
    heads = _heads(pc.binary_length(octets), lambda size: _sized(code, size))
    return _joined(heads, octets, nulls="emit_null")


def _bytes(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column


def _sized(code: int, size: int) -> bytes:
    return bytes((code, size)) if size < 256 else bytes((code + 0x10,)) + _uint(size)


def _heads(sizes: Any, make: Callable[[int], bytes]) -> Any:
    """Encode numbers as bytes."""
    return _distinct(sizes.dictionary_encode(), make)


def _distinct(column: pa.DictionaryArray, make: Callable[[Any], bytes]) -> pa.Array:
    try:
        made = pa.array([make(value) for value in column.dictionary.to_pylist()], pa.binary())
    except (EncodeError, *FAILURES):
        raise Unusual from None
    return made.take(column.indices)


def _constant(octets: bytes) -> pa.Scalar:
    return pa.scalar(octets, pa.binary())


def _joined(*parts: Any, nulls: str = "replace") -> pa.Array:
    return pc.binary_join_element_wise(*parts, _NOTHING, null_handling=nulls, null_replacement="")


def _lengths(parts: list[Any]) -> pa.Array:
    total: Any = 0
    for part in parts:
        total = pc.add(total, pc.fill_null(pc.binary_length(part), 0))
    return total


# --- ids ---


def _stamped(
    columns: Mapping[str, pa.Array],
    ids: pa.Array | None,
    stamps: Stamps,
    entity: str | None,
    annotations: list[Any],
    content: pa.BinaryArray,
) -> pa.StringArray:
    """Make ids for the rows that have none; null for the others."""
    marks = _joined(*annotations) if annotations else None
    sizes = _heads(pc.binary_length(content), SIZE)
    ends, octets = view(_joined(_said(columns, entity, marks, len(content)), sizes, content))
    texts: Iterable[memoryview | None] = (octets[start:end] for start, end in pairwise(ends))
    if ids is not None:
        texts = (None if given else text for given, text in zip(ids.is_valid().to_pylist(), texts, strict=True))
    return pa.array(stamps.stamp_all(texts), pa.string())


def _said(columns: Mapping[str, pa.Array], entity: str | None, marks: pa.BinaryArray | None, count: int) -> Any:
    """Return the properties of rows as they enter into their ids."""
    texts = [columns[name].to_pylist() if name in columns else [None] * count for name in SAID]
    if entity is not None and marks is None and not any(name in columns for name in SAID):
        return _constant(Stamps.text_of(entity.encode(), b"", repr((None,) * len(SAID)).encode()))
    places = [entity] * count if entity is not None else columns["entity"].to_pylist()
    annotations = [b""] * count if marks is None else marks.to_pylist()
    said = map(repr, zip(*texts, strict=True))
    return pa.array(map(Stamps.text_of, map(str.encode, places), annotations, map(str.encode, said)), pa.binary())


def view(column: pa.BinaryArray) -> tuple[memoryview, memoryview]:
    """Return the offsets of a column of bytes, one more than it has rows, and its bytes."""
    _, offsets, octets = column.buffers()
    ends = memoryview(offsets).cast("i")[column.offset : column.offset + len(column) + 1]
    return ends, memoryview(octets).cast("B") if octets is not None else memoryview(b"")
