"""Writing DataFrames from a real Spark to a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
from pyspark.sql.types import StructType

from peeklock.amqp.message import Message, Properties
from peeklock.amqp.types import Int, Symbol, Timestamp
from peeklock.client import connect
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from peeklock.spark.options import Options
from peeklock.spark.outgoing import WRITABLE
from peeklock.spark.writing import Job, RowStreamWriter, batches_of
from serving import SOURCE, ServedBroker

NUMBER = "x-opt-sequence-number"


class Queue:
    """A queue of one test."""

    def __init__(self, bus: ServedBroker, **settings: Any) -> None:
        self.where = bus.connection_string
        self.name = f"queue-{uuid4().hex}"
        with AdministrationClient.from_connection_string(self.where) as administration:
            administration.create(Kind.QUEUE, self.name, settings)

    def write(self, frame: DataFrame, **options: Any) -> None:
        save(frame, self.where, queue=self.name, **options)

    def messages(self) -> list[Message]:
        found: list[Message] = []
        with connect(self.where) as connection, connection.management(self.name) as management:
            number = 1
            while messages := management.peek(number, 1000):
                found += messages
                number = max((message.message_annotations or {})[NUMBER] for message in messages) + 1
        return found

    def bodies(self) -> list[str]:
        return [message.data[0].decode() for message in self.messages()]


@pytest.fixture
def queue(bus: ServedBroker) -> Queue:
    return Queue(bus)


@pytest.fixture
def once(bus: ServedBroker) -> Queue:
    """With duplicate detection."""
    return Queue(bus, RequiresDuplicateDetection=True)


def save(frame: DataFrame, where: str, **options: Any) -> None:
    writer = frame.write.format("servicebus").mode("append").option("connectionString", where)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def properties(message: Message) -> Properties:
    assert message.properties is not None
    return message.properties


# --- columns ---


def test_rows_become_messages(spark: SparkSession, queue: Queue) -> None:
    queue.write(spark.range(100).selectExpr("concat('number ', id) AS body"))
    assert sorted(queue.bodies()) == sorted(f"number {number}" for number in range(100))


def test_every_column_that_is_the_writers_arrives(spark: SparkSession, queue: Queue) -> None:
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    values = {
        "body": bytearray(b"\x00\xff"),
        "message_id": "id",
        "session_id": "session",
        "partition_key": "session",
        "subject": "subject",
        "content_type": "application/json",
        "correlation_id": "correlation",
        "reply_to": "reply",
        "reply_to_session_id": "reply session",
        "to": "to",
        "scheduled_enqueue_time": due,
        "application_properties": {"a": "1", "ü": "ß"},
    }
    assert {*values, "entity"} == set(WRITABLE)
    schema = (
        "body BINARY, message_id STRING, session_id STRING, partition_key STRING, subject STRING, content_type STRING, "
        "correlation_id STRING, reply_to STRING, reply_to_session_id STRING, to STRING, "
        "scheduled_enqueue_time TIMESTAMP, application_properties MAP<STRING, STRING>"
    )
    queue.write(spark.createDataFrame([tuple(values.values())], schema))
    (message,) = queue.messages()
    annotations = message.message_annotations or {}
    assert message.data == [b"\x00\xff"]
    assert properties(message) == Properties(
        message_id="id",
        to="to",
        subject="subject",
        reply_to="reply",
        correlation_id="correlation",
        content_type="application/json",
        group_id="session",
        reply_to_group_id="reply session",
    )
    assert message.application_properties == {"a": "1", "ü": "ß"}
    assert annotations["x-opt-partition-key"] == "session"
    assert annotations["x-opt-scheduled-enqueue-time"] == int(due.timestamp() * 1000)
    assert annotations["x-opt-message-state"] == 2  # scheduled


def test_rows_that_were_read_can_be_written_and_read_unchanged(spark: SparkSession, bus: ServedBroker) -> None:
    source, copy = Queue(bus), Queue(bus)
    application = {
        "text": "ä",
        "int": Int(5),
        "id": UUID(int=1),
        "at": Timestamp(1_893_456_000_123),
        "none": None,
        "x": 1.5,
    }
    with connect(source.where) as connection:
        full = Message(
            message_annotations={Symbol("x-opt-partition-key"): "k"},
            properties=Properties(
                message_id="1",
                to="to",
                subject="s",
                reply_to="r",
                correlation_id="c",
                content_type="text/plain",
                group_id="k",
                reply_to_group_id="g",
            ),
            application_properties=application,
            data=["grüß dich 🐇".encode()],
        )
        due = Message(
            message_annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(4_102_444_800_000)},
            properties=Properties(message_id="3"),
            data=[b"later"],
        )
        connection.sender(source.name).send_all([full, Message(properties=Properties(message_id="2"), data=[b""]), due])

    def read(name: str) -> DataFrame:
        reader = spark.read.format("servicebus").option("connectionString", source.where)
        return reader.option("applicationProperties", "json").option("queue", name).load()

    copy.write(read(source.name).coalesce(1), applicationProperties="json")
    kept = [name for name in (*WRITABLE, "state") if name != "entity"]
    before, after = (
        sorted(read(name).select(*kept).collect(), key=lambda row: row.message_id) for name in (source.name, copy.name)
    )
    assert after == before
    assert {row.entity for row in read(copy.name).collect()} == {copy.name}
    (first, *_) = (message for message in copy.messages() if properties(message).message_id == "1")
    assert first.application_properties == application
    assert type((first.application_properties or {})["int"]) is Int


@pytest.mark.parametrize(
    ("kind", "literal", "value"),
    [
        ("INT", "5", Int(5)),
        ("BIGINT", "5", 5),
        ("DOUBLE", "1.5", 1.5),
        ("BOOLEAN", "true", True),
        ("STRING", "'5'", "5"),
        ("TIMESTAMP", "TIMESTAMP'2030-01-01 00:00:00Z'", Timestamp(1_893_456_000_000)),
    ],
)
def test_a_map_of_other_values_keeps_their_type(
    spark: SparkSession, queue: Queue, kind: str, literal: str, value: object
) -> None:
    queue.write(spark.sql(f"SELECT 'x' AS body, map('p', CAST({literal} AS {kind})) AS application_properties"))
    (message,) = queue.messages()
    assert message.application_properties == {"p": value}
    assert type((message.application_properties or {})["p"]) is type(value)


def test_text_of_all_the_world_arrives(spark: SparkSession, queue: Queue) -> None:
    text = "日本語 🐇 \u0000 e\u0301 العربية"
    queue.write(spark.createDataFrame([(text, text)], "body STRING, subject STRING"))
    (message,) = queue.messages()
    assert message.data[0].decode() == text
    assert properties(message).subject == text


def test_a_frame_without_rows_writes_nothing(spark: SparkSession, queue: Queue) -> None:
    queue.write(spark.createDataFrame([], "body STRING"))
    assert queue.messages() == []


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["'x' AS body", "1 AS colour"], "column 'colour'"),
        (["1 AS body"], "column 'body' is of type int"),
        (["'x' AS subject"], "column 'body' is missing"),
        (["'x' AS body", "array('a') AS application_properties"], "column 'application_properties'"),
    ],
)
def test_a_column_that_cannot_be_written_is_named(
    spark: SparkSession, queue: Queue, columns: list[str], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        queue.write(spark.range(1).selectExpr(*columns))
    assert queue.messages() == []


def test_the_target_must_be_named(spark: SparkSession, bus: ServedBroker) -> None:
    with pytest.raises(Exception, match="option 'queue' or 'topic' is required, or a column 'entity'"):
        save(spark.range(1).selectExpr("'x' AS body"), bus.connection_string)


def test_an_error_does_not_show_the_key(spark: SparkSession, bus: ServedBroker) -> None:
    key = bus.connection_string.split("SharedAccessKey=")[1].split(";")[0]
    with pytest.raises(Exception, match="nowhere") as caught:
        save(spark.range(1).selectExpr("'x' AS body"), bus.connection_string, queue="nowhere")
    assert key not in str(caught.value)


# --- where rows go ---


def test_the_column_entity_routes_rows(spark: SparkSession, bus: ServedBroker) -> None:
    even, odd = Queue(bus), Queue(bus)
    frame = spark.range(10).selectExpr(
        "CAST(id AS STRING) AS body", f"IF(id % 2 = 0, '{even.name}', '{odd.name}') AS entity"
    )
    save(frame, bus.connection_string)
    assert sorted(even.bodies()) == ["0", "2", "4", "6", "8"]
    assert sorted(odd.bodies()) == ["1", "3", "5", "7", "9"]


def test_an_option_that_names_the_target_goes_before_the_column(spark: SparkSession, queue: Queue) -> None:
    queue.write(spark.sql("SELECT 'x' AS body, 'nowhere' AS entity"))
    assert queue.bodies() == ["x"]


def test_a_row_that_names_no_entity_is_bad(spark: SparkSession, bus: ServedBroker) -> None:
    with pytest.raises(
        Exception,
        match="row 1 of partition 0 cannot be written: neither the options nor the column 'entity' name an entity",
    ):
        save(spark.sql("SELECT 'x' AS body, CAST(NULL AS STRING) AS entity"), bus.connection_string)


def test_a_topic_hands_rows_to_its_subscriptions(spark: SparkSession, bus: ServedBroker) -> None:
    with AdministrationClient.from_connection_string(bus.connection_string) as administration:
        administration.create(Kind.TOPIC, "events")
        administration.create(Kind.SUBSCRIPTION, "all", topic="events")
    save(spark.sql("SELECT 'x' AS body"), bus.connection_string, topic="events")
    with connect(bus.connection_string) as connection, connection.management("events/Subscriptions/all") as found:
        assert [message.data for message in found.peek()] == [[b"x"]]


def test_each_session_keeps_the_order_of_its_rows(spark: SparkSession, bus: ServedBroker) -> None:
    queue = Queue(bus, RequiresSession=True)
    frame = spark.range(3000).selectExpr("CAST(id AS STRING) AS body", "CONCAT('s', id % 7) AS session_id")
    queue.write(frame.repartition(2, "session_id").sortWithinPartitions(frame.body.cast("int")))
    found: dict[str, list[int]] = {}
    for message in queue.messages():
        found.setdefault(str(properties(message).group_id), []).append(int(message.data[0]))
    assert found == {f"s{each}": list(range(each, 3000, 7)) for each in range(7)}


# --- bad rows ---

BAD = [
    ("good", None, None),
    ("x" * 300_000, None, None),
    ("long", "i" * 129, None),
    ("keys", None, "other"),
    ("fine", None, None),
]


def bad_frame(spark: SparkSession) -> DataFrame:
    rows = [(body, message_id, None if key is None else "s", key) for body, message_id, key in BAD]
    return spark.createDataFrame(
        rows, "body STRING, message_id STRING, session_id STRING, partition_key STRING"
    ).coalesce(1)


def test_a_bad_row_fails_the_write_by_default(spark: SparkSession, queue: Queue) -> None:
    with pytest.raises(Exception, match=r"row 3 of partition 0 cannot be written: the message_id has 129 characters"):
        queue.write(bad_frame(spark))


def test_a_row_that_is_too_large_fails_the_write_by_default(spark: SparkSession, queue: Queue) -> None:
    with pytest.raises(Exception, match=r"row 1 of partition 0 cannot be written: the message has 30\d{4} bytes"):
        queue.write(spark.sql("SELECT repeat('x', 300000) AS body"))


def test_bad_rows_are_dropped_on_request(spark: SparkSession, queue: Queue) -> None:
    queue.write(bad_frame(spark), onBadMessage="drop")
    assert queue.bodies() == ["good", "fine"]


def test_bad_rows_are_kept_in_a_folder_with_their_reasons(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    folder = tmp_path / "bad" / "rows"
    queue.write(bad_frame(spark), onBadMessage=f"path:{folder}")
    assert queue.bodies() == ["good", "fine"]
    (file,) = folder.iterdir()
    kept = {line["row"]: line for line in map(json.loads, file.read_text().splitlines())}
    assert sorted(kept) == [2, 3, 4]
    assert kept[2]["body"] == "x" * 300_000
    assert "accepts at most 262144" in kept[2]["reason"]
    assert kept[3]["message_id"] == "i" * 129
    assert kept[4]["partition_key"] == "other"
    assert "must be equal to the session_id 's'" in kept[4]["reason"]


def test_a_message_that_only_the_service_finds_bad_is_bad(
    spark: SparkSession, bus: ServedBroker, tmp_path: Path
) -> None:
    queue = Queue(bus, RequiresSession=True)
    frame = spark.sql("SELECT 'a' AS body, 's' AS session_id UNION ALL SELECT 'b', NULL UNION ALL SELECT 'c', NULL")
    queue.write(frame.coalesce(1), onBadMessage=f"path:{tmp_path}")
    assert queue.bodies() == ["a"]
    (file,) = tmp_path.glob("*.jsonl")
    assert [json.loads(line)["body"] for line in file.read_text().splitlines()] == ["b", "c"]


def test_a_typed_property_that_cannot_be_read_is_named(spark: SparkSession, queue: Queue) -> None:
    frame = spark.sql("""SELECT 'x' AS body, map('p', '{"int": "five"}') AS application_properties""")
    with pytest.raises(Exception, match="row 1 of partition 0 cannot be written: application property 'p': int: "):
        queue.write(frame, applicationProperties="json")


# --- ids and attempts ---


def test_a_row_with_an_id_keeps_it_and_one_without_gets_one(spark: SparkSession, queue: Queue) -> None:
    queue.write(
        spark.sql("SELECT 'a' AS body, 'mine' AS message_id UNION ALL SELECT 'b', NULL UNION ALL SELECT 'b', NULL")
    )
    ids = {properties(message).message_id for message in queue.messages()}
    assert len(ids) == 3
    assert "mine" in ids


FAILING_ONCE = """
import time
from pathlib import Path

