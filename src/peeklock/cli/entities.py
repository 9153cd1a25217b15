"""`peeklock queue`, `peeklock topic` and `peeklock subscription`: create, show, list, update and delete entities.

The three groups have the same five commands. The commands for subscriptions take the topic as their first argument. The
options are made from the settings that `entities.definitions` declares.
"""

from __future__ import annotations

from typing import Any

import typer

from peeklock.cli.connecting import administering, clear_error_if_exists
from peeklock.cli.failing import fail
from peeklock.cli.output import confirm, note, print_json, print_pairs, print_table
from peeklock.cli.settings import setting_options, settings_from
from peeklock.cli.signatures import COMMON, YES, argument, with_signature
from peeklock.client.descriptions import Entity, Kind

app = typer.Typer()

_COUNTS = {
    "Active": "ActiveMessageCount",
    "Dead-letter": "DeadLetterMessageCount",
    "Scheduled": "ScheduledMessageCount",
    "Transfer": "TransferMessageCount",
    "Transfer dead-letter": "TransferDeadLetterMessageCount",
}
OWN_COUNTS = {"Claimed": "ClaimedMessageCount"}
"""Counts that only Peeklock has. An entity has the count if it is not 0."""
COLUMNS: dict[Kind, dict[str, str]] = {
    Kind.QUEUE: {**_COUNTS, "Bytes": "SizeInBytes"},
    Kind.TOPIC: {"Subscriptions": "SubscriptionCount", "Scheduled": "ScheduledMessageCount", "Bytes": "SizeInBytes"},
    Kind.SUBSCRIPTION: _COUNTS,
}


def as_json(entity: Entity) -> dict[str, Any]:
    """Return settings and counts, under the names of the administration API and the configuration file."""
    topic = {} if entity.topic is None else {"Topic": entity.topic}
    return {"Name": entity.name, **topic, **entity.settings, **entity.runtime}


def _group(kind: Kind) -> typer.Typer:
    noun = kind.lower()
    group = typer.Typer(help=f"Create, show, list, update and delete {noun}s.")
    of_topic = (argument("topic", "The topic."),) if kind is Kind.SUBSCRIPTION else ()
    names = (*of_topic, argument("name", f"The {noun}."))

    @group.command(help=f"Create a {noun}. Settings without an option get the service's defaults.")
    @with_signature(*names, *setting_options(kind), *COMMON)
    def create(*, name: str, topic: str | None = None, json: bool, **given: Any) -> None:
        settings = settings_from(kind, given)
        title = f"the {noun} {name}" if topic is None else f"the {noun} {name} of {topic}"
        with administering(given["connection_string"], given["ca_file"]) as client, clear_error_if_exists(title):
            entity = client.create(kind, name, settings, topic=topic)
        _print_result(entity, "created", json)

    @group.command(help=f"Show the settings and the message counts of a {noun}.")
    @with_signature(*names, *COMMON)
    def show(*, name: str, topic: str | None = None, json: bool, **given: Any) -> None:
        with administering(given["connection_string"], given["ca_file"]) as client:
            found = as_json(client.get(kind, name, topic=topic))
        if json:
            print_json(found)
        else:
            print_pairs(found.items())

    @group.command("list", help=f"List {noun}s with their message counts. With --json: one array.")
    @with_signature(*of_topic, *COMMON)
    def list_(*, topic: str | None = None, json: bool, **given: Any) -> None:
        with administering(given["connection_string"], given["ca_file"]) as client:
            found = list(client.entities(kind, topic=topic))
        if json:
            print_json([as_json(entity) for entity in found])
        elif found:
            columns = COLUMNS[kind] | {
                title: name for title, name in OWN_COUNTS.items() if any(name in entity.runtime for entity in found)
            }
            rows = [[entity.name, entity.settings.get("Status"), *_figures(entity, columns)] for entity in found]
            print_table(("Name", "Status", *columns), rows, columns)
        else:
            note(f"no {noun}s")

    @group.command(help=f"Change settings of a {noun}. Settings without an option stay as they are.")
    @with_signature(*names, *setting_options(kind, changing=True), *COMMON)
    def update(*, name: str, topic: str | None = None, json: bool, **given: Any) -> None:
        settings = settings_from(kind, given)
        if not settings:
            fail("nothing to update: give at least one setting")
        with administering(given["connection_string"], given["ca_file"]) as client:
            entity = client.update(kind, name, settings, topic=topic)
        _print_result(entity, "updated", json)

    @group.command(help=f"Delete a {noun} with all its messages.")
    @with_signature(*names, YES, *COMMON)
    def delete(*, name: str, topic: str | None = None, yes: bool, json: bool, **given: Any) -> None:
        with administering(given["connection_string"], given["ca_file"]) as client:
            entity = client.get(kind, name, topic=topic)
            confirm(f"Delete the {noun} {entity.path} with all its messages?", yes)
            client.delete(kind, name, topic=topic)
        _print_result(entity, "deleted", json)

    return group


def _figures(entity: Entity, columns: dict[str, str]) -> list[int | str]:
    return [entity.runtime.get(name, "") for name in columns.values()]


def _print_result(entity: Entity, done: str, json: bool) -> None:
    if json:
        print_json(as_json(entity))
    else:
        print(f"{done} the {entity.kind.lower()} {entity.path}")


for _kind in Kind:
    app.add_typer(_group(_kind), name=_kind.lower())
