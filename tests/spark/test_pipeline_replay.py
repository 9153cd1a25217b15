"""Replay: captured messages are sent again as they were, in order, when they are due."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pipeline_fixtures import Pipeline
from pyspark.sql import DataFrame, SparkSession

from peeklock.amqp.types import Int, Timestamp
from peeklock.client import Message, Properties, connect
from peeklock.spark.pipelines import capture, replay
from peeklock.spark.pipelines.capture import Target
from peeklock.spark.pipelines.columns import PARTITIONS, SCHEMA
from peeklock.spark.pipelines.lake import Lake
from peeklock.spark.pipelines.replay import Choice, Pace, chosen, due, outgoing, samples, summary
from serving import ServedBroker

START = datetime(2026, 5, 1, 12, tzinfo=UTC)
MakeQueue = Callable[..., str]


def captured(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """Captured messages, a second apart, with bodies `0`, `1`, … and what is given for each."""
    made = []
    for number, given in enumerate(rows):
        row = {
            "body": str(number).encode(),
            "message_id": f"id-{number}",
            "entity": "orders",
            "sequence_number": number + 1,
            "enqueued_time": START + timedelta(seconds=number),
            "schema_version": 1,
            **given,
        }
        made.append(tuple(row.get(name) for name in SCHEMA.fieldNames()))
    return spark.createDataFrame(made, SCHEMA).repartition(3)


def received(bus: ServedBroker, queue: str) -> list[Message]:
    with connect(bus.connection_string) as connection:
        return list(connection.management(queue).peek(1, 1000))


def bodies(messages: Sequence[Message]) -> list[str]:
    return [message.data[0].decode() for message in messages]


class Sending:
    def __init__(self, bus: ServedBroker, queue: str) -> None:
        self.bus = bus
        self.queue = queue
        self.options = {"connectionString": bus.connection_string, "queue": queue}

    def received(self) -> list[Message]:
        return received(self.bus, self.queue)


@pytest.fixture
def sending(bus: ServedBroker, make_queue: MakeQueue) -> Sending:
    return Sending(bus, make_queue())


# --- which


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (Choice(), ["0", "1", "2", "3"]),
        (Choice(where="subject = 'a' OR application_properties['size'] > 5"), ["1", "2"]),
        (Choice(entity="OTHER"), ["3"]),
        (Choice(since=START + timedelta(seconds=1)), ["1", "2", "3"]),
        (Choice(since=START + timedelta(seconds=1), until=START + timedelta(seconds=3)), ["1", "2"]),
        (Choice(where="subject = 'a'", until=START + timedelta(seconds=1)), []),
    ],
)
def test_messages_are_chosen_by_condition_entity_and_time(
    spark: SparkSession, choice: Choice, expected: list[str]
) -> None:
    size = {"application_properties": {"size": "7"}}
    rows = captured(spark, {}, {"subject": "a"}, size, {"entity": "other"})
    assert sorted(row.body.decode() for row in chosen(rows, choice).collect()) == expected


def test_a_summary_has_the_count_and_the_duration(spark: SparkSession) -> None:
    found = summary(captured(spark, {"session_id": "a"}, {"session_id": "a", "body": b"four"}, {"entity": "other"}))
    assert (found.messages, found.bytes, found.sessions) == (3, 6, 1)
    assert (found.first, found.last) == (START, START + timedelta(seconds=2))
    assert found.entities == {"orders": 2, "other": 1}
    assert found.seconds(Pace()) == 0
    assert found.seconds(Pace(rate=6)) == 0.5
    assert found.seconds(Pace(timing="original", speed=4)) == 0.5


def test_samples_are_the_first_with_the_beginning_of_their_bodies(spark: SparkSession) -> None:
    rows = captured(spark, {"body": b"\xff" + b"x" * 1000}, {}, {})
    found = samples(rows, 2)
    assert [each["sequence_number"] for each in found] == [1, 2]
    assert found[0]["body"] == "\ufffd" + "x" * 79
    assert found[0]["enqueued_time"] == START


# --- when


class Waiting:
    """A clock that goes on while somebody waits, and by what each piece of work takes."""

    def __init__(self, stop_at: float = 1e9) -> None:
        self.now = 100.0
        self.stop_at = stop_at

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.now >= self.stop_at

    def sent_at(self, slices: list[int], is_rate: bool, work: Callable[[int], float] = lambda _: 0) -> Iterator[float]:
        for number in due(slices, is_rate, self.wait, lambda: self.now):
            yield self.now - 100
            self.now += work(number)


@pytest.mark.parametrize("is_rate", [True, False])
def test_slices_are_sent_when_they_are_due(is_rate: bool) -> None:
    assert list(Waiting().sent_at([0, 1, 2, 50], is_rate)) == [0, 1, 2, 50]


def test_after_a_slow_slice_the_original_timing_catches_up() -> None:
    slow = {0: 2.5}
    assert list(Waiting().sent_at([0, 1, 2, 3, 4], False, lambda number: slow.get(number, 0))) == [0, 2.5, 2.5, 3, 4]


def test_after_a_slow_slice_a_rate_is_still_kept() -> None:
    slow = {0: 2.5}
    assert list(Waiting().sent_at([0, 1, 2, 3], True, lambda number: slow.get(number, 0))) == [0, 2.5, 3.5, 4.5]


def test_a_stopped_replay_sends_nothing_more() -> None:
    assert list(Waiting(stop_at=102).sent_at([0, 1, 2, 3], True)) == [0, 1]


def test_a_rate_and_the_original_timing_exclude_each_other(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="a rate cannot be combined with the original timing"):
        replay.replay(spark.range(1), {}, Pace(timing="original", rate=1), tasks=1)


# --- sending


def test_messages_are_sent_as_they_were_with_the_types_of_their_properties(
    spark: SparkSession, bus: ServedBroker, make_queue: MakeQueue, tmp_path: Path
) -> None:
    source, target = make_queue(), make_queue()
    properties = {"text": "a", "size": Int(5), "when": Timestamp(1893456000123), "none": None, "half": 0.5}
    message = Message(
        properties=Properties(message_id="m", subject="s", correlation_id="c", content_type="text/plain", reply_to="r"),
        application_properties=properties,
        data=["ünïcode".encode()],
    )
    with connect(bus.connection_string) as connection:
        connection.sender(source).send(message)
    options = {"connectionString": bus.connection_string}
    capture.capture(spark, [source], options, Target(folder=str(tmp_path / "captured"), until_empty=True))
    rows = capture.read(spark, str(tmp_path / "captured"))
    assert replay.replay(outgoing(rows), {**options, "queue": target}, Pace(), tasks=2) == 1
    (sent,) = received(bus, target)
    assert sent.data == message.data
    assert sent.application_properties == properties
    assert [type(value) for value in sent.application_properties.values()] == [
        type(each) for each in properties.values()
    ]
    for name in ("message_id", "subject", "correlation_id", "content_type", "reply_to"):
        assert getattr(sent.properties, name) == getattr(message.properties, name)


def test_sessions_keep_their_order_with_any_timestamps_and_number_of_tasks(
    spark: SparkSession, bus: ServedBroker, make_queue: MakeQueue
) -> None:
    back = START - timedelta(minutes=1)
    rows = [
        {"session_id": "abc"[number % 3], **({"enqueued_time": back} if number == 7 else {})} for number in range(30)
    ]
    frame = outgoing(captured(spark, *rows))
    for pace in (Pace(), Pace(rate=1000)):
        sending = Sending(bus, make_queue(RequiresSession=True))
        assert replay.replay(frame, sending.options, pace, tasks=3) == 30
        for name, first in (("a", 0), ("b", 1), ("c", 2)):
            of_session = [each for each in sending.received() if each.properties.group_id == name]
            assert bodies(of_session) == [str(number) for number in range(first, 30, 3)]


def test_a_rate_sends_in_the_order_of_all_in_slices(spark: SparkSession, sending: Sending) -> None:
    told: list[int] = []
    frame = outgoing(captured(spark, *({} for _ in range(7))))
    assert replay.replay(frame, sending.options, Pace(rate=3), tasks=2, on_sent=told.append) == 7
    assert told == [3, 3, 1]
    assert bodies(sending.received()) == ["0", "1", "2", "3", "4", "5", "6"]


def test_the_original_timing_is_kept_at_the_requested_speed(spark: SparkSession, sending: Sending) -> None:
    told: list[int] = []
    rows = captured(spark, *({} for _ in range(4)), {"enqueued_time": START + timedelta(seconds=20)})
    replay.replay(outgoing(rows), sending.options, Pace(timing="original", speed=10), tasks=2, on_sent=told.append)
    assert told == [4, 1]
    first, last = (sending.received()[at].message_annotations["x-opt-enqueued-time"] for at in (0, -1))
    assert last - first >= 1000  # two seconds, but for what the first slice took


def test_a_stopped_replay_has_sent_only_due_messages(spark: SparkSession, sending: Sending) -> None:
    stopping = threading.Event()
    frame = outgoing(captured(spark, *({} for _ in range(9))))

    def told(_: int) -> None:
        stopping.set()

    assert replay.replay(frame, sending.options, Pace(rate=3), tasks=1, on_sent=told, stopping=stopping) == 3
    assert bodies(sending.received()) == ["0", "1", "2"]


def test_a_replay_stopped_before_its_start_sends_nothing(spark: SparkSession, sending: Sending) -> None:
    stopping = threading.Event()
    stopping.set()
    frame = outgoing(captured(spark, {}))
    assert replay.replay(frame, sending.options, Pace(), tasks=1, stopping=stopping) == 0
    assert sending.received() == []


def test_new_ids_are_others_and_all_different(spark: SparkSession, sending: Sending) -> None:
    frame = outgoing(captured(spark, {}, {"body": b"0"}, {}), "new")
    replay.replay(frame, sending.options, Pace(), tasks=2)
    ids = {message.properties.message_id for message in sending.received()}
    assert len(ids) == 3
    assert not {"id-0", "id-1", "id-2"} & ids


def test_with_duplicate_detection_a_second_replay_with_the_same_ids_adds_nothing(
    spark: SparkSession, bus: ServedBroker, make_queue: MakeQueue
) -> None:
    sending = Sending(bus, make_queue(RequiresDuplicateDetection=True))
    frame = outgoing(captured(spark, {}, {}))
    for _ in range(2):
        replay.replay(frame, sending.options, Pace(), tasks=1)
    assert bodies(sending.received()) == ["0", "1"]


# --- the command


def test_the_command_has_a_dry_run_and_sends_messages(
    spark: SparkSession, bus: ServedBroker, sending: Sending, pipeline: Pipeline, tmp_path: Path
) -> None:
    given = {"date": START.date(), "hour": START.hour}
    rows = captured(spark, *({"subject": "ab"[number % 2], **given} for number in range(6)))
    Lake(spark, str(tmp_path), 1).add_batch(rows, PARTITIONS, "query", 0)
    arguments = ("replay", str(tmp_path), sending.queue, "--where", "subject = 'b'")
    ran = pipeline(*arguments, "--dry-run", "--json")
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert (said["messages"], said["entities"], len(said["samples"])) == (3, {"orders": 3}, 3)
    assert sending.received() == []
    ran = pipeline(*arguments, "--to", "2026-05-01T12:00:05Z", "--tasks", "1", "--json", bus=bus)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout) == {"chosen": 2, "sent": 2}
    assert bodies(sending.received()) == ["1", "3"]


def test_an_interrupted_command_prints_how_many_messages_it_sent(
    spark: SparkSession,
    bus: ServedBroker,
    sending: Sending,
    pipeline: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"date": START.date(), "hour": START.hour}
    Lake(spark, str(tmp_path), 1).add_batch(captured(spark, *[given] * 6), PARTITIONS, "query", 0)
    write = replay._write

    def interrupted(*arguments: Any) -> int:
        count = write(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)
        return count

    monkeypatch.setattr(replay, "_write", interrupted)
    ran = pipeline("replay", str(tmp_path), sending.queue, "--rate", "2", bus=bus)
    assert ran.returncode == 130
    assert ran.stdout == (f"stopped: sent 2 of 6 messages to {sending.queue}; some more may have been sent\n")
    assert bodies(sending.received()) == ["0", "1"]
