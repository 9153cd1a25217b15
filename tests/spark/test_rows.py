"""Encoded messages as rows: every column, every way to write a body, and bytes that are no message."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType
from test_texts import VALUES

from peeklock.amqp.types import Int, Symbol, Timestamp, UInt, ULong
from peeklock.client import Header, Message, Properties
from peeklock.spark.rows import (
    ARROW_SCHEMA,
    CLAIM_PROPERTY,
    COLUMNS,
    SCHEMA,
    UnreadableMessage,
    arrow_schema,
    batch_of,
    head_of,
    number_of,
)

ENQUEUED = 1_893_456_000_123


def annotations(number: int = 7, **more: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = {
        Symbol("x-opt-sequence-number"): number,
        Symbol("x-opt-enqueued-time"): Timestamp(ENQUEUED),
        Symbol("x-opt-enqueue-sequence-number"): number + 1,
    }
    return found | {Symbol(f"x-opt-{name.replace('_', '-')}"): value for name, value in more.items()}


def row_of(message: Message | bytes, *, typed: bool = False, **options: Any) -> dict[str, Any]:
    payload = message if isinstance(message, bytes) else message.encode()
    batch = batch_of([payload], "queue", typed, **options)
    assert batch.schema.equals(options.get("schema", ARROW_SCHEMA))
    (row,) = batch.to_pylist()
    if "application_properties" in row:
        row["application_properties"] = dict(row["application_properties"])
    return dict(row)


def test_the_arrow_schema_is_the_one_that_spark_requires() -> None:
    assert to_arrow_schema(SCHEMA, timezone="UTC").equals(ARROW_SCHEMA)


def test_every_column_is_filled_from_its_place_in_the_message() -> None:
    message = Message(
        header=Header(durable=True, ttl=UInt(60_000), delivery_count=UInt(3)),
        message_annotations=annotations(
            message_state=Int(2),
            scheduled_enqueue_time=Timestamp(ENQUEUED + 1),
            partition_key="p",
            deadletter_source="origin",
        ),
        properties=Properties(
            message_id="id",
            to="there",
            subject="subject ☃",
            reply_to="back",
            correlation_id="corr",
            content_type=Symbol("text/plain"),
            group_id="session",
            reply_to_group_id="other session",
        ),
        application_properties={"a": "b", "DeadLetterReason": "why", "DeadLetterErrorDescription": "because"},
        data=[b"body"],
    )
    assert row_of(message) == {
        "body": b"body",
        "message_id": "id",
        "session_id": "session",
        "partition_key": "p",
        "subject": "subject ☃",
        "content_type": "text/plain",
        "correlation_id": "corr",
        "reply_to": "back",
        "reply_to_session_id": "other session",
        "to": "there",
        "sequence_number": 7,
        "enqueued_sequence_number": 8,
        "enqueued_time": datetime(2030, 1, 1, 0, 0, 0, 123000, UTC),
        "scheduled_enqueue_time": datetime(2030, 1, 1, 0, 0, 0, 124000, UTC),
        "expires_at": datetime(2030, 1, 1, 0, 1, 0, 123000, UTC),
        "delivery_count": 3,
        "state": "scheduled",
        "dead_letter_reason": "why",
        "dead_letter_error_description": "because",
        "dead_letter_source": "origin",
        "application_properties": {"a": "b"},
        "entity": "queue",
    }


def test_a_bare_message_has_nulls_and_is_active() -> None:
    row = row_of(Message(message_annotations=annotations(), data=[b""]))
    filled = {name for name, value in row.items() if value is not None}
    assert filled == {
        "body",
        "sequence_number",
        "enqueued_sequence_number",
        "enqueued_time",
        "delivery_count",
        "state",
        "application_properties",
        "entity",
    }
    assert (row["state"], row["application_properties"], row["body"]) == ("active", {}, b"")


def test_the_expiry_in_the_properties_goes_before_the_time_to_live() -> None:
    message = Message(
        header=Header(ttl=UInt(1)),
        message_annotations=annotations(),
        properties=Properties(absolute_expiry_time=Timestamp(0)),
    )
    assert row_of(message)["expires_at"] == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("ms", [253_402_300_800_000, -62_135_596_800_001, (1 << 63) - 1])
def test_a_moment_outside_the_calendar_is_null(ms: int) -> None:
    message = Message(message_annotations=annotations(scheduled_enqueue_time=Timestamp(ms)))
    assert row_of(message)["scheduled_enqueue_time"] is None


def test_the_last_moment_of_the_calendar_is_kept() -> None:
    message = Message(message_annotations=annotations(scheduled_enqueue_time=Timestamp(253_402_300_799_999)))
    assert row_of(message)["scheduled_enqueue_time"] == datetime(9999, 12, 31, 23, 59, 59, 999000, UTC)


@pytest.mark.parametrize(("value", "plain", "typed"), VALUES)
def test_an_application_property_of_any_type_is_text(value: object, plain: str | None, typed: str) -> None:
    message = Message(message_annotations=annotations(), application_properties={"é": value, "other": "x"})
    assert row_of(message)["application_properties"] == {"é": plain, "other": "x"}
    assert row_of(message, typed=True)["application_properties"] == {"é": typed, "other": '{"string":"x"}'}


def test_maps_of_several_rows_keep_apart() -> None:
    maps = [{"a": "1"}, {}, {"b": "2", "c": None}, None]
    payloads = [Message(message_annotations=annotations(), application_properties=each).encode() for each in maps]
    column = batch_of(payloads, "q").column("application_properties").to_pylist()
    assert [dict(each) for each in column] == [{"a": "1"}, {}, {"b": "2", "c": None}, {}]


def test_the_mark_of_a_claim_is_not_shown() -> None:
    message = Message(message_annotations=annotations(), application_properties={CLAIM_PROPERTY: "x", "a": "b"})
    assert row_of(message)["application_properties"] == {"a": "b"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"data": [b"one", b"two", b"three"]}, b"onetwothree"),
        ({"data": [b"x" * 300]}, b"x" * 300),
        ({"value": "text é"}, "text é".encode()),
        ({"value": b"\x00\x01"}, b"\x00\x01"),
        ({"value": {"a": [1, None]}}, b'{"a":[1,null]}'),
        ({"value": None}, None),
        ({"sequences": [[1, "a"]]}, b'[1,"a"]'),
        ({"sequences": [[1], [2]]}, b"[1,2]"),
        ({}, None),
    ],
)
def test_a_body_of_any_kind_is_bytes(body: dict[str, Any], expected: bytes | None) -> None:
    assert row_of(Message(message_annotations=annotations(), **body))["body"] == expected


@pytest.mark.parametrize(
    ("identity", "text"),
    [(ULong(5), "5"), (UUID(int=1), str(UUID(int=1))), (b"\x01", "AQ=="), ("m" * 300, "m" * 300)],
)
def test_an_id_of_any_type_is_text(identity: object, text: str) -> None:
    row = row_of(
        Message(message_annotations=annotations(), properties=Properties(message_id=identity, correlation_id=identity))
    )
    assert (row["message_id"], row["correlation_id"]) == (text, text)


def test_annotations_of_unexpected_types_do_no_harm() -> None:
    row = row_of(
        Message(
            message_annotations=annotations(
                partition_key=UUID(int=2), scheduled_enqueue_time="soon", deadletter_source=Symbol("s")
            ),
            data=[b"x"],
        )
    )
    assert row["partition_key"] == str(UUID(int=2))
    assert (row["scheduled_enqueue_time"], row["dead_letter_source"]) == (None, "s")


def test_sections_with_symbols_as_descriptors_are_read_too() -> None:
    message = Message(message_annotations=annotations(), data=[b"x"])
    descriptor = b"\x00\xa3\x10amqp:data:binary"
    encoded = message.encode().replace(b"\x00\x53\x75", descriptor)
    assert descriptor in encoded
    assert row_of(encoded)["body"] == b"x"


def test_no_messages_are_an_empty_batch_with_all_columns() -> None:
    batch = batch_of([], "queue")
    assert (batch.num_rows, batch.schema) == (0, ARROW_SCHEMA)


GOOD = Message(message_annotations=annotations(41), properties=Properties(message_id="m"), data=[b"body"]).encode()
BAD = [
    pytest.param(GOOD[:-1], id="ends too early"),
    pytest.param(GOOD.replace(b"\xa1\x01m", b"\xa1\x01\xff"), id="no UTF-8"),
    pytest.param(GOOD + b"\x00\x53\x75\x40", id="data that is not binary"),
    pytest.param(GOOD + b"\x00\x53\x74\x45", id="properties that are no map"),
    pytest.param(GOOD + b"garbage", id="garbage behind"),
    pytest.param(GOOD.replace(b"\x00\x53\x73\xc0\x04\x01", b"\x00\x53\x73\xc0\x04\x02"), id="a wrong count"),
]


@pytest.mark.parametrize("payload", BAD)
def test_bytes_that_are_no_message_are_named_by_their_number(payload: bytes) -> None:
    with pytest.raises(UnreadableMessage, match="message 41 of 'queue' cannot be read: "):
        batch_of([GOOD, payload], "queue")


@pytest.mark.parametrize("payload", BAD)
def test_they_can_be_kept_as_they_are(payload: bytes) -> None:
    batch = batch_of([GOOD, payload], "queue", keep_unreadable=True)
    good, kept = batch.to_pylist()
    assert good["message_id"] == "m"
    assert (kept["body"], kept["sequence_number"], kept["message_id"]) == (payload, 41, None)


@given(st.binary(max_size=60), st.integers(0, len(GOOD)))
def test_no_bytes_break_the_reading(noise: bytes, at: int) -> None:
    payload = GOOD[:at] + noise + GOOD[at:]
    assert batch_of([payload], "queue", keep_unreadable=True).num_rows == 1


@given(st.binary(max_size=300))
def test_no_noise_breaks_the_reading(noise: bytes) -> None:
    assert batch_of([noise], "queue", keep_unreadable=True).num_rows == 1


def test_the_number_and_time_are_had_without_the_rest() -> None:
    assert number_of(GOOD) == 41
    assert head_of(GOOD) == (41, ENQUEUED)
    assert head_of(Message(message_annotations=annotations(42)).encode()) == (42, ENQUEUED)
    small = Message(message_annotations={Symbol("x-opt-sequence-number"): ULong(5)}, data=[b"x"]).encode()
    assert number_of(small) == 5
    with pytest.raises(UnreadableMessage, match="has no sequence number"):
        number_of(Message(data=[b"x"]).encode())


def test_a_part_of_the_columns_can_be_requested() -> None:
    schema = arrow_schema(StructType([StructField("sequence_number", LongType()), StructField("entity", StringType())]))
    assert row_of(GOOD, schema=schema) == {"sequence_number": 41, "entity": "queue"}


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        (StructField("colour", StringType()), "no column 'colour'; use body, message_id"),
        (StructField("body", StringType()), "'body' is of type binary, not string"),
    ],
)
def test_other_columns_are_refused(field: StructField, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        arrow_schema(StructType([field]))


def test_the_columns_are_those_of_the_schema() -> None:
    assert tuple(SCHEMA.fieldNames()) == COLUMNS == tuple(ARROW_SCHEMA.names)
    assert isinstance(ARROW_SCHEMA, pa.Schema)
