"""Streams that claim, on a real Spark against a broker in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType
from runs import take_all

from peeklock.client import Message, Properties, connect
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from peeklock.spark.checkpoints import batches_done, durable_offset, settle_checkpoint
from peeklock.spark.claiming import ClaimReader
from peeklock.spark.claims import Claims
from peeklock.spark.draining import drain
from peeklock.spark.offsets import Limit
from peeklock.spark.options import Options
from peeklock.spark.rows import SCHEMA
from peeklock.spark.triggers import HAS_AVAILABLE_NOW
from serving import ServedBroker

MakeQueue = Callable[..., str]

both_protocols = pytest.mark.parametrize("protocol", ["broker", "defer"])


class Stream:
    """A claiming stream of one queue into Parquet, by runs that end when all is taken."""

    def __init__(self, spark: SparkSession, bus: ServedBroker, queue: str, folder: Path) -> None:
        self.spark = spark
        self.bus = bus
        self.queue = queue
        self.checkpoint = folder / "checkpoint"
        self.target = folder / "target"
        self.options = {"connectionString": bus.connection_string, "queue": queue, "maxWait": "0s"}

    def load(self, **options: object) -> DataFrame:
        given = {**self.options, **{name: str(value) for name, value in options.items()}}
        return self.spark.readStream.format("servicebus").options(**given).load()

    def run(self, messages: DataFrame | None = None, **options: object) -> None:
        messages = self.load(**options) if messages is None else messages
        take_all(messages.writeStream.format("parquet"), self.checkpoint, self.target)

    def taken(self) -> list[int]:
        found = self.spark.read.parquet(str(self.target)).select("body").collect()
        return sorted(int(bytes(row.body)) for row in found)

    def offsets(self) -> list[dict[str, Any]]:
        logs = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [json.loads(log.read_text().splitlines()[2]) for log in logs]

    def send(self, numbers: range, session_id: Callable[[int], str] | None = None) -> None:
        with connect(self.bus.connection_string) as connection:
            connection.sender(self.queue).send_all(
                Message(
                    properties=Properties(group_id=session_id(number) if session_id else None),
                    application_properties={"n": number},
                    data=[b"%d" % number],
                )
                for number in numbers
            )

    def left(self) -> int:
        """Messages in any state."""
        with connect(self.bus.connection_string) as connection:
            return len(connection.management(self.queue).peek(0, 1000))


@pytest.fixture
def stream(spark: SparkSession, bus: ServedBroker, make_queue: MakeQueue, tmp_path: Path) -> Stream:
    return Stream(spark, bus, make_queue(), tmp_path)


@both_protocols
def test_each_message_is_received_once_and_the_queue_is_empty_after_a_run(stream: Stream, protocol: str) -> None:
    stream.options["claimProtocol"] = protocol
    stream.send(range(100))
    stream.run(maxMessagesPerTrigger=40)
    assert stream.taken() == list(range(100))
    assert stream.left() == 0
    assert [bool(offset.get("claimIds")) for offset in stream.offsets()] == [protocol == "broker"] * 3


@both_protocols
def test_of_two_queries_without_a_claim_name_the_second_is_refused(
    stream: Stream, tmp_path: Path, protocol: str
) -> None:
    stream.options["claimProtocol"] = protocol
    stream.send(range(10))
    other = Stream(stream.spark, stream.bus, stream.queue, tmp_path / "other")
    other.options = stream.options
    writer = stream.load(pollInterval="50ms").writeStream.format("parquet")
    query = writer.option("checkpointLocation", str(stream.checkpoint)).start(str(stream.target))
    try:
        query.processAllAvailable()
        with pytest.raises(Exception, match=r"another query claims messages .* set a different 'claimName'"):
            other.run()
        stream.send(range(10, 15))
        query.processAllAvailable()
        assert query.exception() is None
    finally:
        query.stop()
    assert stream.taken() == list(range(15))
    other.send(range(15, 20))
    other.run(claimName="other")
    assert other.taken() == list(range(15, 20))


def test_a_query_continues_with_broker_claims_after_an_earlier_one_deferred(stream: Stream, tmp_path: Path) -> None:
    stream.send(range(20))
    flag = tmp_path / "fail"
    flag.touch()
    for protocol in ("defer", "auto"):
        failing = stream.load(claimProtocol=protocol).withColumn("sequence_number", failing_at(13, flag))
        with pytest.raises(Exception, match="the number 13"):
            stream.run(failing)
    flag.unlink()
    stream.send(range(20, 25))
    stream.run()
    assert stream.taken() == list(range(25))
    assert stream.left() == 0
    with pytest.raises(Exception, match="that a broker stores"):
        stream.run(claimProtocol="defer")


def test_a_second_run_receives_newer_messages(stream: Stream) -> None:
    stream.send(range(10))
    stream.run()
    stream.send(range(10, 15))
    stream.run()
    assert stream.taken() == list(range(15))


def test_a_run_on_an_empty_queue_ends(stream: Stream) -> None:
    stream.run()
    assert [offset["claimed"] for offset in stream.offsets()] == [[]]


def test_a_batch_has_a_maximum_of_messages_and_its_offset_covers_only_them(stream: Stream) -> None:
    stream.send(range(10))
    stream.run(maxMessagesPerTrigger=4)
    assert [offset["claimed"] for offset in stream.offsets()] == [[[1, 4]], [[5, 8]], [[9, 10]]]
    assert stream.taken() == list(range(10))


def test_a_batch_has_approximately_a_maximum_of_bytes(stream: Stream) -> None:
    stream.send(range(30))
    stream.run(maxBytesPerTrigger="1k")
    sizes = [offset["bytes"] for offset in stream.offsets()]
    assert len(sizes) > 1
    assert max(sizes) < 1024 + 400
    assert stream.taken() == list(range(30))


def test_rows_show_messages_as_they_were_sent(stream: Stream) -> None:
    stream.send(range(1))
    stream.run()
    [row] = stream.spark.read.parquet(str(stream.target)).collect()
    assert row.application_properties == {"n": "0"}
    assert (row.state, row.delivery_count, row.entity) == ("active", 0, stream.queue)


def test_only_the_requested_columns_are_read(stream: Stream) -> None:
    stream.send(range(3))
    stream.run(stream.load().select("sequence_number", "body"))
    assert stream.taken() == [0, 1, 2]


def test_a_batch_is_split_over_tasks(stream: Stream) -> None:
    stream.send(range(40))
    stream.run(stream.load(numPartitions=3).withColumn("task", F.spark_partition_id()))
    counts = stream.spark.read.parquet(str(stream.target)).groupBy("task").count().collect()
    assert sorted(row["count"] for row in counts) == [13, 13, 14]


def failing_at(sought: int, flag: Path) -> Column:
    """The sequence number; fails at one of them while there is a flag."""

    def check(number: int) -> int:
        if number == sought and flag.exists():
            raise RuntimeError(f"the number {number}")
        return number

    return F.udf(check, LongType())("sequence_number")


@both_protocols
def test_a_failed_batch_is_repeated_at_the_next_start(stream: Stream, tmp_path: Path, protocol: str) -> None:
    stream.options["claimProtocol"] = protocol
    stream.send(range(20))
    flag = tmp_path / "fail"
    flag.touch()
    with pytest.raises(Exception, match="the number 13"):
        stream.run(stream.load().withColumn("sequence_number", failing_at(13, flag)))
    assert stream.left() == 20
    flag.unlink()
    stream.send(range(20, 25))
    stream.run()
    assert stream.taken() == list(range(25))
    assert stream.left() == 0


def test_the_last_batch_is_settled_from_the_checkpoint(stream: Stream) -> None:
    """As a driver leaves it that is killed right after the commit."""
    stream.send(range(5))
    stream.run()
    [offset] = stream.offsets()
    assert settle_checkpoint(str(stream.checkpoint), stream.options) == 5  # is gone already, and that is fine
    assert durable_offset(str(stream.checkpoint), stream.options) is not None
    last = stream.checkpoint / "commits" / "0"
    last.unlink()
    assert durable_offset(str(stream.checkpoint), stream.options) is None
    assert offset["claimed"] == [[1, 5]]


def test_a_checkpoint_of_another_queue_settles_nothing(stream: Stream) -> None:
    stream.send(range(5))
    stream.run()
    assert settle_checkpoint(str(stream.checkpoint), {**stream.options, "queue": "other"}) == 0


@both_protocols
def test_a_session_is_read_by_one_task_completely_and_in_order(
    spark: SparkSession, bus: ServedBroker, make_queue: MakeQueue, tmp_path: Path, protocol: str
) -> None:
    stream = Stream(spark, bus, make_queue(RequiresSession=True), tmp_path)
    stream.options["claimProtocol"] = protocol
    stream.send(range(60), session_id=lambda number: f"session {number % 7}")
    stream.run(stream.load(numPartitions=3).withColumn("task", F.spark_partition_id()))
    assert stream.taken() == list(range(60))
    files = sorted(stream.target.glob("part-*.parquet"))  # each task writes one, in its order
    rows = [
        row
        for file in files
        for row in pq.read_table(file).select(["session_id", "task", "sequence_number"]).to_pylist()
    ]
    tasks: dict[str, set[int]] = {}
    order: dict[str, list[int]] = {}
    for row in rows:
        tasks.setdefault(row["session_id"], set()).add(row["task"])
        order.setdefault(row["session_id"], []).append(row["sequence_number"])
    assert len(tasks) == 7
    assert all(len(each) == 1 for each in tasks.values())
    assert len({task for each in tasks.values() for task in each}) == 3
    assert all(each == sorted(each) for each in order.values())
    assert stream.left() == 0


def test_a_subscription_and_a_dead_letter_queue_can_be_claimed(stream: Stream, spark: SparkSession) -> None:
    with AdministrationClient.from_connection_string(stream.bus.connection_string) as administration:
        administration.create(Kind.TOPIC, "claimed")
        administration.create(Kind.SUBSCRIPTION, "all", topic="claimed")
    with connect(stream.bus.connection_string) as connection:
        connection.sender("claimed").send_all(Message(data=[b"%d" % number]) for number in range(6))
        receiver = connection.receiver("claimed/Subscriptions/all", credit=0)
        receiver.reject(receiver.receive(2), wait=True)
    del stream.options["queue"]
    stream.options |= {"topic": "claimed", "subscription": "all"}
    stream.run()
    assert stream.taken() == [2, 3, 4, 5]
    dead = Stream(spark, stream.bus, "", stream.target.parent / "dead")
    dead.options = {**stream.options, "subQueue": "deadLetter"}
    dead.run()
    assert dead.taken() == [0, 1]


def test_a_continuous_query_settles_its_last_batch_without_a_next_one(stream: Stream) -> None:
    stream.send(range(10))
    query = (
        stream.load(pollInterval="50ms")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(stream.checkpoint))
        .start(str(stream.target))
    )
    try:
        query.processAllAvailable()
        with connect(stream.bus.connection_string) as connection:
            management = connection.management(stream.queue)
            while management.peek(0, 1):
                connection.work(0.05)
        assert query.exception() is None
    finally:
        query.stop()
    assert stream.taken() == list(range(10))


def test_the_only_question_of_an_older_spark_finds_a_forgotten_claim_wherever_it_is(
    bus: ServedBroker, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 4.2 an AvailableNow run asks once, and is at its end when there is nothing."""
    monkeypatch.setattr("peeklock.spark.claims.SEARCHED_AT_ONCE", 1)
    monkeypatch.setattr("peeklock.spark.claims.PEEKED_AT_ONCE", 1)
    given = {"connectionString": bus.connection_string, "queue": make_queue(), "maxWait": "0s"}
    given["claimProtocol"] = "defer"
    with connect(bus.connection_string) as connection:
        sender = connection.sender(given["queue"])
        for name in ("other", "ours"):
            sender.send_all([Message(data=[b"x"])] * 3)
            with Claims(Options.parse({**given, "claimName": name}, use="readStream")) as claims:
                assert claims.take(Limit()).count == 3
    reader = ClaimReader(Options.parse({**given, "claimName": "ours"}, use="readStream"), SCHEMA)
    assert reader.latestOffset()["claimed"] == [[4, 4]]
    reader.stop()


