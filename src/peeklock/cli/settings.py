"""Options for the settings of entities: one option for each setting, made from its declaration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import Parameter
from typing import Annotated, Any

import typer

from peeklock.cli.failing import fail
from peeklock.cli.values import duration
from peeklock.client.descriptions import SETTINGS, Kind
from peeklock.entities.settings import Form, Plain, Setting, Status


def setting_options(kind: Kind, *, changing: bool = False) -> list[Parameter]:
    """Return the options for all settings, or only for changeable settings."""
    return [
        Parameter(_argument(setting), Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(setting))
        for setting in SETTINGS[kind].values()
        if setting.changeable or not changing
    ]


def settings_from(kind: Kind, given: Mapping[str, Any]) -> dict[str, Plain]:
    """Return the settings that were given as options, by name."""
    found: dict[str, Plain] = {}
    for name, setting in SETTINGS[kind].items():
        value = given.get(_argument(setting))
        if value is None:
            continue
        if setting.form is Form.COUNT and value < 0:
            fail(f"{_flag(setting)}: {value} must not be negative")
        found[name] = duration(value, _flag(setting)) if setting.form is Form.DURATION else value
    return found


_TYPES: dict[Form, Any] = {Form.FLAG: bool | None, Form.COUNT: int | None, Form.STATUS: Status | None}
_HINTS = {
    Form.DURATION: " Such as 90s, PT5M, 14d, or max for no limit.",
    Form.ENTITY: " '' for none.",
}


def _annotation(setting: Setting[Any]) -> Any:
    flag = _flag(setting)
    decision = f"{flag}/--no-{flag.removeprefix('--')}" if setting.form is Form.FLAG else flag
    help_text = f"{setting.note}.{_HINTS.get(setting.form, '')}"
    return Annotated[_TYPES.get(setting.form, str | None), typer.Option(decision, help=help_text, show_default=False)]


def _argument(setting: Setting[Any]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", setting.name).lower()


def _flag(setting: Setting[Any]) -> str:
    return "--" + _argument(setting).replace("_", "-")
