"""The flow report: what is counted of captured messages, and the page that shows it."""

from __future__ import annotations

import json
import os
import signal
import threading
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pipeline_fixtures import Pipeline
from pipeline_rows import NOON, at, captured, columns, message, rows
from pyspark.sql import SparkSession

from peeklock.spark.pipelines import report
from peeklock.spark.pipelines.capture import PARTITIONS
from peeklock.spark.pipelines.lake import Lake
from peeklock.spark.pipelines.page import Report, duration, number, render, size
from peeklock.spark.pipelines.plots import bars, lines, scale, shortened, step_for, time_ticks

# --- tables


def test_rates_are_by_entity_and_minute_of_the_enqueued_time(spark: SparkSession) -> None:
    frame = captured(
        spark,
        [
            message(enqueued_time=at(0), body=b"1234"),
            message(enqueued_time=at(59.9), body=b"12"),
            message(enqueued_time=at(60), body=None),
            message(enqueued_time=at(0), entity="bills", body=b"1"),
        ],
    )
    found = columns(report.rates(report.measured(frame)), "entity", "minute", "messages", "bytes", "mean_size")
    assert [(entity, minute.minute, *counted) for entity, minute, *counted in found] == [
        ("bills", 0, 1, 1, 1.0),
        ("orders", 0, 2, 6, 3.0),
        ("orders", 1, 1, 0, 0.0),
    ]


def test_percentiles_are_of_the_time_from_enqueued_to_captured(spark: SparkSession) -> None:
    waits = [message(enqueued_time=at(0), captured_at=at(seconds / 10)) for seconds in range(1, 101)]
    (found,) = rows(report.latency(report.measured(captured(spark, [*waits, message(captured_at=None)]))))
    assert found["messages"] == 100
    names = ("least_seconds", "p50_seconds", "p90_seconds", "p99_seconds", "most_seconds")
    assert [found[name] for name in names] == pytest.approx([0.1, 5.0, 9.0, 9.9, 10.0])


def test_deliveries_have_counts_and_shares(spark: SparkSession) -> None:
    frame = captured(spark, [message(delivery_count=count) for count in (0, 0, 0, 2)])
    found = columns(report.deliveries(report.measured(frame)), "delivery_count", "messages", "share")
    assert found == [(0, 3, 0.75), (2, 1, 0.25)]


def test_the_skew_of_sessions_is_the_largest_over_the_mean(spark: SparkSession) -> None:
    sessions = ["a"] * 7 + ["b"] * 2 + ["c"] * 3
    frame = report.measured(captured(spark, [message(session_id=each) for each in sessions] + [message()]))
    (found,) = rows(report.session_skew(frame))
    assert (found["sessions"], found["messages"], found["largest"], found["median"]) == (3, 12, 7, 3.0)
    assert (found["skew"], found["largest_share"]) == pytest.approx((7 / 4, 7 / 12))
    assert columns(report.sessions(frame, top=2), "session_id", "messages") == [("a", 7), ("c", 3)]


def test_an_id_that_came_twice_is_a_duplicate_and_a_row_that_was_captured_twice_is_none(spark: SparkSession) -> None:
    frame = report.measured(
        captured(
            spark,
            [
                message(message_id="twice", body=b"same", enqueued_time=at(1)),
                message(message_id="twice", body=b"same", enqueued_time=at(2)),
                message(message_id="reused", body=b"one"),
                message(message_id="reused", body=b"another"),
                message(message_id="reused", body=b"third"),
                message(message_id="elsewhere"),
                message(message_id="elsewhere", entity="bills"),
                message(message_id=None),
                message(message_id=None),
                message(message_id="again", sequence_number=7777),
                message(message_id="again", sequence_number=7777),
                message(message_id="of an entity that was made anew", sequence_number=7777, enqueued_time=at(3)),
            ],
        )
    )
    found = columns(report.duplicates(frame), "message_id", "times", "alike")
    assert found == [("reused", 3, False), ("twice", 2, True)]
    names = ("entity", "messages", "repeated_ids", "captured_again")
    assert columns(report.entities(frame), *names) == [("orders", 10, 3, 1), ("bills", 1, 0, 0)]


