"""`peeklock queue`, `topic` and `subscription`: create, show, list, update and delete them.

The three groups have the same five commands. A subscription is named together with its topic. The options are made from
the settings that `entities.definitions` declares.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from peeklock.cli.connecting import LOCAL, CaFile, ConnectionString, administering, told_when_there
from peeklock.cli.failing import fail
from peeklock.cli.output import AsJson, Yes, confirm, note, print_json, print_pairs, print_table
from peeklock.cli.settings import setting_options, settings_from
from peeklock.client.descriptions import Entity, Kind

app = typer.Typer()

Command = Callable[..., None]
_COUNTS = {
    "Active": "ActiveMessageCount",
    "Dead-letter": "DeadLetterMessageCount",
    "Scheduled": "ScheduledMessageCount",
    "Transfer": "TransferMessageCount",
    "Transfer dead-letter": "TransferDeadLetterMessageCount",
}
COLUMNS: dict[Kind, dict[str, str]] = {
    Kind.QUEUE: {**_COUNTS, "Bytes": "SizeInBytes"},
    Kind.TOPIC: {"Subscriptions": "SubscriptionCount", "Scheduled": "ScheduledMessageCount", "Bytes": "SizeInBytes"},
    Kind.SUBSCRIPTION: _COUNTS,
}


def as_json(entity: Entity) -> dict[str, Any]:
    """Return settings and counts by the names of the administration API and the configuration file."""
    topic = {} if entity.topic is None else {"Topic": entity.topic}
    return {"Name": entity.name, **topic, **entity.settings, **entity.runtime}


def with_signature(*parameters: Parameter) -> Callable[[Command], Command]:
    """Give a command with keyword arguments the signature from which typer makes its options."""

    def decorate(command: Command) -> Command:
        command.__signature__ = Signature(list(parameters))  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def _keyword(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _argument(name: str, help: str) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[str, typer.Argument(help=help)])


_WHERE = (
    _keyword("connection_string", ConnectionString, LOCAL),
    _keyword("ca_file", CaFile, None),
    _keyword("json", AsJson, False),
)
_YES = _keyword("yes", Yes, False)


def _group(kind: Kind) -> typer.Typer:
    noun = kind.lower()
    group = typer.Typer(help=f"Create, show, list, update and delete {noun}s.")
    of_topic = (_argument("topic", "The topic."),) if kind is Kind.SUBSCRIPTION else ()
    names = (*of_topic, _argument("name", f"The {noun}."))

    @group.command(help=f"Create a {noun}. Settings that are not given get the service's defaults.")
    @with_signature(*names, *setting_options(kind), *_WHERE)
    def create(*, name: str, topic: str | None = None, json: bool, **given: Any) -> None:
        settings = settings_from(kind, given)
        what = f"the {noun} {name}" if topic is None else f"the {noun} {name} of {topic}"
        with administering(given["connection_string"], given["ca_file"]) as client, told_when_there(what):
            entity = client.create(kind, name, settings, topic=topic)
        _tell(entity, "created", json)

    @group.command(help=f"Show the settings and the counts of a {noun}.")
    @with_signature(*names, *_WHERE)
    def show(*, name: str, topic: str | None = None, json: bool, **given: Any) -> None:
        with administering(given["connection_string"], given["ca_file"]) as client:
            found = as_json(client.get(kind, name, topic=topic))
        if json:
            print_json(found)
        else:
            print_pairs(found.items())

    @group.command("list", help=f"List {noun}s with their counts. With --json: one array.")
    @with_signature(*of_topic, *_WHERE)
    def list_(*, topic: str | None = None, json: bool, **given: Any) -> None:
        with administering(given["connection_string"], given["ca_file"]) as client:
            found = list(client.entities(kind, topic=topic))
        if json:
            print_json([as_json(entity) for entity in found])
        elif found:
            columns = COLUMNS[kind]
            rows = [[entity.name, entity.settings.get("Status"), *_figures(entity, columns)] for entity in found]
            print_table(("Name", "Status", *columns), rows, columns)
        else:
            note(f"no {noun}s")

    @group.command(help=f"Change settings of a {noun}. Settings that are not given stay as they are.")
    @with_signature(*names, *setting_options(kind, changing=True), *_WHERE)
    def update(*, name: str, topic: str | None = None, json: bool, **given: Any) -> None:
        settings = settings_from(kind, given)
        if not settings:
            fail("there is nothing to update: give at least one setting")
        with administering(given["connection_string"], given["ca_file"]) as client:
            entity = client.update(kind, name, settings, topic=topic)
        _tell(entity, "updated", json)

    @group.command(help=f"Delete a {noun} with all its messages.")
    @with_signature(*names, _YES, *_WHERE)
    def delete(*, name: str, topic: str | None = None, yes: bool, json: bool, **given: Any) -> None:
        with administering(given["connection_string"], given["ca_file"]) as client:
            entity = client.get(kind, name, topic=topic)
            confirm(f"Delete the {noun} {entity.path} with all its messages?", yes)
            client.delete(kind, name, topic=topic)
        _tell(entity, "deleted", json)

    return group


def _figures(entity: Entity, columns: dict[str, str]) -> list[int | str]:
    return [entity.runtime.get(name, "") for name in columns.values()]


def _tell(entity: Entity, what: str, json: bool) -> None:
    if json:
        print_json(as_json(entity))
    else:
        print(f"{what} the {entity.kind.lower()} {entity.path}")


for _kind in Kind:
    app.add_typer(_group(_kind), name=_kind.lower())
