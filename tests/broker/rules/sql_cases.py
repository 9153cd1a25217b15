"""Loads the case files of the SQL language, and has the properties of messages for expressions.

A case file is a JSON array with one case a line. What JSON has no type for is an object that names it.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from peeklock.broker.rules.sql import MISSING, SYSTEM_PROPERTIES, Missing, Value

CASES = Path(__file__).parent / "cases"

TYPES: dict[str, Any] = {
    "moment": datetime.fromisoformat,
    "seconds": lambda seconds: timedelta(seconds=seconds),
    "guid": UUID,
    "bytes": bytes.fromhex,
    "float": float,
}


def value(shown: Any) -> Any:
    if isinstance(shown, dict):
        ((name, text),) = shown.items()
        return TYPES[name](text)
    return shown


def values(shown: dict[str, Any]) -> dict[str, Any]:
    return {name: value(each) for name, each in shown.items()}


def load(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((CASES / f"{name}.json").read_text("utf-8"))
    return cases


def parametrize(*names: str, having: str) -> pytest.MarkDecorator:
    """Make one test for each case in these files that has the key `having`, named by file, line and text."""
    cases = [
        pytest.param(case, id=f"{name}-{number}-{case.get('filter', case.get('action'))}"[:120])
        for name in names
        for number, case in enumerate(load(name), 1)
        if having in case
    ]
    return pytest.mark.parametrize("case", cases)


class Properties:
    """The properties of a message, in two dictionaries."""

    def __init__(self, user: dict[str, Any] | None = None, system: dict[str, Any] | None = None) -> None:
        self.users = dict(user or {})
        self.systems = dict(system or {})

    @classmethod
    def of(cls, case: dict[str, Any]) -> Properties:
        return cls(values(case.get("user", {})), values(case.get("sys", {})))

    def _user_name(self, name: str) -> str:
        """Return the name of a property as spelt in the message; None if there is none."""
        same = (known for known in self.users if known.casefold() == name.casefold())
        return next(same, name)

    def user(self, name: str) -> Value | Missing:
        return self.users.get(self._user_name(name), MISSING)

    def system(self, name: str) -> Value:
        assert name in SYSTEM_PROPERTIES
        return self.systems.get(name)

    def set_user(self, name: str, value: Value) -> None:
        self.users[self._user_name(name)] = value

    def set_system(self, name: str, value: Value) -> None:
        assert SYSTEM_PROPERTIES[name]
        self.systems[name] = value

    def remove_user(self, name: str) -> None:
        self.users.pop(self._user_name(name), None)

    def remove_system(self, name: str) -> None:
        assert SYSTEM_PROPERTIES[name]
        self.systems.pop(name, None)