def test_properties_come_with_their_share_and_their_most_frequent_value(spark: SparkSession) -> None:
    frame = captured(
        spark,
        [
            message(application_properties={"region": "north", "trace": "1"}),
            message(application_properties={"region": "north"}),
            message(application_properties={"region": "south", "none": None}),
            message(),
        ],
    )
    names = ("name", "messages", "share", "values", "most_frequent", "most_frequent_share")
    assert columns(report.properties(report.measured(frame)), *names) == [
        ("region", 3, 0.75, 2, "north", pytest.approx(2 / 3)),
        ("none", 1, 0.25, 0, None, None),
        ("trace", 1, 0.25, 1, "1", 1.0),
    ]


def test_a_report_can_be_of_a_time_and_of_some_entities(spark: SparkSession) -> None:
    frame = captured(
        spark,
        [
            message(message_id="before", enqueued_time=at(-1)),
            message(message_id="first", enqueued_time=at(0)),
            message(message_id="last", enqueued_time=at(60)),
            message(message_id="other", entity="bills"),
        ],
    )
    found = report.between(frame, NOON, at(60), ("Orders",))
    assert columns(found, "message_id") == [("first",)]
    assert report.between(frame).count() == 4


# --- plots


def test_the_end_of_an_axis_is_round_and_not_below_the_largest_value() -> None:
    assert scale(0.0) == (1.0, [0.0, 1.0])
    assert scale(float("nan")) == (1.0, [0.0, 1.0])
    for most in (0.003, 1, 7, 99, 1234567):
        end, ticks = scale(most)
        assert most <= end < 2 * most
        assert ticks[0] == 0
        assert ticks[-1] == end
        assert 3 <= len(ticks) <= 7


def test_ticks_of_time_are_round_moments_within_the_axis() -> None:
    ticks = time_ticks(NOON + timedelta(seconds=7), NOON + timedelta(seconds=170))
    assert [label for _, label in ticks] == ["12:00:30", "12:01:00", "12:01:30", "12:02:00", "12:02:30"]
    assert [label for _, label in time_ticks(NOON, NOON + timedelta(days=3))][:2] == ["01-31 12:00", "02-01 00:00"]
    assert time_ticks(NOON, NOON + timedelta(days=30))[0][1] == "2030-02-07"


def test_a_step_is_chosen_so_that_not_too_many_fit() -> None:
    assert step_for(timedelta(), 10) == timedelta(seconds=1)
    assert step_for(timedelta(minutes=10), 10) == timedelta(minutes=1)
    assert step_for(timedelta(minutes=10, seconds=1), 10) == timedelta(minutes=2)


def test_long_text_is_shortened_in_the_middle() -> None:
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghijk", 10) == "abcde…hijk"


def test_an_empty_result_is_a_sentence_and_not_a_plot() -> None:
    assert "<svg" not in lines({"a": []}, number, "t")
    assert "<svg" not in bars([], number, "t")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (number(1234567), "1,234,567"),
        (number(0.12345), "0.123"),
        (number(None), ""),
        (size(1023), "1,023 B"),
        (size(1536), "1.5 KiB"),
        (size(3 << 40), "3 TiB"),
        (duration(0.0123), "12.3 ms"),
        (duration(-5), "-5 s"),
        (duration(90), "90 s"),
        (duration(5400), "90 min"),
        (duration(7 * 86400), "7 days"),
    ],
)
def test_values_are_written_as_people_read_them(shown: str, expected: str) -> None:
    assert shown == expected


# --- the page