@pytest.mark.skipif(not HAS_AVAILABLE_NOW, reason="this Spark does not ask a source in Python for its progress")
def test_the_progress_of_a_query_has_the_numbers_of_waiting_claimed_and_removed_messages(stream: Stream) -> None:
    stream.send(range(10))
    writer = stream.load(maxMessagesPerTrigger=4).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True)
    query = writer.start(str(stream.target))
    query.awaitTermination()
    reported = [json.loads(each.sources[0].latestOffset) for each in query.recentProgress if each.numInputRows]
    assert [each["claimedMessages"] for each in reported] == [4, 8, 10]
    assert {each["claimProtocol"] for each in reported} == {"broker"}
    assert reported[0]["waitingMessages"] == 6
    assert reported[0]["oldestSeconds"] >= 0
    assert [each["removedMessages"] <= each["claimedMessages"] for each in reported] == [True] * 3
    assert reported[2]["claimedBytes"] == sum(offset["bytes"] for offset in stream.offsets())


def test_options_of_other_modes_are_refused() -> None:
    given = {"connectionString": "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=b", "queue": "q"}
    with pytest.raises(ValueError, match="'startingSequenceNumber' is for mode=peek only"):
        Options.parse({**given, "startingSequenceNumber": "5"}, use="readStream")


# --- all there is


def test_draining_receives_and_removes_all_messages_in_several_batches(
    spark: SparkSession, bus: ServedBroker, make_queue: MakeQueue, tmp_path: Path
) -> None:
    stream = Stream(spark, bus, make_queue(), tmp_path)
    options = {**stream.options, "maxMessagesPerTrigger": "4"}
    for numbers in (range(10), range(10, 16), range(0)):
        stream.send(numbers)
        messages = spark.readStream.format("servicebus").options(**options).load()
        writer = messages.writeStream.format("parquet").option("path", str(stream.target))
        drain(writer, options, str(stream.checkpoint))
        with connect(bus.connection_string) as connection:
            assert connection.management(stream.queue).peek(1, 100) == []
    assert stream.taken() == list(range(16))
    assert batches_done(str(stream.checkpoint)) == 5
