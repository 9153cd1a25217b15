"""Messages in columns: what SDKs sent, every type in every place, messages at random, and broken ones."""

from __future__ import annotations

import base64
import json
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from plain_rows import plain_row
from pyspark.sql.types import StructType
from random_messages import RandomMessages
from test_texts import VALUES

from peeklock.amqp.codec import encode_value
from peeklock.amqp.sections import list_section, map_section
from peeklock.amqp.types import Array, Int, Symbol, Timestamp
from peeklock.broker.heads import head
from peeklock.client import Message, Properties
from peeklock.spark import columns, rows
from peeklock.spark.rows import (
    ARROW_SCHEMA,
    CAPTURED_AT,
    SCHEMA,
    TYPED_PROPERTIES,
    UnreadableMessage,
    arrow_schema,
    batch_of,
    batch_of_page,
)
from peeklock.store.base import StoredMessage

RECORDED = json.loads((Path(__file__).parent / "recorded" / "messages.json").read_text(encoding="utf-8"))
SPARK = Path(rows.__file__).parent
IS_COMPILED = not (columns.__file__ or "").endswith(".py")


def packed(payloads: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads)


def values_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows with moments as microseconds, which Python's datetime has not all of, and maps as dicts."""
    made = {}
    for field in batch.schema:
        column = batch.column(field.name)
        column = column.cast(pa.int64()) if pa.types.is_timestamp(field.type) else column
        made[field.name] = [dict(each) if isinstance(each, list) else each for each in column.to_pylist()]
    return [dict(zip(made, row, strict=True)) for row in zip(*made.values(), strict=True)]


def both_ways(payloads: list[bytes], typed: bool = False, **options: Any) -> pa.RecordBatch:
    """The batch of the messages one by one, which must be that of a page of them too."""
    batch = batch_of(payloads, "queue", typed, **options)
    batch.validate(full=True)
    assert batch_of_page(packed(payloads), "queue", typed, **options).equals(batch)
    return batch


def complaint(make: Callable[[], pa.RecordBatch]) -> str | None:
    try:
        make()
    except UnreadableMessage as error:
        return str(error)
    return None


def bare_with(**sections: Any) -> bytes:
    return Message(**sections).encode()


def peeked(number: int, bare: bytes, **options: Any) -> bytes:
    """A message as `peek-message` gives it."""
    stored = StoredMessage(sequence_number=number, payload=b"", enqueued_at=1_893_456_000_123, **options)
    return head(stored, None, with_state=True) + bare


@pytest.mark.parametrize("each", RECORDED, ids=range(len(RECORDED)))
def test_messages_from_sdks_have_their_recorded_rows(each: dict[str, Any]) -> None:
    payload = base64.b64decode(each["message"])
    (row,) = both_ways([payload]).to_pylist()
    assert {name: text(value) for name, value in row.items() if value is not None and name != "entity"} == each["row"]
    (typed,) = both_ways([payload], typed=True).column("application_properties").to_pylist()
    assert dict(typed) == each["typed_properties"]