class Page(HTMLParser):
    """What is in a page: elements with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = "<script>alert('x')</script>\"&"


def hostile() -> list[dict[str, object]]:
    columns = {"entity": HOSTILE, "session_id": HOSTILE, "message_id": HOSTILE, "enqueued_time": at(0)}
    return [message(**columns, application_properties={HOSTILE: HOSTILE}, captured_at=at(n + 1)) for n in range(3)]


def test_the_page_needs_nothing_else_and_obeys_nothing_that_a_message_says(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "page" / "report.html"
    told: list[str] = []
    frame = captured(spark, [*hostile(), *(message(enqueued_time=at(n)) for n in range(4))])
    report.publish(frame, str(tmp_path), place, f"lake {HOSTILE}", told.append)
    page = Page(place.read_text())
    assert page.open == []
    tags = {tag for tag, _ in page.elements}
    assert "svg" in tags
    assert not tags & {"script", "img", "link", "iframe", "a", "image", "use", "object"}
    assert not [names for _, names in page.elements if {"src", "href", "xlink:href"} & set(names)]
    assert not [name for _, names in page.elements for name in names if name.startswith("on")]
    assert "url(" not in place.read_text()
    assert page.text.count(HOSTILE) > 5
    assert len(told) == report.STEPS
    for name in told[:-1]:
        assert list((tmp_path / "tables" / name).glob("*.parquet")), name


def test_tables_of_little_data_that_the_driver_writes_are_those_that_spark_writes(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = captured(
        spark,
        [
            message(enqueued_time=at(n), captured_at=at(n + 2), session_id=f"s{n % 3}", message_id=f"{n % 5}")
            for n in range(9)
        ],
    )
    made = []
    for small in (True, False):
        folder = tmp_path / str(small)
        found = report.publish(frame, str(folder), folder / "report.html", "lake", small=small)
        places = sorted((folder / "tables").iterdir())
        assert [len(list(place.glob("*.parquet"))) for place in places] == [1] * len(found.tables)
        assert all((place / "_SUCCESS").exists() for place in places)
        read = {place.name: spark.read.parquet(str(place)) for place in places}
        assert {name: rows(table) for name, table in read.items()} == found.tables
        made.append((found.tables, found.rates, found.latency, {name: table.schema for name, table in read.items()}))
    assert made[0] == made[1]


def test_tables_replace_those_of_the_last_time(spark: SparkSession, tmp_path: Path) -> None:
    for count in (2, 3):
        frame = captured(spark, [message() for _ in range(count)])
        report.publish(frame, str(tmp_path), tmp_path / "report.html", "lake", small=True)
    assert columns(spark.read.parquet(str(tmp_path / "tables" / "entities")), "messages") == [(3,)]


def test_a_report_of_nothing_is_a_page_too(spark: SparkSession, tmp_path: Path) -> None:
    report.publish(captured(spark, []), str(tmp_path), tmp_path / "report.html", "lake")
    assert Page((tmp_path / "report.html").read_text()).text.count("Nothing to show.") == 5


def test_where_nothing_came_the_rate_is_zero_and_entities_beyond_the_colours_are_one_line() -> None:
    names = [f"entity-{number}" for number in range(12)]
    entity = {"messages": 1, "bytes": 1, "first": NOON, "last": NOON, "sessions": 0, "most_deliveries": 0}
    entities = [{"entity": name, **entity, "repeated_ids": 0, "captured_again": 0} for name in names]
    empty = ("latency", "sizes", "deliveries", "session_skew", "sessions", "duplicates", "properties")
    rates = [
        {"entity": name, "minute": at(minute * 60), "messages": 60, "bytes": 0} for name in names for minute in (0, 3)
    ]
    page = render(
        Report(
            source="lake",
            made_at=datetime.now(UTC),
            tables={"entities": entities, **{name: [] for name in empty}},
            every=timedelta(minutes=1),
            rates=rates,
        )
    )
    assert "entity-6, 2030-01-31 12:00:00: 1<" in page
    assert "entity-6, 2030-01-31 12:01:00: 0<" in page
    assert "entity-7, " not in page
    assert "all others, 2030-01-31 12:00:00: 5<" in page


# --- the command


def test_the_command_makes_tables_and_a_page_of_a_captured_folder(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    frame = captured(spark, [message(enqueued_time=at(n), captured_at=at(n + 2)) for n in range(20)])
    Lake(spark, str(lake), 1).add_batch(frame, PARTITIONS, "query", 0)
    ended = pipeline("report", str(lake), "--output", str(tmp_path / "report"), "--from", at(10).isoformat(), "--json")
    assert ended.returncode == 0, ended.stderr
    page = tmp_path / "report" / "report.html"
    tables = tmp_path / "report" / "tables"
    assert json.loads(ended.stdout) == {"messages": 10, "entities": 1, "page": str(page), "tables": str(tables)}
    assert "<h1>Flow report</h1>" in page.read_text()
    assert columns(spark.read.parquet(str(tables / "latency")), "messages", "p50_seconds") == [(10, 2.0)]
    assert ended.stderr == ""


def test_the_command_that_is_interrupted_ends_without_a_word(
    spark: SparkSession, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def endless(*_: object, **__: object) -> None:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        spark.range(1 << 50).selectExpr("max(hash(id))").collect()

    (tmp_path / "lake").mkdir()
    monkeypatch.setattr(report, "make_tables", endless)
    ended = pipeline("report", str(tmp_path / "lake"), "--output", str(tmp_path / "out"))
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_page_that_cannot_be_written_is_reported_in_one_line(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "file").touch()
    ended = pipeline("report", str(tmp_path / "lake"), "-o", str(tmp_path / "out"), "--page", str(tmp_path / "file/p"))
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert "file" in line
