"""The programs in the pages on Spark and on the pipelines do what the pages say, on a broker and a Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from peeklock.cli.receiving import peek_all
from peeklock.client import Message, Properties, connect
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from serving import ServedBroker

DOCS = Path(__file__).parents[2] / "docs"
CONNECTION = re.compile(r'"Endpoint=sb://[^"]*"')
PLACE = re.compile(r'(?<=")(/data|lake|copy)(?=/)')
"""Folders that the programs write to."""


def programs(page: str, heading: str) -> list[str]:
    """The Python in a part of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    part = re.split(rf"^#+ {heading}$", text, maxsplit=1, flags=re.MULTILINE)[1]
    part = re.split(r"^## ", part, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^```python\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)


class World:
    """What the programs take as given, and a broker that has the entities they name."""

    def __init__(self, spark: SparkSession, bus: ServedBroker, folder: Path) -> None:
        self.bus = bus
        self.folder = folder
        self.names: dict[str, Any] = {
            "spark": spark,
            **dict.fromkeys(("CONNECTION_STRING", "connection_string"), bus.connection_string),
            "queue": {"connectionString": bus.connection_string, "queue": "queue"},
        }

    def run(self, program: str) -> None:
        """In its own folder, until every stream that it starts has done what there is to do."""
        text = PLACE.sub(lambda match: f"{self.folder}/{match[1].strip('/')}", program)
        text = CONNECTION.sub("CONNECTION_STRING", text).replace("query.awaitTermination()\n", "")
        exec(compile(text, "the program", "exec"), self.names)  # noqa: S102
        for stream in self.names["spark"].streams.active:
            try:
                stream.processAllAvailable()
            finally:
                stream.stop()

    def send(self, address: str, *bodies: str) -> None:
        with connect(self.bus.connection_string) as connection:
            connection.sender(address).send_all(
                Message(properties=Properties(subject="created", message_id=body), data=[body.encode()])
                for body in bodies
            )

    def bodies(self, address: str) -> list[str]:
        """Of the messages that are there and not claimed."""
        with connect(self.bus.connection_string) as connection, connection.management(address) as management:
            found = [*peek_all(management)]
        return sorted(
            each.data[0].decode() for each in found if "peeklock-claim" not in (each.application_properties or {})
        )

    def dead_letter(self, address: str, reason: str) -> None:
        with connect(self.bus.connection_string) as connection, connection.receiver(address, credit=0) as receiver:
            (received,) = receiver.receive(1, timeout=10)
            receiver.reject(received, "com.microsoft:dead-letter", info={"DeadLetterReason": reason}, wait=True)

    def taken(self, folder: str) -> list[str]:
        rows = self.names["spark"].read.parquet(str(self.folder / folder)).collect()
        return sorted(row.body.decode() for row in rows)


@pytest.fixture(scope="module")
def entities(bus: ServedBroker) -> None:
    with AdministrationClient.from_connection_string(bus.connection_string) as administration:
        administration.create(Kind.QUEUE, "orders-queue")
        administration.create(Kind.QUEUE, "copies", {"RequiresDuplicateDetection": True})
        administration.create(Kind.TOPIC, "orders")
        administration.create(Kind.SUBSCRIPTION, "lake", topic="orders")


@pytest.fixture
def world(spark: SparkSession, bus: ServedBroker, entities: None, tmp_path: Path) -> Iterator[World]:
    yield World(spark, bus, tmp_path)
    with connect(bus.connection_string) as connection:
        for address in ("queue", "queue/$DeadLetterQueue", "copies", "orders-queue"):
            with connection.receiver(address, credit=0, mode="receive-and-delete") as receiver:
                while receiver.receive(100, timeout=0.2):
                    pass


def test_the_first_program_of_the_page_writes_messages_to_parquet(world: World) -> None:
    world.send("queue", "a", "b")
    first, *_ = programs("spark.md", "Spark")
    world.run(first)
    assert world.taken("lake/messages") == ["a", "b"]
    (settle,) = programs("spark.md", "Settling without a start")
    world.run(settle)
    assert world.bodies("queue") == []


def test_the_recipes_have_the_documented_results(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    by_reason, into_table, as_columns, copying, last_hour = programs("spark.md", "Recipes")
    world.send("queue", '{"id": 1, "price": 2.5}', "b")
    world.dead_letter("queue", "NoCustomer")
    world.run(by_reason)
    assert "NoCustomer" in capsys.readouterr().out

    world.send("orders", "c", "d")
    world.run(into_table)
    assert world.taken("lake/orders") == ["c", "d"]

    source = world.names["queue"]
    dead = world.names["spark"].read.format("servicebus").options(**source, subQueue="deadLetter")
    world.names["messages"] = dead.load()
    world.run(as_columns)
    (order,) = world.names["orders"].select("order.*").collect()
    assert (order.id, order.price) == (1, 2.5)

    world.run(last_hour)
    assert world.names["recent"].count() == 0  # it names a moment that is to come
    world.run(last_hour.replace("2030-01-31T12:00:00Z", "2020-01-31T12:00:00Z"))
    assert world.names["recent"].count() == 1

    world.run(copying)
    assert world.bodies("copies") == ["b"]


def test_the_programs_of_the_pipelines_have_the_documented_results(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    (capturing,), (replaying,), (looking,) = (
        [each.replace('"orders"', '"orders-queue"') for each in programs("pipelines.md", part)]
        for part in ("Capture", "Replay", "Dead letters")
    )
    world.send("orders-queue", *(f"m{number}" for number in range(4)))
    world.run(capturing)
    assert re.search(r"orders-queue.*\b4\b", capsys.readouterr().out)
    assert world.bodies("orders-queue") == []

    world.run(replaying)
    assert "messages=4" in capsys.readouterr().out
    assert world.bodies("orders-queue") == ["m0", "m1", "m2", "m3"]

    for _ in range(3):
        world.dead_letter("orders-queue", "NoCustomer")
    world.run(looking)
    assert re.search(r"NoCustomer\W+3", capsys.readouterr().out)