def text(value: Any) -> Any:
    """As it is in the file."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    return dict(value) if isinstance(value, list) else value


def test_recorded_messages_have_the_same_rows_together_as_alone() -> None:
    payloads = [base64.b64decode(each["message"]) for each in RECORDED]
    together = values_of(both_ways(payloads))
    assert together == [values_of(batch_of([payload], "queue"))[0] for payload in payloads]


@pytest.mark.parametrize("typed", [False, True], ids=["strings", "json"])
@pytest.mark.parametrize("place", ["property", "key", "annotation", "value", "sequence", *range(13)], ids=str)
def test_a_value_of_any_type_in_any_field_is_read_as_by_the_codec(place: Any, typed: bool) -> None:
    payloads = []
    for value, _, _ in [*VALUES, ([],) * 3, ({},) * 3, (Array([], Int),) * 3, ("x" * 300,) * 3]:
        encoded = encode_value(value)
        if place == "property":
            bare = map_section(0x74, [encode_value("a"), encoded, encode_value("b"), encode_value("c")])
        elif place == "key":
            if encoded[0] >= 0xC0 or encoded[0] in (0x00, 0x45):
                continue
            bare = map_section(0x74, [encoded, encode_value("a")])
        elif place == "annotation":
            entries = [encode_value(Symbol("x-opt-partition-key")), encoded, encode_value(Symbol("x-mine")), encoded]
            payloads.append(map_section(0x72, entries) + bare_with(data=[b"x"]))
            continue
        elif place == "value":
            bare = b"\x00\x53\x77" + encoded
        elif place == "sequence":
            bare = list_section(0x76, [encoded, encoded])
        else:
            if isinstance(value, str) and place == 8:  # the expiry
                continue
            bare = list_section(0x73, [*([b"\x40"] * place), encoded])
        payloads.append(peeked(len(payloads), bare))
    assert values_of(both_ways(payloads, typed)) == [plain_row(payload, "queue", typed) for payload in payloads]


@pytest.mark.parametrize("seed", range(8))
def test_random_messages_have_the_rows_that_the_full_codec_makes(seed: int) -> None:
    made = RandomMessages(seed)
    for round in range(30):
        payloads = [made.payload() for _ in range(made.count(20))]
        typed = round % 2 == 0
        batch = both_ways(payloads, typed)
        assert values_of(batch) == [plain_row(payload, "queue", typed) for payload in payloads]


@pytest.mark.parametrize("typed", [False, True], ids=["strings", "json"])
def test_properties_that_are_no_text_are_a_column_of_their_own_for_a_schema_that_names_it(typed: bool) -> None:
    made = RandomMessages(300)
    values = [value for value, _, _ in VALUES] + [Array([], Int), "x" * 300]
    maps = [[("a", value), ("b", "text"), ("c", value)] for value in values] + [[(Int(1), Int(2)), ("1", "text")]]
    sections = [map_section(0x74, [encode_value(each) for pair in pairs for each in pair]) for pairs in maps]
    payloads = [base64.b64decode(each["message"]) for each in RECORDED]
    payloads += [peeked(number, section) for number, section in enumerate(sections)]
    payloads += [made.payload() for _ in range(100)]
    payloads = [each for payload in payloads for each in (payload, payload)]
    schema = arrow_schema(StructType([*SCHEMA.fields, TYPED_PROPERTIES]))
    for found, payload in zip(values_of(both_ways(payloads, typed, schema=schema)), payloads, strict=True):
        expected = plain_row(payload, "queue", True)["application_properties"]
        no_text = {name: value for name, value in expected.items() if not value.startswith('{"string":')}
        assert found.pop("typed_properties") == no_text
        assert found == plain_row(payload, "queue", typed)


def test_the_time_of_reading_is_a_column_for_a_schema_that_names_it() -> None:
    payloads = [base64.b64decode(each["message"]) for each in RECORDED]
    before = datetime.now(UTC)
    batch = batch_of(payloads, "queue", schema=arrow_schema(StructType([CAPTURED_AT, *SCHEMA.fields])))
    (read,) = set(batch.column("captured_at").to_pylist())
    assert before <= read <= datetime.now(UTC)
    assert batch.select(SCHEMA.names).equals(batch_of(payloads, "queue"))


@pytest.mark.parametrize("seed", range(400, 404))
def test_messages_with_the_properties_of_the_one_before_have_the_rows_that_the_codec_makes(seed: int) -> None:
    made = RandomMessages(seed)
    few = [made.payload() for _ in range(5)]
    payloads = [few[made.count(5) - 1] for _ in range(100)]
    assert values_of(both_ways(payloads)) == [plain_row(payload, "queue", False) for payload in payloads]


@pytest.mark.parametrize("seed", range(100, 104))
def test_decoding_some_columns_gives_the_same_values_as_decoding_all(seed: int) -> None:
    made = RandomMessages(seed)
    for _ in range(40):
        payloads = [made.payload() for _ in range(made.count(10))]
        some = made.some(ARROW_SCHEMA.names)
        schema = pa.schema([ARROW_SCHEMA.field(name) for name in some])
        assert both_ways(payloads, schema=schema).equals(batch_of(payloads, "queue").select(some))


@pytest.mark.parametrize("seed", range(200, 204))
def test_an_invalid_message_is_named_or_kept_and_changes_no_other_row(seed: int) -> None:
    made = RandomMessages(seed)
    named = 0
    for _ in range(60):
        payloads = [made.payload(), made.broken(), made.payload()]
        first, broken, last = values_of(both_ways(payloads, keep_unreadable=True))
        assert [first, last] == [plain_row(payloads[0], "queue", False), plain_row(payloads[2], "queue", False)]
        error = complaint(lambda: batch_of(payloads, "queue"))  # noqa: B023
        assert error == complaint(lambda: batch_of_page(packed(payloads), "queue"))  # noqa: B023
        if error is not None:
            named += 1
            assert error.startswith(f"message {broken['sequence_number']} of 'queue' cannot be read: ")
            assert broken["body"] == payloads[1]
    assert named > 10


def test_every_prefix_of_a_message_is_read_alike_in_a_page_and_alone() -> None:
    properties = Properties(message_id="m", group_id="s")
    bare = bare_with(properties=properties, application_properties={"a": "b", "c": Int(300)}, data=[b"body"])
    payload = peeked(41, bare, expires_at=1_893_456_060_123)
    others = peeked(40, bare), peeked(42, bare)
    for size in range(len(payload)):
        both_ways([others[0], payload[:size], others[1]], keep_unreadable=True)


def test_the_first_of_several_invalid_messages_is_named() -> None:
    good = [peeked(number, bare_with(properties=Properties(message_id="m"), data=[b"x"])) for number in range(3)]
    no_utf8 = good[1].replace(b"\xa1\x01m", b"\xa1\x01\xff")
    with pytest.raises(UnreadableMessage, match="message 1 of 'queue' cannot be read: 'utf-8' codec"):
        batch_of([good[0], no_utf8, good[2][:-1]], "queue")


@pytest.mark.parametrize("at", ["key", "value", "id"])
def test_invalid_utf8_is_detected_in_every_text_column(at: str) -> None:
    bare = bare_with(properties=Properties(message_id="id"), application_properties={"key": "value"}, data=[b"x"])
    broken = peeked(
        8, bare.replace(b"\xa1" + bytes((len(at),)) + at.encode(), b"\xa1" + bytes((len(at),)) + b"\xff" * len(at))
    )
    for typed in (False, True):
        with pytest.raises(UnreadableMessage, match="message 8 of 'queue'"):
            batch_of([peeked(7, bare), broken], "queue", typed)
        first, kept = values_of(both_ways([peeked(7, bare), broken], typed, keep_unreadable=True))
        assert (first["message_id"], kept["body"], kept["message_id"]) == ("id", broken, None)
        assert (kept["sequence_number"], kept["application_properties"]) == (8, {})


def test_fields_without_a_requested_column_are_not_read() -> None:
    schema = pa.schema([ARROW_SCHEMA.field("body"), ARROW_SCHEMA.field("sequence_number")])
    bare = bare_with(properties=Properties(message_id="m"), application_properties={"a": "b"}, data=[b"body"])
    no_utf8 = peeked(7, bare.replace(b"\xa1\x01m", b"\xa1\x01\xff").replace(b"\xa1\x01b", b"\xa1\x01\xff"))
    assert values_of(both_ways([no_utf8], schema=schema)) == [{"body": b"body", "sequence_number": 7}]
    with pytest.raises(UnreadableMessage):
        batch_of([no_utf8], "queue")


@pytest.mark.parametrize("is_copy", [False, True], ids=["sent", "copied"])
@pytest.mark.parametrize("with_state", [False, True], ids=["received", "peeked"])
def test_the_heads_of_the_broker_are_known_so_that_none_but_the_first_is_read(with_state: bool, is_copy: bool) -> None:
    stored = [StoredMessage(sequence_number=n, payload=b"", enqueued_at=n, delivery_count=n // 5) for n in range(10)]
    payloads = [head(each, None, with_state=with_state, is_copy=is_copy) + bare_with(data=[b"x"]) for each in stored]
    made = columns.Columns(ARROW_SCHEMA.names, 10, False, False, False, "queue")
    made.read_all(payloads)
    assert made.heads_read == 2  # one for each delivery count
    rows = values_of(both_ways(payloads))
    assert rows == [plain_row(payload, "queue", False) for payload in payloads]
    assert [row["enqueued_sequence_number"] for row in rows] == (list(range(10)) if is_copy else [None] * 10)


def test_a_copy_with_another_last_annotation_is_decoded_completely() -> None:
    stored = StoredMessage(sequence_number=7, payload=b"", enqueued_at=1)
    usual = head(stored, None, with_state=True, is_copy=True) + bare_with(data=[b"x"])
    forged = usual.replace(b"x-opt-enqueue-sequence-number", b"x-opt-enqueue-sequence-numbes")
    assert [row["enqueued_sequence_number"] for row in values_of(both_ways([usual, forged, usual]))] == [7, None, 7]


def test_another_head_of_the_same_size_is_not_decoded_as_the_brokers() -> None:
    usual = peeked(7, bare_with(data=[b"x"]))
    forged = usual.replace(b"x-opt-message-state\x54\x00", b"x-opt-partition-key\x50\x05")
    assert len(forged) == len(usual)
    assert forged != usual
    schema = pa.schema([ARROW_SCHEMA.field("partition_key")])
    for options in ({}, {"schema": schema}):
        found = values_of(both_ways([usual, forged, usual], **options))
        assert [row["partition_key"] for row in found] == [None, "5", None]


def test_annotations_behind_the_head_count_too() -> None:
    late = map_section(0x72, [encode_value(Symbol("x-opt-partition-key")), encode_value("late")])
    usual = peeked(7, bare_with(data=[b"x"]))
    at = usual.index(b"\x00\x53\x75")
    for payload in (usual + late, usual[:at] + late + usual[at:]):
        found = values_of(both_ways([usual, payload, usual]))
        assert [row["partition_key"] for row in found] == [None, "late", None]
        assert [row["sequence_number"] for row in found] == [7, 7, 7]


@pytest.mark.parametrize("fields", [1, 3])
def test_a_number_where_text_belongs_and_text_where_a_moment_belongs_do_no_harm(fields: int) -> None:
    marks = map_section(0x72, [encode_value(Symbol("x-opt-partition-key")), encode_value(Timestamp(5))])
    expiry = list_section(0x73, [*([b"\x40"] * 8), encode_value("soon"), *([b"\x40"] * fields)])
    (row,) = values_of(both_ways([marks + expiry]))
    assert (row["partition_key"], row["expires_at"]) == ("1970-01-01T00:00:00.005Z", None)


@pytest.mark.parametrize(
    "page", [b"\x00", b"\x00\x00\x00\x05abcd", b"\xff\xff\xff\xff" + bytes(50), bytes(4) + b"\x00\x00"]
)
def test_a_page_that_ends_within_a_message_is_refused(page: bytes) -> None:
    with pytest.raises(UnreadableMessage, match=r"^a packed page of 'queue' ends in the middle of a (length|message)$"):
        batch_of_page(page, "queue", keep_unreadable=True)


def test_an_empty_page_has_no_rows() -> None:
    assert batch_of_page(b"", "queue").num_rows == 0


@contextmanager
def interpreted() -> Iterator[ModuleType]:
    """`rows` on the sources of the compiled modules."""
    names = [f"peeklock.spark.{name}" for name in ("heads", "property_maps", "columns", "rows")]
    kept = {name: sys.modules.pop(name) for name in names}
    try:
        for name in names:
            spec = spec_from_file_location(name, SPARK / f"{name.rpartition('.')[2]}.py")
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        yield sys.modules["peeklock.spark.rows"]
    finally:
        sys.modules.update(kept)


@pytest.mark.skipif(not IS_COMPILED, reason="this checkout is not compiled")
def test_compiled_and_interpreted_give_the_same_of_whole_and_broken_messages() -> None:
    def outcome(module: ModuleType, payloads: list[bytes], typed: bool, keep: bool) -> Any:
        try:
            return values_of(module.batch_of_page(packed(payloads), "queue", typed, keep_unreadable=keep))
        except module.UnreadableMessage as error:
            return str(error).partition(" cannot be read")[0]

    made = RandomMessages(7)
    with interpreted() as slow:
        assert slow.Columns.__init__.__code__.co_filename.endswith(".py")
        for round in range(300):
            payloads = [made.payload(), made.broken(), made.payload()]
            options = payloads, round % 2 == 0, round % 3 == 0
            assert outcome(rows, *options) == outcome(slow, *options)