from pyspark.sql.functions import lit, udf

from peeklock.client import connect

where, marker, *queues = arguments

@udf("string")
def failing_once(number, queue):
    if number == 900 and not Path(marker).exists():
        Path(marker).touch()
        with connect(where) as connection, connection.management(queue) as management:
            while not management.peek():  # only when the first rows have been sent
                time.sleep(0.05)
        raise RuntimeError("the first attempt fails")
    return f"row {number % 500}".ljust(1000)

spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
for queue in queues:
    Path(marker).unlink(missing_ok=True)
    frame = spark.range(0, 1000, 1, 1).select(failing_once("id", lit(queue)).alias("body"))
    frame.write.format("servicebus").mode("append").options(connectionString=where, queue=queue).save()
"""


@pytest.mark.spark
def test_a_task_that_fails_and_runs_again_writes_the_same_ids(bus: ServedBroker, tmp_path: Path) -> None:
    once, any_number = Queue(bus, RequiresDuplicateDetection=True), Queue(bus)
    # A local Spark gives a task a second attempt only when it is started so.
    run_in_spark("local[1,2]", FAILING_ONCE, once.where, str(tmp_path / "failed"), once.name, any_number.name)
    for queue in (once, any_number):
        found = queue.messages()
        assert len({properties(message).message_id for message in found}) == 1000
        assert sorted({int(message.data[0].split()[1]) for message in found}) == list(range(500))
    assert len(once.messages()) == 1000
    assert len(any_number.messages()) > 1000  # what the first attempt had sent is there twice where nobody looks


def run_in_spark(master: str, script: str, *arguments: str) -> None:
    """In a Spark of its own, with 3 GB."""
    head = f"""
