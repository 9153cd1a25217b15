"""The tables of docs/configuration.md, made from the keys, the settings and the profiles.

`python -m peeklock.server.config_reference docs/configuration.md docs/limits.md` writes them, and those of
`limits_reference`, between their marks. A test compares the pages with the code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from peeklock.entities.durations import MAX_DURATION_TEXT, format_duration
from peeklock.entities.settings import PROFILES, Form, Profile, Setting, Status, settings_of
from peeklock.limits.broker import MAX_TEXT
from peeklock.server import limits_reference
from peeklock.server.config_keys import KEYS, SETTINGS, Key, Thing

_MARKED = re.compile(r"(<!-- made: (\w+) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
_LETTERS = {Thing.QUEUE: "Q", Thing.TOPIC: "T", Thing.SUBSCRIPTION: "S"}


def page(text: str) -> str:
    """Replace the tables of a page."""
    tables = TABLES | limits_reference.TABLES
    return _MARKED.sub(lambda match: f"{match[1]}{tables[match[2]]()}\n{match[4]}", text)


def shape() -> str:
    return _table(
        ("Object", "Keys"),
        [(str(thing), ", ".join(_key(key) for key in keys)) for thing, keys in KEYS.items()],
    )


def ranges() -> str:
    """The settings that have a smallest and a largest value."""
    return _table(
        ("Key", "On", "Default", *PROFILES, ""),
        [
            (f"`{name}`", _on(setting), _default(setting), *_ranges(setting), setting.note)
            for name, setting in _settings().items()
            if _is_range(setting)
        ],
    )


def choices() -> str:
    """The other settings."""
    return _table(
        ("Key", "On", "Default", "Value", ""),
        [
            (f"`{name}`", _on(setting), _default(setting), _value(setting), setting.note)
            for name, setting in _settings().items()
            if not _is_range(setting)
        ],
    )


def profiles() -> str:
    return _table(
        ("", *PROFILES),
        [(what, *(show(profile) for profile in PROFILES.values())) for what, show in _LIMITS.items()],
    )


TABLES: dict[str, Callable[[], str]] = {each.__name__: each for each in (shape, ranges, choices, profiles)}
"""The tables of docs/configuration.md by the name in the marks."""

_LIMITS: dict[str, Callable[[Profile], str]] = {
    "Largest message": lambda profile: _bytes(profile.max_message_bytes),
    "Queues and topics": lambda profile: f"{profile.max_entities:,}",
    "Subscriptions of a topic": lambda profile: f"{profile.max_subscriptions:,}",
    "SQL filters of a topic": lambda profile: f"{profile.max_sql_filters:,}",
    "Correlation filters of a topic": lambda profile: f"{profile.max_correlation_filters:,}",
    "Messages deleted by one request": lambda profile: f"{profile.max_deleted_messages:,}",
}
_VALUES = {
    Form.FLAG: "true or false",
    Form.STATUS: ", ".join(f"`{status}`" for status in Status),
    Form.TEXT: f"up to {MAX_TEXT} characters",
    Form.ENTITY: 'a queue or topic of the file; `""` is none',
}


def _key(key: Key) -> str:
    return f"`{key.name}`{'*' if key.required else ''}{f' ({key.note})' if key.note else ''}"


def _settings() -> dict[str, Setting[Any]]:
    return {setting.name: setting for kind in SETTINGS.values() for setting in settings_of(kind).values()}


def _is_range(setting: Setting[Any]) -> bool:
    return setting.form in (Form.COUNT, Form.DURATION)


def _on(setting: Setting[Any]) -> str:
    return " ".join(_LETTERS[thing] for thing, kind in SETTINGS.items() if setting in settings_of(kind).values())


def _default(setting: Setting[Any]) -> str:
    others = [f"{profile} {_shown(setting, default)}" for profile, default in setting.profile_defaults.items()]
    return _shown(setting, setting.default) + (f" ({', '.join(others)})" if others else "")


def _shown(setting: Setting[Any], value: object) -> str:
    match setting.form, value:
        case Form.DURATION, int() | None:
            return format_duration(value).replace(MAX_DURATION_TEXT, "max")
        case Form.COUNT, None:
            return "the profile's limit"
        case _, None:
            return "none"
        case _:
            return str(value).lower() if isinstance(value, bool) else str(value)


def _ranges(setting: Setting[Any]) -> Iterator[str]:
    for profile in PROFILES.values():
        low, high = (_shown(setting, bound) for bound in setting.ranges[profile.name])
        yield low if low == high else f"{low} – {high}"


def _value(setting: Setting[Any]) -> str:
    return _VALUES[setting.form] + ("" if setting.changeable else "; fixed once the entity exists")


def _bytes(number: int) -> str:
    kilobytes = number // 1024
    return f"{kilobytes} KB" if kilobytes < 1024 else f"{kilobytes // 1024} MB"


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (f"| {' | '.join(line)} |".replace("|  |", "| |") for line in (titles, *rows))
    return "\n".join((next(lines), "|---" * len(titles) + "|", *lines))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
