"""Rows encoded all together: the same bytes and ids as one by one, whatever is in them; and runs cut into batches."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
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
from random_messages import TEXTS, RandomMessages
from test_texts import VALUES

from peeklock.amqp.message import Message
from peeklock.client.batches import BATCH_FORMAT, pack
from peeklock.spark import encoding, packing
from peeklock.spark.outgoing import WRITABLE
from peeklock.spark.packing import Packing, Piece
from peeklock.spark.parcels import Parcel, Run, runs_of
from peeklock.spark.rows import SCHEMA, batch_of
from peeklock.spark.stamping import Stamps

RECORDED = json.loads((Path(__file__).parent / "recorded" / "messages.json").read_text(encoding="utf-8"))
TEXT = [name for name, kinds in WRITABLE.items() if kinds == (StringType,)]
LONG = "i" * 129


def packing_of(schema: StructType, refused: list[int], *, entity: str | None = "queue", typed: bool = False) -> Packing:
    def refuse(piece: Piece, row: int, reason: str) -> None:
        refused.append(piece.rows_before + row)

    return Packing(schema, Stamps("write/0"), refuse, entity=entity, typed_json=typed)


def arrow(schema: StructType, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC"))


def parcels_of(runs: Iterator[Run]) -> list[Parcel]:
    """In the order of the rows."""
    found = (plain(run.parcel(at)) for run in runs for at in range(len(run)))
    return sorted(found, key=lambda parcel: parcel.row)


def plain(parcel: Parcel) -> Parcel:
    """Without what it came in. With a session, a run names the partition key of its first message."""
    return parcel._replace(source=None, partition_key=parcel.partition_key if parcel.session_id is None else None)


def one_by_one(made: Packing, batch: pa.RecordBatch, rows_before: int = 0) -> list[Parcel]:
    return [plain(parcel) for parcel in made.one_by_one(Piece(batch, rows_before))]


def check(batch: pa.RecordBatch, schema: StructType, **options: Any) -> list[Parcel]:
    """Each way gives the same, also for rows in the middle of a batch; returns it."""
    for part in (batch, batch.slice(batch.num_rows // 3, batch.num_rows // 2)):
        refused: list[int] = []
        alone = packing_of(schema, refused, **options)
        expected = one_by_one(alone, part, 100)
        assert refused == []
        all_together = packing_of(schema, refused, **options)
        runs = all_together.together(Piece(part, 100))
        assert runs is not None
        assert parcels_of(runs) == expected
        assert all_together.payload_bytes == alone.payload_bytes == sum(len(each.payload) for each in expected)
    return one_by_one(packing_of(schema, [], **options), batch, 100)


def is_unusual(batch: pa.RecordBatch, schema: StructType, **options: Any) -> bool:
    return packing_of(schema, [], **options).together(Piece(batch, 0)) is None


def test_messages_from_sdks_are_encoded_to_the_same_bytes_as_one_by_one() -> None:
    payloads = [base64.b64decode(each["message"]) for each in RECORDED]
    check(batch_of(payloads, "queue", True), SCHEMA, typed=True)
    check(batch_of(payloads, "queue"), SCHEMA)


@pytest.mark.parametrize("seed", range(6))
def test_random_rows_are_encoded_to_the_same_bytes_as_one_by_one(seed: int) -> None:
    source, random = RandomMessages(seed), Random(seed)
    payloads = [source.payload() for _ in range(300)]
    batch = batch_of(payloads, "queue", True)
    rows = [_fitting(row, random) for row in batch.to_pylist()]
    names = [
        *random.sample([name for name in WRITABLE if name != "body"], random.randint(1, len(WRITABLE) - 1)),
        "body",
    ]
    schema = StructType([SCHEMA[name] for name in names])
    made = arrow(schema, [{name: row[name] for name in names} for row in rows])
    usual = [row for row in range(made.num_rows) if not _is_refused(made.slice(row, 1), schema)]
    made = made.take(pa.array(usual))
    assert len(usual) > 100
    check(made, schema, typed=True)
    check(made, schema)
    if "entity" in names:
        assert len({parcel.entity for parcel in check(made, schema, entity=None)}) == 3


def _fitting(row: dict[str, Any], random: Random) -> dict[str, Any]:
    """Within the limits of the service, most of them."""
    for name in ("message_id", "session_id", "partition_key", "reply_to_session_id"):
        if row[name] is not None:
            row[name] = row[name][:128]
    if random.random() < 0.9 and row["session_id"] is not None:
        row["partition_key"] = row["session_id"]
    return {**row, "entity": random.choice(("a", "b", "ü"))}


def _is_refused(batch: pa.RecordBatch, schema: StructType) -> bool:
    refused: list[int] = []
    for typed in (True, False):
        list(packing_of(schema, refused, typed=typed).one_by_one(Piece(batch, 0)))
    return bool(refused)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (StringType(), [*TEXTS, None]),
        (BinaryType(), [b"", b"x", b"y" * 255, b"z" * 256, None]),
        (BooleanType(), [True, False, None]),
        (ByteType(), [0, 1, -128, 127, None]),
        (ShortType(), [0, 1, -32768, 32767, None]),
        (IntegerType(), [0, 127, 128, -129, -(1 << 31), (1 << 31) - 1, None]),
        (LongType(), [0, 127, 128, -129, -(1 << 63), (1 << 63) - 1, None]),
        (FloatType(), [0.0, -0.0, 1.5, math.inf, math.nan, None]),
        (DoubleType(), [0.0, -0.0, 0.1, -math.inf, math.nan, None]),
        (TimestampType(), [datetime(1960, 1, 1, 0, 0, 0, 1, UTC), datetime(2030, 1, 1, tzinfo=UTC), None]),
    ],
    ids=lambda each: each.typeName() if isinstance(each, DataType) else "",
)
def test_maps_of_every_type_are_encoded_as_one_by_one(kind: DataType, values: list[Any]) -> None:
    schema = StructType().add("body", BinaryType()).add("application_properties", MapType(StringType(), kind))
    several = [(f"key {number}", value) for number, value in enumerate(values)]
    many = [(f"key {number}", values[number % len(values)]) for number in range(300)]
    maps = [several, None, [], many, *([("p", value)] for value in values)]
    check(arrow(schema, [{"body": b"x", "application_properties": each} for each in maps]), schema)


def test_typed_text_of_every_type_is_encoded_as_one_by_one() -> None:
    schema = StructType().add("body", BinaryType()).add("application_properties", MapType(StringType(), StringType()))
    rows = [{"body": b"", "application_properties": [("p", typed), ("q", None)]} for _, _, typed in VALUES]
    check(arrow(schema, rows), schema, typed=True)


@pytest.mark.parametrize("size", [0, 1, 254, 255, 256, 70_000])
def test_a_text_of_any_length_in_any_column_is_encoded_as_one_by_one(size: int) -> None:
    for name in TEXT:
        if size > 128 and name in ("message_id", "session_id", "partition_key", "reply_to_session_id"):
            continue
        schema = StructType().add("body", StringType()).add(name, StringType())
        check(arrow(schema, [{"body": "x" * size, name: "y" * size}, {"body": None, name: None}]), schema)


def test_columns_with_wide_offsets_are_encoded_as_others() -> None:
    schema = StructType().add("body", BinaryType()).add("subject", StringType())
    wide = pa.schema([("body", pa.large_binary()), ("subject", pa.large_string())])
    rows = [{"body": b"x", "subject": "s"}, {"body": None, "subject": None}]
    narrow = check(arrow(schema, rows), schema)
    batch = pa.RecordBatch.from_pylist(rows, schema=wide)
    assert [parcel.payload for parcel in check(batch, schema)] == [parcel.payload for parcel in narrow]


def test_rows_that_say_the_same_get_the_ids_that_they_get_one_by_one() -> None:
    schema = StructType().add("body", StringType()).add("subject", StringType())
    found = check(arrow(schema, [{"body": f"{row % 3}", "subject": f"{row % 2}"} for row in range(60)]), schema)
    assert len({parcel.message_id for parcel in found}) == 60


@pytest.mark.parametrize(
    "row",
    [
        {"message_id": LONG},
        {"session_id": LONG},
        {"partition_key": "p", "session_id": "s"},
        {"reply_to_session_id": LONG},
        {"content_type": "tëxt"},
        {"application_properties": [("a", "one")]},
        {"application_properties": [("a", '{"int":1}'), ("a", '{"int":2}')]},
        {"entity": None},
        {"entity": ""},
    ],
    ids=str,
)
def test_an_unusual_row_does_not_change_other_rows(row: dict[str, Any]) -> None:
    schema = StructType([SCHEMA[name] for name in WRITABLE])
    rows = [{"body": f"{number % 7}".encode(), "entity": "queue"} for number in range(2000)]
    rows[1234] |= row
    batch = arrow(schema, rows)
    assert is_unusual(batch, schema, entity=None, typed=True)
    refused: list[int] = []
    made = packing_of(schema, refused, entity=None, typed=True)
    found = [parcel for runs in made.runs(Piece(batch, 0)) for parcel in parcels_of(iter(runs))]
    expected: list[int] = []
    assert found == one_by_one(packing_of(schema, expected, entity=None, typed=True), batch)
    assert refused == expected
    assert made.payload_bytes == sum(len(parcel.payload) for parcel in found)


def test_text_that_is_no_utf_8_is_not_sent() -> None:
    schema = StructType().add("body", BinaryType()).add("subject", StringType())
    wrong = pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([b"\xff"]).buffers()[1:]])
    batch = pa.RecordBatch.from_arrays([pa.array([b"x"]), wrong], names=["body", "subject"])
    assert is_unusual(batch, schema)
    with pytest.raises(UnicodeDecodeError):
        one_by_one(packing_of(schema, []), batch)


def test_much_is_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_BYTES", 5000)
    schema = StructType().add("body", BinaryType())
    batch = arrow(schema, [{"body": bytes(size)} for size in (*range(100), 9000, 10)])
    parts = list(encoding.pieces(batch))
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))
    assert all(part.nbytes <= 5000 or part.num_rows == 1 for part in parts)
    runs = list(packing_of(schema, []).runs(Piece(batch, 7)))
    assert len(runs) == len(parts)
    assert [parcel.row for part in runs for parcel in parcels_of(iter(part))] == [*range(7, 109)]


def test_rows_of_a_session_or_a_partition_key_are_a_run_in_their_order() -> None:
    schema = StructType([SCHEMA[name] for name in ("body", "session_id", "partition_key", "entity")])
    keys = [("a", "s", None), ("a", None, "s"), ("b", "s", "s"), ("a", "t", None), ("a", None, None)]
    rows = [
        dict(zip(("entity", "session_id", "partition_key"), keys[row % 5], strict=True)) | {"body": b"%d" % row}
        for row in range(100)
    ]
    found = {}
    for run in packing_of(schema, [], entity=None).together(Piece(arrow(schema, rows), 0)) or ():
        found[run.entity, run.session_id, run.partition_key] = [run.parcel(at).row for at in range(len(run))]
    assert found == {key: [*range(start, 100, 5)] for start, key in enumerate(keys)}


@pytest.mark.parametrize("most", [200, 1000, 10_000])
def test_a_batch_has_as_many_messages_as_fit_and_the_bytes_that_an_sdk_would_send(most: int) -> None:
    random = Random(most)
    parcels = [
        Parcel(row, "queue", f"id {row}", Message(data=[random.randbytes(random.choice((1, 40, 300)))]).encode(), "s")
        for row in range(200)
    ]
    (run,) = runs_of(parcels)
    at = 0
    while at < len(run):
        stop = run.batch_end(at, most)
        batch = run.batch(at, stop)
        envelope = Message.decode(batch.payload).properties if stop - at > 1 else None
        expected = pack([parcel.payload for parcel in parcels[at:stop]], b"" if envelope is None else envelope.encode())
        assert batch == expected
        assert stop - at == 1 or len(batch.payload) <= most
        if stop < len(run):
            assert len(run.batch(at, stop + 1).payload) > most
        if stop - at > 1:
            assert batch.message_format == BATCH_FORMAT
            assert envelope is not None
            assert (envelope.message_id, envelope.group_id) == (f"id {at}", "s")
        at = stop


def test_a_batch_has_at_most_as_many_messages_as_the_service_accepts() -> None:
    (run,) = runs_of(Parcel(row, "queue", "i", Message(data=[b""]).encode()) for row in range(2500))
    assert run.batch_end(0, 1 << 20) == 1000
    assert run.batch_end(2000, 1 << 20) == 2500


def test_few_rows_beside_a_bad_one_are_encoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[int] = []
    original = Packing.one_by_one

    def counting(self: Packing, piece: Piece) -> Iterator[Parcel]:
        alone.append(piece.batch.num_rows)
        return original(self, piece)

    monkeypatch.setattr(packing.Packing, "one_by_one", counting)
    schema = StructType().add("body", StringType()).add("message_id", StringType())
    rows = [{"body": "x", "message_id": LONG if row == 777 else f"{row}"} for row in range(10_000)]
    found = [
        parcel.row
        for runs in packing_of(schema, []).runs(Piece(arrow(schema, rows), 0))
        for parcel in parcels_of(iter(runs))
    ]
    assert found == [row for row in range(10_000) if row != 777]
    assert sum(alone) <= 256
