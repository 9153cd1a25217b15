"""Every setting that `entities.definitions` declares reaches everything that is made from the declaration."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
import typer

from peeklock.admin.descriptions import EntityState, describe, read_settings
from peeklock.atom.entries import add_content, description_of, document
from peeklock.atom.markup import parse, to_text
from peeklock.broker.administration import Runtime
from peeklock.cli.entities import app
from peeklock.client.descriptions import DEFINITIONS, Entity, Kind
from peeklock.client.documents import read_entity, write_entity
from peeklock.entities.settings import DEFAULT_PROFILE, PROFILES, Form, Setting, Status, settings_of
from peeklock.server.schema import schema

PAGE = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text("utf-8")
VERSION = "9999-12"
RUNTIME = Runtime(created_at=0, updated_at=0, accessed_at=0)
SETTINGS = [
    pytest.param(kind, field, setting, id=f"{kind}-{setting.name}")
    for kind in Kind
    for field, setting in settings_of(DEFINITIONS[kind]).items()
]


def another_value(setting: Setting[Any]) -> Any:
    """A value that is not the default."""
    match setting.form:
        case Form.FLAG:
            return not setting.default
        case Form.COUNT | Form.DURATION:
            low, high = setting.ranges[DEFAULT_PROFILE.name]
            return low if low != setting.default else high
        case Form.STATUS:
            return Status.DISABLED
    return "other"


@pytest.mark.parametrize(("kind", "field", "setting"), SETTINGS)
def test_the_client_reads_the_brokers_descriptions(kind: Kind, field: str, setting: Setting[Any]) -> None:
    value = another_value(setting)
    definition: Any = replace(DEFINITIONS[kind](name="e"), **{field: value})
    described = describe(EntityState(definition, RUNTIME, PROFILES["unlimited"], "https://host", VERSION))
    entry = document("entry")
    add_content(entry, described)
    found = read_entity(fromstring(to_text(entry)))
    assert found.settings[setting.name] == setting.format(value)


@pytest.mark.parametrize(("kind", "field", "setting"), SETTINGS)
def test_the_broker_reads_the_clients_descriptions(kind: Kind, field: str, setting: Setting[Any]) -> None:
    value = another_value(setting)
    entity = Entity(kind=kind, name="e", settings={setting.name: setting.format(value)})
    found = read_settings(DEFINITIONS[kind], description_of(parse(write_entity(entity, "host"))), VERSION, None)
    assert found[field] == value


@pytest.mark.parametrize(("kind", "field", "setting"), SETTINGS)
def test_the_command_line_has_it_with_its_note(kind: Kind, field: str, setting: Setting[Any]) -> None:
    commands = typer.main.get_command(app).commands[kind.lower()].commands  # type: ignore[attr-defined]
    flag = "--" + re.sub(r"(?<!^)(?=[A-Z])", "-", setting.name).lower()

    def options(command: str) -> dict[str, str | None]:
        return {name: getattr(each, "help", None) for each in commands[command].params for name in each.opts}

    assert (options("create")[flag] or "").startswith(setting.note)
    assert (flag in options("update")) == setting.changeable


@pytest.mark.parametrize(("kind", "field", "setting"), SETTINGS)
def test_the_schema_and_the_documentation_have_it_with_its_note(kind: Kind, field: str, setting: Setting[Any]) -> None:
    members = schema()["definitions"][kind.lower()]["properties"]["Properties"]["properties"]
    assert members[setting.name]["description"].startswith(setting.note)
    (row,) = re.findall(rf"^\| `{setting.name}` \|.*$", PAGE, re.MULTILINE)
    assert kind[0] in row.split("|")[2].split()
    assert row.endswith(f"| {setting.note} |")
