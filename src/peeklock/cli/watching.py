"""`peeklock watch`: print the message counts of entities at an interval."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peeklock.atom.elements import COUNT_DETAILS, OWN_COUNTS
from peeklock.cli.connecting import LOCAL, CaFile, ConnectionString, administering
from peeklock.cli.output import AsJson, console, print_json, table
from peeklock.client import RequestRefused
from peeklock.client.descriptions import Entity, Kind
from peeklock.entities.names import split_subscription

if TYPE_CHECKING:
    from peeklock.client.administration import AdministrationClient

app = typer.Typer()

_COLUMNS = ("Entity", "Active", "Dead-letter", "Scheduled", "Transfer", "Transfer dead-letter")
_OWN_COLUMNS = {"ClaimedMessageCount": "Claimed"}


@app.command()
def watch(
    entity: Annotated[
        list[str] | None,
        typer.Argument(
            help="Queues, topics with their subscriptions, or subscriptions as topic/Subscriptions/name.",
            show_default="all entities",
        ),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two readings.")] = 2,
    count: Annotated[int, typer.Option(min=0, help="How many times to read the counts; 0: until interrupted.")] = 0,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Show the message counts of entities, and update them at an interval. With --json: an object a line."""
    with administering(connection_string, ca_file) as client, _screen(json) as show:
        readings = 0
        while True:
            show([each for name in entity or [""] for each in _read_entities(client, name)])
            readings += 1
            if readings == count:
                return
            time.sleep(interval)


def _read_entities(client: AdministrationClient, name: str) -> Iterator[Entity]:
    """Read a queue, a subscription, or all subscriptions of a topic; all of them without a name."""
    parts = split_subscription(name)
    if parts is not None:
        topic, subscription = parts
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


@contextmanager
def _screen(json: bool) -> Iterator[Any]:
    """Yield a function that shows the counts: in place on a terminal, else as one table after another."""
    if json:
        yield _json_line
    elif sys.stdout.isatty():
        from rich.live import Live

        with Live(console=console(), auto_refresh=False) as live:
            yield lambda entities: live.update(_table(entities), refresh=True)
    else:
        yield lambda entities: console().print(_table(entities))


def _json_line(entities: list[Entity]) -> None:
    names = _names(entities)
    counts = [{"entity": entity.path, **{name: _count(entity, name) for name in names}} for entity in entities]
    print_json({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "entities": counts})


def _table(entities: list[Entity]) -> Any:
    names = _names(entities)
    columns = (*_COLUMNS, *(_OWN_COLUMNS[name] for name in names if name in _OWN_COLUMNS))
    rows = [(entity.path, *(_count(entity, name) for name in names)) for entity in entities]
    return table(columns, rows, columns[1:])


def _names(entities: list[Entity]) -> tuple[str, ...]:
    """Return the counts to show: Peeklock's own only if an entity has them."""
    return (*COUNT_DETAILS, *(name for name in OWN_COUNTS if any(name in entity.runtime for entity in entities)))


def _count(entity: Entity, name: str) -> int:
    return int(entity.runtime.get(name, 0))
