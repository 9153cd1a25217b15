"""Coverage-guided fuzzing of the SQL of filters and actions; README.md says how to run it.

Any exception but SqlError, when a text is read, and EvaluationError, when it meets a message, is a finding.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import atheris

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


class Properties:
    """A message with a property of every type, named by a letter each."""

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
    text = atheris.FuzzedDataProvider(data).ConsumeUnicode(2048)
    for compile_text in (compile_filter, compile_action):
        with suppress(SqlError, EvaluationError):
            compile_text(text, {"p": "a%", "q": 1})(Properties())


def main() -> None:
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