import sys
from pyspark.sql import SparkSession
arguments = sys.argv[1:]
builder = SparkSession.builder.master({master!r}).config("spark.driver.memory", "3g")
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
"""
    command = [sys.executable, "-c", head + script, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_write_that_is_repeated_under_its_name_writes_every_row_once(
    spark: SparkSession, once: Queue, tmp_path: Path
) -> None:
    frame = spark.range(0, 300, 1, 1).selectExpr("CAST(id AS STRING) AS body")
    once.write(frame.limit(100), writeName="nightly")
    once.write(frame, writeName="nightly")
    once.write(frame, writeName="nightly")
    assert sorted(map(int, once.bodies())) == list(range(300))
    once.write(frame, writeName="another")
    assert len(once.messages()) == 600


# --- streams ---


def files_to(queue: Queue, spark: SparkSession, folder: Path, checkpoint: Path, **options: Any) -> None:
    """Stream what is new in a folder of JSON lines to the queue, and end."""
    stream = spark.readStream.schema("body STRING, subject STRING").json(str(folder)).writeStream.format("servicebus")
    stream = stream.option("connectionString", queue.where).option("queue", queue.name)
    for name, value in options.items():
        stream = stream.option(name, value)
    query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def put(folder: Path, name: str, *bodies: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text("".join(json.dumps({"body": body}) + "\n" for body in bodies))


def forget_commit(checkpoint: Path, batch: int) -> None:
    """As after a crash between the end of a batch and Spark's note of it."""
    for path in (checkpoint / "commits").glob(f"*{batch}*"):
        path.unlink()


