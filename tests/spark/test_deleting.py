"""Streams that receive and delete: each message at most once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from runs import take_all

from peeklock.client import Message, Properties, connect
from peeklock.entities.definitions import QueueDefinition
from peeklock.spark.deleting import DeletingReader
from peeklock.spark.options import Options
from peeklock.spark.rows import SCHEMA
from peeklock.spark.triggers import ReadMaxRows
from serving import BrokerThread, ServedBroker, StartBroker


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(QueueDefinition(name="queue"), QueueDefinition(name="sessions", requires_session=True))


def reader_of(broker: BrokerThread, queue: str = "queue", **options: str) -> DeletingReader:
    given = {"connectionString": broker.connection_string, "queue": queue, "mode": "receiveAndDelete"}
    given["requestTimeout"] = "2s"
    parsed = Options.parse({**given, "pollInterval": "10ms", "maxWait": "0s", **options}, use="readStream")
    return DeletingReader(parsed, SCHEMA)


def send(broker: BrokerThread, count: int, queue: str = "queue") -> None:
    with connect(broker.connection_string) as connection:
        connection.sender(queue).send_all(
            Message(properties=Properties(group_id=f"{number % 2}"), data=[b"%d" % number]) for number in range(count)
        )


def read(reader: DeletingReader, start: dict[str, Any], end: dict[str, Any]) -> list[list[int]]:
    return [
        [int(body.as_py()) for batch in reader.read(partition) for body in batch.column("body")]
        for partition in reader.partitions(start, end)
    ]


def test_received_messages_are_removed_and_a_failed_task_reads_them_again(broker: BrokerThread) -> None:
    send(broker, 10)
    reader = reader_of(broker, numPartitions="2")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))
    assert broker.counters().active == 0
    assert read(reader, start, end) == read(reader, start, end) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    reader.stop()


def test_the_limit_applies_and_other_messages_stay(broker: BrokerThread) -> None:
    send(broker, 10)
    reader = reader_of(broker)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(4))["claimed"] == [[1, 4]]
    assert broker.counters().active == 6
    reader.stop()


def test_an_offset_that_was_not_used_is_given_out_again(broker: BrokerThread) -> None:
    send(broker, 3)
    reader = reader_of(broker)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))
    send(broker, 3)
    assert reader.latestOffset(start, ReadMaxRows(100)) == end
    assert read(reader, start, end) == [[0], [1], [2]]
    reader.stop()


def test_a_batch_of_before_a_restart_is_lost_and_named(broker: BrokerThread, caplog: pytest.LogCaptureFixture) -> None:
    send(broker, 3)
    first = reader_of(broker)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(100))
    first.stop()
    caplog.set_level(logging.ERROR)
    assert read(reader_of(broker), start, end) == []
    [record] = [record for record in caplog.records if record.name.startswith("peeklock.spark")]
    assert "3 messages of 'queue' were received before a restart and are lost" in record.getMessage()
    assert "[[1, 3]]" in record.getMessage()


def test_the_driver_keeps_the_messages_of_one_batch_only(broker: BrokerThread) -> None:
    reader = reader_of(broker)
    start = reader.initialOffset()
    for _ in range(5):
        send(broker, 4)
        start = reader.latestOffset(start, ReadMaxRows(100))
        assert len(reader._taken) == 4
    assert reader.latestOffset(start, ReadMaxRows(100)) == start
    assert not reader._taken
    reader.stop()


def test_a_session_goes_to_one_task_in_order(broker: BrokerThread) -> None:
    send(broker, 10, "sessions")
    reader = reader_of(broker, "sessions")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(10))
    assert sorted(read(reader, start, end)) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    reader.stop()


def test_a_run_receives_the_present_messages_and_ends(
    spark: SparkSession, bus: ServedBroker, make_queue: Callable[..., str], tmp_path: Path
) -> None:
    queue = make_queue()
    with connect(bus.connection_string) as connection:
        connection.sender(queue).send_all(Message(data=[b"%d" % number]) for number in range(50))
    messages = (
        spark.readStream.format("servicebus")
        .options(connectionString=bus.connection_string, queue=queue, mode="receiveAndDelete")
        .option("maxMessagesPerTrigger", 20)
        .load()
    )
    take_all(messages.writeStream.format("parquet"), tmp_path / "checkpoint", tmp_path / "target")
    rows = spark.read.parquet(str(tmp_path / "target")).select("body").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(50))
    with connect(bus.connection_string) as connection:
        assert connection.management(queue).peek(0, 1) == []
