"""Rows as messages: the columns that are taken, their types, and what is wrong with a row."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)
from test_texts import VALUES

from peeklock.amqp.types import Int, Symbol, Timestamp
from peeklock.client import Message, Properties
from peeklock.spark.outgoing import Outgoing, check_columns, messages_of
from peeklock.spark.rows import SCHEMA, batch_of

KINDS: dict[str, DataType] = {
    "BINARY": BinaryType(),
    "STRING": StringType(),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "BOOLEAN": BooleanType(),
    "DOUBLE": DoubleType(),
    "TIMESTAMP": TimestampType(),
    "ARRAY": ArrayType(IntegerType()),
}


def struct(text: str) -> StructType:
    """`name KIND, name MAP<KIND, KIND>`: what Spark itself reads too, but only while a session is there."""
    found = StructType()
    for column in re.split(r", (?![^<]*>)", text):
        name, kind = column.split(" ", 1)
        pair = re.fullmatch(r"MAP<(\w+), (.+)>", kind)
        found.add(name, MapType(KINDS[pair[1]], KINDS[pair[2]]) if pair else KINDS[kind])
    return found


def outgoing(schema: str | StructType, *rows: tuple[Any, ...], typed: bool = False) -> list[Outgoing]:
    made = struct(schema) if isinstance(schema, str) else schema
    check_columns(made, typed_json=typed)
    arrow = to_arrow_schema(made, timezone="UTC")
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(arrow)]
    return list(messages_of(pa.RecordBatch.from_arrays(columns, schema=arrow), made, typed_json=typed))


def message(schema: str, *values: Any, typed: bool = False) -> Message:
    (found,) = outgoing(schema, values, typed=typed)
    assert found.problem is None
    assert found.message is not None
    return found.message


def test_a_body_alone_is_a_message() -> None:
    assert message("body BINARY", b"x").data == [b"x"]
    assert message("body STRING", "snow ☃").data == ["snow ☃".encode()]
    assert message("body BINARY", None).data == [b""]


def test_each_column_goes_to_its_place() -> None:
    texts = ("message_id", "session_id", "subject", "content_type", "correlation_id", "reply_to", "to")
    more = ("reply_to_session_id", "partition_key", "entity")
    schema = "body BINARY, scheduled_enqueue_time TIMESTAMP, " + ", ".join(f"{n} STRING" for n in (*texts, *more))
    at = datetime(2030, 1, 1, 0, 0, 0, 5999, UTC)
    (found,) = outgoing(schema, (b"x", at, *texts, *more))
    made = found.message
    assert made is not None
    assert made.properties == Properties(
        message_id="message_id",
        to="to",
        subject="subject",
        reply_to="reply_to",
        correlation_id="correlation_id",
        content_type="content_type",
        group_id="session_id",
        reply_to_group_id="reply_to_session_id",
    )
    assert made.message_annotations == {
        Symbol("x-opt-partition-key"): "partition_key",
        Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1_893_456_000_005),
    }
    assert (found.entity, found.session_id, found.partition_key) == ("entity", "session_id", "partition_key")


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("STRING", "x", "x"),
        ("INT", 5, Int(5)),
        ("BIGINT", 5, 5),
        ("BOOLEAN", True, True),
        ("DOUBLE", 0.5, 0.5),
        ("BINARY", b"x", b"x"),
        ("TIMESTAMP", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), Timestamp(1000)),
        ("STRING", None, None),
    ],
)
def test_a_map_of_any_simple_type_becomes_properties_of_that_type(kind: str, value: Any, expected: Any) -> None:
    made = message(f"body BINARY, application_properties MAP<STRING, {kind}>", b"", [("p", value)])
    assert made.application_properties == {"p": expected}
    assert made.application_properties is not None
    assert type(made.application_properties["p"]) is type(expected)


@pytest.mark.parametrize(("value", "_", "typed"), VALUES)
def test_typed_text_becomes_a_property_of_its_type(value: Any, _: object, typed: str) -> None:
    made = message("body BINARY, application_properties MAP<STRING, STRING>", b"", [("p", typed)], typed=True)
    assert made.application_properties == {"p": value}


def test_a_bad_row_has_its_reason_and_other_rows_are_encoded() -> None:
    rows = [(b"1", [("a", '{"int":1}')]), (b"2", [("a", "one")]), (b"3", None)]
    found = outgoing("body BINARY, application_properties MAP<STRING, STRING>", *rows, typed=True)
    assert [(each.row, each.message is None) for each in found] == [(0, False), (1, True), (2, False)]
    assert found[1].problem == "application property 'a': 'one' is not JSON: Expecting value"


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("body BINARY, colour STRING", "a message has no column 'colour'; use body"),
        ("subject STRING", "column 'body' is missing"),
        ("body INT", "column 'body' is of type int, but must be binary or string"),
        ("body BINARY, message_id BIGINT", "column 'message_id' is of type bigint, but must be string"),
        ("body BINARY, scheduled_enqueue_time STRING", "'scheduled_enqueue_time' is of type string, but must be times"),
        ("body BINARY, application_properties STRING", "'application_properties' is of type string, but must be map"),
        ("body BINARY, application_properties MAP<INT, STRING>", "must be a map of string to"),
        ("body BINARY, application_properties MAP<STRING, ARRAY>", "must be a map of string to"),
    ],
)
def test_a_column_that_cannot_be_written_is_named(schema: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_columns(struct(schema))


def test_typed_text_is_text() -> None:
    with pytest.raises(ValueError, match="must be a map of string to string"):
        check_columns(struct("body BINARY, application_properties MAP<STRING, INT>"), typed_json=True)


def test_rows_that_were_read_can_be_written_again() -> None:
    check_columns(SCHEMA)
    sent = Message(
        message_annotations={Symbol("x-opt-sequence-number"): 5, Symbol("x-opt-partition-key"): "k"},
        properties=Properties(message_id="m", subject="s", group_id="g"),
        application_properties={"n": Int(5), "t": Timestamp(7)},
        data=[b"body"],
    )
    (again,) = messages_of(batch_of([sent.encode()], "queue", True), SCHEMA, typed_json=True)
    assert again.message is not None
    assert (again.message.properties, again.message.data) == (sent.properties, sent.data)
    assert again.message.application_properties == sent.application_properties
    assert again.message.message_annotations == {Symbol("x-opt-partition-key"): "k"}
