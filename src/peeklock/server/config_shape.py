"""The shape of a configuration file: objects, lists and text, each mistake reported with file, line and key.

This module knows which keys an object has; `config` knows what they mean.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from peeklock.entities.names import DefinitionError
from peeklock.limits.http import MAX_CONFIG_BYTES
from peeklock.server.config_keys import KEYS, MAX_COUNT, Thing
from peeklock.server.jsonc import JsonError, Node, load

MAX_SHOWN = 20
"""Mistakes that are reported of one file."""

T = TypeVar("T")


class ConfigError(ValueError):
    """The configuration cannot be used. `str()` is one line for each mistake.

    A mistake in SQL has two more lines: the expression, and a caret under the place.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        shown = problems[:MAX_SHOWN]
        if len(problems) > MAX_SHOWN:
            shown = (*shown, f"... and {len(problems) - MAX_SHOWN} more")
        super().__init__("\n".join(shown))


def read_document(path: Path) -> Node:
    """Read the file as values with their places. ConfigError if it does not exist or is no JSON."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: the configuration file does not exist") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"{path}: the configuration file cannot be read: {reason}") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: the configuration file is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: the configuration file is not UTF-8 here") from None
    try:
        return load(text)
    except JsonError as error:
        raise ConfigError(f"{path}:{error.line}:{error.column}: {error.problem}") from None


class Shape:
    """Reads values, and reports mistakes with their place."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def members(self, node: Node, known: Collection[str] | None) -> dict[str, Node]:
        """Return the members of an object. An unknown name is a mistake, unless `known` is None."""
        if not isinstance(node.value, dict):
            raise self.error(node, "must be an object, in braces")
        for key, member in node.value.items():
            if known is not None and key not in known:
                raise self.error(member, f"is not a known key; {_suggestion(key, known)}")
        return node.value

    def thing(self, node: Node, thing: Thing) -> dict[str, Node]:
        """Return the members of one of the file's objects. Unknown and missing keys are mistakes."""
        found = self.members(node, [key.name for key in KEYS[thing]])
        for key in KEYS[thing]:
            if key.required and key.name not in found:
                raise self.error(node, f"must have the key {key.name}")
        return found

    def elements(self, node: Node) -> list[Node]:
        if not isinstance(node.value, list):
            raise self.error(node, "must be a list, in brackets")
        return node.value

    def text(self, node: Node) -> str:
        if not isinstance(node.value, str):
            raise self.error(node, "must be text, in double quotes")
        return node.value

    def flag(self, node: Node) -> bool:
        if not isinstance(node.value, bool):
            raise self.error(node, "must be true or false")
        return node.value

    def count(self, node: Node, least: int = 0) -> int:
        value = node.value
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_COUNT:
            raise self.error(node, f"must be a whole number from {least} to {MAX_COUNT}")
        return value

    def child(self, node: Node, key: str) -> Node:
        """Return the member, or the object itself if it has no such member: the place of a mistake."""
        return self.members(node, None).get(key, node)

    def make(self, kind: type[T], arguments: Mapping[str, Any], node: Node, keys: Mapping[str, Node]) -> T:
        """Construct an object. A DefinitionError becomes a mistake at its key."""
        try:
            return kind(**arguments)
        except DefinitionError as error:
            problem = f"{error.shown} {error.rule}"
            where = keys.get(error.setting)
            if where is None and error.setting not in node.path:
                problem = f"{error.setting} {problem}"
            raise self.error(where or node, problem) from None

    def error(self, node: Node, problem: str) -> ConfigError:
        # All keys are under UserConfig, so the path starts below it.
        steps = node.path[1:] if len(node.path) > 1 else node.path
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")
        return ConfigError(f"{self._file}:{node.line}: {path or 'the file'}: {problem}")


def _suggestion(key: str, known: Collection[str]) -> str:
    by_folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(key.casefold(), by_folded, n=1)
    if near:
        return f"did you mean {by_folded[near[0]]}?"
    return f"known keys are {', '.join(known)}"
