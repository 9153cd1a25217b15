"""Coverage-guided fuzzing of the SQL of filters and actions; README.md has the commands.

Any exception except SqlError in parsing, and EvaluationError in evaluation, is a finding.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import atheris  # type: ignore[import-untyped]
from harness import fuzz

with atheris.instrument_imports(include=["peeklock.broker.rules", "lark"]):
    from peeklock.broker.rules.sql import (
        MISSING,
        EvaluationError,
        Missing,
        SqlError,
        Value,
        compile_action,
        compile_filter,
    )


CASES = Path(__file__).parents[2] / "tests" / "broker" / "rules" / "cases"


class Properties:
    """Return a message with a property of every type; their names are single letters."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {
            "a": 7,
            "b": "text",
            "c": 2.5,
            "d": True,
            "e": None,
            "f": datetime(2024, 5, 1, tzinfo=UTC),
            "g": timedelta(hours=1),
            "h": UUID(int=1),
            "i": b"\x00",
            "j": "%_",
            "k": (1 << 63) - 1,
        }

    def user(self, name: str) -> Value | Missing:
        return self.values.get(name.casefold(), MISSING)

    def system(self, name: str) -> Value:
        return self.values.get(name[0].casefold())

    def set_user(self, name: str, value: Value) -> None:
        self.values[name.casefold()] = value

    def remove_user(self, name: str) -> None:
        self.values.pop(name.casefold(), None)

    def set_system(self, name: str, value: Value) -> None:
        self.set_user(name[0], value)

    def remove_system(self, name: str) -> None:
        self.remove_user(name[0])


def check(data: bytes) -> None:
    text = data.decode(errors="replace")
    for compile_text in (compile_filter, compile_action):
        try:
            compiled = compile_text(text, {"p": "a%", "q": 1})
        except SqlError:
            continue
        with suppress(EvaluationError):
            compiled(Properties())


def examples() -> list[bytes]:
    """Return the expressions of the tests' case files."""
    found: dict[str, None] = {}
    for path in sorted(CASES.glob("*.json")):
        for case in json.loads(path.read_text()):
            found |= {case[key]: None for key in ("filter", "action") if isinstance(case.get(key), str)}
    return [text.encode(errors="replace") for text in found]


WORDS = (
    *(" AND ", " OR ", " NOT ", " IS NULL", " IS NOT NULL", " IN (", " NOT IN (", " LIKE ", " ESCAPE '", "EXISTS("),
    *("SET ", "REMOVE ", "sys.", "user.", "newid()", "property(", "TRUE", "FALSE", "NULL", "@p", "[a b]", '"a"'),
    *("<>", "!=", "<=", ">=", "||", "0x1F", "9223372036854775807", "-9223372036854775808", "1e308", "'%_'", "''"),
)


if __name__ == "__main__":
    fuzz(check, examples(), WORDS)
