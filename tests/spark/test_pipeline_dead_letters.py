"""Triage of dead-letter queues: what is counted, what is thought to be the cause, and what is sent again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pipeline_fixtures import Pipeline
from pipeline_rows import at, columns, failed, message, messages, rows
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from commands import Commands
from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.service_bus import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from peeklock.cli.receiving import peek_all
from peeklock.client import Sender
from peeklock.spark.pipelines import amounts
from peeklock.spark.pipelines.causes import likely_causes, owner, sent_to, statement, successful
from peeklock.spark.pipelines.dead_letters import (
    chosen,
    counts,
    dead_letter_queues,
    errors,
    matching,
    newest_of_each,
    read_dead_letters,
    read_small,
    read_waiting,
    triage,
)
from serving import ServedBroker

# --- counting


def test_failed_messages_are_counted_with_the_oldest_and_the_newest(spark: SparkSession) -> None:
    frame = messages(
        spark,
        [
            failed(enqueued_time=at(10)),
            failed(enqueued_time=at(5)),
            failed(enqueued_time=at(7), dead_letter_reason="Late"),
            failed(enqueued_time=at(9), entity="events/Subscriptions/audit", dead_letter_reason=None),
        ],
    )
    assert columns(counts(frame, "dead_letter_reason"), "entity", "dead_letter_reason", "messages") == [
        ("orders", "Bad", 2),
        ("events/Subscriptions/audit", None, 1),
        ("orders", "Late", 1),
    ]
    bad = rows(counts(frame, "dead_letter_reason"))[0]
    assert (bad["oldest"].second, bad["newest"].second) == (5, 10)


def test_hours_are_in_order(spark: SparkSession) -> None:
    frame = messages(spark, [failed(enqueued_time=at(seconds)) for seconds in (7300, 0, 10, 3700)])
    found = rows(triage(frame)["by_hour"])
    assert [(row["hour"].hour, row["messages"]) for row in found] == [(12, 2), (13, 1), (14, 1)]


def test_errors_that_differ_by_numbers_and_identifiers_only_are_the_same(spark: SparkSession) -> None:
    told = [
        "order 17 of 5f0c6a9e-8a55-4d09-9c1e-0a4b7f3f9d21 has no customer",
        "order 9 of 1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed has no customer",
        "the warehouse is closed",
        None,
    ]
    frame = messages(spark, [failed(dead_letter_error_description=text) for text in told])
    assert columns(errors(frame), "error", "messages", "example") == [
        ("order # of # has no customer", 2, told[0]),
        (None, 1, None),
        ("the warehouse is closed", 1, told[2]),
    ]


def test_the_newest_of_each_reason_are_the_samples_and_bodies_that_are_no_text_show_their_size(
    spark: SparkSession,
) -> None:
    frame = messages(
        spark,
        [
            failed(sequence_number=901, body=b"old"),
            failed(sequence_number=902, body="grüße".encode()),
            failed(sequence_number=903, body=b"\xff\xfe\x00"),
            failed(sequence_number=904, body=None, dead_letter_reason="Other"),
        ],
    )
    found = columns(newest_of_each(frame, 2), "dead_letter_reason", "sequence_number", "body")
    assert found == [("Bad", 903, "3 bytes"), ("Bad", 902, "grüße"), ("Other", 904, None)]


def test_nothing_failed_gives_empty_tables(spark: SparkSession) -> None:
    for name, table in triage(messages(spark, []), messages(spark, [message()])).items():
        assert rows(table) == [], name


# --- causes


def test_an_address_is_led_back_to_its_owner_and_to_where_messages_were_sent(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    addresses = [
        "Orders/$DeadLetterQueue",
        "orders/$Transfer/$deadletterqueue",
        "events/Subscriptions/audit/$DeadLetterQueue",
        "plain",
    ]
    frame = spark.createDataFrame([(each,) for each in addresses], "entity string")
    assert columns(frame.select(owner(F.col("entity")).alias("o"), sent_to(F.col("entity")).alias("s")), "o", "s") == [
        ("Orders", "orders"),
        ("orders", "orders"),
        ("events/Subscriptions/audit", "events"),
        ("plain", "plain"),
    ]


def causes(spark: SparkSession, bad: list[dict[str, object]], good: list[dict[str, object]]) -> list[tuple[str, float]]:
    found = rows(likely_causes(messages(spark, bad), messages(spark, good)))
    return [(statement(row["kind"], row["name"], row["says"], row["value"]), round(row["score"], 3)) for row in found]


def test_a_value_that_only_failed_messages_have_is_the_likely_cause(spark: SparkSession) -> None:
    bad = [failed(application_properties={"region": "north", "version": "2"}) for _ in range(4)]
    good = [
        message(application_properties={"region": region, "version": "2"})
        for region in ("north", "south", "east", "east")
    ]
    assert causes(spark, bad, good) == [("region = north", 0.75)]


def test_a_property_that_the_failed_lack_and_one_that_only_they_have_are_found(spark: SparkSession) -> None:
    bad = [failed(application_properties={"trace": f"t{number}"}) for number in range(4)]
    good = [message(application_properties={"customer": f"c{number}"}) for number in range(4)]
    assert ("customer is missing", 1.0) in causes(spark, bad, good)
    assert ("trace is present", 1.0) in causes(spark, bad, good)


def test_members_of_a_json_body_fields_and_the_size_are_facts(spark: SparkSession) -> None:
    large = json.dumps({"currency": "XXX", "filler": "-" * 5000}).encode()
    bad = [failed(body=large, subject="refund") for _ in range(3)]
    good = [message(body=b'{"currency": "EUR"}', subject="order") for _ in range(3)]
    found = dict(causes(spark, bad, good))
    assert found["subject = refund"] == found["body.currency = XXX"] == found["body of 1 KiB to 16 KiB"] == 1.0


def test_each_reason_has_causes_of_its_own_best_first(spark: SparkSession) -> None:
    bad = [failed(dead_letter_reason="A", application_properties={"x": "1"}) for _ in range(3)]
    bad += [failed(dead_letter_reason=None, application_properties={"y": "1"}) for _ in range(3)]
    good = [message(application_properties={}) for _ in range(3)]
    found = likely_causes(messages(spark, bad), messages(spark, good))
    assert columns(found, "dead_letter_reason", "rank", "name", "failed_with", "failed", "others_with", "lift") == [
        (None, 1, "y", 3, 3, 0, None),
        ("A", 1, "x", 3, 3, 0, None),
    ]


def test_a_fact_of_one_or_two_messages_is_no_cause(spark: SparkSession) -> None:
    bad = [failed(application_properties={"x": "1"}) for _ in range(2)]
    assert causes(spark, bad, [message() for _ in range(9)]) == []
    assert causes(spark, [failed(application_properties={"x": "1"}) for _ in range(9)], [message()]) == []


def test_a_value_that_is_rare_among_successful_messages_is_counted_there_too(spark: SparkSession) -> None:
    bad = [failed(application_properties={"x": "1"}) for _ in range(3)]
    good = [message(application_properties={"x": "1" if number == 0 else f"v{number}"}) for number in range(20)]
    found = likely_causes(messages(spark, bad), messages(spark, good))
    assert columns(found, "name", "value", "failed_with", "failed", "others_with", "others") == [
        ("x", "1", 3, 3, 1, 20)
    ]


def test_failed_messages_are_compared_with_other_messages_of_the_same_topic(
    spark: SparkSession,
) -> None:
    bad = [failed(entity="Shop/Subscriptions/work", message_id="m1")]
    others = [
        message(entity="shop/Subscriptions/lake", message_id="m1"),
        message(entity="shop/Subscriptions/lake", message_id="m2"),
        message(entity="shop/Subscriptions/lake", message_id=None),
        message(entity="elsewhere", message_id="m3"),
    ]
    found = successful(messages(spark, others), messages(spark, bad))
    assert {each for (each,) in columns(found, "message_id")} == {"m2", None}


# --- choosing


def test_the_condition_sees_the_entity_without_the_dead_letter_queue(spark: SparkSession) -> None:
    frame = messages(
        spark,
        [
            failed(sequence_number=801, application_properties={"region": "north"}),
            failed(sequence_number=802, application_properties={"region": "south"}),
            failed(sequence_number=803, entity="bills", application_properties={"region": "north"}),
        ],
    )
    assert chosen(matching(frame, None)) == {"orders": {801, 802}, "bills": {803}}
    assert chosen(matching(frame, "application_properties['region'] = 'north'")) == {"orders": {801}, "bills": {803}}
    assert chosen(matching(frame, "entity = 'orders' AND sequence_number > 801")) == {"orders": {802}}
    with pytest.raises(AnalysisException):
        matching(frame, "regoin = 1")


# --- on a broker


def dead_letter(commands: Commands, address: str, *failures: tuple[str, str, str], to: str | None = None) -> None:
    """Send messages, a region, reason and description each, and have them set aside."""
    with commands.connection() as connection:
        sent = [
            Message(
                properties=Properties(message_id=f"m-{number}", subject="order"),
                application_properties={"region": region},
                data=[b'{"number": %d}' % number],
            )
            for number, (region, _, _) in enumerate(failures)
        ]
        connection.sender(to or address).send_all(sent)
        with connection.receiver(address, credit=0) as receiver:
            for _, reason, description in failures:
                (received,) = receiver.receive(1, timeout=10)
                info = {DEAD_LETTER_REASON: reason, DEAD_LETTER_DESCRIPTION: description}
                receiver.reject(received, "com.microsoft:dead-letter", info=info)
            receiver.confirm()


def send(commands: Commands, address: str, *regions: str) -> None:
    with commands.connection() as connection:
        connection.sender(address).send_all(
            Message(application_properties={"region": region}, data=[b"{}"]) for region in regions
        )


def peeked(commands: Commands, address: str) -> list[str | None]:
    """The message ids that are there."""
    with commands.connection() as connection, connection.management(address) as management:
        return [(message.properties or Properties()).message_id for message in peek_all(management)]


def test_dead_letter_queues_are_found_and_read_without_being_disturbed(spark: SparkSession, bus: ServedBroker) -> None:
    commands = Commands(bus)
    queue, empty = commands.queue(), commands.queue()
    topic = commands.topic("work", "idle")
    send(commands, empty, "north")
    dead_letter(commands, queue, ("north", "Bad", "no customer"), ("south", "Late", ""))
    dead_letter(commands, f"{topic}/Subscriptions/work", ("east", "Bad", "no customer"), to=topic)
    with commands.administration() as administration:
        found = dead_letter_queues(administration)
    assert set(found) == {queue, f"{topic}/Subscriptions/work"}
    frame = read_dead_letters(spark, {"connectionString": bus.connection_string}, found)
    assert columns(counts(frame, "dead_letter_reason"), "entity", "dead_letter_reason", "messages") == sorted(
        [(queue, "Bad", 1), (queue, "Late", 1), (f"{topic}/Subscriptions/work", "Bad", 1)]
    )
    with commands.connection() as connection, connection.management(f"{queue}/$DeadLetterQueue") as management:
        assert [(message.header or Header()).delivery_count for message in peek_all(management)] == [0, 0]


def test_few_messages_are_read_without_spark_and_are_the_same_rows(
    spark: SparkSession, bus: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(bus)
    entities = [commands.queue(), commands.queue()]
    for each in entities:
        dead_letter(commands, each, ("north", "Bad", "no customer"), ("south", "Late", ""))
        send(commands, each, "east")
    options = {"connectionString": bus.connection_string}
    found = read_small(options, entities)
    assert found is not None
    for here, by_spark in (
        (found.failed(spark), read_dead_letters(spark, options, entities)),
        (found.waiting(spark), read_waiting(spark, options, entities)),
    ):
        assert here.schema == by_spark.schema
        assert rows(here) == rows(by_spark.coalesce(1))
    for most, is_few in ((4, True), (3, False)):
        monkeypatch.setattr(amounts, "SMALL_MESSAGES", most)
        assert (read_small(options, entities) is not None) is is_few


def test_no_dead_letter_queue_is_an_empty_frame(spark: SparkSession) -> None:
    assert rows(read_dead_letters(spark, {}, [])) == []


def test_the_command_shows_the_cause_and_sends_the_chosen_again(
    spark: SparkSession, bus: ServedBroker, pipeline: Pipeline, tmp_path: Path
) -> None:
    commands = Commands(bus)
    queue = commands.queue()
    dead_letter(commands, queue, *[("north", "Bad", f"order {number}") for number in range(4)], ("south", "Late", ""))
    send(commands, queue, "south", "east", "east")
    where = ("--where", "dead_letter_reason = 'Bad' AND message_id <> 'm-2'")

    ended = pipeline("dead-letters", queue, *where, "--resubmit", "--output", str(tmp_path), "--json", bus=bus)
    assert (ended.returncode, ended.stderr) == (0, "")
    told = json.loads(ended.stdout)
    assert told["messages"] == 3
    assert told["resubmitted"] == [{"entity": queue, "to": queue, "messages": 3, "chosen": 3}]
    (cause,) = [row for row in told["tables"]["causes"] if row["name"] == "region" and row["says"] == "value"]
    assert (cause["value"], cause["score"]) == ("north", 1.0)
    assert peeked(commands, f"{queue}/$DeadLetterQueue") == ["m-2", "m-4"]
    assert peeked(commands, queue)[3:] == ["m-0", "m-1", "m-3"]
    assert list((tmp_path / "tables" / "causes").glob("*.parquet"))
    assert "SharedAccessKey" not in ended.stdout


def test_the_command_has_the_same_result_for_few_and_for_many_messages(
    spark: SparkSession, bus: ServedBroker, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(bus)
    queue = commands.queue()
    dead_letter(commands, queue, *[("north", "Bad", f"order {number}") for number in range(4)], ("south", "Late", ""))
    send(commands, queue, "south", "east", "east")
    told, written = [], []
    for most in (amounts.SMALL_MESSAGES, 1):
        monkeypatch.setattr(amounts, "SMALL_MESSAGES", most)
        ended = pipeline("dead-letters", queue, "--output", str(tmp_path / str(most)), "--json", bus=bus)
        assert (ended.returncode, ended.stderr) == (0, "")
        told.append(json.loads(ended.stdout))
        folders = sorted((tmp_path / str(most) / "tables").iterdir())
        written.append({folder.name: rows(spark.read.parquet(str(folder))) for folder in folders})
    assert told[0] == told[1]
    assert len(told[0]["tables"]["causes"]) > 0
    assert written[0] == written[1]


def test_for_people_the_command_prints_tables(spark: SparkSession, bus: ServedBroker, pipeline: Pipeline) -> None:
    commands = Commands(bus)
    queue = commands.queue()
    dead_letter(commands, queue, *[("north", "Bad", f"order {number}\x1b[31m") for number in range(3)])
    send(commands, queue, "south", "east", "east")
    ended = pipeline("dead-letters", queue, "--option", "numPartitions=1", bus=bus)
    assert ended.returncode == 0, ended.stderr
    for shown in ("Reasons", "order #", "Samples", "region = north", "100 % of 3"):
        assert shown in ended.stdout
    assert "\x1b" not in ended.stdout


@pytest.mark.parametrize("at_message", [1, 60])
def test_an_interrupted_resubmission_has_every_message_exactly_once(
    spark: SparkSession, bus: ServedBroker, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, at_message: int
) -> None:
    """At the first and in the middle of a transaction: Ctrl-C when a message is sent."""
    commands = Commands(bus)
    queue = commands.queue()
    count = 100
    dead_letter(commands, queue, *[("north", "Bad", "")] * count)
    post, sent = Sender.post, 0

    def interrupted(sender: Sender, *arguments: Any, **more: Any) -> Any:
        nonlocal sent
        if more.get("state") is not None:  # within a transaction
            sent += 1
            if sent == at_message:
                os.kill(os.getpid(), signal.SIGINT)
        return post(sender, *arguments, **more)

    monkeypatch.setattr(Sender, "post", interrupted)
    # Spark's own for the whole process would cancel jobs; a process that runs the command alone has this one.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ended = pipeline("dead-letters", queue, "--samples", "0", "--top", "0", "--resubmit", "--json", bus=bus)
    signal.signal(signal.SIGINT, before)
    assert (ended.returncode, ended.stdout) == (130, "")
    again, left = peeked(commands, queue), peeked(commands, f"{queue}/$DeadLetterQueue")
    done = (at_message - 1) // 40 * 40
    assert len(again) == done
    assert f"interrupted after {done} of {count}" in ended.stderr
    assert sorted([*again, *left], key=str) == sorted(f"m-{number}" for number in range(count))
