"""How much there is to do, before a Spark is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from peeklock.client import Message, RequestRefused, connect
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from peeklock.spark.pipelines import amounts
from serving import ServedBroker


@pytest.fixture(autouse=True)
def at_most_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amounts, "SMALL_MESSAGES", 10)


def put(file: Path, rows: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"body": [b"x"] * rows}), file)


def test_a_folder_is_small_while_its_files_have_few_rows_together(tmp_path: Path) -> None:
    put(tmp_path / "entity=orders" / "date=2030-01-31" / "hour=12" / "a.parquet", 6)
    put(tmp_path / "entity=bills" / "b.parquet", 4)
    put(tmp_path / "_peeklock" / "staging" / "c.parquet", 100)
    assert amounts.is_small_folder(str(tmp_path))
    assert amounts.is_small_folder(tmp_path.as_uri())
    put(tmp_path / "entity=bills" / "d.parquet", 1)
    assert not amounts.is_small_folder(str(tmp_path))


def test_a_folder_is_not_small_when_its_files_are_large_or_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        put(tmp_path / f"{number}.parquet", 1)
    monkeypatch.setattr(amounts, "MOST_FILES", 2)
    assert not amounts.is_small_folder(str(tmp_path))
    monkeypatch.setattr(amounts, "MOST_FILES", 3)
    assert amounts.is_small_folder(str(tmp_path))
    monkeypatch.setattr(amounts, "SMALL_BYTES", 10)
    assert not amounts.is_small_folder(str(tmp_path))


def test_what_cannot_be_looked_into_is_not_small(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no such file")
    for folder in (str(tmp_path), str(tmp_path / "nowhere"), "s3a://bucket/captured", "catalog.messages.orders"):
        assert not amounts.is_small_folder(folder)


def test_the_counters_of_all_entities_count_together(bus: ServedBroker, make_queue: Callable[..., str]) -> None:
    queue = make_queue()
    with AdministrationClient.from_connection_string(bus.connection_string) as administration:
        administration.create(Kind.TOPIC, f"{queue}-topic")
        subscription = administration.create(Kind.SUBSCRIPTION, "s", topic=f"{queue}-topic").path
        with connect(bus.connection_string) as connection:
            connection.sender(queue).send_all(Message(data=[b"x"]) for _ in range(6))
            connection.sender(f"{queue}-topic").send_all(Message(data=[b"x"]) for _ in range(5))
        for entities, little in (([queue], True), ([subscription], True), ([queue, subscription], False)):
            assert amounts.hold_few_messages(administration, entities) is little
        with pytest.raises(RequestRefused):
            amounts.hold_few_messages(administration, ["nobody"])
