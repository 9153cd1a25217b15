"""`peeklock watch`: how many messages there are, again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peeklock.atom.elements import COUNT_DETAILS
from peeklock.cli.connecting import LOCAL, CaFile, ConnectionString, administering
from peeklock.cli.output import AsJson, console, print_json, table
from peeklock.client import RequestRefused
from peeklock.client.descriptions import Entity, Kind

if TYPE_CHECKING:
    from peeklock.client.administration import AdministrationClient

app = typer.Typer()

_COLUMNS = ("Entity", "Active", "Dead-letter", "Scheduled", "Transfer", "Transfer dead-letter")


@app.command()
def watch(
    entity: Annotated[
        list[str] | None,
        typer.Argument(help="Queues, topics with their subscriptions, or topic/Subscriptions/name; without any, all."),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2,
    count: Annotated[int, typer.Option(min=0, help="Look that often; 0 until interrupted.")] = 0,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Show how many messages there are, and keep the figures up to date. With --json: an object a line, each time."""
    with administering(connection_string, ca_file) as client, _screen(json) as show:
        looked = 0
        while True:
            show([each for name in entity or [""] for each in _look(client, name)])
            looked += 1
            if looked == count:
                return
            time.sleep(interval)


def _look(client: AdministrationClient, name: str) -> Iterator[Entity]:
    """An entity with all below it; everything when it has no name."""
    topic, separator, subscription = _split(name)
    if separator:
        yield client.get(Kind.SUBSCRIPTION, subscription, topic=topic)
        return
    if not name:
        yield from client.entities(Kind.QUEUE)
        topics = [found.name for found in client.entities(Kind.TOPIC)]
    else:
        try:
            yield client.get(Kind.QUEUE, name)
            return
        except RequestRefused as refused:
            if refused.status != 404:
                raise
        topics = [client.get(Kind.TOPIC, name).name]
    for found in topics:
        yield from client.entities(Kind.SUBSCRIPTION, topic=found)


def _split(name: str) -> tuple[str, str, str]:
    at = name.lower().rfind("/subscriptions/")
    return (name, "", "") if at < 0 else (name[:at], "/", name[at + len("/subscriptions/") :])


@contextmanager
def _screen(json: bool) -> Iterator[Any]:
    """What shows the figures: in place on a terminal, below each other elsewhere."""
    if json:
        yield _json_line
    elif sys.stdout.isatty():
        from rich.live import Live

        with Live(console=console(), auto_refresh=False) as live:
            yield lambda entities: live.update(_table(entities), refresh=True)
    else:
        yield lambda entities: console().print(_table(entities))


def _json_line(entities: list[Entity]) -> None:
    counts = [{"entity": entity.path, **{name: _count(entity, name) for name in COUNT_DETAILS}} for entity in entities]
    print_json({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "entities": counts})


def _table(entities: list[Entity]) -> Any:
    rows = [(entity.path, *(_count(entity, name) for name in COUNT_DETAILS)) for entity in entities]
    return table(_COLUMNS, rows, _COLUMNS[1:])


def _count(entity: Entity, name: str) -> int:
    return int(entity.runtime.get(name, 0))
