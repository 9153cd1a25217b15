"""Reading without taking, on a real Spark from a real broker: the batch read and the stream by numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, datasource
from pyspark.sql import functions as F
from runs import take_all
from test_texts import VALUES

from peeklock.amqp.types import Symbol, Timestamp
from peeklock.client import Connection, Message, Properties, connect
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from peeklock.entities.definitions import QueueDefinition
from peeklock.spark.options import Options
from peeklock.spark.peeking import NumbersPartition, PeekReader, PeekStreamReader
from peeklock.spark.rows import SCHEMA
from peeklock.spark.triggers import ReadAllAvailable, ReadMaxRows
from serving import ServedBroker, StartBroker

MakeQueue = Callable[..., str]
TEN_MINUTES_MS = 600_000
PUSHES_FILTERS = hasattr(datasource, "Filter")  # from Spark 4.1 on


@pytest.fixture
def connection(bus: ServedBroker) -> Iterator[Connection]:
    with connect(bus.connection_string) as made:
        yield made


def send(connection: Connection, queue: str, bodies: Iterable[object], **properties: Any) -> None:
    messages = (Message(properties=Properties(**properties), data=[str(body).encode()]) for body in bodies)
    connection.sender(queue).send_all(messages)


def frame(spark: SparkSession, bus: Any, **options: object) -> DataFrame:
    return spark.read.format("servicebus").options(connectionString=bus.connection_string, **options).load()


def bodies(found: DataFrame) -> list[str]:
    """As the tasks gave them: in the order of numbers, as the shares are in that order."""
    return [bytes(row.body).decode() for row in found.select("body").collect()]


def options_of(bus: Any, use: Any = "read", **given: object) -> Options:
    texts = {name: str(value) for name, value in given.items()}
    return Options.parse({"connectionString": bus.connection_string, **texts}, use=use)


def rows_of(reader: PeekReader | PeekStreamReader, partitions: Iterable[Any]) -> list[int]:
    return [
        number
        for partition in partitions
        for batch in reader.read(partition)
        for number in batch.column("sequence_number").to_pylist()
    ]


def test_an_empty_queue_has_all_columns_and_no_rows(
    spark: SparkSession, bus: ServedBroker, make_queue: MakeQueue
) -> None:
    found = frame(spark, bus, queue=make_queue())
    assert found.schema == SCHEMA
    assert found.collect() == []


@pytest.mark.parametrize("partitions", [1, 3, 50])
def test_a_batch_read_returns_every_message_once_and_removes_none(
    spark: SparkSession, bus: ServedBroker, connection: Connection, make_queue: MakeQueue, partitions: int
) -> None:
    queue = make_queue()
    send(connection, queue, range(30))
    found = frame(spark, bus, queue=queue, numPartitions=partitions)
    assert bodies(found) == [str(number) for number in range(30)]
    assert found.rdd.getNumPartitions() == min(partitions, 30)
    assert found.filter("delivery_count = 0 AND state = 'active'").count() == 30
    with connection.management(queue) as management:
        assert len(management.peek()) == 30


def test_numbers_may_have_gaps(
    spark: SparkSession, bus: ServedBroker, connection: Connection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    send(connection, queue, range(100))
    receiver = connection.receiver(queue, credit=0)
    taken = []
    while len(taken) < 95:
        taken += receiver.receive(95 - len(taken), timeout=10)
    kept = {3, 4, 50, 93}
    receiver.accept([message for place, message in enumerate(taken) if place not in kept], wait=True)
    assert bodies(frame(spark, bus, queue=queue)) == [str(n) for n in (3, 4, 50, 93, 95, 96, 97, 98, 99)]


def test_a_page_is_no_limit(
    spark: SparkSession, bus: ServedBroker, connection: Connection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    send(connection, queue, range(12_345))
    found = frame(spark, bus, queue=queue, numPartitions=3)
    summary = found.agg(F.count("*"), F.countDistinct("sequence_number"), F.max("sequence_number")).collect()
    assert tuple(summary[0]) == (12_345, 12_345, 12_345)


def test_numbers_bound_the_read(
    spark: SparkSession, bus: ServedBroker, connection: Connection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    send(connection, queue, range(1, 21))
    assert bodies(frame(spark, bus, queue=queue, startingSequenceNumber=5, endingSequenceNumber=7)) == ["5", "6", "7"]
    assert bodies(frame(spark, bus, queue=queue, startingSequenceNumber=19)) == ["19", "20"]
    assert bodies(frame(spark, bus, queue=queue, startingSequenceNumber=21)) == []
    assert bodies(frame(spark, bus, queue=queue, endingSequenceNumber=0)) == []


def test_messages_that_arrive_after_the_start_are_not_read(
    bus: ServedBroker, connection: Connection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    send(connection, queue, range(10))
    reader = PeekReader(options_of(bus, queue=queue), SCHEMA)
    partitions = reader.partitions()
    send(connection, queue, range(10))
    assert rows_of(reader, partitions) == list(range(1, 11))


def test_pushed_filters_narrow_the_read_and_the_result_is_the_same_without_them(
    spark: SparkSession, bus: ServedBroker, connection: Connection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    send(connection, queue, range(1, 41))
    filters = {
        "sequence_number = 7": (["7"], 1),
        "sequence_number > 38 AND enqueued_time > '2020-01-01'": (["39", "40"], 2),
        "sequence_number IN (3, 5) AND subject IS NULL": (["3", "5"], 3),
        "enqueued_time < '2020-01-01'": ([], 1),
        "sequence_number = 3 OR sequence_number = 50": (["3"], 4),
    }
    for condition, (expected, tasks) in filters.items():
        for setting in ("false", "true"):
            spark.conf.set("spark.sql.python.filterPushdown.enabled", setting)
            try:
                found = frame(spark, bus, queue=queue, numPartitions=4).filter(condition)
                assert bodies(found) == expected, (condition, setting)
                if PUSHES_FILTERS and setting == "true":
                    assert found.rdd.getNumPartitions() <= tasks, condition
            finally:
                spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.fixture
def over_time(start_broker: StartBroker) -> Any:
    """A queue with three messages at each of four moments, ten minutes apart, and the first of those.

    No further apart, since the tokens that clients make of the real time must be good until the last.
    """
    broker = start_broker(QueueDefinition(name="queue"))
    with connect(broker.connection_string) as connection:
        for moment in range(4):
            send(connection, "queue", (f"{moment}-{number}" for number in range(3)))
            broker.advance(600)
        with connection.management("queue") as management:
            (first,) = management.peek(1, 1)
    assert first.message_annotations is not None
    return broker, int(first.message_annotations["x-opt-enqueued-time"])


def test_a_filter_on_time_limits_the_read_exactly(spark: SparkSession, over_time: Any) -> None:
    broker, start_ms = over_time

    def since(ms: int) -> list[str]:
        return bodies(frame(spark, broker, queue="queue", startingEnqueuedTime=ms))

    everything = [f"{moment}-{number}" for moment in range(4) for number in range(3)]
    assert since(start_ms) == everything
    assert since(start_ms + 1) == everything[3:]
    assert since(start_ms + 2 * TEN_MINUTES_MS) == everything[6:]
    assert since(start_ms + 9 * TEN_MINUTES_MS) == []


def test_a_time_narrows_the_numbers_that_are_read(over_time: Any) -> None:
    broker, start_ms = over_time
    reader = PeekReader(options_of(broker, queue="queue", startingEnqueuedTime=start_ms + 2 * TEN_MINUTES_MS), SCHEMA)
    partitions = [part for part in reader.partitions() if isinstance(part, NumbersPartition)]
    assert partitions[0].numbers[0][0] == 7


def test_a_time_with_chosen_columns_needs_not_be_among_them(spark: SparkSession, over_time: Any) -> None:
    broker, start_ms = over_time
    source = spark.read.format("servicebus").schema("sequence_number BIGINT, entity STRING")
    found = source.options(
        connectionString=broker.connection_string, queue="queue", startingEnqueuedTime=start_ms + 1
    ).load()
    assert [tuple(row) for row in found.collect()] == [(number, "queue") for number in range(4, 13)]


def test_a_subscription_is_read(spark: SparkSession, bus: ServedBroker, connection: Connection) -> None:
    with AdministrationClient.from_connection_string(bus.connection_string) as administration:
        administration.create(Kind.TOPIC, "peeked")
        administration.create(Kind.SUBSCRIPTION, "all", topic="peeked")
    send(connection, "peeked", ["snow ☃"], subject="温度", message_id="ü")
    (row,) = frame(spark, bus, topic="peeked", subscription="all").collect()
    assert (bytes(row.body).decode(), row.subject, row.message_id) == ("snow ☃", "温度", "ü")
    assert row.entity == "peeked/Subscriptions/all"


def test_dead_lettered_messages_are_read_with_the_reason(
    spark: SparkSession, bus: ServedBroker, connection: Connection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    send(connection, queue, ["bad"])
    receiver = connection.receiver(queue, credit=0)
    info = {Symbol("DeadLetterReason"): "spoiled", Symbol("DeadLetterErrorDescription"): "it smelled"}
    receiver.reject(receiver.receive(1, timeout=10), "com.microsoft:dead-letter", info=info, wait=True)
    (row,) = frame(spark, bus, queue=queue, subQueue="deadLetter", startingEnqueuedTime="2020-01-01").collect()
    assert (row.dead_letter_reason, row.dead_letter_error_description) == ("spoiled", "it smelled")
    assert row.entity == f"{queue}/$DeadLetterQueue"
    assert row.application_properties == {}
    assert frame(spark, bus, queue=queue).collect() == []


def test_deferred_and_scheduled_messages_are_seen_with_their_state(
    spark: SparkSession, bus: ServedBroker, connection: Connection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    send(connection, queue, ["deferred", "active"])
    receiver = connection.receiver(queue, credit=0)
    receiver.modify(receiver.receive(1, timeout=10), delivery_failed=False, undeliverable_here=True, wait=True)
    later = datetime(2050, 1, 1, tzinfo=UTC)
    with connection.management(queue) as management:
        management.schedule([Message(data=[b"scheduled"])], int(later.timestamp() * 1000))
    rows = frame(spark, bus, queue=queue).collect()
    assert [(bytes(row.body).decode(), row.state) for row in rows] == [
        (state, state) for state in ("deferred", "active", "scheduled")
    ]
    assert rows[2].scheduled_enqueue_time == later.replace(tzinfo=None)


def test_sessions_need_not_be_held(
    spark: SparkSession, bus: ServedBroker, connection: Connection, make_queue: MakeQueue
) -> None:
    queue = make_queue(RequiresSession=True)
    send(connection, queue, range(3), group_id="a")
    send(connection, queue, range(3), group_id="b")
    held = connection.session_receiver(queue, "a", credit=0)
    assert held.receive(1, timeout=10)
    found = frame(spark, bus, queue=queue).groupBy("session_id").count().collect()
    assert {row.session_id: row["count"] for row in found} == {"a": 3, "b": 3}


def test_properties_of_every_type_are_read(
    spark: SparkSession, bus: ServedBroker, connection: Connection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    properties = {f"p{place}": value for place, (value, _, _) in enumerate(VALUES)}
    connection.sender(queue).send(Message(application_properties=properties, data=[b"x"]))
    (plain,) = frame(spark, bus, queue=queue).collect()
    assert plain.application_properties == {f"p{place}": text for place, (_, text, _) in enumerate(VALUES)}
    (typed,) = frame(spark, bus, queue=queue, applicationProperties="json").collect()
    assert typed.application_properties == {f"p{place}": text for place, (_, _, text) in enumerate(VALUES)}


def test_times_are_those_of_the_service(
    spark: SparkSession, bus: ServedBroker, connection: Connection, make_queue: MakeQueue
) -> None:
    queue = make_queue(DefaultMessageTimeToLive="PT1H")
    send(connection, queue, ["x"])
    (row,) = frame(spark, bus, queue=queue).collect()
    with connection.management(queue) as management:
        (peeked,) = management.peek()
    assert peeked.message_annotations is not None
    enqueued_ms = peeked.message_annotations["x-opt-enqueued-time"]
    assert isinstance(enqueued_ms, Timestamp)
    assert row.enqueued_time == datetime(1970, 1, 1) + timedelta(milliseconds=enqueued_ms)
    assert row.expires_at == row.enqueued_time + timedelta(hours=1)


UNREADABLE = Message(properties=Properties(message_id="m"), data=[b"x"]).encode() + b"\x00\x53\x74\xc1\x03\x02\xa1\xff"


def test_a_message_that_cannot_be_read_fails_the_query_and_is_named(
    spark: SparkSession, bus: ServedBroker, connection: Connection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    send(connection, queue, ["good"])
    connection.sender(queue).send(UNREADABLE)
    with pytest.raises(PySparkException, match=f"message 2 of '{queue}' cannot be read"):
        frame(spark, bus, queue=queue).collect()
    good, raw = frame(spark, bus, queue=queue, onBadMessage="raw").collect()
    assert (bytes(good.body), good.sequence_number) == (b"good", 1)
    assert (raw.sequence_number, raw.message_id) == (2, None)
    assert bytes(raw.body).endswith(UNREADABLE)


def test_an_entity_that_is_not_there_is_named(spark: SparkSession, bus: ServedBroker) -> None:
    with pytest.raises(PySparkException, match="'nowhere' failed: amqp:not-found"):
        frame(spark, bus, queue="nowhere").collect()


# --- the stream ---


class Drain:
    """Runs a stream until all there is has been read, into a table in memory; each run goes on from the last."""

    def __init__(self, spark: SparkSession, bus: Any, folder: Path, **options: object) -> None:
        self.spark, self.bus, self.folder = spark, bus, folder
        self.options = options

    def run(self) -> list[list[str]]:
        """The micro-batches of one run, as bodies. Spark begins a new query with an empty one, which is left out."""
        source = self.spark.readStream.format("servicebus").options(
            connectionString=self.bus.connection_string, mode="peek", **self.options
        )
        found: list[list[str]] = []

        def keep(batch: DataFrame, _: int) -> None:
            found.append(bodies(batch.orderBy("sequence_number")))

        take_all(source.load().writeStream.foreachBatch(keep), self.folder)
        return [each for each in found if each]


def test_a_peeking_stream_continues_from_its_checkpoint(
    spark: SparkSession, bus: ServedBroker, make_queue: MakeQueue, tmp_path: Path
) -> None:
    queue = make_queue()
    stream = Drain(spark, bus, tmp_path / "checkpoint", queue=queue, maxMessagesPerTrigger=4)
    assert stream.run() == []
    with connect(bus.connection_string) as connection:  # one for each time: it would be idle for too long
        send(connection, queue, range(10))
    assert stream.run() == [["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8", "9"]]
    assert stream.run() == []
    with connect(bus.connection_string) as connection:
        send(connection, queue, ["new"])
    assert stream.run() == [["new"]]
    with connect(bus.connection_string) as connection, connection.management(queue) as management:
        assert len(management.peek()) == 11


def test_a_stream_starts_and_ends_at_its_numbers(
    spark: SparkSession, bus: ServedBroker, connection: Connection, make_queue: MakeQueue, tmp_path: Path
) -> None:
    queue = make_queue()
    send(connection, queue, range(1, 11))
    stream = Drain(spark, bus, tmp_path / "c", queue=queue, startingSequenceNumber=4, endingSequenceNumber=6)
    assert stream.run() == [["4", "5", "6"]]


def test_a_stream_starts_at_its_time(spark: SparkSession, over_time: Any, tmp_path: Path) -> None:
    broker, start_ms = over_time
    stream = Drain(spark, broker, tmp_path / "c", queue="queue", startingEnqueuedTime=start_ms + 3 * TEN_MINUTES_MS)
    assert stream.run() == [["3-0", "3-1", "3-2"]]


def test_a_limit_counts_from_the_next_message_on_and_not_from_a_gap(
    bus: ServedBroker, connection: Connection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    send(connection, queue, range(20))
    receiver = connection.receiver(queue, credit=0)
    taken = []
    while len(taken) < 15:
        taken += receiver.receive(15 - len(taken), timeout=10)
    receiver.accept(taken, wait=True)
    reader = PeekStreamReader(options_of(bus, "readStream", mode="peek", queue=queue), SCHEMA)
    assert reader.latestOffset({"next": 0}, ReadMaxRows(3)) == {"next": 19}
    assert rows_of(reader, reader.partitions({"next": 0}, {"next": 19})) == [16, 17, 18]
    assert reader.latestOffset({"next": 19}, ReadAllAvailable()) == {"next": 21}
    reader.stop()


def test_a_spark_that_does_not_say_where_it_is_gets_what_follows_its_last_batch(
    bus: ServedBroker, connection: Connection, make_queue: MakeQueue
) -> None:
    """Before 4.2: a question without words, and at a restart the partitions between the last offset and itself."""
    queue = make_queue()
    send(connection, queue, range(10))
    options = options_of(bus, "readStream", mode="peek", queue=queue, maxMessagesPerTrigger=4, pollInterval="1h")
    reader = PeekStreamReader(options, SCHEMA)
    first = reader.latestOffset()
    assert rows_of(reader, reader.partitions(reader.initialOffset(), first)) == [1, 2, 3, 4]
    reader.stop()
    started_again = PeekStreamReader(options, SCHEMA)
    assert started_again.partitions(first, first) == []
    second = started_again.latestOffset()
    assert rows_of(started_again, started_again.partitions(first, second)) == [5, 6, 7, 8]
    third = started_again.latestOffset()
    assert rows_of(started_again, started_again.partitions(second, third)) == [9, 10]
    assert started_again.latestOffset() == third
    started_again.stop()


def test_a_first_batch_that_is_repeated_begins_where_it_began(
    bus: ServedBroker, connection: Connection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    send(connection, queue, range(3))
    reader = PeekStreamReader(options_of(bus, "readStream", mode="peek", queue=queue), SCHEMA)
    assert reader.partitions({"next": 4}, {"next": 4}) == []
    assert rows_of(reader, reader.partitions(reader.initialOffset(), {"next": 4})) == [1, 2, 3]
    reader.stop()


def test_an_offset_that_goes_back_reads_nothing(bus: ServedBroker, make_queue: MakeQueue) -> None:
    reader = PeekStreamReader(options_of(bus, "readStream", mode="peek", queue=make_queue()), SCHEMA)
    assert reader.partitions({"next": 9}, {"next": 5}) == []
    assert reader.partitions({"next": 9}, {"next": 9}) == []


def test_an_idle_stream_polls_rarely(bus: ServedBroker, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(bus, "readStream", mode="peek", queue=make_queue(), pollInterval="1h")
    reader = PeekStreamReader(options, SCHEMA)
    looks = []
    pages = reader._looking()
    look = pages.look
    monkeypatch.setattr(pages, "look", lambda first: looks.append(first) or look(first))
    for _ in range(100):
        assert reader.latestOffset({"next": 5}, ReadMaxRows(10)) == {"next": 5}
    assert looks == [5]
    for _ in range(100):
        assert reader.latestOffset() == {"next": 0}, "as versions before 4.2 ask"
    assert looks == [5]
    reader.stop()
