"""`peeklock config`: check configuration files, print their schema, and export a namespace as a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from peeklock.cli.connecting import LOCAL, CaFile, ConnectionString, administering
from peeklock.cli.exporting import namespace_of
from peeklock.cli.failing import Exit, fail
from peeklock.cli.output import AsJson, Yes, confirm, note, print_json, print_table, progress
from peeklock.cli.profiles import ProfileName
from peeklock.entities.base import EntityDefinition
from peeklock.entities.definitions import QueueDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.settings import DEFAULT_PROFILE, LAXEST, PROFILES, settings_of
from peeklock.server.config import ConfigError, load_config
from peeklock.server.config_writer import format_config
from peeklock.server.schema import format_schema

app = typer.Typer()
config = typer.Typer(
    name="config",
    help="Check configuration files, print their JSON schema, and export a namespace.",
    no_args_is_help=True,
)
app.add_typer(config)

_DEFAULT, _WIDEST = ProfileName(DEFAULT_PROFILE.name), ProfileName(LAXEST)
_COLUMNS = ("kind", "name", "settings", "rules")


@config.command()
def check(
    file: Annotated[Path, typer.Argument(help="The configuration file.")],
    profile: Annotated[ProfileName, typer.Option(help="The profile whose limits the file must meet.")] = _DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Check a configuration file: print each mistake with its line, or the entities that the file defines."""
    try:
        found = load_config(file, PROFILES[profile])
    except ConfigError as error:
        if as_json:
            print_json({"problems": error.problems, "entities": []})
            raise typer.Exit(Exit.USAGE) from None
        fail(str(error))
    rows = list(_rows(found))
    if as_json:
        print_json({"problems": [], "entities": [dict(zip(_COLUMNS, row, strict=True)) for row in rows]})
    else:
        shown = [(kind, name, _format_settings(settings), ", ".join(rules)) for kind, name, settings, rules in rows]
        print_table([column.capitalize() for column in _COLUMNS], shown)
        note(f"{file} can be used in the {profile} profile.")


@config.command()
def schema(
    profile: Annotated[ProfileName, typer.Option(help="The profile whose limits the schema has.")] = _WIDEST,
) -> None:
    """Print the JSON schema of configuration files, for use in editors."""
    print(format_schema(PROFILES[profile]), end="")


@config.command()
def export(
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write.", show_default="standard output")
    ] = None,
    with_keys: Annotated[bool, typer.Option("--with-keys", help="Include the keys of queues and topics.")] = False,
    yes: Yes = False,
) -> None:
    """Write the entities of a running namespace as a configuration file."""
    if output is not None and output.exists():
        confirm(f"{output} exists. Replace it?", yes)
    with administering(connection_string, ca_file) as client, progress("Reading entities") as step:
        namespace, left_out = namespace_of(client, step)
    for warning in left_out:
        note(warning)
    entities: list[QueueDefinition | TopicDefinition] = [*namespace.queues, *namespace.topics]
    if not with_keys and any(entity.authorization_rules for entity in entities):
        note("The file does not include the keys of queues and topics; --with-keys includes them.")
    text = format_config(namespace, with_keys=with_keys)
    if output is None:
        print(text, end="")
        return
    try:
        _write(output, text, secret=with_keys)
    except OSError as error:
        fail(f"{output} cannot be written: {error.strerror or error}", Exit.FAILED)
    note(f"Wrote {len(namespace.queues)} queues and {len(namespace.topics)} topics to {output}.")


def _rows(namespace: NamespaceDefinition) -> Iterator[tuple[str, str, dict[str, Any], list[str]]]:
    """Kind, name, settings that differ from their defaults, and rule names of each entity, in the order of the file."""
    for queue in namespace.queues:
        yield "queue", queue.name, _changed_settings(queue), []
    for topic in namespace.topics:
        yield "topic", topic.name, _changed_settings(topic), []
        for each in topic.subscriptions:
            yield (
                "subscription",
                f"{topic.name}/{each.name}",
                _changed_settings(each),
                [rule.name for rule in each.rules],
            )


def _changed_settings(entity: EntityDefinition) -> dict[str, Any]:
    values = {setting: getattr(entity, field) for field, setting in settings_of(type(entity)).items()}
    return {setting.name: setting.format(value) for setting, value in values.items() if value != setting.default}


def _format_settings(settings: dict[str, Any]) -> str:
    shown = {name: str(value).lower() if isinstance(value, bool) else value for name, value in settings.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _write(path: Path, text: str, *, secret: bool) -> None:
    """Write a file as a whole or not at all. If it has keys, only its owner may read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            if secret:
                temporary.chmod(0o600)
            file.write(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