def test_a_stream_writes_each_batch(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    for name in ("a", "b"):
        put(tmp_path / "in", name, f"{name}1", f"{name}2")
        files_to(queue, spark, tmp_path / "in", tmp_path / "checkpoint")
    assert queue.bodies() == ["a1", "a2", "b1", "b2"]


def test_a_batch_that_is_replayed_after_a_crash_writes_every_row_once(
    spark: SparkSession, once: Queue, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    put(tmp_path / "in", "a", "1", "2", "2")
    files_to(once, spark, tmp_path / "in", checkpoint)
    first = [properties(message).message_id for message in once.messages()]
    forget_commit(checkpoint, 0)
    put(tmp_path / "in", "b", "1", "3")
    files_to(once, spark, tmp_path / "in", checkpoint)
    assert once.bodies() == ["1", "2", "2", "1", "3"]
    assert [properties(message).message_id for message in once.messages()][:3] == first


def test_a_replayed_batch_is_sent_again_without_duplicate_detection(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    put(tmp_path / "in", "a", "1")
    files_to(queue, spark, tmp_path / "in", tmp_path / "checkpoint")
    forget_commit(tmp_path / "checkpoint", 0)
    files_to(queue, spark, tmp_path / "in", tmp_path / "checkpoint")
    first, second = queue.messages()
    assert properties(first).message_id == properties(second).message_id


def test_a_bad_row_in_a_stream_is_kept_with_the_name_of_its_batch(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    put(tmp_path / "in", "a", "good", "x" * 300_000)
    options = {"onBadMessage": f"path:{tmp_path / 'bad'}"}
    files_to(queue, spark, tmp_path / "in", tmp_path / "checkpoint", **options)
    forget_commit(tmp_path / "checkpoint", 0)
    files_to(queue, spark, tmp_path / "in", tmp_path / "checkpoint", **options)
    (file,) = (tmp_path / "bad").iterdir()
    assert len(file.read_text().splitlines()) == 1


class RowSource(DataSource):
    """The data source as Spark 4.0 would have it: its streams hand over rows."""

    @classmethod
    def name(cls) -> str:
        return "rows_to_servicebus"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return RowStreamWriter(Job(Options.parse(self.options, use="write"), schema, streaming=True))


def test_a_spark_without_arrow_in_streams_writes_rows(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(RowSource)
    put(tmp_path / "in", "a", "ä", "b")
    source = spark.readStream.schema("body STRING, subject STRING").json(str(tmp_path / "in"))
    columns = (
        "body",
        "map('p', TIMESTAMP'2030-01-01 00:00:00Z') AS application_properties",
        "TIMESTAMP'2100-01-01 00:00:00Z' AS scheduled_enqueue_time",
    )
    stream = source.selectExpr(*columns).writeStream.format("rows_to_servicebus").option("queue", queue.name)
    stream = stream.option("connectionString", queue.where).option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream.trigger(availableNow=True).start().awaitTermination()
    assert queue.bodies() == ["ä", "b"]
    message = queue.messages()[0]
    assert message.application_properties == {"p": Timestamp(1_893_456_000_000)}
    assert (message.message_annotations or {})["x-opt-scheduled-enqueue-time"] == 4_102_444_800_000
    assert str(properties(message).message_id).count("/") == 3  # query, batch, partition, row


def test_rows_become_record_batches_of_a_bounded_size() -> None:
    schema = StructType().add("body", "binary").add("subject", "string")
    rows = [Row(body=bytearray(b"x"), subject=None) for _ in range(2500)]
    assert [batch.num_rows for batch in batches_of(rows, schema)] == [1000, 1000, 500]


# --- a service that fails ---


def test_a_broker_that_is_restarted_gets_every_row(spark: SparkSession, tmp_path: Path) -> None:
    served = ServedBroker(tmp_path)
    try:
        queue = Queue(served)
        served.kill()
        starting = threading.Timer(1, served.start)
        starting.start()
        queue.write(spark.range(1000).selectExpr("CAST(id AS STRING) AS body"))
        starting.join()
        assert sorted(map(int, queue.bodies())) == list(range(1000))
    finally:
        served.stop()


def test_a_broker_that_stays_away_fails_the_write_with_a_reason(spark: SparkSession, tmp_path: Path) -> None:
    served = ServedBroker(tmp_path)
    served.kill()
    with pytest.raises(Exception, match=r"could not be sent after 1 retries: .*no connection to"):
        save(spark.sql("SELECT 'x' AS body"), served.connection_string, queue="queue", sendRetries=1)


# --- large messages ---


LARGE = """
where, queue, size = arguments
frame = spark.sql(f"SELECT repeat('x', {size}) AS body UNION ALL SELECT 'small'").coalesce(1)
frame.write.format("servicebus").mode("append").options(connectionString=where, queue=queue).save()
"""


@pytest.mark.spark
def test_a_message_of_a_hundred_megabytes_is_written_under_the_premium_profile(tmp_path: Path) -> None:
    served = ServedBroker(tmp_path, "--profile", "premium")
    try:
        queue = Queue(served, MaxMessageSizeInKilobytes=102_400)
        size = 100 * 1024 * 1024 - 1000
        run_in_spark("local[1]", LARGE, queue.where, queue.name, str(size))
        with connect(queue.where, timeout=60) as connection:
            found = connection.receiver(queue.name, mode="receive-and-delete", credit=2).messages(timeout=60)
            assert sorted(len(next(found).body) for _ in range(2)) == [5, size]
    finally:
        served.stop()
